"""``semiar attach``."""

from __future__ import annotations

from collections.abc import Sequence

from jsonargparse import Namespace
from rich.console import Console

from semiar.attach import AttachSettings, attach
from semiar.cli.options import Parser, add_pair, add_settings, settings_of

HELP = "Put a drafter that needs no training beside a target."


def options(one: Parser, words: Sequence[str]) -> None:
    add_pair(one, ", or a model: hub id or folder")
    add_settings(one, AttachSettings, words)


def run(chosen: Namespace) -> None:
    attach(chosen.run, settings_of(AttachSettings, chosen), Console(stderr=True))
