"""Exact verification of a tree: siblings are judged in slot order, each against what the ones before it left over.

Sampled siblings, drawn i.i.d. (SpecInfer, Miao et al. 2023): keep x with min(1, t(x) / d(x)), else t becomes
norm(max(t - d, 0)).  Drawn without replacement (Yang et al. 2024, Jeon et al. 2024): the same, and x leaves d, which
is renormalised.  Chosen siblings: keep x with t(x), else x leaves t.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from semiar.core.draft import Draft, Verdict
from semiar.core.proposal import draft_columns, minus, own_probs
from semiar.core.sampling import Law, draw, uniform


def accept_tree(draft: Draft, target: Law, rng: torch.Generator | None) -> Verdict:
    """Judge the tree ``draft`` by the target's law at its N + 1 slots, under the contract of `accept`."""
    if target.tokens is not None:
        path = _greedy_path(draft, target.tokens)
        return _tree_verdict(draft, path, target.tokens.gather(1, path.amax(1, keepdim=True)))
    path, law = _sampled_path(draft, target, rng)
    return _tree_verdict(draft, path, draw(law, rng).unsqueeze(1))


def _greedy_path(draft: Draft, best: Tensor) -> Tensor:
    """Slots kept (B, N + 1), each at its own column, -1 elsewhere, when the target is the point mass ``best``.

    The deepest path on which every token is the target's; of equal ones the first.
    """
    depths, ancestors = draft.geometry()
    wrong = F.pad(draft.tokens != best.gather(1, draft.parents), (1, 0))  # (B, N + 1); the root is right
    kept = ~(ancestors & wrong[:, None]).any(-1)
    end = torch.where(kept, depths, -1).argmax(1)
    path = ancestors[torch.arange(len(end), device=end.device), end]
    return torch.where(path, torch.arange(path.shape[1], device=end.device), -1)


def _sampled_path(draft: Draft, target: Law, rng: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Slots kept, as in `_greedy_path`, and the law (B, V), not normalised, of the token that the target adds."""
    batch, count = draft.tokens.shape
    path = torch.full((batch, count + 1), -1, device=draft.tokens.device)
    path[:, 0] = 0
    here = torch.zeros_like(path[:, 0])
    law = target.row(here)
    siblings = _Siblings(draft, target)
    coins = uniform((batch, count), rng, path.device)
    for slot in range(1, count + 1):
        asked = (draft.parents[:, slot - 1] == here) & siblings.real[:, slot - 1]
        if not bool(asked.any()):  # one look at the host is cheaper than passes over the vocabulary
            continue
        token = draft.tokens[:, slot - 1 : slot].clamp(min=0)
        share = law.gather(1, token).squeeze(1) / law.sum(1)
        given = siblings.given(slot)
        asked = asked & (given > 0)
        kept = asked & (coins[:, slot - 1] * given < share)
        refused = asked & ~kept
        law = torch.where(refused.unsqueeze(1), siblings.leftover(law, slot), law)
        siblings.forget(slot, refused, kept)
        here = torch.where(kept, slot, here)
        law = torch.where(kept.unsqueeze(1), target.row(here), law)
        path[:, slot] = torch.where(kept, slot, -1)
    return path, law


class _Siblings:
    """Law of the next untried sibling of each row, where siblings are tried one by one."""

    def __init__(self, draft: Draft, target: Law):
        self.draft = draft
        self.first = own_probs(draft, target)  # (B, N) under the original law
        self.real = self.first > 0
        self.tried: Tensor | None = None  # (B, V_draft) drawn before, when that changes the law
        if draft.probs is not None and not draft.replacement:
            self.columns = draft_columns(draft, target)
            self.tried = torch.zeros_like(draft.probs[:, 0], dtype=torch.bool)

    def given(self, slot: int) -> Tensor:
        """Probability (B,) with which the node at ``slot`` was proposed after its tried siblings."""
        if self.tried is None:
            return self.first[:, slot - 1]
        return self._law(slot).gather(1, self.columns[:, slot - 1 : slot]).squeeze(1)

    def leftover(self, law: Tensor, slot: int) -> Tensor:
        """max(law - d, 0) normalised (B, V); the law itself where nothing is left but rounding."""
        law = law / law.sum(1, keepdim=True)
        if self.draft.probs is None:
            left = law.scatter(1, self.draft.tokens[:, slot - 1 : slot].clamp(min=0), 0.0)
        else:
            left = minus(law, self._law(slot), self.draft.vocab)
        total = left.sum(1, keepdim=True)
        return torch.where(total > 0, left / total, law)

    def forget(self, slot: int, refused: Tensor, kept: Tensor) -> None:
        """Remember the node at ``slot`` as tried where ``refused`` (B,); start anew where ``kept`` (B,)."""
        if self.tried is None:
            return
        column = self.columns[:, slot - 1 : slot]
        now = self.tried.gather(1, column) | refused.unsqueeze(1)
        self.tried = self.tried.scatter(1, column, now) & ~kept.unsqueeze(1)

    def _law(self, slot: int) -> Tensor:
        """The law d (B, V_draft), float64, of the node at ``slot``, without its tried siblings."""
        assert self.draft.probs is not None, "chosen siblings have no law"
        guess = self.draft.probs[:, slot - 1].double()
        if self.tried is None:
            return guess
        guess = guess.masked_fill(self.tried, 0.0)
        total = guess.sum(1, keepdim=True)
        return guess / torch.where(total > 0, total, 1.0)


def _tree_verdict(draft: Draft, path: Tensor, emitted: Tensor) -> Verdict:
    """Pack the kept slots of ``path`` (B, N + 1) to the left, as wide as the deepest node, with ``emitted`` (B, 1)."""
    width = _deepest(draft) + 1
    kept = path >= 0
    order = (~kept).long().argsort(dim=1, stable=True)[:, :width]  # kept slots first, in order
    path = path.gather(1, order)
    counts = kept.sum(1) - 1
    drafted = torch.cat((draft.tokens, emitted), 1).gather(1, (path[:, 1:] - 1).clamp(min=0))
    drafted = torch.cat((drafted, emitted), 1)
    steps, end = torch.arange(width, device=path.device), counts.unsqueeze(1)
    tokens = torch.where(steps < end, drafted, torch.where(steps == end, emitted, -1))
    return Verdict(tokens, path, counts)


def _deepest(draft: Draft) -> int:
    """Depth of the deepest real node, 0 if there is none."""
    return int((draft.geometry()[0] * F.pad(draft.tokens >= 0, (1, 0))).max())
