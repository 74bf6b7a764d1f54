"""From parsed words to settings, and what is wrong with the words in one line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from jsonargparse import Namespace


def complain(error: Exception, words: Sequence[str], verbs: Sequence[str]) -> str:
    """The parser's message in one line, in the words of the command line, and where to look."""
    verb = next((word for word in words if word in verbs), "")
    text = " ".join(str(error).split()).removesuffix(".")
    text = re.sub(r"<class '(\w+)'>", r"\1", text.replace('Parser key "', 'option "'))
    return f"{text.replace(f'{verb}.', '') if verb else text}; see semiar {verb + ' ' if verb else ''}--help"


def instantiate(kind: Any, options: Namespace) -> Any:
    """A settings object from the options that carry its fields' names."""
    values = {}
    for name, field in kind.__dataclass_fields__.items():
        value = options[name]
        if isinstance(value, Namespace):
            value = instantiate(field.default_factory, value)
        values[name] = value
    return kind(**values)
