"""The `context` small language model: one attention layer that sees all the target's states, not only the last.

Keys and values of verified positions come from ``(h_i, e(x_{i+1}))``: they are computed once, when position i has been
verified, and kept.  Those of drafted tokens come from ``(h_t, e(d_j))`` plus an embedding of the step j.  Only tokens
are fed back, never the drafter's own features, so training is one parallel pass over all anchors and offsets and needs
no training-time test.  The idea is the Tandem Transformers' (Nair et al. 2024) at the size of a fine-tuning run.

Answers repeat what stands in their prompts.  What copies it in large models are induction heads (Olsson et al. 2022):
find where the newest token stood before, take the token after it.  They need two layers, since a key has to know the
token before its own, and learn it late.  Here the pair i is *given* the token x_i beside x_{i+1} for its keys, and half
the heads start by looking for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from semiar.drafters.layers.norm import RMSNorm
from semiar.drafters.layers.small_lm import FeedForward
from semiar.drafters.memory import Memory, attend

ROPE_BASE = 10_000.0


@dataclass(slots=True)
class Drafted:
    """Keys and values of the tokens drafted so far, (B, A, heads, d) each, per layer."""

    distant: Tensor  # (B, A, H)
    count: int = 0
    keys: list[list[Tensor]] = field(default_factory=list)
    values: list[list[Tensor]] = field(default_factory=list)
    before: Tensor | None = None  # (B, A, H) embedding of the newest one


class ContextLM(nn.Module):
    """h_q with the distant past as all of the target's states; `remember` reads verified positions, `step` drafts."""

    def __init__(self, size: int, heads: int, layers: int, steps: int, induction: bool = False):
        super().__init__()
        self.heads, self.size = heads, size
        self.read = nn.Linear(2 * size, size, bias=False)
        self.steps = nn.Embedding(steps + 1, size)
        nn.init.zeros_(self.steps.weight)
        self.blocks = nn.ModuleList(Block(size, heads, feed=i + 1 < layers) for i in range(layers))
        self.before = nn.Linear(size, size, bias=False) if induction else None
        if self.before is not None:
            self._look_for_the_newest_token(self.before)

    @torch.no_grad()
    def _look_for_the_newest_token(self, before: nn.Linear) -> None:
        """Let the first heads (half of them and one) ask for the newest token, by keys of the token before.

        Queries and keys see both by one random projection P: a pair's score is |P e|^2 / sqrt(d) = sqrt(d) where the
        tokens are the same and about a standard normal elsewhere.
        """
        size, block = self.size, self.blocks[0]
        assert isinstance(block, Block)
        units = (self.heads // 2 + 1) * (size // self.heads)
        self.read.weight[:, size:] = torch.eye(size)  # x is e(d), and what the state adds
        self.read.weight[:, :size] *= 0.5
        look = torch.randn(units, size) * size**-0.5
        query, key, _ = block.qkv.weight.chunk(3)
        query[:units], before.weight[:units] = look, look
        key[:units] *= 0.3
        before.weight[units:] = 0

    def rotary(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines (..., 1, d/2) for these positions."""
        return rotary(positions, self.size // self.heads, ROPE_BASE, dtype)

    def remember(
        self, distant: Tensor, embedded: Tensor, before: Tensor | None, positions: Tensor, memory: Memory
    ) -> None:
        """Write pairs (h_i, e(x_{i+1})) at slots ``positions`` (B, n) of every layer; ``before`` are the e(x_i).

        All three are (B, n, H); without induction the last are not asked for.
        """
        x = self.read(torch.cat([distant, embedded], -1))
        known = self._known(before)
        turn = self.rotary(positions + 1, x.dtype)
        for index, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            query, key, value = block.project(x, turn, known if index == 0 else None)
            memory.write(index, key, value, positions)
            if index + 1 < len(self.blocks):
                slots = torch.arange(memory.keys[index].shape[2], device=x.device)
                seen = slots <= positions[..., None]
                mixed = attend(query, memory.keys[index], memory.values[index], seen, [], [])
                x = block.close(x, mixed)

    def begin(self, distant: Tensor) -> Drafted:
        """State before the first drafted token; ``distant`` (B, A, H) is the normed target state at the anchors."""
        empty: list[list[Tensor]] = [[] for _ in self.blocks]
        return Drafted(distant, 0, empty, [[] for _ in self.blocks])

    def step(self, embedded: Tensor, state: Drafted, memory: Memory) -> tuple[Tensor, Drafted]:
        """Read the next drafted token's embedding (B, A, H); returns h_q (B, A, H).

        d_1 is already in memory as the pair (h_t, e(d_1)), so it only asks; d_2, d_3, ... add their own keys.
        """
        step = state.count
        x = self.read(torch.cat([state.distant, embedded], -1))
        if step:
            x = x + self.steps.weight[step].to(x.dtype)
        turn = self.rotary(memory.positions + step, x.dtype)
        keys, values = [list(k) for k in state.keys], [list(v) for v in state.values]
        known = self._known(state.before)
        for index, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            query, key, value = block.project(x, turn, known if index == 0 else None)
            if step:
                keys[index].append(key)
                values[index].append(value)
            mixed = memory.attend(index, query, keys[index], values[index])
            x = block.close(x, mixed)
        return x, Drafted(state.distant, step + 1, keys, values, embedded)

    def _known(self, before: Tensor | None) -> Tensor | None:
        """What a key knows of the token before its own (..., H)."""
        return None if self.before is None or before is None else self.before(before.to(self.before.weight.dtype))

    def at_once(self, embedded: Tensor, distant: Tensor, memory: Memory) -> Tensor:
        """`step` for K inputs (B, A, K, H) that are all known, in one pass; (B, A, K, H)."""
        batch, anchors, count = embedded.shape[:3]
        x = self.read(torch.cat([distant[:, :, None].expand_as(embedded), embedded], -1))
        later = torch.cat([torch.zeros_like(self.steps.weight[:1]), self.steps.weight[1:count]])
        x = x + later.to(x.dtype)
        steps = torch.arange(count, device=x.device)
        turn = self.rotary((memory.positions[..., None] + steps).flatten(1), x.dtype)
        visible = memory.visible
        if visible is not None:
            visible = visible.repeat_interleave(count, 1)
        x = x.flatten(1, 2)
        for index, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            query, key, value = block.project(x, turn)
            own = (key.unflatten(1, (anchors, count)), value.unflatten(1, (anchors, count)))
            mixed = attend_rows(query, memory.keys[index], memory.values[index], visible, *own)
            x = block.close(x, mixed)
        return x.view(batch, anchors, count, -1)


class Block(nn.Module):
    """Attention with rotary positions and a residual; a feed-forward unless the fusion MLP follows directly."""

    def __init__(self, size: int, heads: int, feed: bool):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv = RMSNorm(size), nn.Linear(size, 3 * size, bias=False)
        self.out = nn.Linear(size, size, bias=False)
        self.feed = FeedForward(size) if feed else None

    def project(
        self, x: Tensor, turn: tuple[Tensor, Tensor], known: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key (with what is ``known`` besides, (B, n, H)) and value (B, n, heads, d), the first two rotated."""
        query, key, value = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        if known is not None:
            key = key + known.unflatten(-1, (self.heads, -1))
        return rotate(query, turn), rotate(key, turn), value

    def close(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Output projection, residual and feed-forward."""
        x = x + self.out(mixed)
        return x if self.feed is None else self.feed(x)


def rotary(positions: Tensor, width: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rotary cosines and sines (..., 1, width / 2) for these positions (...)."""
    half = width // 2
    rates = base ** (-torch.arange(half, device=positions.device, dtype=torch.float32) / half)
    angles = positions[..., None, None] * rates
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position embedding on (..., heads, d)."""
    cosine, sine = turn
    left, right = x.chunk(2, -1)
    return torch.cat([left * cosine - right * sine, left * sine + right * cosine], -1)


def attend_rows(
    query: Tensor,  # (B, A * K, heads, d)
    keys: Tensor,  # (B, heads, T, d)
    values: Tensor,
    visible: Tensor | None,  # (B, A * K, T)
    own_keys: Tensor,  # (B, A, K, heads, d), of which the first stands in the memory
    own_values: Tensor,
) -> Tensor:
    """Softmax attention over memory and an anchor's own rows up to the asking one; (B, A * K, heads * d)."""
    anchors, count = own_keys.shape[1:3]
    far = (query.transpose(1, 2) @ keys.transpose(2, 3)).float()  # (B, heads, A * K, T)
    if visible is not None:
        far = far.masked_fill(~visible[:, None], -torch.inf)
    asked = query.unflatten(1, (anchors, count))
    near = torch.einsum("bakhd,bajhd->bhakj", asked, own_keys).float()
    steps = torch.arange(count, device=query.device)
    near = near.masked_fill((steps > steps[:, None]) | (steps == 0), -torch.inf).flatten(2, 3)
    weights = (torch.cat([far, near], -1) * query.shape[-1] ** -0.5).softmax(-1).to(values.dtype)
    width = keys.shape[2]
    mixed = (weights[..., :width] @ values).transpose(1, 2)
    close = weights[..., width:].unflatten(2, (anchors, count))
    return (mixed + torch.einsum("bhakj,bajhd->bakhd", close, own_values).flatten(1, 2)).flatten(-2)
