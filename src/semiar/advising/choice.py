"""What to do, from measured candidates: drafter, draft vocabulary, K, and whether it pays; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semiar.core.theory import Costs, predict
from semiar.measuring.trace import costs_of
from semiar.studies.statistics import Interval, Row, figure, speedup

PAYS = 1.05  # a speed-up below this is not worth a drafter
FLAT = 0.02  # tokens per pass that a doubling of the training has to bring to count
FEW = 200  # optimiser steps that tell little about a whole training
EQUAL = 0.005  # vocabularies whose predicted speeds differ by less: the smaller one


@dataclass(frozen=True, slots=True)
class Heads:
    """What a draft vocabulary costs and covers, by its size as text, smallest first."""

    milliseconds: dict[str, float]  # one position through the head
    coverage: dict[str, float]  # share of unseen answers' tokens
    used: tuple[float, float]  # milliseconds and coverage of the vocabulary that the candidates were measured with


@dataclass(frozen=True, slots=True)
class Length:
    """How far a training of some length came."""

    steps: int
    tokens_per_pass: float  # teacher-forced, on held-out answers


@dataclass(frozen=True, slots=True)
class Choice:
    """The best use of one candidate."""

    drafter: str
    draft_vocab_size: str  # "" = it has none
    count: int  # K
    speedup: Interval  # measured; where vocabulary or K are others than measured, times what the speed model says
    predicted: float  # by the speed model alone
    tokens_per_pass: float  # that it expects at this K
    acceptance: float  # of the first position
    draft_ms: float
    verify_ms: float
    plain_ms: float
    costs: Costs
    longest: int  # the largest K that was looked at
    disturbed: str = ""  # what shows that its measurement cannot be believed

    @property
    def verdict(self) -> str:
        """pays, unclear, does not pay, or disturbed."""
        if self.disturbed:
            return "disturbed"
        if self.predicted <= 1 or self.speedup.high < PAYS:
            return "does not pay"
        return "pays" if self.speedup.low > 1 else "unclear"

    def at(self, acceptance: float) -> float:
        """The predicted speed-up if this were the acceptance at every position, with the K that is best then."""
        betas = [acceptance] * self.longest
        return predict(betas, self.costs, best_of(betas, self.costs)).speedup

    def needed(self, bar: float = PAYS) -> float | None:
        """The acceptance at every position from which the speed-up is ``bar``; None = none is enough."""
        return next((percent / 100 for percent in range(101) if self.at(percent / 100) >= bar), None)


def choose(row: Row, heads: Heads) -> Choice:
    """The vocabulary and K of the highest predicted speed for a candidate, and the speed-up to expect of it."""
    betas, costs = row["machine"]["conditional_acceptance"], costs_of(row["machine"])
    measured = figure([row], speedup)
    before = predict(betas, costs, row["measured"]["num_speculative_tokens"]).speedup
    size = choose_size(betas, costs, heads) if row["facts"]["head"] else ""
    if size:
        betas, costs = with_vocabulary(betas, costs, heads, size)
    found = predict(betas, costs, best_of(betas, costs))
    ratio = found.speedup / before
    scaled = Interval(ratio * measured.value, ratio * measured.low, ratio * measured.high)
    return Choice(
        row["drafter"], size, found.count, scaled, found.speedup, found.tokens_per_pass, betas[0],
        costs.drafting(found.count), costs.verify[found.count], costs.verify[0], costs, len(betas),
        row["measured"]["disturbed"] or _impossible(scaled.value, found.tokens_per_pass),
    )  # fmt: skip


def _impossible(speedup: float, tokens_per_pass: float) -> str:
    """What is wrong with a speed-up to expect that is more than a pass yields; empty when nothing is."""
    if speedup <= tokens_per_pass:
        return ""
    return f"a speed-up of {speedup:.2f} where a pass would yield {tokens_per_pass:.2f} tokens"


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
    more, dearer = heads.coverage[size] / heads.used[1], heads.milliseconds[size] - heads.used[0]
    draft = [max(0.0, spent + k * dearer) for k, spent in enumerate(costs.draft, 1)]
    return [min(1.0, beta * more) for beta in betas], Costs(costs.verify, draft, costs.overhead)


def best_of(betas: Sequence[float], costs: Costs) -> int:
    """K of the highest predicted speed among those that draft at all."""
    return max(range(1, len(betas) + 1), key=lambda count: predict(betas, costs, count).speedup)


def what_would_change(choice: Choice) -> str:
    """Why a choice does not pay, and what it would take."""
    enough = choice.needed()
    if enough is None:
        return (
            f"Even if every draft were accepted it would come to {choice.at(1.0):.2f}: a pass over several tokens "
            "costs too much beside a pass over one.  A larger target or a faster engine for it would change that."
        )
    return (
        f"It would take an acceptance of about {enough:.0%} at every position; the first one has "
        f"{choice.acceptance:.0%}.  Longer training, answers that repeat their prompts more or a cheaper drafter would "
        "change that."
    )


def overtaking(choice: Choice, best: Choice) -> str:
    """What it would take for a trained candidate to be faster than one that learns nothing."""
    enough = choice.needed(best.speedup.value)
    if enough is None:
        return f"{choice.drafter} would not be faster than {best.drafter} even if every draft were accepted."
    return (
        f"{choice.drafter} would be faster than {best.drafter} from an acceptance of about {enough:.0%} at every "
        f"position; after this short training the first one has {choice.acceptance:.0%}."
    )


def longer(name: str, half: Length, whole: Length) -> str:
    """What more training may bring, from teacher-forced tokens per pass at two lengths of it."""
    gain = whole.tokens_per_pass - half.tokens_per_pass
    told = (
        f"each doubling may bring about {gain:.2f} more at first, less later" if gain > FLAT else "it has flattened out"
    )
    if whole.steps < FEW:
        told += "; but so few steps hardly tell, and a whole training is many doublings (more --minutes tells more)"
    return (
        f"Teacher-forced on held-out answers, {name} came to {half.tokens_per_pass:.2f} tokens per pass after "
        f"{half.steps} steps and {whole.tokens_per_pass:.2f} after {whole.steps}: {told}."
    )
