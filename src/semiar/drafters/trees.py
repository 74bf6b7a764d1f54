"""Trees of drafts for any drafter that drafts in steps (`ChainDrafter`): best, beam and sampled.

best is EAGLE-2's (Li et al. 2024): level by level the best nodes get their best continuations, and of all of them the
most probable paths stay, under a budget of nodes.  beam is beam search, whose beams share their beginnings (ReDrafter,
Zhang et al. 2024).  Both choose tokens by the drafter's own probabilities.  sampled draws siblings independently, on a
tree whose shape is fixed beforehand by what a sibling of some rank is worth (Sequoia, Chen et al. 2024).

All shapes are static: the number of nodes follows from the plan alone, whatever is drafted.
"""

from __future__ import annotations

import functools
import heapq
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from semiar.core.draft import Draft, Plan
from semiar.core.sampling import Sampling, distribution, pick, uniform

USUAL = 0.7  # acceptance of a first sibling that sampled trees are shaped for
LAST = 1e4  # behind every beam, in log probability


@dataclass(slots=True)
class Level:
    """Candidates of one depth, M of them."""

    tokens: Tensor  # (B, M) target ids
    parents: Tensor  # (B, M) place of the parent among the candidates of the level before
    totals: Tensor  # (B, M) log probability of the path


@dataclass(slots=True)
class Root:
    """Where a tree begins: behind the newest committed token."""

    last: Tensor  # (B, 1) that token
    inner: Any  # the drafter's state before it reads it
    memory: Any  # what its steps look at


def draft_tree(
    drafter: Any, root: Root, plan: Plan, count: int, sampling: Sampling, rng: torch.Generator | None
) -> Draft:
    """A tree at most ``count`` deep; ``sampled`` with a greedy target is ``best``, as nothing is drawn.

    ``drafter`` has ``step``, ``head``, ``carry`` and ``vocab`` as `ChainDrafter` has them.
    """
    if plan.tree == "sampled" and not sampling.greedy:
        return _sample(drafter, root, shape_of(count, plan.nodes, plan.branch), sampling, rng)
    beam = plan.tree == "beam"
    levels = _grow(drafter, root, plan.branch, count, beam)
    return _prune(levels, _beam_worth(levels) if beam else [level.totals for level in levels], plan.nodes)


def _grow(drafter: Any, root: Root, branch: int, count: int, beam: bool) -> list[Level]:
    """Levels of candidates: all continuations of the best `branch` nodes, or with ``beam`` those nodes alone."""
    inner = root.inner
    rows = torch.arange(len(root.last), device=root.last.device)[:, None]
    ids, places = root.last, torch.zeros_like(root.last)  # of the nodes continued, (B, A)
    scores = torch.zeros(ids.shape, device=ids.device)
    levels: list[Level] = []
    for depth in range(count):
        state, inner = drafter.step(ids, inner, depth, root.memory)
        logs = drafter.head(state, depth).float().log_softmax(-1)  # (B, A, V_draft)
        gains, columns = logs.topk(min(branch, logs.shape[-1]), -1)
        tokens = (columns if drafter.vocab is None else drafter.vocab[columns]).flatten(1)
        totals = (scores[..., None] + gains).flatten(1)  # (B, A * branch)
        scores, best = totals.topk(min(branch, totals.shape[1]), -1)
        ids, anchors = tokens[rows, best], best // gains.shape[-1]
        if beam:
            levels.append(Level(ids, places[rows, anchors], scores))
            places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        else:
            levels.append(Level(tokens, places.repeat_interleave(gains.shape[-1], 1), totals))
            places = best
        if depth + 1 < count:
            inner = drafter.carry(inner, functools.partial(_take, rows=rows, anchors=anchors))
    return levels


def _take(states: Tensor, rows: Tensor, anchors: Tensor) -> Tensor:
    """Those of (B, A, ...) at ``anchors`` (B, A')."""
    return states[rows, anchors]


def _beam_worth(levels: list[Level]) -> list[Tensor]:
    """For every node the score of the best whole beam through it, so that whole beams stay; dead ends come last."""
    worth = [levels[-1].totals]
    for level, following in zip(levels[-2::-1], levels[:0:-1], strict=True):
        dead = level.totals - LAST
        worth.append(dead.scatter_reduce(1, following.parents, worth[-1], "amax"))
    return worth[::-1]


def _prune(levels: list[Level], worth: list[Tensor], nodes: int) -> Draft:
    """The `nodes` best candidates as a draft; no child is worth more than its parent, so parents are always in."""
    starts = [0]
    for level in levels:
        starts.append(starts[-1] + level.tokens.shape[1])
    slots = [level.parents + start + 1 for level, start in zip(levels[1:], starts, strict=False)]
    parents = torch.cat([torch.zeros_like(levels[0].parents), *slots], 1)  # slot among all candidates, 0 = the root
    tokens = torch.cat([level.tokens for level in levels], 1)
    ranked = torch.cat(worth, 1).sort(dim=1, descending=True, stable=True).indices  # stable: of equals the parent first
    chosen = ranked[:, :nodes].sort(1).values
    place = torch.zeros(len(tokens), tokens.shape[1] + 1, dtype=torch.long, device=tokens.device)
    place.scatter_(1, chosen + 1, torch.arange(1, chosen.shape[1] + 1, device=tokens.device).expand_as(chosen))
    return Draft(tokens.gather(1, chosen), place.gather(1, parents.gather(1, chosen)))


@functools.cache
def shape_of(count: int, nodes: int, branch: int) -> tuple[tuple[int, ...], ...]:
    """A fixed tree, the place of each node's parent in the level above it, level by level.

    The nodes most likely to be accepted if a first sibling is with probability `USUAL` and the next ones are with the
    same share of what the ones before left.
    """
    heap: list[tuple[float, int, int, int]] = [(-USUAL, 1, 0, 0)]  # -worth, depth, place of the parent, rank
    levels: list[list[int]] = [[] for _ in range(count)]
    while heap and sum(map(len, levels)) < nodes:
        worth, depth, parent, rank = heapq.heappop(heap)
        levels[depth - 1].append(parent)
        if depth < count:
            heapq.heappush(heap, (worth * USUAL, depth + 1, len(levels[depth - 1]) - 1, 0))
        if rank + 1 < branch:
            heapq.heappush(heap, (worth * (1 - USUAL), depth, parent, rank + 1))
    return tuple(tuple(level) for level in levels if level)


def _sample(
    drafter: Any, root: Root, shape: tuple[tuple[int, ...], ...], sampling: Sampling, rng: torch.Generator | None
) -> Draft:
    """Draw every node of the shape from the law after its parent; siblings are independent."""
    inner, device = root.inner, root.last.device
    coins = uniform((len(root.last), sum(map(len, shape))), rng, device)
    level, origin, first = root.last, [0], 0  # tokens of the level above, where `inner` has each one's parent
    tokens: list[Tensor] = []
    laws: list[Tensor] = []
    parents: list[int] = []
    for depth, places in enumerate(shape):
        asked = sorted(set(places))  # nodes of the level above that have children
        if depth:
            anchors = torch.tensor([origin[place] for place in asked], device=device)
            inner = drafter.carry(inner, functools.partial(_columns, anchors=anchors))
        state, inner = drafter.step(level[:, asked], inner, depth, root.memory)
        law = distribution(drafter.head(state, depth), sampling).dense
        origin = [asked.index(place) for place in places]
        laws.append(law[:, origin])
        done = sum(token.shape[1] for token in tokens)
        choice = pick(laws[-1], coins[:, done : done + len(places)])
        level = choice if drafter.vocab is None else drafter.vocab[choice]
        tokens.append(level)
        parents += [first + place for place in places]
        first = done + 1
    slots = torch.tensor(parents, device=device).expand(len(level), -1)
    return Draft(torch.cat(tokens, 1), slots, torch.cat(laws, 1), drafter.vocab)


def _columns(states: Tensor, anchors: Tensor) -> Tensor:
    """Those of (B, A, ...) at the same ``anchors`` (A',) of every row."""
    return states[:, anchors]
