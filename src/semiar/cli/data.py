"""``semiar data``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jsonargparse import Namespace
from rich.console import Console

from semiar.cli.options import Parser, add_settings, settings_of
from semiar.data.chat import ChatRenderer
from semiar.data.preview import preview
from semiar.data.tasks.registry import load_any
from semiar.errors import ConfigError
from semiar.settings import DataSource
from semiar.targets import load_tokenizer

HELP = "Show samples as a model will see them, with the loss mask."


@dataclass(frozen=True)
class PreviewSettings:
    """What is shown."""

    model: str
    """Whose tokenizer and chat template render it."""
    data: DataSource = field(default_factory=DataSource)


def options(one: Parser, words: Sequence[str]) -> None:
    one.add_argument("source", type=str, nargs="?", default="", help="task, file or hub id, as --data")
    add_settings(one, PreviewSettings, words)


def run(chosen: Namespace) -> None:
    settings: PreviewSettings = settings_of(PreviewSettings, chosen)
    data = settings.data.filled(DataSource(chosen.source), split="train")
    if not data.source or (chosen.source and settings.data.source):
        raise ConfigError("no data" if not data.source else "data named twice", "one task, file, folder or hub id")
    preview(load_any(data), ChatRenderer(load_tokenizer(settings.model)), data.max_length, Console())
