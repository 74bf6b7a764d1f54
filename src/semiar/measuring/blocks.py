"""What a prompt's two decodings came to, in stretches of text: tokens, passes and seconds of both ways; pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from semiar.measuring.trace import Record, passes_of

BLOCK = 24  # tokens of text in a stretch: a tenth to half a second
COLUMNS = ("passes", "accepted", "plain_tokens", "plain_seconds", "speculative_tokens", "speculative_seconds")
PREFILL = ("plain_prefill", "speculative_prefill")  # seconds before the first step, shared out over the stretches


def blocks_of(pairs: Sequence[tuple[Record, Record]]) -> np.ndarray:
    """Stretches (n, columns of `COLUMNS` and `PREFILL`) of a prompt's plain and speculative runs, rounds one by one."""
    return np.concatenate([_round(plain, fast) for plain, fast in pairs])


def _round(plain: Record, fast: Record) -> np.ndarray:
    count = max(1, min(len(run["token_ids"]) for run in (plain, fast)) // BLOCK)
    table = np.zeros((count, len(COLUMNS) + len(PREFILL)))
    for place, run in ((2, plain), (4, fast)):
        parts = _parts(run, count)
        np.add.at(table[:, place], parts, [step["emitted"] for step in run["steps"]])
        np.add.at(table[:, place + 1], parts, _seconds(run))
        table[:, len(COLUMNS) + (place > 2)] = run["prefill_seconds"] / count
    passes = passes_of([fast])
    np.add.at(table[:, 0], _parts(fast, count), 1)
    np.add.at(table[:, 1], _parts(fast, count), [one.accepted for one in passes])
    return table


def _parts(run: Record, count: int) -> np.ndarray:
    """The stretch that each step of a run begins in, all stretches equally long in tokens."""
    ends = np.cumsum([step["emitted"] for step in run["steps"]])
    starts = np.concatenate([[0], ends[:-1]])
    return np.minimum(starts * count // max(1, int(ends[-1])), count - 1).astype(int)


def _seconds(run: Record) -> np.ndarray:
    """Seconds of each step; what passed between the steps is shared out among them."""
    spent = np.array([step["draft_ms"] + step["verify_ms"] + step["overhead_ms"] for step in run["steps"]])
    total = run["seconds"] - run["prefill_seconds"]
    return spent * (total / spent.sum()) if spent.sum() > 0 else np.full(len(spent), total / len(spent))
