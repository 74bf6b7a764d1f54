"""Structures that are written down twice, in C++ and for ctypes: whether both sides mean the same."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from semiar.errors import TargetError

Structure = type[ctypes.Structure]


def check_layout(kernels: Any, source: Path, structures: Sequence[Structure], codes: Sequence[str] = ()) -> Any:
    """These kernels, after a look at what they say of their structures (`layout.h`) and operation codes.

    Raises ``TargetError`` that names the first field or code of which the two sides say something else.
    """
    kernels.semiar_layout.restype = ctypes.c_char_p
    lines = [line.split() for line in kernels.semiar_layout().decode().splitlines()]
    theirs = {name: (int(place), int(size)) for name, place, size in lines}
    ours = described(structures) | {f"Code.{code.upper()}": (number, 0) for number, code in enumerate(codes)}
    wrong = next((name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)), None)
    if wrong is not None:
        raise TargetError(
            f"{wrong} {_said(wrong, theirs)} in the kernels of {source.name} and {_said(wrong, ours)} in Python",
            "one layout on both sides",
            f"change them together: {source} with its headers, and the ctypes structures beside it",
        )
    return kernels


def described(structures: Sequence[Structure]) -> dict[str, tuple[int, int]]:
    """Place and size of every field of these structures, and the size of each as a whole."""
    found = {}
    for kind in structures:
        for name, *_ in kind._fields_:
            field = getattr(kind, name)
            found[f"{kind.__name__}.{name}"] = (field.offset, field.size)
        found[kind.__name__] = (0, ctypes.sizeof(kind))
    return found


def _said(name: str, known: dict[str, tuple[int, int]]) -> str:
    if name not in known:
        return "is unknown"
    place, size = known[name]
    if name.startswith("Code."):
        return f"is number {place}"
    return f"has {size} bytes at {place}" if "." in name else f"has {size} bytes"
