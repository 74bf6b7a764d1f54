"""The draft head: the target's own rows for the draft vocabulary, plus a low-rank update of the drafter's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from semiar.targets.engines.packed import Packed
from semiar.targets.target import Target


def count_tokens(answers: Iterable[Sequence[int]], rows: int) -> Tensor:
    """How often each id (rows,) is in the answers."""
    return torch.bincount(torch.tensor(list(chain.from_iterable(answers)), dtype=torch.long), minlength=rows)


def choose_vocab(counts: Tensor, size: int | str, always: list[int]) -> Tensor | None:
    """Ids (V_draft,) of the most frequent tokens, sorted; None = the whole vocabulary.

    ``counts`` (V,) are frequencies in the fine-tuning answers, ``always`` the ids that must be in (end of turn).
    Tokens never seen are not taken, so the vocabulary can come out smaller than asked.
    """
    if size == "full" or int(size) >= len(counts):
        return None
    counts = counts.clone().double()
    counts[always] = torch.inf
    best = torch.argsort(counts, descending=True, stable=True)[: int(size)]
    return best[counts[best] > 0].sort().values


class DraftHead(nn.Module):
    """Logits over the draft vocabulary: ``finish(W[S] z + up(down(z)))``.

    The rows of W are borrowed from the target (frozen, never saved); only the low-rank update is ours.
    """

    def __init__(self, hidden_size: int, rows: int, rank: int):
        super().__init__()
        self.down = nn.Linear(hidden_size, rank, bias=False) if rank else None
        self.up = nn.Linear(rank, rows, bias=False) if rank else None
        if self.up is not None:
            nn.init.zeros_(self.up.weight)
        self._borrowed: list[Tensor | None] = [None, None]
        self._fused: Tensor | None = None
        self.packed: list[Packed] = []  # the decoding matrix, once laid out; in a list: it is not ours to save
        self.plain = True
        self._finish: Callable[[Tensor], Tensor] = lambda logits: logits

    def bind(self, target: Target, ids: Tensor) -> None:
        """Borrow the target's rows for these ids."""
        weight, bias = target.head_rows(ids.to(target.device))
        self._borrowed = [weight, bias]
        self._finish = target.finish
        probe = torch.tensor([0.5, -3.0])
        self.plain = torch.equal(target.finish(probe), probe)  # no scaling, no capping
        self._fused = None
        self.packed = []

    @property
    def weight(self) -> Tensor:
        weight = self._borrowed[0]
        assert weight is not None, "bind() comes first"
        return weight

    @property
    def bias(self) -> Tensor | None:
        return self._borrowed[1]

    def teacher(self, hidden: Tensor) -> Tensor:
        """The target's own logits (..., V_draft) at these states."""
        return self._finish(_linear(hidden, self.weight, self._borrowed[1]))

    def forward(self, state: Tensor) -> Tensor:
        """Logits (..., V_draft)."""
        return self.finish(self.product(state))

    def product(self, state: Tensor) -> Tensor:
        """Logits before the architecture's scaling or capping (see `finish`)."""
        if self.packed:
            return self.packed[0](state)
        if not torch.is_grad_enabled():
            return _linear(state, self.fused(), self._borrowed[1])
        logits = _linear(state, self.weight, self._borrowed[1])
        if self.down is not None and self.up is not None:
            logits = logits + self.up(self.down(state))
        return logits

    def prepare(self) -> None:
        """Lay the decoding matrix out for the CPU's kernels."""
        self.packed = [Packed(self.fused(), self._borrowed[1], keep=True)]

    def copies(self) -> list[Tensor]:
        """What decoding keeps beside the weights."""
        updated = [] if self._fused is None or self._fused is self._borrowed[0] else [self._fused]
        return updated + [one.packed for one in self.packed]

    def finish(self, logits: Tensor) -> Tensor:
        """Scaling or soft-capping, as the target does it."""
        return self._finish(logits)

    def fused(self) -> Tensor:
        """One matrix (V_draft, H) for decoding; while training it would go stale, so it is not kept."""
        if self._fused is None or self.training:
            weight = self.weight
            if self.down is not None and self.up is not None:
                update = self.up.weight.float() @ self.down.weight.float()
                weight = (weight.float() + update).to(self.up.weight.dtype)
            self._fused = weight
        return self._fused

    def train(self, mode: bool = True) -> DraftHead:
        self._fused = None
        self.packed = []
        return super().train(mode)


def limited_head(target: Target, vocab: Tensor | None) -> DraftHead | None:
    """A model's own head on these ids only, frozen; None for all ids, where `Target.head` is the same."""
    if vocab is None:
        return None
    head = DraftHead(target.hidden_size, len(vocab), 0).eval()
    head.bind(target, vocab)
    return head


def _linear(state: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if torch.is_autocast_enabled(state.device.type):
        return F.linear(state, weight, bias)
    return F.linear(state.to(weight.dtype), weight, bias)
