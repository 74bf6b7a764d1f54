"""A patient's question and a doctor's answer; the words in common count.  Not medical advice.

A row, in the shape of the set (the example is ours; the hub names the fields `input` and `output`):

    {"instruction": "If you are a doctor, please answer the medical questions based on the patient's description.",
     "question": "Doctor, my ankle has been swollen since I fell yesterday.",
     "answer": "It may be a sprain. I suggest an X-ray to rule out a fracture, and rest with the foot raised."}
"""

from __future__ import annotations

from typing import Any

from ..samples import Row
from .metrics import text_score
from .task import Task


def pair(row: Row) -> tuple[Any, Any]:
    """Instruction and question, and the answer, under their local or their hub names."""
    question, answer = ("question", "answer") if "question" in row else ("input", "output")
    return f"{row['instruction']}\n\n{row[question]}", row[answer]


TASK = Task(
    name="chatdoctor",
    hub_id="wangrongsheng/GenMedGPT-5k-en",
    hub_splits={"train": "train[:90%]", "test": "train[90%:]"},
    pair=pair,
    score=text_score,
    metric="token_f1",
    max_new_tokens=224,
)
