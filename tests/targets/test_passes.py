"""Every architecture: whatever way tokens are run, states and logits are those of the model's own plain pass."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from kit.models import NAMES, WINDOW, prompts_of, tiny
from torch import Tensor

from semiar.core.draft import Draft
from semiar.errors import TargetError
from semiar.targets import Target
from semiar.targets.target import LAST

LAYERS = (0, 1, LAST)
CLOSE = {"rtol": 0, "atol": 2e-5}  # Hugging Face norms and rotary tables compute in float32 also in a float64 model


@functools.cache
def target_named(name: str) -> Target:
    return Target(tiny(name))


@torch.inference_mode()
def plain(target: Target, texts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Logits (n, V) and states (n, F, H) of the last token of every text, by the bare model in one pass."""
    width = max(map(len, texts))
    padded = torch.tensor([text + [0] * (width - len(text)) for text in texts])
    out = target.lm(input_ids=padded, output_hidden_states=True, use_cache=False)
    states = [out.hidden_states[-1] if layer == LAST else out.hidden_states[layer + 1] for layer in LAYERS]
    which, last = torch.arange(len(texts)), torch.tensor([len(text) - 1 for text in texts])
    return out.logits[which, last], torch.stack([state[which, last] for state in states], 1)


def random_tree(batch: int, nodes: int, vocab: int) -> Draft:
    """Nodes with random earlier parents, another tree in every row."""
    parents = torch.stack([torch.randint(0, slot + 1, (batch,)) for slot in range(nodes)], 1)
    return Draft(torch.randint(0, vocab, (batch, nodes)), parents)


def path_to(draft: Draft, row: int, slot: int) -> list[int]:
    """Slots from 0 to `slot`."""
    path = [slot]
    while path[0]:
        path.insert(0, int(draft.parents[row, path[0] - 1]))
    return path


@torch.inference_mode()
def prefilled(target: Target, prompts: list[list[int]], capacity: int, chunk: int) -> tuple[Any, Tensor]:
    """A cache holding all but the last token of every prompt, and the states of those."""
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    width = int(lengths.max())
    tokens = torch.tensor([prompt + [0] * (width - len(prompt)) for prompt in prompts])
    cache = target.start(len(prompts), capacity)
    return cache, target.prefill(tokens[:, :-1], lengths - 1, cache, LAYERS, chunk)


@torch.inference_mode()
def check_round(target: Target, cache: Any, rows: list[list[int]], draft: Draft) -> None:
    """Run a tree behind every row, compare every slot with a plain pass, keep a random path of each row."""
    last = torch.tensor([row[-1:] for row in rows])
    tokens = torch.cat([last, draft.tokens], 1)
    depths, mask = draft.geometry()
    out = target(tokens, cache, depths=depths, mask=mask, layers=LAYERS)
    paths = []
    for index, row in enumerate(rows):
        slots = range(tokens.shape[1])
        logits, states = plain(target, [row[:-1] + tokens[index, path_to(draft, index, s)].tolist() for s in slots])
        torch.testing.assert_close(out.logits[index], logits, **CLOSE)
        torch.testing.assert_close(out.hidden[index], states, **CLOSE)
        paths.append(path_to(draft, index, int(torch.randint(0, tokens.shape[1], ()))))
        row += [*tokens[index, paths[-1][1:]].tolist(), int(torch.randint(0, target.vocab_size, ()))]
    deepest = max(map(len, paths))
    cache.keep(torch.tensor([path + [-1] * (deepest - len(path)) for path in paths]))
    assert cache.lengths.tolist() == [len(row) - 1 for row in rows]


@pytest.mark.parametrize("name", NAMES)
def test_trees_behind_ragged_rows_equal_plain_passes(name: str) -> None:
    target = target_named(name)
    rows = prompts_of(target.vocab_size, [2, 7, 19])
    cache, states = prefilled(target, rows, capacity=8, chunk=5)  # chunks, and buffers that must grow
    for index, row in enumerate(rows):
        wanted = plain(target, [row[: position + 1] for position in range(len(row) - 1)])[1]
        torch.testing.assert_close(states[index, : len(row) - 1], wanted, **CLOSE)
    for _ in range(3):
        check_round(target, cache, rows, random_tree(3, 5, target.vocab_size))
    assert max(map(len, rows)) > 2 * WINDOW


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3"])
def test_one_row_of_one_token_at_a_time(name: str) -> None:
    target = target_named(name)
    row = prompts_of(target.vocab_size, [1])[0]
    cache = target.start(1, 4)
    for _ in range(WINDOW + 3):
        check_round(target, cache, [row], Draft.empty(1))


@pytest.mark.parametrize("name", ["mistral", "qwen2_window", "gemma3"])
def test_a_draft_longer_than_the_window(name: str) -> None:
    target = target_named(name)
    rows = prompts_of(target.vocab_size, [2, 12])
    cache, _ = prefilled(target, rows, 64, 64)
    check_round(target, cache, rows, Draft.chain(torch.randint(0, target.vocab_size, (2, WINDOW + 3))))
    parents = torch.cat([torch.zeros(2, 1), torch.arange(WINDOW + 2).expand(2, -1)], 1).long()  # two branches, one long
    check_round(target, cache, rows, Draft(torch.randint(0, target.vocab_size, (2, WINDOW + 3)), parents))


@pytest.mark.parametrize("name", ["llama", "phi3", "gemma2"])
def test_chain_without_a_mask_is_a_tree_with_one(name: str) -> None:
    target = target_named(name)
    rows = prompts_of(target.vocab_size, [3, 11])
    draft = Draft.chain(torch.randint(0, target.vocab_size, (2, 4)))
    tokens = torch.cat([torch.tensor([row[-1:] for row in rows]), draft.tokens], 1)
    outputs = []
    for mask in (None, draft.geometry()[1]):
        cache, _ = prefilled(target, rows, 32, 64)
        with torch.inference_mode():
            outputs.append(target(tokens, cache, mask=mask).logits)
    torch.testing.assert_close(outputs[0], outputs[1], **CLOSE)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_joined_and_selected_rows_go_on_as_before(name: str) -> None:
    target = target_named(name)
    rows = prompts_of(target.vocab_size, [12, 3, 9, 17])
    cache, _ = prefilled(target, rows[:2], capacity=16, chunk=64)
    check_round(target, cache, rows[:2], random_tree(2, 4, target.vocab_size))
    other, _ = prefilled(target, rows[2:], capacity=64, chunk=64)
    cache.join(other)
    check_round(target, cache, rows, random_tree(4, 4, target.vocab_size))
    cache.select(torch.tensor([3, 1]))
    check_round(target, cache, [rows[3], rows[1]], random_tree(2, 4, target.vocab_size))


@pytest.mark.parametrize("name", NAMES)
def test_hidden_is_exactly_what_the_output_head_reads(name: str) -> None:
    target = target_named(name)
    read: list[Tensor] = []
    handle = target.lm.get_output_embeddings().register_forward_pre_hook(lambda _m, args: read.append(args[0]))
    with torch.inference_mode():
        out = target(torch.randint(0, target.vocab_size, (2, 12)))
    handle.remove()
    assert torch.equal(out.hidden[:, :, -1], read[0])
    with torch.inference_mode():
        torch.testing.assert_close(target.head(out.hidden[:, :, -1]), out.logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "bare"), [("gemma2", 12.0), ("granite", None), ("cohere", None)])
def test_head_does_what_the_architecture_adds(name: str, bare: float | None) -> None:
    target = target_named(name)
    with torch.inference_mode():
        out = target(torch.randint(0, target.vocab_size, (1, 9)))
        product = target.lm.get_output_embeddings()(out.hidden[:, :, -1])
    assert not torch.allclose(product, out.logits)  # a cap or a scale matters here
    torch.testing.assert_close(target.finish(product), out.logits, rtol=0, atol=1e-12)
    if bare:
        assert float(out.logits.abs().max()) <= bare


def test_states_without_logits_are_the_same() -> None:
    target = target_named("qwen3")
    ids = torch.randint(0, target.vocab_size, (2, 9))
    with torch.inference_mode():
        full, bare = target(ids, layers=LAYERS), target(ids, layers=LAYERS, logits=False)
    assert bare.logits is None and full.hidden.shape == (2, 9, 3, target.hidden_size)
    assert torch.equal(full.hidden, bare.hidden)


def test_states_of_a_pass_that_somebody_else_makes() -> None:
    target = target_named("llama")
    ids = torch.randint(0, target.vocab_size, (2, 9))
    target.watch(LAYERS)
    with torch.inference_mode():
        target.lm(input_ids=ids)
        hidden = target.read(LAYERS)
        assert torch.equal(hidden, target(ids, layers=LAYERS).hidden)


def test_head_rows_are_the_rows_of_the_head() -> None:
    target = target_named("llama")
    weight, bias = target.head_rows(torch.tensor([5, 2]))
    assert torch.equal(weight, target.lm.lm_head.weight[[5, 2]]) and bias is None and not weight.requires_grad


def test_head_rows_refuse_an_adapted_head() -> None:
    from semiar.targets.lora import LoraSettings, attach

    adapted = attach(tiny("llama"), LoraSettings(r=2, target_modules=["lm_head", "q_proj"]))
    with pytest.raises(TargetError, match="output head"):
        Target(adapted).head_rows(torch.tensor([1]))


def test_facts_about_the_model() -> None:
    target = Target(tiny("gpt2", torch.float32, vocab=50, context=77))
    assert (target.vocab_size, target.hidden_size, target.max_length) == (50, 32, 77)
    assert (len(target.blocks), target.dtype, target.embedding.shape) == (3, torch.float32, (50, 32))
