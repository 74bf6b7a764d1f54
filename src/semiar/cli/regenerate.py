"""``semiar regenerate``."""

from __future__ import annotations

from collections.abc import Sequence

from jsonargparse import Namespace
from rich.console import Console

from semiar.cli.options import Parser, add_pair, add_settings, settings_of
from semiar.pair import Pair
from semiar.regenerate import RegenerateSettings, regenerate

HELP = "Replace a data set's answers by the target's own."


def options(one: Parser, words: Sequence[str]) -> None:
    add_pair(one, ", or a model: hub id or folder")
    add_settings(one, RegenerateSettings, words)


def run(chosen: Namespace) -> None:
    settings: RegenerateSettings = settings_of(RegenerateSettings, chosen)
    console = Console()
    total = regenerate(Pair.load(chosen.run, settings.load, adapter=settings.adapter), settings, console)
    console.print(f"{total} samples in {settings.out}", soft_wrap=True)
