"""The rows that are being decoded together: they join when they come and leave when they are finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import torch
from torch import Tensor

from semiar.core.accept import accept
from semiar.core.draft import Draft, Plan, Verdict
from semiar.core.sampling import Law, Sampling, distribution, draw
from semiar.drafters.base import Context, Drafter, State
from semiar.errors import ConfigError, TargetError
from semiar.targets.cache import Cache, survivors
from semiar.targets.target import Target


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
    drafted: int  # tokens drafted in this step
    depth: int  # of the longest path through them: all of a chain
    parts: dict[str, float]  # seconds of each part: draft, target, law, accept, cache, report

    @property
    def draft_seconds(self) -> float:
        return self.parts["draft"]

    @property
    def verify_seconds(self) -> float:
        """The target's pass and the law of its logits."""
        return self.parts["target"] + self.parts["law"]

    @property
    def seconds(self) -> float:
        """The whole step."""
        return sum(self.parts.values())


@dataclass(slots=True)
class Rows:
    """Everything that is known about the rows in work, the row being each tensor's first dimension."""

    ids: list[int]
    context: Context
    cache: Cache
    state: State
    remaining: Tensor  # (B,) tokens that each may still get

    def join(self, other: Rows) -> None:
        """Append the rows of another group of the same capacity."""
        self.ids += other.ids
        self.context = self.context.join(other.context)
        self.cache.join(other.cache)
        self.state.join(other.state)
        self.remaining = torch.cat([self.remaining, other.remaining])

    def select(self, left: Tensor) -> None:
        """Keep only these rows; ``left`` (B',) are indices."""
        self.ids = [self.ids[i] for i in left.tolist()]
        if self.ids:
            self.context, self.remaining = self.context.select(left), self.remaining[left]
            self.cache.select(left)
            self.state.select(left)


class Clock:
    """Seconds by part of a step; with a GPU given, each part waits for it."""

    def __init__(self, device: torch.device | None):
        self.device = device if device is not None and device.type == "cuda" else None
        self.parts: dict[str, float] = {}
        self.last = perf_counter()

    def mark(self, part: str) -> None:
        """All since the last mark was this part."""
        if self.device is not None:
            torch.cuda.synchronize(self.device)
        now = perf_counter()
        self.parts[part] = now - self.last
        self.last = now


class Batch:
    """One target and one drafter at work on rows that come and go.

    ``capacity`` is the longest row's room, ``counts`` is K by the rows in work (each entry from its number on),
    ``plan`` says how to draft (its count is not used).
    """

    def __init__(
        self, target: Target, drafter: Drafter, sampling: Sampling, *, ends: Sequence[int], capacity: int,
        counts: Mapping[int, int], rule: str = "exact", rng: torch.Generator | None = None, profile: bool = False,
        plan: Plan | None = None,
    ):  # fmt: skip
        self.profile, self.plan = profile, plan or Plan()
        self.target, self.drafter, self.sampling, self.rng = target, drafter, sampling, rng
        self.ends = torch.tensor(list(ends), device=target.device)
        self.capacity, self.counts, self.rule = capacity, counts, rule
        self.rows: Rows | None = None

    def __len__(self) -> int:
        return len(self.rows.ids) if self.rows else 0

    def admit(self, ids: Sequence[int], prompts: Sequence[Sequence[int]], room: Sequence[int]) -> None:
        """Run all but the last token of every prompt and let the rows join; ``room`` is how much each may get."""
        target = self.target
        lengths = torch.tensor([len(p) for p in prompts], device=target.device)
        tokens = torch.zeros(len(prompts), self.capacity, dtype=torch.long, device=target.device)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = torch.tensor(prompt, device=target.device)
        cache = target.start(len(prompts), self.capacity)
        width = int(lengths.max()) - 1
        if width:
            hidden = target.prefill(tokens[:, :width], lengths - 1, cache, self.drafter.layers)
        else:
            shape = (len(prompts), 0, len(self.drafter.layers), target.hidden_size)
            hidden = torch.zeros(shape, dtype=target.dtype, device=target.device)
        state = self.drafter.start(len(prompts), self.capacity, target.device)
        context = Context(tokens, lengths, hidden, lengths - 1)
        fresh = Rows(list(ids), context, cache, state, torch.tensor(list(room), device=target.device))
        if self.rows and self.rows.ids:
            self.rows.join(fresh)
        else:
            self.rows = fresh

    def step(self) -> Step:
        """One draft and one target pass for every row; finished rows leave."""
        assert self.rows is not None
        rows, target = self.rows, self.target
        clock = Clock(target.device if self.profile else None)
        draft = self._propose(rows)
        clock.mark("draft")
        depths, mask = (None, None) if draft.is_chain else draft.geometry()
        tokens = torch.cat([rows.context.last(), draft.tokens], 1)
        out = target(tokens, rows.cache, depths=depths, mask=mask, layers=self.drafter.layers)
        assert out.logits is not None
        clock.mark("target")
        law = distribution(out.logits, self.sampling)
        clock.mark("law")
        verdict = self._judge(draft, law)
        clock.mark("accept")
        rows.cache.keep(verdict.path, chain=draft.is_chain)
        rows.context = _advance(rows.context, verdict, out.hidden, draft.is_chain)
        clock.mark("cache")
        emitted, ended = _cut(verdict, rows.remaining, self.ends)
        rows.remaining = rows.remaining - emitted
        report = _report(rows, verdict, emitted, ended, out.hidden)
        alive = ~ended & (rows.remaining > 0)
        if not bool(alive.all()):
            rows.select(survivors(alive))
        clock.mark("report")
        return Step(*report, draft.count, verdict.tokens.shape[1] - 1, clock.parts)

    def _propose(self, rows: Rows) -> Draft:
        longest, wanted = int(rows.context.lengths.max()), int(rows.remaining.max())
        most = self.counts[max(size for size in self.counts if size <= len(rows.ids))]
        count = min(most, wanted - 1, self.target.max_length - longest)
        resting = most == 0 and any(self.counts.values())  # it drafts again when rows have left, so it has to follow
        if count < 1 and not resting:
            return Draft.empty(len(rows.ids), self.target.device)
        plan = replace(self.plan, count=max(count, 0))
        return self.drafter.propose(rows.context, rows.state, plan, self.sampling, self.rng)

    def _judge(self, draft: Draft, law: Law) -> Verdict:
        if self.rule == "none":
            return _unverified(draft, law, self.rng)
        return accept(draft, law, self.rng, block=self.rule == "block")


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
        raise ConfigError("rule none with a tree", "a chain")
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
    rows: Rows, verdict: Verdict, emitted: Tensor, ended: Tensor, hidden: Tensor
) -> tuple[list[int], list[list[int]], list[int], list[str | None]]:
    """The step in Python's terms: rows, tokens, accepted drafts, why each row ended."""
    finite = hidden[:, 0].isfinite().flatten(1).all(1).long()
    columns = torch.stack([emitted, ended.long(), rows.remaining, verdict.counts, finite], 1)
    facts = torch.cat([columns, verdict.tokens], 1).tolist()  # the one transfer of the step
    if not all(fact[4] for fact in facts):
        raise TargetError(
            f"the target's hidden state of row {next(rows.ids[i] for i, f in enumerate(facts) if not f[4])} is not "
            "finite (nan or inf)",
            "finite numbers",
            "try another dtype (float16 overflows in some models), or check the weights",
        )
    reasons: list[str | None] = ["stop" if f[1] else "length" if f[2] == 0 else None for f in facts]
    return list(rows.ids), [f[5 : 5 + f[0]] for f in facts], [f[3] for f in facts], reasons
