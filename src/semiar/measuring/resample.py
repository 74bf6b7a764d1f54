"""The bootstrap over prompts that every interval comes from."""

from __future__ import annotations

import numpy as np

RESAMPLES = 4000


def resampled(table: np.ndarray) -> np.ndarray:
    """Totals (RESAMPLES, columns) of a table (prompts, columns) whose prompts are drawn again, with replacement.

    Tables of as many prompts are drawn alike, so what comes of them can be compared draw by draw.
    """
    picks = np.random.default_rng(0).integers(len(table), size=(RESAMPLES, len(table)))
    totals: np.ndarray = table[picks].sum(1)
    return totals


def middle(draws: np.ndarray) -> tuple[float, float]:
    """The ends of the 95 % interval."""
    low, high = np.percentile(draws, [2.5, 97.5])
    return float(low), float(high)
