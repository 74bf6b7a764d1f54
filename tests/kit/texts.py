"""Token ids through the real loop."""

from __future__ import annotations

from typing import Any

from semiar.decoding import Limits, decode
from semiar.drafters import Drafter
from semiar.targets import Target


def texts(target: Target, drafter: Drafter, prompts: list[list[int]], count: int, **options: Any) -> list[list[int]]:
    """What the loop emits for every prompt."""
    rows: list[list[int]] = [[] for _ in prompts]
    for step in decode(target, drafter, prompts, Limits(count), **options):
        for row, tokens in zip(step.rows, step.tokens, strict=True):
            rows[row] += tokens
    return rows
