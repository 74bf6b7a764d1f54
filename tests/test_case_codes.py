"""The legend of the case codes has every code that a test names."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_case_code_in_the_tests_is_explained() -> None:
    legend = re.findall(r"^\| (H\d\d) \|", (HERE / "CASES.md").read_text(encoding="utf-8"), re.M)
    assert len(legend) == len(set(legend)) == 35
    for path in HERE.rglob("*.py"):
        named = set(re.findall(r"\b[Hh]\d\d(?=\b|_)", path.read_text(encoding="utf-8")))
        assert {code.upper() for code in named} <= set(legend), path.name
