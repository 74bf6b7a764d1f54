"""Records: the samples that a file, a folder or a hub data set holds, in whatever form its fields have."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import DataError
from .forms import read_row
from .samples import Message, Record, Records, Skipped
from .sources import read_rows

__all__ = ["Message", "Record", "Records", "Skipped", "load_records"]

ReadRow = Callable[[Any, str], Record | Skipped]


def load_records(source: str, *, split: str = "train", limit: int | None = None, seed: int | None = None) -> Records:
    """Read the samples of `source`: a .jsonl, .json, .csv or .parquet file, a folder, or a hub id (``id:config``).

    `split` picks the file of a folder or the hub split; a single file has no splits.  With a `seed` the records are
    shuffled; `limit` then keeps the first so many usable ones.  A chat keeps its system turn and all others.

    Raises SourceNotFound, or DataError with file name and line when a row is broken, has unknown fields or wrong
    types, or when no record is usable.
    """
    return gather(read_rows(source, split), read_row, source, limit=limit, seed=seed)


def gather(
    rows: Iterable[tuple[str, Any]], read: ReadRow, source: str, *, limit: int | None, seed: int | None
) -> Records:
    """Read all rows, part usable from unusable ones, shuffle and cut.  Raises DataError when none is usable."""
    if limit is not None and limit < 1:
        raise DataError(f"limit {limit}", "at least 1")
    results = [read(row, place) for place, row in rows]
    records = [result for result in results if isinstance(result, Record)]
    skipped = [result for result in results if isinstance(result, Skipped)]
    if not records:
        raise DataError(f"{source}: no usable sample{_why(skipped)}", "at least one")
    if seed is not None:
        random.Random(seed).shuffle(records)
    return Records(records[:limit], skipped)


def _why(skipped: list[Skipped]) -> str:
    if not skipped:
        return ", it is empty"
    return f" among {len(skipped)}; the first, {skipped[0].place}: {skipped[0].reason}"
