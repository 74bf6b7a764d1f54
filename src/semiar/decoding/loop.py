"""The loop: propose, verify, accept, keep.  Plain decoding is an empty draft; there is no other loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from semiar.core.draft import Plan
from semiar.core.sampling import Sampling
from semiar.decoding.batch import Batch, Limits, Step
from semiar.drafters.base import Drafter
from semiar.errors import ConfigError
from semiar.settings import RULES
from semiar.targets.target import Target

__all__ = ["Limits", "Step", "decode"]


@torch.inference_mode()
def decode(
    target: Target,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    limits: Limits,
    sampling: Sampling | None = None,
    *,
    rng: torch.Generator | None = None,
    num_speculative_tokens: int | Mapping[int, int] | None = None,
    rule: str = "exact",
    max_batch: int | None = None,
    profile: bool = False,
    plan: Plan | None = None,
) -> Iterator[Step]:
    """Generate for every prompt, yielding after each target pass; finished rows leave the batch.

    ``rule`` is ``exact`` (lossless), ``block`` (lossless, block verification, sampling only) or ``none`` (LOSSY: drafts
    are emitted unverified).  ``num_speculative_tokens`` lowers the drafter's K; 0 decodes plainly; a mapping gives K by
    the rows in work, each entry from its number on (``{1: 5, 8: 0}``: five up to seven rows, then none; see
    `calibrate.choose_counts`).  ``max_batch`` rows are in work at once, the others join as these finish; None =
    all of them from the start.  ``profile`` waits for the device after each part of a step, so that `Step.parts` is
    exact on a GPU too.  ``plan`` asks for a tree or for stopping early; its count is not used.
    Raises ``ConfigError`` for prompts that are empty or leave no room in the model's context.
    """
    room = _check(target, prompts, limits, rule, max_batch)
    if plan is not None and plan.tree != "none" and rule != "exact":  # a hybrid may draft chains for a while
        raise ConfigError(f"tree {plan.tree} with verification rule {rule}", "rule exact, or tree none")
    drafter.check(plan or Plan())
    counts = _counts(drafter, num_speculative_tokens)
    most = max(counts.values())
    if limits.max_new_tokens == 0 or not prompts:
        return
    capacity = max(len(p) + r for p, r in zip(prompts, room, strict=True)) + room_for(plan, most) + 1
    batch = Batch(
        target, drafter, sampling or Sampling(), ends=limits.end_ids, capacity=capacity, counts=counts, rule=rule,
        rng=rng, profile=profile, plan=plan,
    )  # fmt: skip
    target.expect(counts[min(counts)] + 1)
    waiting = list(range(len(prompts)))
    while waiting or len(batch):
        size = max_batch or len(prompts)
        free = size - len(batch)
        if waiting and (not len(batch) or free > size // 4):  # in groups: a joining row has the others copied
            coming, waiting = waiting[:free], waiting[free:]
            batch.admit(coming, [prompts[i] for i in coming], [room[i] for i in coming])
        yield batch.step()


def room_for(plan: Plan | None, count: int) -> int:
    """Slots that one draft may take."""
    return count if plan is None or plan.tree == "none" else max(count, plan.nodes)


def _counts(drafter: Drafter, wanted: int | Mapping[int, int] | None) -> dict[int, int]:
    """K by the rows in work, each entry from its number of rows on."""
    if not isinstance(wanted, Mapping):
        return {1: drafter.resolve_count(wanted)}
    if 1 not in wanted or min(wanted) < 1:
        raise ConfigError(f"num_speculative_tokens for {sorted(wanted)} rows", "row numbers above 0, 1 among them")
    return {rows: drafter.resolve_count(count) for rows, count in sorted(wanted.items())}


def _check(
    target: Target, prompts: Sequence[Sequence[int]], limits: Limits, rule: str, max_batch: int | None
) -> list[int]:
    """Tokens that each row may still get."""
    if rule not in RULES:
        raise ConfigError(f"verification rule '{rule}'", f"one of {', '.join(RULES)}")
    if max_batch is not None and max_batch < 1:
        raise ConfigError(f"max_batch {max_batch}", "at least 1")
    limit = target.max_length
    room = []
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise ConfigError(f"prompt {index} is empty", "at least one token")
        left = limit - len(prompt)
        if left < 1:
            raise ConfigError(
                f"prompt {index} has {len(prompt)} tokens", f"fewer than the model's context limit of {limit}"
            )
        room.append(min(limits.max_new_tokens, left))
    return room
