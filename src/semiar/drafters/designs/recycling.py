"""Token Recycling (Luo et al. 2024): what the target thought might follow each token the last time it read it.

A table holds for every token its most likely next tokens.  Drafting walks through it: a chain along the best ones, or
a tree of fixed shape.  No model is run and nothing is learned by gradient.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from semiar.core.draft import Draft, Plan
from semiar.core.sampling import Sampling
from semiar.drafters.base import Context, Drafter, State
from semiar.drafters.facts import Distant, Facts, Recent
from semiar.drafters.layers.heads import DraftHead, limited_head
from semiar.drafters.registry import register
from semiar.drafters.settings import HeadSettings
from semiar.settings import at_least
from semiar.targets.target import Target

CHUNK = 256  # states whose logits exist at a time
BEST, DECAY = 0.6, 0.4  # how often the first candidate is right, and each further one compared with the one before


@dataclass(frozen=True)
class RecyclingSettings(HeadSettings):
    """The size of the table."""

    architecture: str = "recycling"
    candidates: int = 8
    """Next tokens remembered of every token (4 bytes each, for every row in work)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, candidates=1)


@register("recycling")
class RecyclingDrafter(Drafter):
    """Candidates of a token: the one that followed it last, then the target's most likely ones at that place.

    The paper takes the logits of drafted positions too; here they come from committed ones, whose states the loop hands
    over: one head product (F, V_draft) a step, F being the tokens that the last step committed, the whole prompt at
    first.  A reduced draft vocabulary makes it cheaper.  Every row in work has its own table, so no text is drafted
    from another one's; with training answers at hand (`read_answers`) it starts with what followed each token there.
    ``tree: best`` is the paper's static tree, made of the paths that are most often right by their ranks.
    """

    Settings = RecyclingSettings
    FACTS = Facts(
        "Token Recycling", "what the target thought might follow each token the last time it read it",
        "Turning Trash into Treasure: Token Recycling (Luo et al. 2024)",
        Distant.TEXT, Recent.SAME, learns=False, trees=("best",), stops=False, attach="alone",
    )  # fmt: skip

    def __init__(self, settings: RecyclingSettings, target: Target, vocab: Tensor | None, learned: bool = False):
        super().__init__(settings)
        self.rows, self.width = target.vocab_size, settings.candidates
        self.register_buffer("d2t", vocab)
        empty = torch.full((self.rows, self.width), -1, dtype=torch.int32)
        self.register_buffer("first", empty if learned else None)  # (V, candidates)
        self._target: list[Target] = []  # in lists: they are not ours to save
        self._head: list[DraftHead] = []

    def bind(self, target: Target) -> RecyclingDrafter:
        head = limited_head(target, self.vocab)
        self._target, self._head = [target], [head] if head else []
        return self

    def prepare(self, engine: str = "packed") -> None:
        for head in self._head:
            head.prepare()

    def extra_config(self) -> dict[str, Any]:
        return {"learned": self.first is not None}

    def read_answers(self, answers: Sequence[Sequence[int]]) -> None:
        self.first = followers(answers, self.rows, self.width)

    # -- the table ---------------------------------------------------------------------------------------------------

    def start(self, batch: int, capacity: int, device: torch.device) -> State:
        table = torch.full((batch, self.rows + 1, self.width), -1, dtype=torch.int32, device=device)
        if self.first is not None:
            table[:, :-1] = self.first.to(device)
        return State(table=table)  # (B, V + 1, candidates); -1 = none, and the last token is none

    def propose(
        self, context: Context, state: State, plan: Plan, sampling: Sampling, rng: torch.Generator | None
    ) -> Draft:
        table: Tensor = state.values["table"]
        self._remember(context, table)
        count = min(plan.count, self.settings.num_speculative_tokens)
        if count == 0:
            return Draft.empty(len(table), table.device)
        if plan.tree == "none":
            return _chain(context.last(), table, count)
        return _tree(context.last(), table, static_tree(plan.nodes, min(plan.branch, self.width), count))

    def _remember(self, context: Context, table: Tensor) -> None:
        """Write the candidates of the tokens that were run last; of equal ones the newest counts."""
        steps = torch.arange(context.hidden.shape[1], device=table.device)
        places = (context.lengths - 1 - context.fresh)[:, None] + steps
        limit = context.tokens.shape[1] - 1
        tokens = context.tokens.gather(1, places.clamp(max=limit))
        tokens = torch.where(steps < context.fresh[:, None], tokens, self.rows)  # beyond a row's end: token none
        newest = torch.full_like(table[..., 0], -1, dtype=torch.long)
        newest.scatter_reduce_(1, tokens, steps.expand(tokens.shape), "amax")
        rows, columns = ((newest.gather(1, tokens) == steps) & (tokens < self.rows)).nonzero(as_tuple=True)
        following = context.tokens.gather(1, (places + 1).clamp(max=limit))[rows, columns]
        for some in torch.arange(len(rows), device=table.device).split(CHUNK):
            row, column = rows[some], columns[some]
            found = self._candidates(context.hidden[row, column, -1], following[some])
            table[row, tokens[row, column]] = found.to(table.dtype)

    def _candidates(self, states: Tensor, following: Tensor) -> Tensor:
        """Ids (F, candidates), -1 = none: the token that followed, then the best ones of the states (F, H)."""
        logits = self._head[0](states) if self._head else self._target[0].head(states)
        best = logits.topk(min(self.width, logits.shape[-1])).indices
        best = best if self.vocab is None else self.vocab[best]
        both = torch.cat([following[:, None], torch.where(best == following[:, None], -1, best)], 1)
        order = (both < 0).long().argsort(dim=1, stable=True)
        found = both.gather(1, order)[:, : self.width]
        return torch.nn.functional.pad(found, (0, self.width - found.shape[1]), value=-1)


def _follow(table: Tensor, tokens: Tensor, ranks: Tensor) -> Tensor:
    """Candidates (B, n) of tokens (B, n), those of these ranks (n,); -1 has none."""
    rows = torch.arange(len(table), device=table.device)[:, None]
    return table[rows, torch.where(tokens < 0, table.shape[1] - 1, tokens), ranks].long()


def _chain(last: Tensor, table: Tensor, count: int) -> Draft:
    tokens, best = [last], torch.zeros(1, dtype=torch.long, device=table.device)
    for _ in range(count):
        tokens.append(_follow(table, tokens[-1], best))
    chain = torch.cat(tokens[1:], 1)
    return Draft.chain(chain[:, : int((chain >= 0).any(0).sum())])


def _tree(last: Tensor, table: Tensor, shape: tuple[tuple[int, int, int], ...]) -> Draft:
    depths, parents, ranks = torch.tensor(shape, device=table.device).unbind(1)
    tokens = last
    for depth in range(1, int(depths.max()) + 1):
        level = depths == depth
        tokens = torch.cat([tokens, _follow(table, tokens[:, parents[level]], ranks[level])], 1)
    if not bool((tokens[:, 1:] >= 0).any()):
        return Draft.empty(len(table), table.device)
    return Draft(tokens[:, 1:], parents.expand(len(table), -1))


@lru_cache(maxsize=64)
def static_tree(nodes: int, branch: int, depth: int) -> tuple[tuple[int, int, int], ...]:
    """Depth, parent's slot and rank of each node of the tree that is most often right, parents and best ranks first.

    A node is right as often as the product over its path of BEST * DECAY**rank.
    """
    heap: list[tuple[float, tuple[int, ...]]] = [(-BEST, (0,))]
    paths: list[tuple[int, ...]] = []
    while heap and len(paths) < nodes:
        weight, path = heapq.heappop(heap)
        paths.append(path)
        if len(path) < depth:
            heapq.heappush(heap, (weight * BEST, (*path, 0)))
        if path[-1] + 1 < branch:
            heapq.heappush(heap, (weight * DECAY, (*path[:-1], path[-1] + 1)))
    paths.sort(key=lambda path: (len(path), path))
    slots = {path: slot for slot, path in enumerate([(), *paths])}
    return tuple((len(path), slots[path[:-1]], path[-1]) for path in paths)


def followers(texts: Sequence[Sequence[int]], size: int, most: int) -> Tensor | None:
    """The tokens (size, most) that follow each token most often in these texts; -1 = no more; None without any."""
    pairs = [torch.tensor(text[:-1]) * size + torch.tensor(text[1:]) for text in texts if len(text) > 1]
    if not pairs:
        return None
    codes, counts = torch.cat(pairs).unique(return_counts=True)
    codes = codes[counts.argsort(descending=True, stable=True)]
    codes = codes[(codes // size).argsort(stable=True)]  # by token, then by how often
    tokens, following = codes // size, codes % size
    rank = torch.arange(len(codes)) - torch.searchsorted(tokens, tokens)
    table = torch.full((size, most), -1, dtype=torch.int32)
    kept = rank < most
    table[tokens[kept], rank[kept]] = following[kept].int()
    return table
