"""Rows of one comparison that were measured by other code, or on other prompts: said wherever they are shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from semiar.records import code_hash
from semiar.studies.statistics import Row


def earlier(rows: Sequence[Row]) -> Iterator[str]:
    """What is to be said when finished rows meet code other than theirs."""
    other = [row for row in rows if "error" not in row and row.get("code") != code_hash()]
    if other:
        yield (
            f"{len(other)} finished cells were measured by other code than today's ({code_hash()}) and are kept; for "
            "figures of one code choose another --out"
        )


def mixed(rows: Sequence[Row]) -> Iterator[str]:
    """What keeps the rows from being comparable; nothing, when one code measured all on the same prompts."""
    good = [row for row in rows if "error" not in row]
    if len(codes := _counts([row.get("code") or "unknown" for row in good])) > 1:
        yield f"measured by different code: {_told(codes)}"
    for task in dict.fromkeys(row["task"] for row in good):
        prompts = _counts([row.get("prompts") or "unknown" for row in good if row["task"] == task])
        if len(prompts) > 1:
            yield f"{task}: measured on different prompts: {_told(prompts)}"


def _counts(names: Sequence[str]) -> dict[str, int]:
    return {name: names.count(name) for name in dict.fromkeys(names)}


def _told(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} ({number} cells)" for name, number in counts.items())
