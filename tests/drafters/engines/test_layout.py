"""Structures and codes of the kernels are the same in C++ and in Python, or their use is refused by name."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from semiar.drafters.engines import native as drafting
from semiar.errors import TargetError
from semiar.targets.engines import kernels
from semiar.targets.engines import native as passing

pytestmark = pytest.mark.skipif(not kernels.compiler(), reason="this machine has no C++ compiler")
STRUCTURES = [
    *((passing, name) for name in ("Layer", "Model", "Pass")),
    *((drafting, name) for name in ("Operand", "Instruction", "Program", "Draft")),
]
Fields = list[tuple[str, Any]]
NARROW = ctypes.c_int32


def swapped(fields: Fields) -> tuple[Fields, str]:
    return [fields[1], fields[0], *fields[2:]], fields[1][0]


def narrowed(fields: Fields) -> tuple[Fields, str]:
    return [(fields[0][0], NARROW), *fields[1:]], fields[0][0]


def renamed(fields: Fields) -> tuple[Fields, str]:
    return [*fields[:2], ("other", fields[2][1]), *fields[3:]], "other"


def shortened(fields: Fields) -> tuple[Fields, str]:
    return fields[:-1], ""


@pytest.mark.parametrize("module", [passing, drafting])
def test_both_sides_say_the_same(module: Any) -> None:
    module.kernel()


@pytest.mark.parametrize("change", [swapped, narrowed, renamed, shortened])
@pytest.mark.parametrize(("module", "name"), STRUCTURES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_structure_of_another_layout_is_refused_by_field(
    module: Any, name: str, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = getattr(module, name)
    fields, wrong = change(list(kind._fields_))
    monkeypatch.setattr(module, name, type(name, (ctypes.Structure,), {"_fields_": fields}))
    with pytest.raises(TargetError, match=rf"^{name}\.{wrong} (has|is)" if wrong else rf"^{name} has"):
        module.kernel()


def test_operation_codes_in_another_order_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = list(drafting.CODES)
    for changed, named in (
        ([*codes[:5], codes[6], codes[5], *codes[7:]], codes[6]),
        (codes[:-1], codes[-1]),
        ([*codes, "later"], "later"),
    ):
        monkeypatch.setattr(drafting, "CODES", tuple(changed))
        with pytest.raises(TargetError, match=rf"^Code\.{named.upper()} is"):
            drafting.kernel()
