"""The bootstrap that every interval comes from: over prompts, and within each over blocks of time.

Other prompts might have been asked, and each of them at other moments: a machine that is not quiet slows whole
stretches of steps.  So prompts are drawn again with replacement, and of each the stretches of text that were decoded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RESAMPLES = 4000


def resampled(prompts: Sequence[np.ndarray]) -> np.ndarray:
    """Totals (RESAMPLES, columns) of prompts (blocks, columns) that are drawn again, their blocks too.

    As many prompts are drawn alike, so what comes of them can be compared draw by draw.
    """
    rng = np.random.default_rng(0)
    picks = rng.integers(len(prompts), size=(RESAMPLES, len(prompts)))
    within = np.stack([_blocks_again(one, np.random.default_rng(1 + place)) for place, one in enumerate(prompts)])
    turn = (np.arange(RESAMPLES)[:, None] + 97 * np.arange(len(prompts))) % RESAMPLES  # not twice the same draw
    totals: np.ndarray = within[picks, turn].sum(1)
    return totals


def _blocks_again(blocks: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Totals (RESAMPLES, columns) of a prompt whose blocks are drawn again."""
    totals: np.ndarray = blocks[rng.integers(len(blocks), size=(RESAMPLES, len(blocks)))].sum(1)
    return totals


def middle(draws: np.ndarray) -> tuple[float, float]:
    """The ends of the 95 % interval."""
    low, high = np.percentile(draws, [2.5, 97.5])
    return float(low), float(high)
