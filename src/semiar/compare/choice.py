"""What to do, from measured candidates: drafter, draft vocabulary, K, and whether it pays; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from semiar.compare.statistics import Interval, Row, figure, speedup
from semiar.core.theory import Costs, predict

PAYS = 1.05  # a speed-up below this is not worth a drafter
EQUAL = 0.005  # vocabularies whose predicted speeds differ by less: the smaller one


@dataclass(frozen=True, slots=True)
class Heads:
    """What a draft vocabulary costs and covers, by its size as text, smallest first."""

    milliseconds: dict[str, float]  # one position through the head
    coverage: dict[str, float]  # share of unseen answers' tokens
    trained: str  # the size that the candidates were measured with


@dataclass(frozen=True, slots=True)
class Choice:
    """The best use of one candidate."""

    drafter: str
    draft_vocab_size: str  # "" = it has none
    count: int  # K
    speedup: Interval  # measured; where vocabulary or K are others than measured, times what the speed model says
    predicted: float  # by the speed model alone
    tokens_per_call: float  # that it expects at this K
    acceptance: float  # of the first position
    draft_ms: float
    verify_ms: float
    plain_ms: float
    perfect: float  # the speed-up if every draft were accepted
    needed: float | None  # acceptance at every position from which it would pay; None = none is enough

    @property
    def verdict(self) -> str:
        """pays, unclear or does not pay."""
        if self.predicted <= 1 or self.speedup.high < PAYS:
            return "does not pay"
        return "pays" if self.speedup.low > 1 else "unclear"


def costs_of(machine: dict[str, Any]) -> Costs:
    """Measured milliseconds of a trace's machine record."""
    verify = [machine["verify_ms"][n] for n in sorted(machine["verify_ms"], key=int)]
    return Costs(verify, machine["draft_ms"], machine["overhead_ms"])


def choose(row: Row, heads: Heads) -> Choice:
    """The vocabulary and K of the highest predicted speed for a candidate, and the speed-up to expect of it."""
    betas, costs = row["machine"]["conditional_acceptance"], costs_of(row["machine"])
    count = row["measured"]["num_speculative_tokens"]
    measured, before = figure([row], speedup), predict(betas, costs, count).speedup
    size = "" if row["settings"]["architecture"] == "lookup" else choose_size(betas, costs, heads)
    if size:
        betas, costs = with_vocabulary(betas, costs, heads, size)
    best = best_of(betas, costs)
    kept = count if size in ("", heads.trained) and count else best  # what was measured needs no model
    found = predict(betas, costs, kept)
    ratio = found.speedup / before
    scaled = Interval(ratio * measured.value, ratio * measured.low, ratio * measured.high)
    sure = [1.0] * len(betas)
    return Choice(
        row["drafter"], size, kept, scaled, found.speedup, found.tokens_per_call, betas[0], costs.drafting(kept),
        costs.verify[kept], costs.verify[0], predict(sure, costs, best_of(sure, costs)).speedup,
        needed(costs, len(betas)),
    )  # fmt: skip


def choose_size(betas: Sequence[float], costs: Costs, heads: Heads) -> str:
    """The smallest vocabulary of about the highest predicted speed."""
    speeds = {}
    for size in heads.coverage:
        changed = with_vocabulary(betas, costs, heads, size)
        speeds[size] = predict(*changed, best_of(*changed)).speedup
    enough = max(speeds.values()) * (1 - EQUAL)
    return next(size for size, speed in speeds.items() if speed >= enough)


def with_vocabulary(betas: Sequence[float], costs: Costs, heads: Heads, size: str) -> tuple[list[float], Costs]:
    """Acceptance and costs with another vocabulary: a token is accepted only if it is in; each step asks the head."""
    assert not isinstance(costs.draft, (int, float))
    more = heads.coverage[size] / heads.coverage[heads.trained]
    dearer = heads.milliseconds[size] - heads.milliseconds[heads.trained]
    draft = [max(0.0, spent + k * dearer) for k, spent in enumerate(costs.draft, 1)]
    return [min(1.0, beta * more) for beta in betas], Costs(costs.verify, draft, costs.overhead)


def best_of(betas: Sequence[float], costs: Costs) -> int:
    """K of the highest predicted speed among those that draft at all."""
    return max(range(1, len(betas) + 1), key=lambda count: predict(betas, costs, count).speedup)


def needed(costs: Costs, most: int) -> float | None:
    """The acceptance at each of ``most`` positions from which speculation pays."""
    for percent in range(101):
        betas = [percent / 100] * most
        if predict(betas, costs, best_of(betas, costs)).speedup >= PAYS:
            return percent / 100
    return None


def what_would_change(choice: Choice) -> str:
    """Why a choice does not pay, and what it would take."""
    if choice.needed is None or choice.perfect < PAYS:
        return (
            f"Even if every draft were accepted it would come to {choice.perfect:.2f}: a pass over several tokens "
            "costs too much beside a pass over one.  A larger target or a faster engine for it would change that."
        )
    return (
        f"It would take an acceptance of about {choice.needed:.0%} at every position; the first one has "
        f"{choice.acceptance:.0%}.  Longer training, answers that repeat their prompts more or a cheaper drafter would "
        "change that."
    )


def longer(name: str, half: float | None, whole: float | None) -> str:
    """What more training may bring, from teacher-forced tokens per pass at two lengths of it."""
    if half is None or whole is None:
        return ""
    gain = whole - half
    told = (
        f"each doubling may bring about {gain:.2f} more for a while, less later" if gain > 0.02
        else "so longer training of this kind promises little"
    )  # fmt: skip
    return (
        f"Teacher-forced on held-out answers, {name} came to {half:.2f} tokens per pass after half of this training "
        f"and {whole:.2f} after all of it: {told}."
    )
