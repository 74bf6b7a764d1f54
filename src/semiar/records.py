"""What is written as JSON or YAML says which version of its form it has; readers refuse one that they do not know."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from semiar.errors import DataError

SCHEMA_VERSION = 1
KEY = "schema_version"
CODE = (".py", ".cpp", ".h")  # files that decide what is measured


def stamped(record: dict[str, Any]) -> dict[str, Any]:
    """The record with its version in front."""
    return {KEY: SCHEMA_VERSION, **{name: value for name, value in record.items() if name != KEY}}


def check(record: Any, place: str) -> dict[str, Any]:
    """The record, without its version; one that has none is of the time before there were any.

    Raises ``DataError`` for a version that is not known, and for what is no record.
    """
    if not isinstance(record, dict):
        raise DataError(f"{place} is no record", "names with values", "is it the file that semiar wrote?")
    version = record.get(KEY, SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise DataError(f"{place} has {KEY} {version}", f"{SCHEMA_VERSION}", "read it with the version that wrote it")
    return {name: value for name, value in record.items() if name != KEY}


@cache
def code_hash() -> str:
    """Identity of the code that runs: of all the package's source files."""
    root, whole = Path(__file__).parent, hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in CODE):
        whole.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return whole.hexdigest()[:12]
