"""What a drafter is trained towards, position by position, on the draft vocabulary."""

from __future__ import annotations

import re

import torch
from torch import Tensor
from torch.nn import functional as F

from semiar.errors import ConfigError

TERMS = ("ce", "kl", "reverse_kl", "js", "tv")


def parse_loss(text: str) -> dict[str, float]:
    """``"0.9*tv + 0.1*kl"`` as weights per term.  Raises ``ConfigError`` for an unknown term."""
    weights: dict[str, float] = {}
    for part in text.split("+"):
        match = re.fullmatch(r"\s*(?:([0-9.eE-]+)\s*\*?\s*)?([a-z_]+)\s*", part)
        if not match or match[2] not in TERMS:
            raise ConfigError(
                f"loss term '{part.strip()}'", f"weight*term with a term of {', '.join(TERMS)}", "0.9*tv + 0.1*kl"
            )
        weights[match[2]] = weights.get(match[2], 0.0) + float(match[1] or 1)
    if not any(weights.values()):
        raise ConfigError(f"loss '{text}'", "at least one term with a weight above 0")
    return weights


def needs_teacher(weights: dict[str, float]) -> bool:
    """Whether any term compares with the target's distribution."""
    return any(name != "ce" for name in weights)


def draft_loss(draft: Tensor, teacher: Tensor | None, label: Tensor, weights: dict[str, float]) -> Tensor:
    """Loss (n,) of draft logits (n, S) against the target's logits (n, S) and label columns (n,; -1 = outside S).

    ``ce``: cross-entropy on labels (the paper).  ``kl`` (target || draft), ``reverse_kl``, ``js`` and ``tv`` (1 -
    acceptance probability) compare with the target's law restricted to the draft vocabulary and renormalised there.
    """
    log_draft = draft.float().log_softmax(-1)
    total = log_draft.new_zeros(len(draft))
    if "ce" in weights:
        total = total + weights["ce"] * F.nll_loss(log_draft, label, ignore_index=-1, reduction="none")
    if not needs_teacher(weights):
        return total
    assert teacher is not None
    log_target = teacher.float().log_softmax(-1)
    target, law = log_target.exp(), log_draft.exp()
    if "kl" in weights:
        total = total + weights["kl"] * (target * (log_target - log_draft)).sum(-1)
    if "reverse_kl" in weights:
        total = total + weights["reverse_kl"] * (law * (log_draft - log_target)).sum(-1)
    if "js" in weights:
        middle = (0.5 * (target + law)).clamp(min=1e-30).log()
        both = (target * (log_target - middle)).sum(-1) + (law * (log_draft - middle)).sum(-1)
        total = total + weights["js"] * 0.5 * both
    if "tv" in weights:
        total = total + weights["tv"] * (1 - torch.minimum(target, law).sum(-1))
    return total
