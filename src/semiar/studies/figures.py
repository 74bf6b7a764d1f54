"""The pictures of a comparison, as inline SVG like those of `bench`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, PercentFormatter

from semiar.measuring.plots import GREY, INK, Picture, svg_element
from semiar.measuring.trace import costs_of
from semiar.studies.statistics import Row, acceptance_length, figure, speedup
from semiar.studies.table import Line, lines

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7a6a00", "#334155", "#8c564b", "#9AA5B1")
MARKS = "osD^vP*Xph"
SIZE, WIDE = (5.4, 3.7), (11.2, 4.2)
FASTEST = 0.01  # ms: where a draft that costs nothing is drawn
Draw = Callable[[Axes], None]


def figures(rows: Sequence[Row]) -> list[Picture]:
    """All pictures that these rows allow."""
    good = [row for row in rows if "error" not in row]
    found = [*_planes(good), *_main(good), *_studies(good)]
    return [Picture(caption, svg_element(caption.split(".")[0], WIDE if wide else SIZE, fill), wide)
            for caption, fill, wide in found]  # fmt: skip


def style(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """A colour and a mark for every drafter, the same in all pictures."""
    return {name: (COLOURS[i % len(COLOURS)], MARKS[i % len(MARKS)]) for i, name in enumerate(names)}


def _of(rows: Sequence[Row], study: str) -> list[Row]:
    return [row for row in rows if row["study"] == study]


def _tasks(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["task"] for row in rows))


def _planes(rows: Sequence[Row]) -> Iterator[tuple[str, Draw, bool]]:
    main = _of(rows, "main")
    marks = style(list(dict.fromkeys(row["drafter"] for row in main)))
    for task in _tasks(main):
        here = [row for row in main if row["task"] == task]
        yield (
            f"{task}: draft quality against drafting latency. Right and down is better; lines are equal speed-up.",
            partial(plane, rows=here, marks=marks), False,
        )  # fmt: skip


def plane(axes: Axes, rows: Sequence[Row], marks: dict[str, tuple[str, str]]) -> None:
    """tau against the time of a draft; the front that nothing else beats; lines of equal speed-up."""
    found = lines(rows)
    for line in found:
        colour, mark = marks[line.drafter]
        tau = line.acceptance_length
        axes.errorbar(
            [tau.value], [_time(line)], xerr=[[tau.value - tau.low], [tau.high - tau.value]], color=colour,
            marker=mark, markersize=7, capsize=2, elinewidth=1, linestyle="", label=line.drafter,
        )  # fmt: skip
    front = pareto(found)
    axes.plot([p.acceptance_length.value for p in front], [_time(p) for p in front], color=GREY, linewidth=1, zorder=0)
    times = [_time(line) for line in found]
    low, high = min(times) / 1.7, max(times) * 1.7
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.set_xlim(max(1.0, axes.get_xlim()[0]), axes.get_xlim()[1])
    _equal_speed(axes, rows, low, high)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("tokens per target pass")
    axes.set_ylabel("one draft, ms")
    axes.legend(fontsize=8.5, loc="upper left", bbox_to_anchor=(1, 1), handlelength=1)


def _time(line: Line) -> float:
    return max(line.draft_ms, FASTEST)


def pareto(found: Sequence[Line]) -> list[Line]:
    """Those that no other drafter beats in both, by quality."""
    best = [
        one for one in found
        if not any(
            other.acceptance_length.value > one.acceptance_length.value and other.draft_ms < one.draft_ms
            for other in found
        )
    ]  # fmt: skip
    return sorted(best, key=lambda line: line.acceptance_length.value)


def _equal_speed(axes: Axes, rows: Sequence[Row], low: float, high: float) -> None:
    """tau = S (v(K + 1) + draft + overhead) / v(1), with the middle one of the measured costs."""
    middle = rows[len(rows) // 2]
    count, costs = middle["measured"]["num_speculative_tokens"], costs_of(middle["machine"])
    rest = costs.step(count) - costs.drafting(count)
    draft = np.geomspace(low, high, 80)
    left, right = axes.get_xlim()
    for speed in (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0):
        tau = speed * (rest + draft) / costs.verify[0]
        axes.plot(tau, draft, color="#cbd5e1", linewidth=0.9, zorder=0)
        if left < tau[0] < right:
            axes.annotate(f"{speed:g}x", (tau[0], low), (2, 3), textcoords="offset points", fontsize=8, color=INK)
    axes.set_xlim(left, right)


def _main(rows: Sequence[Row]) -> Iterator[tuple[str, Draw, bool]]:
    main = _of(rows, "main")
    if main:
        yield "Speed-up over plain decoding, without the prompt; 95 % intervals.", partial(speeds, rows=main), True
        for task in _tasks(main):
            here = [row for row in main if row["task"] == task]
            yield (
                f"{task}: acceptance by position, given that all earlier ones were accepted.",
                partial(positions, rows=here), False,
            )  # fmt: skip


def speeds(axes: Axes, rows: Sequence[Row]) -> None:
    """Bars by task and drafter."""
    found, tasks = lines(rows), _tasks(rows)
    names = list(dict.fromkeys(row["drafter"] for row in rows))
    marks, width = style(names), 0.84 / len(names)
    for line in found:
        place = tasks.index(line.task) + (names.index(line.drafter) - (len(names) - 1) / 2) * width
        speed = line.speedup
        errors = [[max(0.0, speed.value - speed.low)], [max(0.0, speed.high - speed.value)]]
        axes.bar(place, speed.value, width * 0.92, color=marks[line.drafter][0], yerr=errors, capsize=2,
                 error_kw={"elinewidth": 1}, label=line.drafter if line.task == tasks[0] else None)  # fmt: skip
    axes.axhline(1, color=INK, linewidth=1)
    axes.set_xticks(range(len(tasks)), tasks)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("speed-up")
    axes.legend(fontsize=8, ncols=min(5, len(names)), loc="upper right")
    axes.margins(y=0.25)


def positions(axes: Axes, rows: Sequence[Row]) -> None:
    """Conditional acceptance by position, a line for every drafter."""
    marks = style(list(dict.fromkeys(row["drafter"] for row in rows)))
    for line in lines(rows):
        colour, mark = marks[line.drafter]
        axes.plot(range(1, len(line.conditional) + 1), line.conditional, color=colour, marker=mark, markersize=5,
                  linewidth=1.4, label=line.drafter)  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("accepted")
    axes.legend(fontsize=8)


STUDIES: dict[str, tuple[str, str]] = {
    "rows": ("rows", "tokens per pass against training samples"),
    "vocabulary": ("draft_vocab_size", "tokens per pass by size of the draft vocabulary"),
    "lambda": ("draft_weight", "tokens per pass against lambda, the weight of the draft loss"),
    "count": ("count", "speed-up by K, measured and predicted"),
}


BARS: dict[str, tuple[str, Callable[[Row], str], bool]] = {
    "ablation": ("h_q and fusion: tokens per pass.", lambda row: row["drafter"], True),
    "staleness": (
        "The target a drafter learned from, and the one it then drafts for: tokens per pass.",
        lambda row: f"{row['point']['made_on']} for {row['point']['measured_on']}", False,
    ),
    "joint": ("Learning with the target, or after it: tokens per pass.", lambda row: row["point"]["mode"], False),
}  # fmt: skip


def _studies(rows: Sequence[Row]) -> Iterator[tuple[str, Draw, bool]]:
    for study, (key, caption) in STUDIES.items():
        here = _of(rows, study)
        if here:
            measure = speedup if study == "count" else acceptance_length
            yield (f"{caption.capitalize()}.", partial(sweep, rows=here, key=key, measure=measure), False)
    for study, (caption, form, wide) in BARS.items():
        here = _of(rows, study)
        if here:
            yield caption, partial(bars, rows=here, form=form), wide
    rank = _of(rows, "rank")
    if rank:
        yield (
            "Ranks: tokens per pass by the drafter's, a line for each of the target's.",
            partial(ranks, rows=rank),
            False,
        )


def sweep(axes: Axes, rows: Sequence[Row], key: str, measure: Any) -> None:
    """A figure against what was varied, a line for every task."""
    for task, (colour, mark) in style(_tasks(rows)).items():
        here = [row for row in rows if row["task"] == task]
        points = [figure([row], measure) for row in here]
        labels = [row["point"][key] for row in here]
        x = range(len(labels))
        errors = [[max(0.0, p.value - p.low) for p in points], [max(0.0, p.high - p.value) for p in points]]
        axes.errorbar(
            x, [p.value for p in points], errors, color=colour, marker=mark, capsize=2, elinewidth=1, label=task
        )
        axes.set_xticks(list(x), [str(label) for label in labels])
        if key == "count":
            told = [row["measured"]["prediction"]["speedup"] for row in here]
            axes.plot(x, [np.nan if one is None else one for one in told], color=colour, linestyle=":", linewidth=1.4)
    axes.set_xlabel("K (dotted: predicted)" if key == "count" else key.replace("_", " "))
    axes.legend(fontsize=8)


def bars(axes: Axes, rows: Sequence[Row], form: Callable[[Row], str]) -> None:
    """Tokens per pass of every form, tasks side by side."""
    tasks, forms = _tasks(rows), list(dict.fromkeys(form(row) for row in rows))
    marks, width = style(tasks), 0.8 / len(tasks)
    for task in tasks:
        for row in (one for one in rows if one["task"] == task):
            place = forms.index(form(row)) + (tasks.index(task) - (len(tasks) - 1) / 2) * width
            tau, first = figure([row], acceptance_length), form(row) == forms[0]
            axes.bar(place, tau.value, width * 0.92, color=marks[task][0], capsize=2, error_kw={"elinewidth": 1},
                     yerr=[[max(0.0, tau.value - tau.low)], [max(0.0, tau.high - tau.value)]],
                     label=task if first else None)  # fmt: skip
    axes.set_xticks(range(len(forms)), [name.replace(" ", "\n", 1) for name in forms], fontsize=8.5)
    axes.set_ylim(bottom=1)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("acceptance length")
    axes.legend(fontsize=8)


def ranks(axes: Axes, rows: Sequence[Row]) -> None:
    """A line for every rank of the target's adapter; tasks averaged."""
    drafters = sorted({row["point"]["lora_r"] for row in rows})
    for target, (colour, mark) in style(sorted({row["point"]["r"] for row in rows})).items():
        values = []
        for drafter in drafters:
            here = [r for r in rows if (r["point"]["r"], r["point"]["lora_r"]) == (target, drafter)]
            values.append(figure(here, acceptance_length).value)
        axes.plot(range(len(drafters)), values, color=colour, marker=mark, label=f"target r = {target}")
    axes.set_xticks(range(len(drafters)), [str(one) for one in drafters])
    axes.set_xlabel("drafter rank")
    axes.legend(fontsize=8)
