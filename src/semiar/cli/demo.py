"""``semiar demo``."""

from __future__ import annotations

from collections.abc import Sequence

from jsonargparse import Namespace
from rich.console import Console

from semiar.cli.options import Parser, add_settings, settings_of
from semiar.demo.demo import DemoSettings, run_demo

HELP = "Run the whole line on a small model and a generated text-to-SQL set."


def options(one: Parser, words: Sequence[str]) -> None:
    add_settings(one, DemoSettings, words)


def run(chosen: Namespace) -> int:
    from semiar.cli.main import main  # noqa: PLC0415  (the demo runs other verbs)

    return run_demo(settings_of(DemoSettings, chosen), main, Console())
