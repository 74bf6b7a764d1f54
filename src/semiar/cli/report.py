"""``semiar report``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import Namespace
from rich.console import Console

from semiar.cli.options import Parser
from semiar.measuring.report import redraw

HELP = "Draw the report of a trace again."


def options(one: Parser, words: Sequence[str]) -> None:
    one.add_argument("trace", type=str, help="folder that holds a trace.jsonl")


def run(chosen: Namespace) -> None:
    redraw(Path(chosen.trace), Console())
