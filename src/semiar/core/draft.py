"""The two values that pass between a drafter and the verifier.

A chain is a tree in which every node has one child; plain decoding is an empty tree.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from semiar.errors import ConfigError

TREES = ("none", "best", "beam", "sampled")


@dataclass(frozen=True, slots=True)
class Draft:
    """Guessed continuations of each row, as a tree of at most N nodes.

    Slot 0 is the last committed token; node ``i`` is slot ``i + 1``.  Nodes are listed parents first.
    """

    tokens: Tensor  # (B, N) target-vocabulary ids; -1 = no node here
    parents: Tensor  # (B, N) slot of the parent
    probs: Tensor | None = None  # (B, N, V_draft) law each token was sampled from; None = chosen, not sampled
    vocab: Tensor | None = (
        None  # (V_draft,) target ids of the columns of `probs`; None = V_draft is the whole vocabulary
    )
    replacement: bool = True  # sampled siblings: drawn i.i.d. (True) or without replacement (False)
    is_chain: bool = False  # every node has one child; known at construction so that nobody has to look

    @classmethod
    def chain(cls, tokens: Tensor, probs: Tensor | None = None, vocab: Tensor | None = None) -> Draft:
        """A chain: token ``i`` continues token ``i - 1``; ``tokens`` is (B, N)."""
        batch, count = tokens.shape
        parents = torch.arange(count, device=tokens.device).expand(batch, count)
        return cls(tokens, parents, probs, vocab, True, True)

    @classmethod
    def empty(cls, batch: int, device: torch.device | None = None) -> Draft:
        """No guess at all: the step becomes plain decoding."""
        return cls.chain(torch.zeros(batch, 0, dtype=torch.long, device=device))

    @property
    def count(self) -> int:
        """N, the number of node columns."""
        return self.tokens.shape[1]

    def geometry(self) -> tuple[Tensor, Tensor]:
        """Depth of each slot (B, N+1) and which slots it may attend to, itself included (B, N+1, N+1) bool."""
        batch, count = self.tokens.shape
        device = self.tokens.device
        if self.is_chain:
            depths = torch.arange(count + 1, device=device).expand(batch, -1)
            mask = torch.ones(count + 1, count + 1, dtype=torch.bool, device=device).tril()
            return depths, mask.expand(batch, -1, -1)
        slots = torch.arange(count + 1, device=device)
        mask = slots[:, None] == slots  # every slot, then also its parent, then whole paths of twice the length
        parent = F.pad(self.parents, (1, 0))[..., None] == slots
        mask = mask | parent
        for _ in range(count.bit_length()):
            mask = (mask.float() @ mask.float()) > 0
        return mask.sum(-1) - 1, mask


@dataclass(frozen=True)
class Shape:
    """What is drafted in one step, however long."""

    tree: str = "none"
    """none (a chain), best (most probable paths under a node budget, EAGLE-2), beam (whole beams) or sampled
    (siblings drawn independently)."""
    nodes: int = 16
    """With a tree: most drafted tokens per target pass."""
    branch: int = 4
    """With a tree: most continuations of one token; with beam the width."""
    stop_below: float = 0.0
    """Stop a chain after keeping a token whose expected acceptance (uncalibrated: its own probability) is below this;
    0 = never."""

    def __post_init__(self) -> None:
        if self.tree not in TREES:
            raise ConfigError(f"tree '{self.tree}'", f"{', '.join(TREES[:-1])} or {TREES[-1]}")
        for name in ("nodes", "branch"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} {getattr(self, name)}", "at least 1")
        if not 0 <= self.stop_below < 1:
            raise ConfigError(f"stop_below {self.stop_below}", "0 or more, below 1")
        if self.stop_below and self.tree != "none":
            raise ConfigError(f"stop_below {self.stop_below} with tree {self.tree}", "a chain: tree none")


@dataclass(frozen=True)
class Plan(Shape):
    """How to draft in one step; decided from the prefix alone."""

    count: int = 5
    """K: tokens drafted one after another, the depth of a tree."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one verification decided for each row; D is the deepest node."""

    tokens: Tensor  # (B, D + 1) accepted tokens, then one from the target; -1 after
    path: Tensor  # (B, D + 1) slots to keep in the cache, slot 0 first; -1 after
    counts: Tensor  # (B,) accepted draft tokens
