"""Summaries of spoken dialogues; ROUGE counts.

A row, in the shape of the set (the example is ours):

    {"id": "train_1", "dialogue": "#Person1#: Is this seat taken?\\n#Person2#: No, please sit down.",
     "summary": "#Person1# asks for a seat and #Person2# offers it."}
"""

from __future__ import annotations

from .metrics import rouge_score
from .task import Task

TASK = Task(
    name="dialogsum",
    hub_id="knkarthick/dialogsum",
    pair=lambda row: (f"Summarize this dialogue.\n\n{row['dialogue']}", row["summary"]),
    score=rouge_score,
    metric="rougeL",
    max_new_tokens=112,
)
