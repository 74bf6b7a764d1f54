"""Figures of rows and differences between them, with intervals; pure, from ``compare.jsonl``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from semiar.measuring.resample import middle, resampled

Row = dict[str, Any]
Measure = Callable[[np.ndarray], np.ndarray]  # totals (..., columns) of prompts to a figure (...)
COLUMNS = ("passes", "accepted", "plain_tokens", "plain_seconds", "speculative_tokens", "speculative_seconds")


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and its 95 % bootstrap interval over prompts."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})" if self.value == self.value else "not measured"


def tokens_per_call(totals: np.ndarray) -> np.ndarray:
    """tau: accepted drafts per target pass, and the pass's own token."""
    return 1 + totals[..., 1] / totals[..., 0]


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

    Both decoded the same prompts, so these are resampled together.
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


def _table(row: Row) -> np.ndarray:
    return np.array([[prompt.get(name, 0.0) for name in COLUMNS] for prompt in row["by_prompt"]], dtype=float)


def _exact(row: Row, measure: Measure) -> float:
    return float(measure(_table(row).sum(0)))


def _draws(row: Row, measure: Measure) -> np.ndarray:
    return measure(resampled(_table(row)))
