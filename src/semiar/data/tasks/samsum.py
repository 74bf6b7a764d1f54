"""Summaries of messenger chats; ROUGE counts.

A row, in the shape of the set (the example is ours):

    {"id": "1", "dialogue": "Lena: Are you home?\\nOli: No, back at 6.\\nLena: Then I'll leave the keys next door.",
     "summary": "Oli is back at 6, so Lena will leave the keys next door."}
"""

from __future__ import annotations

from .metrics import rouge_score
from .task import Task

TASK = Task(
    name="samsum",
    hub_id="knkarthick/samsum",
    pair=lambda row: (f"Summarize this chat.\n\n{row['dialogue']}", row["summary"]),
    score=rouge_score,
    metric="rougeL",
    max_new_tokens=96,
)
