"""The K steps of a drafter as one compiled graph."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from semiar.core.sampling import Sampling
from semiar.drafters.engines.steps import Drafted, Steps
from semiar.drafters.memory import Fresh
from semiar.targets.engines.compiled import compile_graph

Kind = str | Sampling
RARE = 3  # a shape seen no more often than this is not worth a graph


class CompiledDraft:
    """Drafts by one graph per K and kind of sampling, for one row.

    A graph for K drafts after a step of K, which left K + 1 states.  The ends of texts have other shapes: they are
    filled up to a graph's, and what it drafts too much is cut off.
    """

    def __init__(self, drafter: Steps):
        self.drafter = drafter
        self.graphs: dict[tuple[int, Kind], Any] = {}
        self.seen: dict[tuple[int, Kind], int] = {}
        self.broken = False

    copies: Sequence[Tensor] = ()  # weights of its own: none

    def __call__(self, fresh: Fresh, coins: Tensor | None, count: int, sampling: Sampling) -> Drafted | None:
        """What `ChainDrafter.draft` gives, or None when it has to be asked: another shape, or no compiler."""
        if self.broken or len(fresh.lengths) > 1 or sampling.top_p < 1:
            return None
        kind: Kind = "greedy" if sampling.greedy else sampling
        try:
            graph = self._graph(fresh, coins, count, kind, sampling)
            if graph is None:
                return None
            size, run = graph
            tokens, probs = run(*widen(fresh, coins, size))
            return tokens[:, :count], None if probs is None else probs[:, :count]
        except Exception as error:
            self.broken = True
            warnings.warn(f"compiling the drafter failed ({error}); drafting goes on without", stacklevel=2)
            return None

    def _graph(self, fresh: Fresh, coins: Tensor | None, count: int, kind: Kind, sampling: Sampling) -> Any:
        """The smallest graph that fits and its K; one is made for a shape that comes again and again."""
        states = fresh.hidden.shape[1]
        if states == count + 1:
            key = (count, kind)
            self.seen[key] = self.seen.get(key, 0) + 1
            if key not in self.graphs and self.seen[key] > RARE:
                self.graphs[key] = self._compile(fresh, coins, count, sampling)
        fitting = [k for k, other in self.graphs if other == kind and k >= count and k + 1 >= states]
        return (min(fitting), self.graphs[min(fitting), kind]) if fitting else None

    def _compile(self, fresh: Fresh, coins: Tensor | None, count: int, sampling: Sampling) -> Any:
        drafter = self.drafter

        def draft(fresh: Fresh, coins: Tensor | None) -> Drafted:
            return drafter.draft(fresh, coins, count, sampling)

        growing = [(states, 2) for states in (*fresh.keys, *fresh.values)]
        if fresh.visible is not None:
            growing.append((fresh.visible, 2))
        return compile_graph(draft, f"draft_{count}", (fresh, coins), growing)


def widen(fresh: Fresh, coins: Tensor | None, size: int) -> tuple[Fresh, Tensor | None]:
    """Fill up to ``size`` + 1 states and ``size`` coins; what is added is written to the slot that nobody sees."""
    extra = size + 1 - fresh.hidden.shape[1]
    if extra:
        nowhere = fresh.keys[0].shape[2] - 1 if fresh.keys else 0
        fresh = replace(
            fresh,
            hidden=F.pad(fresh.hidden, (0, 0, 0, 0, 0, extra)),
            tokens=F.pad(fresh.tokens, (0, extra)),
            positions=F.pad(fresh.positions, (0, extra), value=nowhere),
        )
    return fresh, None if coins is None else F.pad(coins, (0, size - coins.shape[1]))
