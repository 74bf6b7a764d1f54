"""Drawing a chain of drafts token after token, whatever gives the logits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from semiar.core.calibration import Calibration
from semiar.core.sampling import Law, Sampling, distribution, pick


def draw_chain(
    following: Callable[[Tensor, int], Tensor],
    ids: Tensor,
    coins: Tensor | None,
    count: int,
    sampling: Sampling,
    vocab: Tensor | None,
    stop_below: float = 0.0,
    calibration: Calibration | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Drafted ids (B, count) and, when sampling, their laws (B, count, V_draft); no host synchronisation.

    ``following(ids, step)`` reads token number ``step``, ``ids`` (B, 1), and gives the logits (B, 1, V_draft) of the
    next.  With ``stop_below`` a row goes on with -1 after a token whose own probability, or what ``calibration`` makes
    of it, is below it, and all end when the last one has stopped.  The token itself stays: leaving it out would make
    the law of what is kept another one.
    """
    tokens, laws = [], []
    going = torch.ones_like(ids, dtype=torch.bool)
    for step in range(count):
        logits = following(ids, step)
        law = distribution(logits, sampling)
        choice = law.tokens
        if law.probs is not None:
            assert coins is not None
            choice = pick(law.probs, coins[:, step : step + 1])
            laws.append(law.probs)
        assert choice is not None
        ids = choice if vocab is None else vocab[choice]
        tokens.append(torch.where(going, ids, -1) if stop_below else ids)
        if stop_below and step + 1 < count:
            own = _confidence(logits, law, choice)
            going = going & ((calibration(own, step) if calibration else own) >= stop_below)
            if not bool(going.any()):
                break
    return torch.cat(tokens, 1), torch.cat(laws, 1) if laws else None


def _confidence(logits: Tensor, law: Law, choice: Tensor) -> Tensor:
    """Probability (B, 1) that the drafter gave to its own choice."""
    probs = logits.float().softmax(-1) if law.probs is None else law.probs
    return probs.gather(-1, choice[..., None])[..., 0]
