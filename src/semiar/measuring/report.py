"""The page and the terminal table of a bench run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from rich.console import Console
from rich.table import Table

from semiar.measuring.metrics import Metrics, Trace, read_trace, summarise
from semiar.measuring.plots import figures
from semiar.measuring.trace import Record
from semiar.records import stamped

SAMPLES = 5
UNKNOWN = {
    "model": "a model", "task": "", "dtype": "unknown dtype", "device": "unknown device", "threads": "?", "batch": 1,
    "temperature": 0.0, "baseline": "the same loop, target, precision and prompts with an empty draft",
}  # fmt: skip
Row = tuple[str, str, str]  # what, value, how it is counted


@dataclass(frozen=True, slots=True)
class Token:
    """One emitted token of a sample text."""

    text: str
    origin: str  # "drafted" or "target"
    note: str  # shown when the pointer rests on it


def redraw(folder: Path, console: Console) -> None:
    """Metrics, table and page of the trace in `folder`; works without a model."""
    trace = read_trace(folder / "trace.jsonl")
    metrics = summarise(trace)
    (folder / "metrics.json").write_text(json.dumps(stamped(asdict(metrics)), indent=2) + "\n", encoding="utf-8")
    write_report(trace, metrics, folder / "report.html")
    console.print(terminal_table(metrics))
    console.print(f"report: {folder / 'report.html'}", soft_wrap=True)


def write_report(trace: Trace, metrics: Metrics, path: Path) -> None:
    """Write one self-contained HTML file: no script, font or picture from elsewhere, all text escaped."""
    pages = Environment(
        loader=PackageLoader("semiar", "measuring"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    runs = [pair for pair in trace.pairs() if pair[1]["round"] == 0]
    path.write_text(
        pages.get_template("report.html.j2").render(
            header=UNKNOWN | trace.header,
            drafter=drafter_name(trace.header),
            metrics=metrics,
            cards=_cards(metrics, trace.header),
            rows=_rows(metrics),
            scores=_scores(metrics),
            figures=figures(metrics),
            samples=[_sample(plain, fast) for plain, fast in runs[:SAMPLES]],
            setup=_setup(trace.header),
            lossless=trace.header.get("lossless", True),
        ),
        encoding="utf-8",
    )


def terminal_table(metrics: Metrics) -> Table:
    """The numbers of the report as a table for the terminal."""
    table = Table(title=f"plain against speculative decoding, {metrics.prompts} prompts")
    table.add_column("")
    table.add_column("value", justify="right", style="bold", no_wrap=True)
    table.add_column("how it is counted", style="dim")
    for row in _rows(metrics):
        table.add_row(*row)
    for what, values in _scores(metrics):
        table.add_row(what, " / ".join(value for _, value in values), " / ".join(mode for mode, _ in values))
    return table


def drafter_name(header: Record) -> str:
    """A short name of the drafter in a trace's header."""
    settings = header.get("drafter") or {}
    return str(header.get("drafter_name") or settings.get("architecture", "drafter"))


def _rows(metrics: Metrics) -> list[Row]:
    """What the table says, in order."""
    warning = [("DISTURBED", "measure again", metrics.disturbed)] if metrics.disturbed else []
    return [*warning, *_speed_rows(metrics), *_acceptance_rows(metrics), *_time_rows(metrics), _text_row(metrics)]


def _speed_rows(metrics: Metrics) -> Iterator[Row]:
    speed, expected = metrics.speed, metrics.prediction
    yield (
        "speed-up",
        _times(speed.speedup),
        f"tokens per second, totals over the same prompts{_between(speed.speedup_interval)}",
    )
    yield (
        "tokens per second",
        f"{speed.tokens_per_second_plain:.1f} → {speed.tokens_per_second:.1f}",
        "plain → speculative, prompt included",
    )
    if metrics.rounds > 1:
        yield "speed-up, median of rounds", _times(speed.speedup_median_of_rounds), f"{metrics.rounds} rounds"
    decoding = f"decoding alone{_between(speed.speedup_without_prefill_interval)}"
    yield "speed-up without prefill", _times(speed.speedup_without_prefill), decoding
    if expected.speedup is not None:
        error = expected.speedup / speed.speedup_without_prefill - 1
        yield (
            "predicted speed-up",
            _times(expected.speedup),
            f"from acceptance and measured costs, without prefill; {error:+.0%}",
        )
    if expected.best_num_speculative_tokens is not None:
        best, top = expected.best_num_speculative_tokens, max(expected.by_count)
        yield "K used / best K", f"{metrics.num_speculative_tokens} / {best}", f"predicted {_times(top)} at K = {best}"


def _acceptance_rows(metrics: Metrics) -> Iterator[Row]:
    found = metrics.acceptance
    yield (
        "mean acceptance length",
        f"{found.mean_acceptance_length:.2f}",
        "accepted drafts + 1 bonus token per target pass",
    )
    yield "accepted drafts", f"{found.accepted_drafts_mean:.2f}", "per target pass, without the + 1"
    yield (
        "tokens per target pass",
        f"{found.tokens_per_pass:.2f}",
        f"{found.tokens} tokens in {found.target_passes} passes",
    )
    if found.acceptance_rate is not None:
        yield "acceptance rate", f"{found.acceptance_rate:.1%}", "accepted / drafted"
        yield "by position", _rates(found.per_position_acceptance_rate), "of all passes, %"
        yield "by position, conditional", _rates(found.conditional_acceptance_rate), "given all earlier ones, %"


def _time_rows(metrics: Metrics) -> Iterator[Row]:
    time = metrics.time
    parts = " + ".join(f"{value:.1f}" for value in (time.draft_ms, time.verify_ms, time.overhead_ms))
    yield "one speculative pass", f"{parts} ms", "draft + verify + overhead, medians"
    yield "one plain step", f"{time.plain_step_ms:.1f} ms", "median"
    for mode, profile in time.profile.items():
        split = ", ".join(f"{part} {value:.2f}" for part, value in profile.items())
        yield f"one {mode} pass, split", f"{sum(profile.values()):.1f} ms", f"mean: {split}"


def _text_row(metrics: Metrics) -> Row:
    return "texts equal", f"{metrics.texts.equal} of {metrics.texts.compared}", "same token ids as plain decoding"


def _scores(metrics: Metrics) -> list[tuple[str, list[tuple[str, str]]]]:
    """Task metrics: name -> (way, value)."""
    names = list(dict.fromkeys(name for values in metrics.scores.values() for name in values))
    ways = [(mode, metrics.scores[mode]) for mode in ("base", "plain", "speculative") if mode in metrics.scores]
    return [(name, [(mode, _number(values.get(name))) for mode, values in ways]) for name in names]


def _cards(metrics: Metrics, header: Record) -> list[tuple[str, str, str]]:
    """Headline: title, value, small print."""
    speed, found, texts = metrics.speed, metrics.acceptance, metrics.texts
    greedy = header.get("temperature", 0) == 0
    note = "same token ids as plain decoding" if greedy else "sampling: the law is equal, texts need not be"
    return [
        (
            "Speed-up",
            _times(speed.speedup),
            f"{_between(speed.speedup_interval).strip(', ') or 'one prompt: no interval'}",
        ),
        ("Tokens per second", f"{speed.tokens_per_second:.1f}", f"plain decoding: {speed.tokens_per_second_plain:.1f}"),
        (
            "Tokens per target pass",
            f"{found.tokens_per_pass:.2f}",
            f"K = {metrics.num_speculative_tokens} drafted per pass",
        ),
        ("Texts equal", f"{texts.equal} / {texts.compared}", note),
    ]


def _sample(plain: Record, fast: Record) -> dict[str, Any]:
    """One text, token by token."""
    return {
        "prompt": fast["prompt"],
        "tokens": list(_tokens(fast)),
        "reference": fast.get("reference"),
        "equal": plain["token_ids"] == fast["token_ids"],
        "plain": plain["text"],
        "facts": f"{len(fast['token_ids'])} tokens in {len(fast['steps'])} target passes, "
        f"{_times(plain['seconds'] / fast['seconds'])} the speed of plain decoding",
    }


def _tokens(run: Record) -> Iterator[Token]:
    """The tokens of a run with the pass that each came from."""
    place = 0
    for number, step in enumerate(run["steps"], 1):
        for inside in range(step["emitted"]):
            origin = run["origins"][place]
            what = f"drafted, position {inside + 1}" if origin == "drafted" else "the target's own"
            note = f"pass {number}: {what}; {step['accepted']} of {step['drafted']} accepted"
            yield Token(run["pieces"][place], origin, note)
            place += 1


def _setup(header: Record) -> list[tuple[str, str]]:
    """Machine, versions and settings for the footer."""
    known = [(key, value) for key, value in header.items() if key not in ("kind", "drafter")]
    drafter = [(f"drafter.{key}", value) for key, value in (header.get("drafter") or {}).items()]
    return [(key.replace("_", " "), str(value)) for key, value in [*known, *drafter] if value not in ("", None)]


def _times(value: float) -> str:
    return f"{value:.2f}×"


def _between(interval: tuple[float, float] | None) -> str:
    return f", 95 % interval {interval[0]:.2f}–{interval[1]:.2f}" if interval else ""


def _rates(rates: list[float | None]) -> str:
    return " ".join("–" if rate is None else f"{100 * rate:.0f}" for rate in rates)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
