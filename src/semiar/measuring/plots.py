"""Figures of the report as inline SVG: no fonts, links or scripts from elsewhere.

Colours are Okabe and Ito's, which colour-blind readers can tell apart; nothing is told by colour alone.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from semiar.measuring.metrics import Metrics

BLUE, ORANGE, GREEN, GREY, INK = "#0072B2", "#E69F00", "#009E73", "#9AA5B1", "#334155"
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10.5, "axes.spines.top": False,
    "axes.spines.right": False, "axes.edgecolor": "#94a3b8", "axes.labelcolor": INK, "text.color": INK,
    "xtick.color": INK, "ytick.color": INK, "axes.grid": True, "grid.color": "#e2e8f0", "axes.axisbelow": True,
    "legend.frameon": False, "legend.fontsize": 9.5, "lines.linewidth": 2,
}  # fmt: skip
SIZE, WIDE = (5.4, 3.4), (11.2, 2.3)
PROFILE = (ORANGE, BLUE, "#56B4E9", GREEN, "#F0E442", "#D55E00", GREY, "#CC79A7")
PARTS = {"prefill": GREY, "draft": ORANGE, "verify": BLUE, "overhead": GREEN}


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure of the page."""

    caption: str
    svg: str
    wide: bool  # takes a whole row


def figures(metrics: Metrics) -> list[Picture]:
    """The pictures that make sense for these numbers; those about drafting need K > 0."""
    wanted: list[tuple[str, Callable[[Axes, Metrics], None]]] = []
    if metrics.num_speculative_tokens:
        wanted.append(("Share of drafted tokens that the target accepted, by position in the draft.", acceptance))
        wanted.append(("How many drafted tokens a target pass accepted (passes that drafted all K).", accepted_lengths))
    wanted.append(("Where the time of one emitted token goes.", time_per_token))
    if metrics.time.profile:
        wanted.append(("Where the time of one target pass goes.", profile))
    if len(metrics.prediction.by_count) > 1:
        wanted.append(("Speed-up expected from acceptance and measured costs, and the one measured.", prediction))
    if len(metrics.speed.by_prompt) > 1:
        wanted.append(("Speed-up of each prompt.", by_prompt))
    return [Picture(caption, draw(plot, metrics), plot in ROWS) for caption, plot in wanted]


def draw(plot: Callable[[Axes, Metrics], None], metrics: Metrics) -> str:
    """Run one plot and return its SVG element."""
    size = WIDE if plot in ROWS else SIZE
    return svg_element(plot.__name__.replace("_", " "), size, lambda axes: plot(axes, metrics))


def svg_element(name: str, size: tuple[float, float], fill: Callable[[Axes], None]) -> str:
    """An SVG element of what ``fill`` draws, in the report's style; ``name`` is what screen readers say."""
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=size, layout="constrained")
        fill(figure.subplots())
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True)
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)  # HTML needs none, and the page holds no address at all
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", svg)  # older matplotlib
    svg = re.sub(r" font-family: [^;\"]*;?", "", svg).replace("xlink:href", "href")
    return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', f'role="img" aria-label="{name}"', svg, count=1)


def acceptance(axes: Axes, metrics: Metrics) -> None:
    """Conditional and unconditional acceptance, with counts and two standard errors."""
    found = metrics.acceptance
    series = (
        ("given all earlier ones", found.conditional_acceptance_rate, found.conditional_counts, BLUE, "o"),
        ("all passes", found.per_position_acceptance_rate, found.per_position_counts, ORANGE, "s"),
    )
    for label, rates, counts, colour, marker in series:
        known = [(k, rate, n) for k, (rate, n) in enumerate(zip(rates, counts, strict=True), 1) if rate is not None]
        errors = [2 * (rate * (1 - rate) / n) ** 0.5 for _, rate, n in known]
        x, y = [k for k, _, _ in known], [rate for _, rate, _ in known]
        axes.errorbar(x, y, errors, color=colour, marker=marker, capsize=3, elinewidth=1, label=label)
    positions = range(1, metrics.num_speculative_tokens + 1)
    labels = [f"{k}\nn={n}" for k, n in zip(positions, found.conditional_counts, strict=True)]
    axes.set_xticks(list(positions), labels)
    axes.set_ylim(0, 1.03)
    axes.set_xlim(0.6, metrics.num_speculative_tokens + 0.4)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_xlabel("draft position (n = passes that reached it)")
    axes.set_ylabel("accepted")
    axes.legend(loc="lower left")


def accepted_lengths(axes: Axes, metrics: Metrics) -> None:
    """Histogram of accepted drafts per pass."""
    counts = metrics.acceptance.accepted_histogram
    total = max(1, sum(counts))
    bars = axes.bar(range(len(counts)), [count / total for count in counts], color=BLUE, width=0.72)
    axes.bar_label(bars, [f"{count / total:.0%}" for count in counts], padding=2, fontsize=9.5)
    axes.margins(y=0.14)
    axes.set_xticks(range(len(counts)))
    axes.grid(axis="x", visible=False)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlabel("drafted tokens accepted in one pass")
    axes.set_ylabel(f"share of {sum(counts)} passes")


def time_per_token(axes: Axes, metrics: Metrics) -> None:
    """Stacked milliseconds per emitted token of both ways."""
    _stacked(axes, metrics.time.per_token, PARTS, "milliseconds per emitted token")


def profile(axes: Axes, metrics: Metrics) -> None:
    """Stacked milliseconds per target pass of both ways, in fine parts."""
    parts = next(iter(metrics.time.profile.values()))
    _stacked(axes, metrics.time.profile, dict(zip(parts, cycle(PROFILE))), "milliseconds per target pass")


def _stacked(axes: Axes, times: dict[str, dict[str, float]], colours: dict[str, str], unit: str) -> None:
    """A bar for each way (speculative, plain), made of its parts."""
    ways = [way for way in ("speculative", "plain") if way in times]
    left = [0.0] * len(ways)
    for part, colour in colours.items():
        widths = [times[way][part] for way in ways]
        axes.barh(ways, widths, left=left, color=colour, height=0.6, label=part, edgecolor="white", linewidth=0.8)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for row, total in enumerate(left):
        axes.annotate(f"{total:.1f} ms", (total, row), (5, 0), textcoords="offset points", va="center")
    axes.set_xlim(0, max(left) * 1.08)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(unit)
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=len(colours))


ROWS = (time_per_token, profile)  # plots that take a whole row


def prediction(axes: Axes, metrics: Metrics) -> None:
    """Predicted speed-up over K, and the measured one."""
    curve, best = metrics.prediction.by_count, metrics.prediction.best_num_speculative_tokens
    axes.plot(range(len(curve)), curve, color=BLUE, marker="o", markersize=4, label="predicted")
    if best is not None:
        axes.plot([best], [curve[best]], marker="o", markersize=12, mfc="none", mec=BLUE, ls="none", label="best K")
    measured, interval = metrics.speed.speedup_without_prefill, metrics.speed.speedup_without_prefill_interval
    low, high = interval or (measured, measured)
    errors = [[max(0, measured - low)], [max(0, high - measured)]]
    axes.errorbar(
        [metrics.num_speculative_tokens], [measured], errors, color=ORANGE, marker="D", capsize=4, ls="none",
        label="measured",
    )  # fmt: skip
    axes.axhline(1, color=GREY, linewidth=1, linestyle="--")
    axes.set_ylim(0, max(*curve, high) * 1.12)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("K, drafted tokens per pass (0 = plain decoding)")
    axes.set_ylabel("speed-up without prefill (×)")
    axes.legend(loc="lower right")


def by_prompt(axes: Axes, metrics: Metrics) -> None:
    """One point per prompt, with the ratio of totals."""
    tokens: Sequence[float] = [row["tokens"] for row in metrics.speed.by_prompt]
    speedups = [row["speedup"] for row in metrics.speed.by_prompt]
    axes.scatter(tokens, speedups, color=BLUE, s=30, alpha=0.75, edgecolor="white", linewidth=0.6)
    whole = metrics.speed.speedup
    axes.axhline(whole, color=ORANGE, linewidth=1.8, label=f"all prompts together: {whole:.2f}×")
    axes.axhline(1, color=GREY, linewidth=1, linestyle="--", label="plain decoding")
    axes.set_ylim(0, max(*speedups, whole) * 1.15)
    axes.set_xlabel("tokens in the answer")
    axes.set_ylabel("speed-up (×)")
    axes.legend(loc="lower right")
