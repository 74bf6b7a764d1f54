"""What the small language models compute, against their definitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from kit.models import draft_settings, semi_drafter, shake, target_of
from torch import Tensor
from torch.nn import functional as F

from semiar.drafters.designs.semi import build_small_lm
from semiar.drafters.layers.context_lm import ContextLM
from semiar.drafters.memory import Memory

SIZE = 16


def read(lm: Any, embedded: Tensor, distant: Tensor) -> Tensor:
    """h_q (B, A, K, H) after each of the K drafted tokens; ``embedded`` (B, A, K, H)."""
    state, outputs = lm.begin(distant), []
    for step in range(embedded.shape[2]):
        recent, state = lm.step(torch.zeros(embedded.shape[:2], dtype=torch.long), embedded[:, :, step], state)
        outputs.append(recent)
    return torch.stack(outputs, 2)


def small_lm(kind: str, **changes: Any) -> Any:
    return shake(build_small_lm(draft_settings(small_lm=kind, **changes), SIZE)).double().eval()


@pytest.fixture
def texts() -> tuple[Tensor, Tensor]:
    """Embeddings of four drafted tokens at (2, 3) anchors, and the states at the anchors."""
    return torch.randn(2, 3, 4, SIZE).double(), torch.randn(2, 3, SIZE).double()


@pytest.mark.parametrize("fusion", ["concat", "both"])
def test_lstm_and_gru_are_torch_s(texts: tuple[Tensor, Tensor], fusion: str) -> None:
    embedded, distant = texts
    for kind, module in (("lstm", torch.nn.LSTM), ("gru", torch.nn.GRU)):
        lm = small_lm(kind, fusion=fusion)
        whole = module(SIZE, SIZE, batch_first=True).double()
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(whole, f"{name}_l0").data = getattr(lm.cell, name).data
        first = tuple(part.reshape(1, 6, SIZE).contiguous() for part in lm.begin(distant))
        assert bool(first[0].any()) is (fusion == "both")
        wanted = whole(embedded.flatten(0, 1), first if kind == "lstm" else first[0])[0]
        torch.testing.assert_close(read(lm, embedded, distant).flatten(0, 1), wanted)


def test_the_redrafter_cell(texts: tuple[Tensor, Tensor]) -> None:
    embedded, distant = texts
    lm = small_lm("rnn")
    state = torch.zeros(2, 3, SIZE).double()
    for step in range(4):
        state = F.silu(lm.cell["token"](embedded[:, :, step]) + lm.cell["state"](state))
        torch.testing.assert_close(read(lm, embedded, distant)[:, :, step], state)


@pytest.mark.parametrize("fusion", ["concat", "initial_state"])
def test_fixed_attention_weighs_by_distance_alone(texts: tuple[Tensor, Tensor], fusion: str) -> None:
    """y_k = sum_i a_{k-i} V e(d_i) per head, the a sum to one; an initial state h_p comes before d_1."""
    embedded, distant = texts
    lm = small_lm("fixed_attention", fusion=fusion)
    items = [] if lm.first is None else [lm.first(distant)]
    items += list(embedded.unbind(2))
    found, half = read(lm, embedded, distant), SIZE // 2
    for step in range(4):
        seen = items[: len(items) - 3 + step]
        heads = []
        for head in range(2):
            weights = lm.offsets[head, : len(seen)].softmax(0)  # of the newest first
            values = [lm.value(lm.norm(item))[..., head * half : (head + 1) * half] for item in reversed(seen)]
            heads.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
        wanted = lm.feed(embedded[:, :, step] + lm.out(torch.cat(heads, -1)))
        torch.testing.assert_close(found[:, :, step], wanted)


@pytest.mark.parametrize("layers", [1, 2])
def test_drafted_attention_is_causal_attention(texts: tuple[Tensor, Tensor], layers: int) -> None:
    embedded, distant = texts
    lm = small_lm("attention", num_layers=layers)
    x = embedded + lm.steps.weight[:4]
    for block in lm.blocks:
        y = block["norm"](x)
        query, key, value = (block[n](y).unflatten(-1, (2, -1)).transpose(2, 3) for n in ("query", "key", "value"))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(2, 3).flatten(-2)
        x = block["feed"](x + block["out"](mixed))
    torch.testing.assert_close(read(lm, embedded, distant), x, rtol=1e-5, atol=1e-6)  # scores are float32


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn", "fixed_attention", "attention"])
def test_later_tokens_and_other_anchors_do_not_matter(texts: tuple[Tensor, Tensor], kind: str) -> None:
    embedded, distant = texts
    lm = small_lm(kind, fusion="both")
    before = read(lm, embedded, distant)
    changed = embedded.clone()
    changed[:, :, 2:] = 0
    changed[1] = 0
    after = read(lm, changed, distant)
    torch.testing.assert_close(after[0, :, :2], before[0, :, :2])
    assert not torch.allclose(after[0, :, 2], before[0, :, 2])


@pytest.mark.parametrize("layers", [1, 2])
@torch.no_grad()
def test_a_drafted_token_stands_where_it_will_when_verified(layers: int) -> None:
    """With one state everywhere and no step embedding, step k from anchor t sees what step 0 from t + k sees."""
    target = target_of("llama")
    drafter: Any = semi_drafter(target, small_lm="context", num_layers=layers)
    drafter.lm.steps.weight.zero_()
    tokens = torch.randint(0, 96, (1, 14))
    hidden = torch.randn(32).double().expand(1, 14, 1, 32)
    states = list(drafter.unroll(hidden, tokens, torch.arange(9)[None]))
    for step in range(1, 4):
        torch.testing.assert_close(states[step][:, : 9 - step], states[0][:, step:], rtol=0, atol=1e-5)
    assert not torch.allclose(states[0][:, 0], states[0][:, 1], atol=1e-2)


def test_half_of_the_context_heads_start_by_looking_for_the_newest_token() -> None:
    size, heads, tokens = 256, 4, 40
    torch.manual_seed(1)
    lm = ContextLM(size, heads, 1, 4, induction=True)
    ids = torch.randperm(500)[:tokens]
    ids[30] = ids[11]  # the newest token stood before, at 11
    embedded = torch.randn(500, size)[ids][None]
    memory = Seen([], [], None, torch.tensor([[30]]))
    positions = torch.arange(30)[None]
    with torch.no_grad():
        lm.remember(torch.randn(1, 30, size), embedded[:, 1:31], embedded[:, :30], positions, memory)
        lm.step(embedded[:, 30:31], lm.begin(torch.randn(1, 1, size)), memory)
    best = memory.weights[0].argmax(-1)  # of each head; slot i holds (h_i, x_i, x_{i+1})
    assert best.tolist()[: heads // 2 + 1] == [11] * (heads // 2 + 1)
    assert best.tolist()[-1] != 11


def test_drafted_tokens_are_found_by_the_token_before_them() -> None:
    """After d_1 = a, d_2 = b, d_3 = a, the key of d_2 says that a stood before it."""
    size = 256
    torch.manual_seed(2)
    lm = ContextLM(size, 4, 1, 5, induction=True)
    table, memory = torch.randn(9, size), Seen([], [], None, torch.tensor([[3]]))
    text = table[torch.tensor([0, 1, 2, 3])][None]
    with torch.no_grad():
        lm.remember(torch.randn(1, 3, size), text[:, 1:], text[:, :3], torch.arange(3)[None], memory)
        state = lm.begin(torch.randn(1, 1, size))
        for token in (3, 7, 3):
            _, state = lm.step(table[token][None, None], state, memory)
    assert memory.weights[0, 0].argmax() == 3  # three verified pairs, then d_2's


@dataclass
class Seen(Memory):
    """A memory that keeps the weights of the last attention (B, heads, slots)."""

    weights: Tensor = field(default_factory=lambda: torch.empty(0))

    def attend(self, layer: int, query: Tensor, own_keys: list[Tensor], own_values: list[Tensor]) -> Tensor:
        keys = torch.cat([self.keys[layer], *(key.transpose(1, 2) for key in own_keys)], 2)
        scores = (query.transpose(1, 2) @ keys.transpose(2, 3))[:, :, 0]
        self.weights = (scores * query.shape[-1] ** -0.5).softmax(-1)
        return super().attend(layer, query, own_keys, own_values)
