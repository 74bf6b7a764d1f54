"""How the minutes of an advice are spent: what is measured first says what the rest may take."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from semiar.decoding import decode
from semiar.pair import Pair

ANSWERING = 0.3  # share of the time for own answers, at most
TRAININGS = 2.5  # two candidates that learn, and the first one half as long
STATES = 600.0  # tokens a second of the frozen target's states, at least; they are computed once
STARTING, SAVING = 6.0, 4.0  # seconds around a training, and around a measurement, beside loading
CALIBRATING = 17 * 13  # plain steps that measuring a candidate's costs takes
LEAST = 2.0  # seconds that a training gets, whatever is left
PILOTS = 3  # prompts whose plain decoding is timed


class Costs:
    """What this machine takes: seconds to load the target, for a plain step, and for a whole prompt decoded plainly."""

    def __init__(self, loading: float, step: float, prompt: float):
        self.loading, self.step, self.prompt = loading, step, prompt

    @classmethod
    def of(cls, pair: Pair, prompts: Sequence[list[int]], longest: int, loading: float) -> Costs:
        """Timed on a few prompts."""
        begin, steps = perf_counter(), 0
        for prompt in prompts[:PILOTS]:
            steps += sum(1 for _ in decode(pair.target, pair.drafter, [prompt], pair.limits(longest)))
        spent = perf_counter() - begin
        return cls(loading, spent / max(1, steps), spent / max(1, len(prompts[:PILOTS])))


class Budget:
    """A clock that runs from the beginning."""

    def __init__(self, minutes: float):
        self.minutes, self.begin = minutes, perf_counter()

    @property
    def left(self) -> float:
        """Seconds that are left; below 0 when more was spent."""
        return 60 * self.minutes - (perf_counter() - self.begin)

    def training(self, costs: Costs, candidates: int, prompts: int, tokens: int) -> float:
        """Seconds for each training, when so many candidates are then measured on so many prompts, and ``tokens`` are
        learned from.
        """
        measuring = candidates * (costs.loading + SAVING + CALIBRATING * costs.step + 4 * prompts * costs.prompt)
        around = TRAININGS * (costs.loading + STARTING) + tokens / STATES + costs.loading
        return max(LEAST, (self.left - measuring - around) / TRAININGS)
