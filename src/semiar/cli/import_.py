"""``semiar import``."""

from __future__ import annotations

from collections.abc import Sequence

from jsonargparse import Namespace
from rich.console import Console

from semiar.cli.options import Parser, add_settings, settings_of
from semiar.importing import ImportSettings, import_drafter

HELP = "Make a pair of a model and a drafter trained by its original project."


def options(one: Parser, words: Sequence[str]) -> None:
    one.add_argument("checkpoint", type=str, help="file or folder with the original tensors")
    add_settings(one, ImportSettings, words, skip=("checkpoint",))


def run(chosen: Namespace) -> None:
    import_drafter(settings_of(ImportSettings, chosen), Console())
