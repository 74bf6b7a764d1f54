"""Grade-school maths, answered step by step; the final number counts.

A row, in the shape of the set (the example is ours):

    {"question": "Mia packs 6 boxes with 4 pears each and eats 3 pears. How many pears are left?",
     "answer": "Mia packs 6*4 = <<6*4=24>>24 pears.\\nThere are 24-3 = <<24-3=21>>21 pears left.\\n#### 21"}
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

from .metrics import mean
from .task import Task

_NUMBER = re.compile(r"-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")


def final_number(text: str) -> Decimal | None:
    """The first number after the last ``####``; without that mark, or nothing after it, the last number."""
    _, mark, tail = text.rpartition("####")
    marked = _NUMBER.search(tail.replace("$", "")) if mark else None
    numbers = [marked.group()] if marked else _NUMBER.findall(text)
    return Decimal(numbers[-1].replace(",", "")) if numbers else None


def accuracy(prediction: str, reference: str) -> float:
    """1 when both texts end in the same number."""
    found = final_number(prediction)
    return float(found is not None and found == final_number(reference))


def score(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Share of answers whose final number is right."""
    return {"accuracy": mean(accuracy, predictions, references)}


TASK = Task(
    name="gsm8k",
    hub_id="openai/gsm8k",
    hub_config="main",
    pair=lambda row: (row["question"], row["answer"]),
    score=score,
    metric="accuracy",
    max_new_tokens=320,
)
