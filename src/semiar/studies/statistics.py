"""Figures of rows and differences between them, with intervals; pure, from ``compare.jsonl``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from semiar.core.counting import mean_acceptance_length
from semiar.measuring.resample import middle, resampled

Row = dict[str, Any]
Measure = Callable[[np.ndarray], np.ndarray]  # totals (..., columns of `blocks.COLUMNS`) to a figure (...)


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and its 95 % bootstrap interval over prompts and stretches of time."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})" if self.value == self.value else "not measured"


def acceptance_length(totals: np.ndarray) -> np.ndarray:
    """Accepted drafts + 1 per target pass."""
    found: np.ndarray = mean_acceptance_length(totals[..., 1], totals[..., 0])
    return found


def accepted(totals: np.ndarray) -> np.ndarray:
    """Accepted drafts per target pass."""
    return totals[..., 1] / totals[..., 0]


def speedup(totals: np.ndarray) -> np.ndarray:
    """Wall clock over plain decoding, without the prompts: a ratio of totals."""
    plain, fast = totals[..., 3] / totals[..., 2], totals[..., 5] / totals[..., 4]
    return plain / fast


def figure(rows: Sequence[Row], measure: Measure) -> Interval:
    """The figure of some rows (tasks and seeds count alike), prompts resampled."""
    return _interval([_draws(row, measure) for row in rows], [_exact(row, measure) for row in rows])


def difference(first: Sequence[Row], second: Sequence[Row], measure: Measure, *, relative: bool = False) -> Interval:
    """First minus second (``relative``: first / second - 1), averaged over pairs of rows on the same task and seed.

    Both decoded the same prompts, so these are drawn together.
    """
    draws, exact = [], []
    for one in first:
        other = next((row for row in second if (row["task"], row["seed"]) == (one["task"], one["seed"])), None)
        if other is None:
            continue
        a, b = _draws(one, measure), _draws(other, measure)
        x, y = _exact(one, measure), _exact(other, measure)
        if relative and not (y and b.all()):
            continue  # nothing to be relative to
        draws.append(a / b - 1 if relative else a - b)
        exact.append(x / y - 1 if relative else x - y)
    return _interval(draws, exact)


def _interval(draws: list[np.ndarray], exact: list[float]) -> Interval:
    if not draws:
        return Interval(float("nan"), float("nan"), float("nan"))
    return Interval(float(np.mean(exact)), *middle(np.mean(draws, 0)))


def _prompts(row: Row) -> list[np.ndarray]:
    """A table (blocks, columns of `blocks.COLUMNS`) for every prompt."""
    return [np.array(one["blocks"], dtype=float) for one in row["by_prompt"]]


def _exact(row: Row, measure: Measure) -> float:
    return float(measure(sum(one.sum(0) for one in _prompts(row))))


def _draws(row: Row, measure: Measure) -> np.ndarray:
    return measure(resampled(_prompts(row)))
