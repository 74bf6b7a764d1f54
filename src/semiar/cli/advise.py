"""``semiar advise``."""

from __future__ import annotations

from collections.abc import Sequence

from jsonargparse import Namespace
from rich.console import Console

from semiar.advising.advise import advise
from semiar.advising.settings import AdviseSettings
from semiar.cli.options import Parser, add_settings, settings_of

HELP = "Say whether and how speculation will pay for a target on your data."


def options(one: Parser, words: Sequence[str]) -> None:
    one.add_argument("target", type=str, help="model (hub id, folder or .gguf file), pair folder or PEFT adapter")
    add_settings(one, AdviseSettings, words, skip=("target",))


def run(chosen: Namespace) -> None:
    advise(settings_of(AdviseSettings, chosen), Console())
