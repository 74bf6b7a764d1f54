"""Medical questions with long answers; the words in common count.  Not medical advice.

A row, in the shape of the set (the example is ours):

    {"source": "Example", "question": "What is a splinter ?",
     "answer": "A splinter is a small piece of wood, glass or metal that has entered the skin. ..."}
"""

from __future__ import annotations

from .metrics import text_score
from .task import Task

TASK = Task(
    name="medquad",
    hub_id="lavita/MedQuAD",
    hub_splits={"train": "train[:95%]", "test": "train[95%:]"},
    pair=lambda row: (row["question"], row["answer"]),
    score=text_score,
    metric="token_f1",
    max_new_tokens=512,
)
