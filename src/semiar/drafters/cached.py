"""What drafters that run layers of their own over the text keep of it: keys and values, and how far they have read."""

from __future__ import annotations

import torch
from torch import Tensor

from semiar.drafters.base import Context, State
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
