"""``semiar compare``."""

from __future__ import annotations

from collections.abc import Sequence

from jsonargparse import Namespace
from rich.console import Console

from semiar.cli.options import Parser, add_settings, add_switch, settings_of
from semiar.studies.command import compare
from semiar.studies.config import PRESETS, CompareConfig

HELP = "Train and measure many drafters under one budget."


def options(one: Parser, words: Sequence[str]) -> None:
    add_settings(one, CompareConfig, words)
    one.add_argument("--preset", type=str, default="", help=f"{' or '.join(PRESETS)}: sets tasks, drafters, studies")
    add_switch(one, "report_only", "tables and report again")


def run(chosen: Namespace) -> int:
    config = settings_of(CompareConfig, chosen)
    return compare(config, chosen.preset, Console(), report_only=chosen.report_only)
