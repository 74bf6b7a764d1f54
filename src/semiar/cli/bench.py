"""``semiar bench``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace
from rich.console import Console

from semiar.cli.options import Parser, add_pair, add_settings, results_folder, settings_of
from semiar.errors import ConfigError
from semiar.measuring.report import redraw
from semiar.measuring.run import BenchSettings, run_bench
from semiar.pair import Pair
from semiar.targets import Target, load_model
from semiar.targets.engines.prepare import choose_engine, prepare

HELP = "Measure plain against speculative decoding."


def options(one: Parser, words: Sequence[str]) -> None:
    add_pair(one)
    add_settings(one, BenchSettings, words)


def run(chosen: Namespace) -> None:
    settings: BenchSettings = settings_of(BenchSettings, chosen)
    pair = Pair.load(chosen.run, settings.load)
    if not pair.drafter.drafts:
        raise ConfigError(f"'{chosen.run}' has no drafter", "a pair that semiar train or attach wrote")
    out, console = Path(settings.out) if settings.out else results_folder(chosen.run) / "bench", Console()
    base = Target(load_model(pair.base, settings.load)) if settings.base else None
    if base is not None:
        prepare(base, choose_engine(settings.load.engine, base))
    run_bench(pair, settings, out / "trace.jsonl", base, console)
    redraw(out, console)
