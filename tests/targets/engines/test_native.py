"""The native engine: the plain model to rounding, and the same bits however many tokens are in a pass."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from kit.drafters import TableDrafter, noisy_drafter
from kit.laws import FOREIGN, FOUR, place_misfits
from kit.models import plain_greedy, prompts_of, table_model, tiny
from kit.texts import texts
from torch import Tensor, nn

from semiar.core.draft import Draft
from semiar.core.sampling import Sampling
from semiar.drafters import NoDrafter
from semiar.errors import ConfigError, TargetError
from semiar.targets import Target
from semiar.targets.cache import Cache
from semiar.targets.early import EarlyLayers
from semiar.targets.engines import kernels
from semiar.targets.engines.packed import can_pack
from semiar.targets.engines.prepare import choose_engine, prepare

pytestmark = pytest.mark.skipif(not kernels.compiler(), reason="this machine has no C++ compiler")
needs_bfloat16 = pytest.mark.skipif(
    not can_pack(torch.device("cpu"), torch.bfloat16), reason="this CPU has no bfloat16 kernels"
)
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-odd": {"hidden_size": 36, "intermediate_size": 50, "num_attention_heads": 3, "num_key_value_heads": 1},
    "llama-wide": {"hidden_size": 96, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 80},
    "llama-scaled": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0}},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {},
}
every_model = pytest.mark.parametrize("name", MODELS)


def model_of(name: str, dtype: torch.dtype) -> Any:
    return tiny(name.split("-")[0], dtype, **MODELS[name])


def native_of(name: str, dtype: torch.dtype = torch.float32) -> Target:
    target = Target(model_of(name, dtype))
    prepare(target, "native")
    assert target.native is not None
    return target


def filled(target: Target, prompts: list[list[int]]) -> Cache:
    """A cache behind these prompts."""
    lengths = torch.tensor([len(p) for p in prompts])
    tokens = torch.tensor([p + [0] * (int(lengths.max()) - len(p)) for p in prompts])
    cache = target.start(len(prompts), 8)
    target.prefill(tokens, lengths, cache, (-1,))
    return cache


@every_model
@torch.inference_mode()
def test_trees_behind_ragged_rows_equal_the_plain_model(name: str) -> None:
    torch.manual_seed(3)
    plain, target = Target(model_of(name, torch.float32)), native_of(name)
    prompts = prompts_of(plain.vocab_size, [2, 7, 40])
    parents = torch.stack([torch.randint(0, slot + 1, (3,)) for slot in range(5)], 1)
    draft = Draft(torch.randint(0, plain.vocab_size, (3, 5)), parents)
    depths, mask = draft.geometry()
    outputs = []
    for one in (plain, target):
        cache = filled(one, prompts)
        tokens = torch.cat([torch.tensor([[3]] * 3), draft.tokens], 1)
        seen = [one(tokens, cache, depths=depths, mask=mask, layers=(0, 1, -1))]
        cache.keep(torch.tensor([[0, -1], [0, 3], [0, 5]]))
        seen.append(one(tokens[:, :3], cache, layers=(-1,)))
        outputs.append(seen)
    for found, wanted in zip(outputs[1], outputs[0], strict=True):
        assert found.logits.dtype == torch.float32
        torch.testing.assert_close(found.logits, wanted.logits, rtol=0, atol=2e-3)
        torch.testing.assert_close(found.hidden, wanted.hidden, rtol=0, atol=2e-3)


def alone(target: Target, cache: Cache, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and states of one row's tokens, one pass each."""
    outputs = []
    for place in range(tokens.shape[1]):
        outputs.append(target(tokens[:, place : place + 1], cache))
        cache.keep(torch.zeros(1, 1, dtype=torch.long), chain=True)
    return torch.cat([o.logits for o in outputs], 1), torch.cat([o.hidden for o in outputs], 1)  # type: ignore[misc]


def tree_of(tokens: Tensor, vocab: int) -> tuple[Tensor, Tensor, Tensor]:
    """A tree (1, 2 n) in which every token of (1, n) has a false brother, with its depths and mask."""
    tree = torch.stack([tokens[0], (tokens[0] + 1) % vocab], 1).flatten()[None]
    parents = torch.tensor([[(i - 1) // 2 * 2 if i % 2 else i - 2 for i in range(1, tree.shape[1])]])
    return tree, *Draft(tree[:, 1:], parents).geometry()


@every_model
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_bfloat16)], ids=str)
@torch.inference_mode()
def test_a_token_gets_the_same_bits_whatever_else_is_in_the_pass(name: str, dtype: torch.dtype) -> None:
    """One at a time, as a chain, as a path of a tree, beside other rows, with one thread and with more."""
    target = native_of(name, dtype)
    prompts = prompts_of(target.vocab_size, [21, 30])
    tokens = torch.randint(0, target.vocab_size, (2, 17), generator=torch.Generator().manual_seed(4))
    rows = [alone(target, filled(target, [prompts[row]]), tokens[row : row + 1]) for row in (0, 1)]
    logits, hidden = (torch.cat(parts) for parts in zip(*rows, strict=True))
    assert float((logits[0] - logits[1]).abs().amax(-1).min()) > 0.1  # whose bits they are can be told everywhere
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        assert torch.get_num_threads() == threads
        for count in (2, 3, 4, 5, 7, 17):
            chain = target(tokens[:1, :count], filled(target, prompts[:1]))
            assert torch.equal(chain.logits, logits[:1, :count])  # type: ignore[arg-type]
            assert torch.equal(chain.hidden, hidden[:1, :count])
        for order in ([0, 1], [1, 0], [0, 1, 1]):  # rows of different lengths and tokens, each with its own bits
            cache = filled(target, [prompts[order[0]]])
            cache.join(filled(target, [prompts[row] for row in order[1:]]))
            beside = target(tokens[order, :12], cache)
            assert torch.equal(beside.logits, logits[order, :12])  # type: ignore[arg-type]
            assert torch.equal(beside.hidden, hidden[order, :12])
            cache.select(torch.tensor([1]))  # the other rows are gone, and nothing of them is left
            after = target(tokens[order[1:2]], cache)
            assert torch.equal(after.logits, logits[order[1:2]])  # type: ignore[arg-type]
        tree, depths, mask = tree_of(tokens[:1, :8], target.vocab_size)
        found = target(tree, filled(target, prompts[:1]), depths=depths, mask=mask).logits
        assert torch.equal(found[:, ::2], logits[:1, :8])  # type: ignore[index]


@every_model
def test_greedy_output_is_the_plain_model_s(name: str) -> None:
    model, target = model_of(name, torch.float32), native_of(name)
    prompts = prompts_of(96, [1, 4, 60])
    wanted = plain_greedy(model, prompts, 30)
    for drafter in (NoDrafter(), noisy_drafter(model, 4)):
        assert texts(target, drafter, prompts, 30) == wanted


@needs_bfloat16
def test_bfloat16_texts_are_equal_token_for_token_where_logits_tie() -> None:
    """A head rounded to a few values makes ties common; the order of sums would decide them."""
    model = model_of("llama-wide", torch.bfloat16)
    with torch.no_grad():
        model.lm_head.weight.copy_((model.lm_head.weight * 2).round() / 2)
    target = Target(model)
    prepare(target, "native")
    drafter = noisy_drafter(model_of("llama-wide", torch.bfloat16), 5)
    for prompt in prompts_of(96, [3, 11, 29]):
        assert texts(target, drafter, [prompt], 80) == texts(target, NoDrafter(), [prompt], 80)


@torch.inference_mode()
def test_the_first_layers_alone_are_those_of_the_plain_model() -> None:
    plain, target = Target(model_of("llama", torch.float32)), native_of("llama")
    prompt = torch.tensor(prompts_of(96, [12]))
    found = []
    for one in (plain, target):
        early = EarlyLayers(one, 2)
        cache = early.start(1, 4)
        states = [early.run(prompt[:, :9], cache)]
        cache.keep(torch.arange(9)[None], chain=True)
        found.append(torch.cat([*states, early.run(prompt[:, 9:], cache)], 1))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-3)


@torch.inference_mode()
def test_long_prompts_and_passes_without_a_memory_are_the_plain_model_s() -> None:
    plain, target = Target(model_of("llama", torch.float32)), native_of("llama")
    prompt = torch.tensor(prompts_of(96, [150]))
    wanted = plain(prompt).logits
    torch.testing.assert_close(target(prompt).logits, wanted, rtol=0, atol=2e-3)
    cache = target.start(1, 8)
    target.prefill(prompt[:, :149], torch.tensor([149]), cache, (-1,), chunk=40)
    torch.testing.assert_close(target(prompt[:, 149:], cache).logits, wanted[:, -1:], rtol=0, atol=2e-3)


def test_the_plain_weights_are_let_go() -> None:
    before, target = Target(model_of("llama", torch.float32)), native_of("llama")
    held = sum(value.numel() for value in target.lm.parameters())
    assert held < 0.7 * sum(value.numel() for value in before.lm.parameters())
    with pytest.raises(TargetError, match="given up its plain weights"):
        target.lm(torch.tensor([[1, 2]]))
    with pytest.raises(TargetError, match="given up its plain weights"):
        target.state_dict()


@pytest.mark.parametrize("width", [1, 2])
def test_sampled_tokens_follow_the_target_s_law(width: int) -> None:
    target = Target(table_model(FOUR).float())
    prepare(target, "native")
    rng = torch.Generator().manual_seed(5)
    drafter = TableDrafter(FOREIGN, 2, width=width)
    found = torch.tensor(texts(target, drafter, [[2, 0]] * 2500, 4, sampling=Sampling(1.0), rng=rng, max_batch=8))
    assert max(place_misfits(found, FOUR)) < 25  # chi-square with 3 degrees: chance 2e-5


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}


@pytest.mark.parametrize(
    ("target", "named"),
    [
        (lambda: Target(tiny("gpt2", torch.float32)), "gpt2"),
        (lambda: Target(tiny("llama", torch.float64)), "float64"),
        (lambda: Target(tiny("mistral", torch.float32)), "sliding window"),
        (lambda: Target(tiny("llama", torch.float32, hidden_act="gelu")), "gelu"),
        (lambda: Target(tiny("llama", torch.float32, attention_bias=True)), "biases"),
        (lambda: Target(tiny("llama", torch.float32, rope_parameters=DYNAMIC)), "dynamic"),
    ],
)  # fmt: skip
def test_what_the_kernel_does_not_take_is_refused_by_name(target: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        choose_engine("native", target())


@torch.inference_mode()
def test_ids_are_checked_and_other_integers_taken() -> None:
    target = native_of("llama")
    ids = torch.tensor([[3, 5, 95]])
    assert torch.equal(target(ids.int()).logits, target(ids).logits)  # type: ignore[arg-type]
    with pytest.raises(TargetError, match="token 96"):
        target(ids + 1)


def test_a_prepared_target_neither_moves_nor_is_copied() -> None:
    target = native_of("llama")
    for change in (lambda: target.double(), lambda: target.to("cpu"), lambda: copy.deepcopy(target)):
        with pytest.raises(TargetError, match="given up its plain weights"):
            change()


def test_layers_of_another_kind_are_left_to_the_other_engines() -> None:
    class Special(nn.Linear):
        pass

    model = model_of("llama", torch.float32)
    model.model.layers[1].self_attn.q_proj = Special(32, 32, bias=False)
    with pytest.raises(ConfigError, match="plain linear layers"):
        choose_engine("native", Target(model))
