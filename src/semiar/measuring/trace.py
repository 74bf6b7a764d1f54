"""Reading a trace, record by record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semiar.core.counting import Pass, counted
from semiar.core.theory import Costs
from semiar.errors import DataError, SourceNotFound
from semiar.records import check

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Trace:
    """The records of a ``trace.jsonl``, by kind."""

    header: Record
    machine: Record = field(default_factory=dict)
    generations: list[Record] = field(default_factory=list)
    scores: dict[str, dict[str, float]] = field(default_factory=dict)  # mode -> task metrics

    def pairs(self) -> list[tuple[Record, Record]]:
        """See `pairs_of`."""
        return pairs_of(self.generations)


def read_trace(path: Path) -> Trace:
    """Read ``trace.jsonl``; SourceNotFound if there is none, DataError with file and line if a line is broken."""
    if not path.is_file():
        raise SourceNotFound(f"no trace at {path}", "a trace.jsonl written by `semiar bench`", "run the bench first")
    kinds: dict[str, list[Record]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line.strip():
            record = _record(line, f"{path}, line {number}")
            kinds.setdefault(record["kind"], []).append(record)
    if "header" not in kinds:
        raise DataError(f"{path} has no header record", "a trace written by `semiar bench`", "run the bench again")
    return Trace(
        check(kinds["header"][0], str(path)),
        kinds.get("machine", [{}])[0],
        kinds.get("generation", []),
        {record["mode"]: record["metrics"] for record in kinds.get("score", [])},
    )


def pairs_of(generations: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Plain and speculative run of every prompt and round that has both, in order of round and prompt."""
    runs: dict[tuple[int, int], dict[str, Record]] = {}
    for run in generations:
        runs.setdefault((run["round"], run["prompt"]), {})[run["mode"]] = run
    both = [runs[key] for key in sorted(runs)]
    return [(run["plain"], run["speculative"]) for run in both if "plain" in run and "speculative" in run]


def costs_of(machine: Record) -> Costs:
    """The measured milliseconds of a trace's machine record."""
    verify = [machine["verify_ms"][n] for n in sorted(machine["verify_ms"], key=int)]
    return Costs(verify, machine.get("draft_ms", []), machine.get("overhead_ms", 0.0))


def passes_of(runs: list[Record]) -> list[Pass]:
    """Every target pass of ``runs``, as it counts."""
    return [_counted(step) for run in runs for step in run["steps"]]


def _counted(step: Record) -> Pass:
    depth: Any = step.get("depth", step["drafted"])  # as deep as it is long, before there were trees
    return counted(step["drafted"], depth, step["accepted"], step["emitted"])


def _record(line: str, place: str) -> Record:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DataError(f"{place}: {error}", "one JSON record per line", "was the bench broken off?") from error
    if not isinstance(record, dict) or "kind" not in record:
        raise DataError(f"{place}: no kind", "a record written by `semiar bench`", "is this a trace?")
    return record
