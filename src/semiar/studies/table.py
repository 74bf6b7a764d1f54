"""The rows of a comparison as tables: for the terminal and for the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.table import Table

from semiar.studies.claims import blind_heads, markovianity, staleness
from semiar.studies.statistics import Interval, Row, acceptance_length, difference, figure, speedup

MIB = 2**20
MATTERS = 0.1  # gain over heads that read none from which the drafted tokens are worth reading
KEEP, REFRESH = -0.1, -0.3  # accepted drafts lost after tuning


@dataclass(frozen=True, slots=True)
class Line:
    """One drafter on one task, all seeds together."""

    task: str
    drafter: str
    count: str  # K
    acceptance_length: Interval
    conditional: list[float]  # acceptance by position
    draft_ms: float  # of a whole draft
    speedup: Interval
    with_prompt: float
    predicted: float | None
    best: str  # K that would be fastest by the speed model, and its speed-up
    tokens_per_second: float
    parameters: int
    train_seconds: float
    peak_mib: float
    equal: str  # texts equal to plain decoding, and whether the measurement was disturbed


def lines(rows: Sequence[Row]) -> list[Line]:
    """The main comparison, the fastest drafter of each task first."""
    main = [row for row in rows if row["study"] == "main" and "error" not in row]
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in main:
        groups.setdefault((row["task"], row["drafter"]), []).append(row)
    found = [_line(task, drafter, group) for (task, drafter), group in groups.items()]
    order = list(dict.fromkeys(line.task for line in found))
    return sorted(found, key=lambda line: (order.index(line.task), -line.speedup.value))


def _line(task: str, drafter: str, rows: list[Row]) -> Line:
    measured = [row["measured"] for row in rows]
    predicted = [one["prediction"]["speedup"] for one in measured if one["prediction"]["speedup"]]
    longest = max((one["acceptance"]["conditional_acceptance_rate"] for one in measured), key=len)
    return Line(
        task, drafter, "/".join(str(k) for k in sorted({one["num_speculative_tokens"] for one in measured})),
        figure(rows, acceptance_length), [rate for rate in longest if rate is not None],
        _mean(one["time"]["draft_ms"] for one in measured), figure(rows, speedup),
        _mean(one["speed"]["speedup"] for one in measured), _mean(predicted) if predicted else None,
        _best(measured[0]["prediction"]),
        _mean(one["speed"]["tokens_per_second"] for one in measured), rows[0]["parameters"],
        _mean(row["train"].get("train_runtime", 0.0) for row in rows), max(row["peak_bytes"] for row in rows) / MIB,
        f"{sum(one['texts']['equal'] for one in measured)}/{sum(one['texts']['compared'] for one in measured)}"
        + (" DISTURBED" if any(one["disturbed"] for one in measured) else ""),
    )  # fmt: skip


def _best(prediction: dict[str, Any]) -> str:
    count = prediction["best_num_speculative_tokens"]
    return "" if count is None else f"{count} ({prediction['by_count'][count]:.2f})"


def _mean(values: Any) -> float:
    found = list(values)
    return sum(found) / len(found)


HEAD = (
    "task", "drafter", "K", "acceptance length", "draft, ms", "speed-up", "with prompt", "predicted", "best K",
    "tokens/s", "parameters, M", "training, s", "memory, MiB", "texts equal",
)  # fmt: skip


def cells(line: Line) -> tuple[str, ...]:
    """A line as text, in the order of `HEAD`."""
    return (
        line.task, line.drafter, line.count, str(line.acceptance_length), f"{line.draft_ms:.2f}", str(line.speedup),
        f"{line.with_prompt:.2f}", "" if line.predicted is None else f"{line.predicted:.2f}",
        line.best, f"{line.tokens_per_second:.0f}", f"{line.parameters / 1e6:.1f}", f"{line.train_seconds:.0f}",
        f"{line.peak_mib:.0f}", line.equal,
    )  # fmt: skip


def main_table(rows: Sequence[Row]) -> Table:
    """The main comparison for the terminal."""
    table = Table(title="drafters under one budget; speed-ups without the prompt, intervals of 95 % over prompts")
    for name in HEAD:
        table.add_column(name, justify="left" if name in HEAD[:2] else "right")
    last = ""
    for line in lines(rows):
        if last and line.task != last:
            table.add_section()
        last = line.task
        table.add_row(*cells(line))
    return table


def fastest(rows: Sequence[Row]) -> list[Row]:
    """The main study's rows of the drafter with the largest speed-up, all seeds; empty when there are none."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row["study"] == "main":
            groups.setdefault(row["drafter"], []).append(row)
    return max(groups.values(), key=lambda group: figure(group, speedup).value, default=[])


def _leaders(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Who is fastest on a task, and how far the best semi-autoregressive drafter is from the best other trained one."""
    first = fastest(rows)
    if first:
        yield "fastest", f"{first[0]['drafter']}, {figure(first, speedup)} times plain decoding without the prompt"
    trained = [row for row in rows if row["facts"]["learns"]]
    ours = fastest([row for row in trained if row["facts"]["semi_autoregressive"]])
    others = fastest([row for row in trained if not row["facts"]["semi_autoregressive"]])
    if ours and others:
        names = f"{ours[0]['drafter']} over {others[0]['drafter']}"
        margin = difference(ours, others, speedup, relative=True)
        yield "best semi-autoregressive over best other trained (speed-up, - 1)", f"{names}: {margin}"


def _enough(rows: Sequence[Row]) -> str:
    """What follows where drafted tokens alone gain nothing: none of them, unless what sees more is faster."""
    first, blind = fastest(rows), blind_heads(rows)
    if first and difference(first, blind, speedup, relative=True).low > MATTERS:
        name, other = first[0]["drafter"], blind[0]["drafter"]
        return f"drafted tokens alone add little here; {name} beats {other} by what else it sees"
    return f"{blind[0]['drafter']} is enough here"


def advice(rows: Sequence[Row]) -> Iterator[tuple[str, str, str]]:
    """For every task: what the comparison says to do, and the figure behind it."""
    good = [row for row in rows if "error" not in row]
    for task in dict.fromkeys(row["task"] for row in good):
        here = [row for row in good if row["task"] == task]
        for what, told in _leaders(here):
            yield task, what, told
        gain = markovianity(here, task)
        if gain.value == gain.value:
            told = (
                "recent tokens matter: read the drafted tokens" if gain.low > MATTERS
                else _enough(here) if gain.high < MATTERS else "reading drafted tokens may pay; measure more"
            )  # fmt: skip
            yield task, "Markovianity (tokens per pass over heads that read no draft, - 1)", f"{gain}: {told}"
        lost = staleness(here)
        if lost.value == lost.value:
            told = "keep it" if lost.value > KEEP else "refresh it" if lost.value > REFRESH else "retrain it"
            yield task, "a drafter of the base model after tuning (accepted drafts, - 1)", f"{lost}: {told}"


def prediction_errors(rows: Sequence[Row]) -> list[float]:
    """Predicted over measured speed-up, - 1, of every measurement; without the prompt."""
    found = []
    for row in rows:
        if "error" in row or "same_as" in row or not row["measured"]["prediction"]["speedup"]:
            continue
        found.append(row["measured"]["prediction"]["speedup"] / row["measured"]["speed"]["speedup_without_prefill"] - 1)
    return found


def spread(errors: Sequence[float]) -> tuple[int, float, float, float]:
    """How many, their median, the median of their sizes, the largest."""
    return len(errors), median(errors), median(map(abs, errors)), max(errors, key=abs)
