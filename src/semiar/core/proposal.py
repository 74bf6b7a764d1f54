"""What a draft says about its own tokens, on the target's vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from semiar.core.draft import Draft
from semiar.core.sampling import Law
from semiar.errors import PairError


def check_fit(draft: Draft, target: Law) -> None:
    """PairError if the draft's columns are not ids of the target; looks at shapes only."""
    slots = (target.dense if target.tokens is None else target.tokens).shape[1]
    assert slots == draft.count + 1, f"target law at {slots} slots for {draft.count} drafted nodes"
    if draft.probs is None:
        return
    columns = draft.probs.shape[-1]
    size = target.probs.shape[-1] if target.probs is not None and draft.vocab is None else None
    expected = size if draft.vocab is None else draft.vocab.shape[0]
    if expected is not None and columns != expected:
        raise PairError(
            f"draft law with {columns} columns", f"{expected}", "use a drafter made for this target's vocabulary"
        )


def own_probs(draft: Draft, target: Law) -> Tensor:
    """Probability, float64 (B, N), with which each node was proposed: 1 for a chosen token, 0 for no node."""
    real = draft.tokens >= 0
    if draft.probs is None:
        return real.double()
    columns = draft_columns(draft, target)
    given = draft.probs.gather(-1, columns.unsqueeze(-1)).squeeze(-1).double()
    if draft.vocab is not None:
        real = real & (draft.vocab[columns] == draft.tokens)
    return given * real


def draft_columns(draft: Draft, target: Law) -> Tensor:
    """Column of ``draft.probs`` of each node's token (B, N); some column, to be ignored, for ids outside its law."""
    ids = draft.tokens.clamp(min=0)
    if draft.vocab is None:
        return ids
    table = torch.zeros(target.dense.shape[-1], dtype=torch.long, device=ids.device)
    table[draft.vocab] = torch.arange(len(draft.vocab), device=ids.device)
    return table[ids]


def leftover(law: Tensor, draft: Draft, node: Tensor) -> Tensor:
    """max(law - d, 0) (B, V), not normalised, for the law d of one node of each row, ``node`` (B,)."""
    if draft.probs is None:
        token = draft.tokens.gather(1, node.unsqueeze(1)).clamp(min=0)
        return law.scatter(1, token, 0.0)
    index = node.view(-1, 1, 1).expand(-1, 1, draft.probs.shape[-1])
    return minus(law, draft.probs.gather(1, index).squeeze(1), draft.vocab)


def minus(law: Tensor, guess: Tensor, vocab: Tensor | None) -> Tensor:
    """max(law - guess, 0) for ``law`` (B, V) and ``guess`` (B, V_draft) on the columns ``vocab``."""
    if vocab is None:
        return (law - guess).clamp(min=0)
    return law.index_copy(1, vocab, (law[:, vocab] - guess).clamp(min=0))
