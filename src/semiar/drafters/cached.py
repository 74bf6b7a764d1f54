"""What drafters that run layers of their own over the text keep of it: keys and values, and how far they have read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from semiar.core.draft import Draft, Plan
from semiar.core.sampling import Sampling
from semiar.drafters.base import Context, State
from semiar.drafters.trees import Root, draft_tree
from semiar.targets.cache import Cache


class CacheState(State):
    """The memory of a drafter that runs layers with keys and values of their own."""

    def __init__(self, cache: Cache):
        super().__init__()
        self.cache = cache

    def select(self, rows: Tensor) -> None:
        self.cache.select(rows)

    def join(self, other: State) -> None:
        assert isinstance(other, CacheState)
        self.cache.join(other.cache)


def unread(context: Context, cache: Cache) -> tuple[Tensor, Tensor]:
    """Tokens (B, n) committed since the last call, at least the last step's, and how many (B,) of them are real."""
    cache.rewind(torch.minimum(cache.lengths, context.lengths - context.fresh.clamp(min=1)))
    need = context.lengths - cache.lengths
    steps = torch.arange(int(need.max()), device=need.device)
    places = (cache.lengths[:, None] + steps).clamp(max=context.tokens.shape[1] - 1)
    return context.tokens.gather(1, places).clamp(min=0), need


@dataclass(slots=True)
class Paths:
    """The steps of a tree for layers that read tokens: every node's path is run, side by side, behind the text.

    A node's inner state is its path, (B, A, k) tokens after the newest committed one; nothing is kept of a pass.  For
    trees as small as drafts are, running a path again costs about as much as reading the weights once.
    """

    first: Tensor  # (B, 1, H) state of the newest committed token, which has been run
    run: Callable[[Tensor, Tensor, Tensor], Tensor]  # tokens and depths (B, n), mask (B, n, n) to states (B, n, H)
    logits: Callable[[Tensor], Tensor]  # (B, A, H) to (B, A, V_draft)
    vocab: Tensor | None

    def step(self, ids: Tensor, inner: Tensor, index: int, memory: None) -> tuple[Tensor, Tensor]:
        """Read one more token of each path, ``ids`` (B, A); see `ChainDrafter.step`."""
        if index == 0:
            return self.first, inner
        paths = torch.cat([inner, ids[..., None]], -1)
        batch, nodes, length = paths.shape
        depths = torch.arange(length, device=ids.device).repeat(nodes)
        path = torch.arange(nodes, device=ids.device).repeat_interleave(length)
        mask = (path[:, None] == path) & (depths[:, None] >= depths)
        size = nodes * length
        states = self.run(paths.flatten(1), depths.expand(batch, -1), mask.expand(batch, size, size))
        return states.unflatten(1, (nodes, length))[:, :, -1], paths

    def head(self, state: Tensor, step: int) -> Tensor:
        """Logits (B, A, V_draft) of a state."""
        return self.logits(state)

    def carry(self, inner: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """The paths that are continued."""
        return change(inner)

    def tree(self, last: Tensor, plan: Plan, count: int, sampling: Sampling, rng: torch.Generator | None) -> Draft:
        """A tree behind the newest committed token ``last`` (B, 1)."""
        return draft_tree(self, Root(last, last[..., None][..., :0], None), plan, count, sampling, rng)
