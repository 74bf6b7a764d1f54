"""Reading a trace, and the one place that says what counts as drafted and accepted.

An end-of-turn token or a cap may cut what a pass emitted.  Drafted tokens behind the cut were never part of the output,
so they are neither accepted nor rejected; positions that a rejection had already closed stay misses.  With a accepted
and e emitted tokens, a pass cut inside its drafted tokens (a >= e) thus counts as e accepted of e drafted, any other
one as a accepted of all that it drafted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    agreement: list[Record] = field(default_factory=list)

    def pairs(self) -> list[tuple[Record, Record]]:
        """Plain and speculative run of every prompt and round that has both, in order of round and prompt."""
        runs: dict[tuple[int, int], dict[str, Record]] = {}
        for run in self.generations:
            runs.setdefault((run["round"], run["prompt"]), {})[run["mode"]] = run
        both = [runs[key] for key in sorted(runs)]
        return [(run["plain"], run["speculative"]) for run in both if "plain" in run and "speculative" in run]


@dataclass(frozen=True, slots=True)
class Pass:
    """One target pass as it counts: drafted tokens that are part of the output or were rejected."""

    drafted: int
    depth: int  # of the longest path through them
    accepted: int
    cut: bool  # the output ended inside the drafted tokens: no token of the target was emitted


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
        kinds.get("agreement", []),
    )


def costs_of(machine: Record) -> Costs:
    """The measured milliseconds of a trace's machine record."""
    verify = [machine["verify_ms"][n] for n in sorted(machine["verify_ms"], key=int)]
    return Costs(verify, machine.get("draft_ms", []), machine.get("overhead_ms", 0.0))


def passes_of(runs: list[Record]) -> list[Pass]:
    """Every target pass of ``runs``, as it counts."""
    return [_counted(step) for run in runs for step in run["steps"]]


def _counted(step: Record) -> Pass:
    drafted, accepted, emitted = step["drafted"], step["accepted"], step["emitted"]
    if accepted >= emitted:
        return Pass(emitted, emitted, emitted, True)
    depth: int = step.get("depth", drafted)  # type: ignore[assignment]
    return Pass(drafted, depth, accepted, False)


def _record(line: str, place: str) -> Record:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DataError(f"{place}: {error}", "one JSON record per line", "was the bench broken off?") from error
    if not isinstance(record, dict) or "kind" not in record:
        raise DataError(f"{place}: no kind", "a record written by `semiar bench`", "is this a trace?")
    return record
