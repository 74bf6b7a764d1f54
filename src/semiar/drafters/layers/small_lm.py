"""Small language models h_q over the tokens drafted since the last verified one: the recurrent and windowed kinds.

All share one interface, stepped the same way in training (every anchor at once, teacher-forced) and in drafting (one
anchor per row, own guesses), so the two cannot differ.  Shapes carry an anchor dimension A, which is 1 when drafting.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from semiar.drafters.layers.norm import RMSNorm
from semiar.errors import ConfigError


class SmallLM(nn.Module):
    """h_q: reads d_1, d_2, ... one by one and says what it remembers of them, (B, A, H)."""

    def begin(self, distant: Tensor) -> Any:
        """State before the first drafted token; ``distant`` (B, A, H) is the normed target state at the anchors."""
        raise NotImplementedError

    def step(self, tokens: Tensor, embedded: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Read the next drafted token: ids (B, A), embeddings (B, A, H).  Returns h_q (B, A, H) and the new state."""
        raise NotImplementedError


class Recurrent(SmallLM):
    """LSTM, GRU or the ReDrafter cell ``s = silu(W e + U s)``; h_p may be the initial state (Arctic LSTM)."""

    def __init__(self, kind: str, size: int, from_distant: bool):
        super().__init__()
        self.kind = kind
        if kind == "lstm":
            self.cell: nn.Module = nn.LSTMCell(size, size)
        elif kind == "gru":
            self.cell = nn.GRUCell(size, size)
        else:
            self.cell = nn.ModuleDict({"token": nn.Linear(size, size), "state": nn.Linear(size, size, bias=False)})
        self.first = nn.Linear(size, size * (2 if kind == "lstm" else 1)) if from_distant else None

    def begin(self, distant: Tensor) -> tuple[Tensor, ...]:
        parts = 2 if self.kind == "lstm" else 1
        if self.first is None:
            return (torch.zeros_like(distant),) * parts
        halves = self.first(distant).chunk(parts, -1)
        return (halves[0].tanh(), *halves[1:])

    def step(self, tokens: Tensor, embedded: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, Any]:
        flat = [one.flatten(0, -2) for one in (embedded, *state)]
        if self.kind == "rnn":
            assert isinstance(self.cell, nn.ModuleDict)
            new = (F.silu(self.cell["token"](flat[0]) + self.cell["state"](flat[1])),)
        elif self.kind == "gru":
            new = (self.cell(flat[0], flat[1].to(flat[0].dtype)),)
        else:
            new = self.cell(flat[0], (flat[1].to(flat[0].dtype), flat[2].to(flat[0].dtype)))
        shaped = tuple(one.view(embedded.shape) for one in new)
        return shaped[0], shaped


class FeedForward(nn.Module):
    """Pre-norm feed-forward with a residual."""

    def __init__(self, size: int):
        super().__init__()
        self.norm, self.wide, self.narrow = RMSNorm(size), nn.Linear(size, 2 * size), nn.Linear(2 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(F.silu(self.wide(self.norm(x))))


class FixedAttention(SmallLM):
    """One layer whose attention weights are constants, learned once per offset and head: no queries, no keys.

    ``y_k = sum_i a_{k-i} V e(d_i)`` with a >= 0 that sums to one over what the window holds.
    """

    def __init__(self, size: int, heads: int, window: int, from_distant: bool):
        super().__init__()
        self.heads = heads
        self.norm, self.value, self.out = RMSNorm(size), nn.Linear(size, size), nn.Linear(size, size)
        self.offsets = nn.Parameter(-torch.arange(window + 1.0).expand(heads, -1).clone())  # (heads, window + 1)
        self.first = nn.Linear(size, size) if from_distant else None
        self.feed = FeedForward(size)

    def begin(self, distant: Tensor) -> list[Tensor]:
        return [] if self.first is None else [self._value(self.first(distant))]

    def _value(self, x: Tensor) -> Tensor:
        return self.value(self.norm(x)).unflatten(-1, (self.heads, -1))

    def step(self, tokens: Tensor, embedded: Tensor, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        values = [*state, self._value(embedded)]
        if len(values) > self.offsets.shape[1]:
            values = values[-self.offsets.shape[1] :]
        weights = self.offsets[:, : len(values)].softmax(-1).flip(-1).to(embedded.dtype)  # (heads, k), oldest first
        mixed = (torch.stack(values, -1) * weights[:, None]).sum(-1)
        return self.feed(embedded + self.out(mixed.flatten(-2))), values


class DraftedAttention(SmallLM):
    """One ordinary causal attention layer (or more) over the drafted tokens only."""

    def __init__(self, size: int, heads: int, layers: int, window: int, from_distant: bool):
        super().__init__()
        self.heads = heads
        self.steps = nn.Embedding(window + 1, size)
        self.first = nn.Linear(size, size) if from_distant else None
        names = ("norm", "query", "key", "value", "out", "feed")
        self.blocks = nn.ModuleList()
        for _ in range(layers):
            parts = [RMSNorm(size), *(nn.Linear(size, size, bias=False) for _ in range(4)), FeedForward(size)]
            self.blocks.append(nn.ModuleDict(dict(zip(names, parts, strict=True))))

    def begin(self, distant: Tensor) -> list[list[tuple[Tensor, Tensor]]]:
        state: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.blocks]
        if self.first is not None:
            self._run(self.first(distant), state)
        return state

    def _run(self, x: Tensor, state: list[list[tuple[Tensor, Tensor]]]) -> Tensor:
        x = x + self.steps.weight[len(state[0])].to(x.dtype)
        for block, seen in zip(self.blocks, state, strict=True):
            assert isinstance(block, nn.ModuleDict)
            y = block["norm"](x)
            query, key, value = (block[n](y).unflatten(-1, (self.heads, -1)) for n in ("query", "key", "value"))
            seen.append((key, value))
            keys, values = (torch.stack(list(kind), -2) for kind in zip(*seen, strict=True))  # (B, A, heads, k, d)
            scores = (keys * query[..., None, :]).sum(-1) * query.shape[-1] ** -0.5
            mixed = (scores.float().softmax(-1).to(values.dtype)[..., None] * values).sum(-2)
            x = block["feed"](x + block["out"](mixed.flatten(-2)))
        return x

    def step(self, tokens: Tensor, embedded: Tensor, state: list[list[tuple[Tensor, Tensor]]]) -> tuple[Tensor, Any]:
        state = [list(seen) for seen in state]
        return self._run(embedded, state), state


def count_heads(wanted: int, size: int) -> int:
    """Attention heads for this hidden size; 0 = the most of at least 64 units that divide it into even parts."""
    if wanted == 0:
        return next(heads for heads in range(max(1, size // 64), 0, -1) if size % (2 * heads) == 0 or heads == 1)
    if size % (2 * wanted):
        raise ConfigError(f"{wanted} heads for a hidden size of {size}", "a number that divides it into even parts")
    return wanted
