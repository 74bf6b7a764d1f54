"""A short self-test of a freshly loaded target: can it be rolled back, and do we read the right hidden state?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from semiar.core.draft import Draft
from semiar.errors import SemiarError, TargetError
from semiar.targets.target import LAST, Target


@torch.inference_mode()
def check_target(target: Target) -> None:
    """Run a few tokens with a rejected branch and compare with a plain pass; raise ``TargetError`` on a difference.

    Guards against architectures nobody has tried: a memory that cannot be rolled back, or an output head that reads
    something else than the state we take.  Costs four short passes.
    """
    try:
        with quiet(target):
            _check(target)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, SemiarError):
            raise
        raise TargetError(
            f"'{target.config.model_type}' cannot run a tree of tokens: {error}",
            "a model that takes a four-dimensional attention mask and positions",
            "please report the architecture",
        ) from error


@contextmanager
def quiet(target: Target) -> Iterator[None]:
    """No dropout while two passes are compared; the modules that were learning go on afterwards."""
    learning = [module for module in target.modules() if module.training]
    target.eval()
    try:
        yield
    finally:
        for module in learning:
            module.training = True


def _check(target: Target) -> None:
    ids = sample_ids(target)
    plain = target(ids)
    assert plain.logits is not None
    compare(target, target.head(plain.hidden[:, :, 0]), plain.logits, "the output head applied to the hidden state")
    cache = target.start(1, 16)
    target.prefill(ids[:, :4], torch.tensor([4], device=target.device), cache, (LAST,))
    wrong = torch.zeros_like(ids[:, 4:5])
    tokens = torch.cat([ids[:, 4:5], wrong, ids[:, 5:7]], 1)  # slot 1 is a branch that gets rejected
    draft = Draft(tokens[:, 1:], torch.tensor([[0, 0, 2]], device=target.device))
    depths, mask = draft.geometry()
    out = target(tokens, cache, depths=depths, mask=mask)
    assert out.logits is not None
    compare(target, out.logits[:, [0, 2, 3]], plain.logits[:, 4:7], "a pass over a tree of tokens")
    cache.keep(torch.tensor([[0, 2]], device=target.device))
    again = target(ids[:, 6:7], cache)
    assert again.logits is not None
    compare(target, again.logits, plain.logits[:, 6:7], "a pass after rolling back a rejected token")


def sample_ids(target: Target) -> Tensor:
    """Seven token ids (1, 7) that every vocabulary has."""
    return (torch.arange(7, device=target.device) * 7919 + 11)[None] % min(target.vocab_size, 1000)


TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.15, torch.float16: 0.05}


def differs(target: Target, found: Tensor, wanted: Tensor) -> float:
    """By how much, relatively, two results that should agree up to rounding do not; 0 when they do."""
    scale = wanted.float().abs().max().clamp(min=1e-6)
    gap = float((found.float() - wanted.float()).abs().max() / scale)
    return 0.0 if gap <= TOLERANCE[target.dtype] else gap


def compare(target: Target, found: Tensor, wanted: Tensor, what: str) -> None:
    """Raise ``TargetError`` when two results that should agree up to rounding do not."""
    gap = differs(target, found, wanted)
    if gap:
        raise TargetError(
            f"{what} gives other logits than the model's own plain pass (relative difference {gap:.2g})",
            "the same up to rounding",
            f"'{target.config.model_type}' keeps a state that semiar cannot roll back or reads a different tensor; "
            "please report the architecture",
        )
