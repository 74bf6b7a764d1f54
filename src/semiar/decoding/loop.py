"""The loop: propose, verify, accept, keep.  Plain decoding is an empty draft; there is no other loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from semiar.core.accept import accept
from semiar.core.draft import Draft, Verdict
from semiar.core.sampling import Law, Sampling, distribution, draw
from semiar.drafters.base import Context, Drafter
from semiar.errors import ConfigError
from semiar.targets.cache import Cache
from semiar.targets.target import Target

RULES = ("exact", "block", "none")


@dataclass(frozen=True, slots=True)
class Limits:
    """When a row is finished."""

    max_new_tokens: int = 256
    """Most tokens to generate for a prompt, the end-of-turn token included."""
    end_ids: tuple[int, ...] = ()
    """Tokens that end a row; they are part of its ids."""

    def __post_init__(self) -> None:
        if self.max_new_tokens < 0:
            raise ConfigError(f"max_new_tokens {self.max_new_tokens}", "0 or more")


@dataclass(frozen=True, slots=True)
class Step:
    """What one target pass brought; tokens past an end-of-turn or a cap are already cut off."""

    rows: list[int]  # which prompt each entry below belongs to
    tokens: list[list[int]]  # emitted token ids
    accepted: list[int]  # how many drafted tokens the target accepted, before cutting
    finished: list[str | None]  # "stop", "length" or None
    drafted: int  # K of this step
    draft_seconds: float
    verify_seconds: float
    seconds: float  # the whole step


@torch.inference_mode()
def decode(
    target: Target,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    limits: Limits,
    sampling: Sampling | None = None,
    *,
    rng: torch.Generator | None = None,
    num_speculative_tokens: int | None = None,
    rule: str = "exact",
) -> Iterator[Step]:
    """Generate for every prompt at once, yielding after each target pass; finished rows leave the batch.

    ``rule`` is ``exact`` (lossless), ``block`` (lossless, block verification, sampling only) or ``none`` (LOSSY: drafts
    are emitted unverified).  ``num_speculative_tokens`` lowers the drafter's K; 0 decodes plainly.
    Raises ``ConfigError`` for prompts that are empty or leave no room in the model's context.
    """
    sampling = sampling or Sampling()
    room = _check(target, drafter, prompts, limits, rule)
    if limits.max_new_tokens == 0 or not prompts:
        return
    most = drafter.settings.num_speculative_tokens if num_speculative_tokens is None else num_speculative_tokens
    remaining = torch.tensor(room, device=target.device)  # (B,)
    capacity = max(len(p) + r for p, r in zip(prompts, room, strict=True)) + most + 1
    context, cache = _prefill(target, drafter, prompts, capacity)
    state = drafter.start(len(prompts), capacity, target.device)
    rows = list(range(len(prompts)))
    ends = torch.tensor(limits.end_ids, device=target.device)
    while rows:
        begin = perf_counter()
        longest, wanted = int(context.lengths.max()), int(remaining.max())
        count = min(most, wanted - 1, target.max_length - longest)
        draft = drafter.propose(context, state, count, sampling, rng) if count > 0 else _nothing(context)
        drafted_at = perf_counter()
        depths, mask = draft.geometry()
        start = cache.width
        out = target(
            torch.cat([context.last(), draft.tokens], 1),
            cache,
            depths=depths,
            mask=None if draft.is_chain else mask,
            layers=drafter.layers,
        )
        assert out.logits is not None
        law = distribution(out.logits, sampling)
        verified_at = perf_counter()
        verdict = _unverified(draft, law, rng) if rule == "none" else accept(draft, law, rng, block=rule == "block")
        cache.keep(start, verdict.path)
        context = _advance(context, verdict, out.hidden, draft.is_chain)
        emitted, ended = _cut(verdict, remaining, ends)
        remaining = remaining - emitted
        step = _report(rows, verdict, emitted, ended, remaining, draft.count)
        end = perf_counter()
        yield Step(*step, draft.count, drafted_at - begin, verified_at - drafted_at, end - begin)
        alive = ~ended & (remaining > 0)
        if not bool(alive.all()):
            left = alive.nonzero()[:, 0]
            rows = [rows[i] for i in left.tolist()]
            if rows:
                context, remaining = context.select(left), remaining[left]
                cache.select(left)
                state.select(left)


def _check(target: Target, drafter: Drafter, prompts: Sequence[Sequence[int]], limits: Limits, rule: str) -> list[int]:
    """Tokens that each row may still get."""
    if rule not in RULES:
        raise ConfigError(f"verification rule '{rule}'", f"one of {', '.join(RULES)}")
    room = []
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise ConfigError(f"prompt {index} is empty", "at least one token")
        left = target.max_length - len(prompt)
        if left < 1:
            raise ConfigError(
                f"prompt {index} has {len(prompt)} tokens",
                f"fewer than the model's context limit of {target.max_length}",
            )
        room.append(min(limits.max_new_tokens, left))
    return room


def _nothing(context: Context) -> Draft:
    return Draft.empty(len(context.lengths), context.tokens.device)


def _prefill(
    target: Target, drafter: Drafter, prompts: Sequence[Sequence[int]], capacity: int
) -> tuple[Context, Cache]:
    """Run all but the last token of every prompt."""
    lengths = torch.tensor([len(p) for p in prompts], device=target.device)
    tokens = torch.zeros(len(prompts), capacity, dtype=torch.long, device=target.device)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(prompt, device=target.device)
    cache = target.start(len(prompts), capacity)
    width = int(lengths.max()) - 1
    if width:
        hidden = target.prefill(tokens[:, :width], lengths - 1, cache, drafter.layers)
    else:
        hidden = torch.zeros(len(prompts), 0, len(drafter.layers), target.hidden_size, dtype=target.dtype)
    return Context(tokens, lengths, hidden.to(target.device), lengths - 1), cache


def _advance(context: Context, verdict: Verdict, hidden: Tensor, chain: bool) -> Context:
    """Commit the verdict's tokens and keep the states of the slots on its path."""
    width = verdict.tokens.shape[1]
    steps = torch.arange(width, device=hidden.device)
    kept = steps <= verdict.counts[:, None]
    places = context.lengths[:, None] + steps
    old = context.tokens.gather(1, places)
    context.tokens.scatter_(1, places, torch.where(kept, verdict.tokens, old))
    if not chain:
        slots = verdict.path.clamp(min=0)[..., None, None].expand(-1, -1, *hidden.shape[2:])
        hidden = hidden.gather(1, slots)
    fresh = verdict.counts + 1
    return Context(context.tokens, context.lengths + fresh, hidden, fresh)


def _unverified(draft: Draft, law: Law, rng: torch.Generator | None) -> Verdict:
    """LOSSY: take a chain's tokens as they are, then one token of the target's."""
    if not draft.is_chain:
        raise ConfigError("verify none with a tree-shaped draft", "a chain")
    batch, count = draft.tokens.shape
    if law.probs is None:
        assert law.tokens is not None
        bonus = law.tokens[:, -1:]
    else:
        bonus = draw(law.probs[:, -1:], rng)
    path = torch.arange(count + 1, device=draft.tokens.device).expand(batch, -1)
    return Verdict(torch.cat([draft.tokens, bonus], 1), path, torch.full_like(path[:, 0], count))


def _cut(verdict: Verdict, remaining: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """How many tokens each row emits (B,), and whether the last of them ends it (B,)."""
    steps = torch.arange(verdict.tokens.shape[1], device=remaining.device)
    usable = steps < torch.minimum(verdict.counts + 1, remaining)[:, None]
    is_end = (verdict.tokens[..., None] == ends).any(-1) & usable
    first = torch.where(is_end, steps, len(steps)).amin(1)
    return torch.minimum(usable.sum(1), first + 1), is_end.any(1)


def _report(
    rows: list[int], verdict: Verdict, emitted: Tensor, ended: Tensor, remaining: Tensor, drafted: int
) -> tuple[list[int], list[list[int]], list[int], list[str | None]]:
    tokens = [t[:n] for t, n in zip(verdict.tokens.tolist(), emitted.tolist(), strict=True)]
    reasons: list[str | None] = [
        "stop" if end else "length" if left == 0 else None
        for end, left in zip(ended.tolist(), remaining.tolist(), strict=True)
    ]
    return list(rows), tokens, verdict.counts.tolist(), reasons
