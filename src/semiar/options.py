"""From parsed options to settings objects and pairs, and a parser's complaint in a line."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from semiar import api
from semiar.targets import LoadSettings


def complaint(error: Exception, words: Sequence[str], verbs: Container[str]) -> str:
    """The parser's message in one line, in the words of the command line, and where to look."""
    verb = next((word for word in words if word in verbs), "")
    text = " ".join(str(error).split()).removesuffix(".")
    text = re.sub(r"<class '(\w+)'>", r"\1", text.replace('Parser key "', 'option "'))
    return f"{text.replace(f'{verb}.', '') if verb else text}; see semiar {verb + ' ' if verb else ''}--help"


def instantiate(kind: Any, options: Namespace) -> Any:
    """A settings object from the options that carry its fields' names; what a verb has no option for is left out."""
    values = {}
    for name, field in kind.__dataclass_fields__.items():
        if name not in options:
            continue
        value = options[name]
        if isinstance(value, Namespace):
            value = instantiate(field.default_factory, value)
        values[name] = value
    return kind(**values)


def load_settings(options: Namespace) -> LoadSettings:
    return instantiate(LoadSettings, options.load)


def results_folder(options: Namespace) -> Path:
    """Where findings about a pair go: its own folder; for a pair on the hub, a folder here that is named like it."""
    folder = Path(options.run).expanduser()
    return folder if folder.is_dir() else Path(options.run.replace("/", "--"))


def load_pair(options: Namespace) -> api.Pair:
    return api.Pair.load(options.run, load_settings(options))  # type: ignore[return-value]
