"""The packed engine: the same model to rounding, whatever the architecture, and the same output through the loop."""

from __future__ import annotations

import pytest
import torch
from kit.drafters import TableDrafter, noisy_drafter
from kit.models import NAMES, plain_greedy, prompts_of, semi_drafter, table_model, tiny
from torch import Tensor, nn
from torch.nn import functional as F

from semiar.core.draft import Draft
from semiar.core.sampling import Sampling, distribution
from semiar.decoding import Limits, decode
from semiar.errors import ConfigError, TargetError
from semiar.targets import Target
from semiar.targets.attention import grouped_attention, use_grouped_attention
from semiar.targets.engines import prepare as engine
from semiar.targets.engines.packed import Packed, Part, Together, can_pack, join, pack, weight_bytes
from semiar.targets.engines.prepare import choose_engine, prepare
from semiar.targets.lora import LoraSettings, attach

pytestmark = pytest.mark.skipif(
    not can_pack(torch.device("cpu"), torch.float32), reason="this build of PyTorch has no oneDNN"
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
@pytest.mark.parametrize("bias", [False, True])
def test_a_packed_layer_is_the_layer(dtype: torch.dtype, rows: int, bias: bool) -> None:
    if not can_pack(torch.device("cpu"), dtype):
        pytest.skip("this CPU has no bfloat16 kernels")
    layer = nn.Linear(48, 80, bias=bias).to(dtype)
    x = torch.randn(2, rows, 48, dtype=dtype)
    with torch.inference_mode():
        found = Packed(layer.weight, layer.bias)(x)
        exact = F.linear(x.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double())
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-5 if dtype == torch.float32 else 0.02)


@pytest.mark.parametrize("bias", [False, True])
def test_layers_of_one_input_are_one_product(bias: bool) -> None:
    layers = [nn.Linear(16, size, bias=bias) for size in (24, 8, 8)]
    group = Together(layers)
    pack(group)
    parts = [Part(group, index) for index in range(3)]
    x = torch.randn(3, 5, 16)
    with torch.inference_mode():
        for part, layer in zip(parts, layers, strict=True):
            torch.testing.assert_close(part(x), layer(x))
        with pytest.raises(AssertionError, match="twice"):
            parts[1](x)


def test_packing_gives_the_plain_weights_up_unless_told_otherwise() -> None:
    for keep in (False, True):
        model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))
        assert join(model) == 0 and pack(model, keep=keep) == 2
        assert sum(p.ndim > 1 for p in model.parameters()) == (2 if keep else 0)
        assert not any(type(module) is nn.Linear for module in model.modules())


def repeated(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Attention with every key/value head repeated, written out."""
    shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    weights = (query @ key.transpose(2, 3) * 0.3 + bias).softmax(-1)
    return (weights @ value).transpose(1, 2)


@pytest.mark.parametrize("heads", [2, 6])
def test_grouped_attention_is_attention_with_repeated_heads(heads: int) -> None:
    query, key, value = (torch.randn(3, h, n, 8, dtype=torch.float64) for h, n in ((heads, 4), (2, 9), (2, 9)))
    bias = torch.where(torch.rand(3, 1, 4, 9) < 0.4, -1e9, 0.0).double()
    bias[..., 0] = 0
    found, _ = grouped_attention(nn.Identity(), query, key, value, bias, scaling=0.3)
    torch.testing.assert_close(found, repeated(query, key, value, bias))
    causal = torch.full((9, 9), -1e9, dtype=torch.float64).triu(1)
    query = torch.randn(3, heads, 9, 8, dtype=torch.float64)
    found, _ = grouped_attention(nn.Identity(), query, key, value, None, scaling=0.3)
    torch.testing.assert_close(found, repeated(query, key, value, causal))
    found, _ = grouped_attention(nn.Identity(), query[:, :, -1:], key, value, None, scaling=0.3)
    torch.testing.assert_close(found, repeated(query[:, :, -1:], key, value, causal[-1:]))


def test_models_that_cap_their_scores_keep_their_own_attention() -> None:
    assert use_grouped_attention(tiny("llama")) and not use_grouped_attention(tiny("gemma2"))


@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_trees_behind_ragged_rows_equal_the_plain_model(name: str) -> None:
    plain, target = Target(tiny(name, torch.float32)), Target(tiny(name, torch.float32))
    prepare(target, "packed")
    prompts = prompts_of(plain.vocab_size, [2, 7, 19])
    lengths = torch.tensor([len(p) for p in prompts])
    tokens = torch.tensor([p + [0] * (19 - len(p)) for p in prompts])
    parents = torch.stack([torch.randint(0, slot + 1, (3,)) for slot in range(5)], 1)
    draft = Draft(torch.randint(0, plain.vocab_size, (3, 5)), parents)
    depths, mask = draft.geometry()
    outputs = []
    for one in (plain, target):
        cache = one.start(3, 8)
        one.prefill(tokens, lengths, cache, (-1,), chunk=6)
        seen = [one(torch.cat([tokens[:, :1], draft.tokens], 1), cache, depths=depths, mask=mask)]
        cache.keep(torch.tensor([[0, -1], [0, 3], [0, 5]]))
        seen.append(one(tokens[:, :3], cache))
        outputs.append(seen)
    for found, wanted in zip(outputs[1], outputs[0], strict=True):
        torch.testing.assert_close(found.logits, wanted.logits, rtol=0, atol=2e-3)
        torch.testing.assert_close(found.hidden, wanted.hidden, rtol=0, atol=2e-3)


@pytest.mark.parametrize("name", ["llama", "phi3", "gpt_neox", "mistral"])
@pytest.mark.parametrize("batch", [1, 7])
def test_greedy_output_is_the_plain_model_s(name: str, batch: int) -> None:
    model = tiny(name, torch.float32)
    prompts = prompts_of(96, [1, 9, 30, 4, 2, 17, 5])[:batch]
    wanted = plain_greedy(model, prompts, 40)
    target = Target(tiny(name, torch.float32))
    drafter = noisy_drafter(model, 4)
    prepare(target, "packed")
    rows: list[list[int]] = [[] for _ in prompts]
    for step in decode(target, drafter, prompts, Limits(40)):
        for row, tokens in zip(step.rows, step.tokens, strict=True):
            rows[row] += tokens
    assert rows == wanted


@pytest.mark.parametrize("small_lm", ["context", "lstm", "none", "attention", "fixed_attention"])
@pytest.mark.parametrize("fusion", ["concat", "additive"])
def test_a_prepared_drafter_drafts_the_same(small_lm: str, fusion: str) -> None:
    if small_lm == "none" and fusion != "concat":
        pytest.skip("there is nothing to fuse")
    target = Target(tiny("llama", torch.float32))
    prompts = prompts_of(96, [3, 12, 7])
    found = []
    for ready in (False, True):
        drafter = semi_drafter(target, torch.arange(0, 96, 2), small_lm=small_lm, fusion=fusion).eval()
        if ready:
            drafter.prepare()
            assert len(drafter.state_dict()) == len(semi_drafter(target, torch.arange(0, 96, 2), small_lm=small_lm,
                                                                 fusion=fusion).state_dict())  # fmt: skip
        steps = list(decode(target, drafter, prompts, Limits(24)))
        found.append([(step.tokens, step.accepted) for step in steps])
    assert found[0] == found[1]


FOUR = [[0.9, 0.1, -0.4, 0.3], [-0.6, 1.1, 0.2, 0.0], [0.5, 0.5, -1.0, 0.8], [1.3, -0.7, 0.1, 0.2]]
OTHER = [[-0.2, 0.9, 0.6, -1.0], [1.0, 0.0, -0.5, 0.7], [-1.2, 0.3, 1.4, 0.0], [0.0, 0.8, -0.3, 1.1]]


def test_sampled_tokens_follow_the_target_s_law() -> None:
    target = Target(table_model(FOUR).float())
    prepare(target, "packed")
    rows = 20_000
    texts: list[list[int]] = [[] for _ in range(rows)]
    rng = torch.Generator().manual_seed(3)
    for step in decode(target, TableDrafter(OTHER, 3), [[0]] * rows, Limits(4), Sampling(1.0), rng=rng):
        for row, tokens in zip(step.rows, step.tokens, strict=True):
            texts[row] += tokens
    laws = distribution(torch.tensor(FOUR, dtype=torch.float64)[None], Sampling(1.0)).probs
    assert laws is not None
    law, emitted = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64), torch.tensor(texts)
    for position in range(4):
        law = law @ laws[0]
        seen = torch.bincount(emitted[:, position], minlength=4) / rows
        assert float((seen - law).abs().sum() / 2) < 0.02


@pytest.mark.parametrize("kind", ["packed", "compiled"])
def test_a_prepared_model_is_not_saved_without_its_weights(kind: str) -> None:
    target = Target(tiny("llama", torch.float32))
    prepare(target, kind)
    with pytest.raises(TargetError, match="engine='eager'"):
        target.lm.state_dict()


def test_choice_of_engine() -> None:
    single = Target(tiny("llama", torch.float32))
    assert choose_engine("auto", single) == "eager" and choose_engine("packed", single) == "packed"
    assert choose_engine("auto", Target(tiny("llama", torch.float64))) == "eager"
    with pytest.raises(ConfigError, match="packed"):
        choose_engine("packed", Target(tiny("llama", torch.float64)))
    with pytest.raises(ConfigError, match="turbo"):
        choose_engine("turbo", single)
    adapted = Target(attach(tiny("llama", torch.float32), LoraSettings(r=2)))
    assert choose_engine("auto", adapted) == "eager"
    with pytest.raises(ConfigError, match="unmerged"):
        choose_engine("packed", adapted)


def test_a_prepared_model_that_says_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(block: nn.Module, **_: object) -> int:
        with torch.no_grad():
            next(m for m in block.modules() if type(m) is nn.Linear).weight.mul_(1.5)
        return 0

    monkeypatch.setattr(engine, "pack", spoil)
    with pytest.raises(TargetError, match="engine 'packed'"):
        prepare(Target(tiny("llama", torch.float32)), "packed")


def test_weight_bytes_counts_what_lies_in_memory() -> None:
    target = Target(tiny("llama", torch.float32))
    before = weight_bytes(target.lm)
    assert before == 4 * sum(p.numel() for p in target.lm.parameters()) + sum(
        b.numel() * b.element_size() for b in target.lm.buffers()
    )
    head = target.lm.get_output_embeddings().weight.numel()
    prepare(target, "packed")
    assert weight_bytes(target.lm) == before + 4 * head  # the head is kept twice
