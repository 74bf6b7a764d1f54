"""Text to SQL with the schema given; the normalised query counts.

A row, in the shape of the set (the example is ours):

    {"context": "CREATE TABLE table_7_2 (pilot VARCHAR, wins INTEGER)",
     "question": "Which pilot has more than 3 wins?",
     "answer": "SELECT pilot FROM table_7_2 WHERE wins > 3"}
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import cast

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from .metrics import exact_match, mean
from .task import Task

_FENCE = re.compile(r"```(?:sql|sqlite)?\s*(.*?)```", re.DOTALL | re.IGNORECASE)
_NAMES = re.compile(r"""('(?:[^']|'')*'|"[^"]*")|`(\w+)`|\[(\w+)\]""")  # strings are matched to step over them


def normalise(query: str) -> str | None:
    """One spelling of a query: keywords, names and quotes made alike, conditions joined by AND sorted.

    None when it is not exactly one SQL statement.  A double-quoted word without table is taken as a string, as
    SQLite does when there is no such column.
    """
    fenced = _FENCE.search(query)
    plain = _NAMES.sub(r"\1\2\3", fenced.group(1) if fenced else query)  # `name` and [name] are never strings
    try:
        statements = [tree for tree in sqlglot.parse(plain, dialect="sqlite") if tree]
        if len(statements) != 1 or isinstance(statements[0], exp.Command):
            return None
        return statements[0].transform(_alike).transform(_sorted).sql(dialect="sqlite", normalize_functions="upper")
    except (SqlglotError, RecursionError):
        return None


def match(prediction: str, reference: str) -> float:
    """1 when both queries have the same normal form; a reference that is no SQL must be met exactly."""
    wanted = normalise(reference)
    return exact_match(prediction, reference) if wanted is None else float(normalise(prediction) == wanted)


def score(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Share of queries that match after normalising, and share that match exactly."""
    return {
        "sql_match": mean(match, predictions, references),
        "exact_match": mean(exact_match, predictions, references),
    }


def _alike(node: exp.Expression) -> exp.Expression:
    if isinstance(node, exp.Column) and not node.table and isinstance(node.this, exp.Identifier) and node.this.quoted:
        return exp.Literal.string(node.name)
    if isinstance(node, exp.Identifier):
        return exp.to_identifier(node.name.lower(), quoted=False)
    return node


def _sorted(node: exp.Expression) -> exp.Expression:
    if isinstance(node, exp.And) and not isinstance(node.parent, exp.And):
        conditions = sorted(node.flatten(), key=lambda condition: condition.sql(dialect="sqlite"))
        return cast(exp.Expression, exp.and_(*conditions))
    return node


TASK = Task(
    name="sql",
    hub_id="b-mc2/sql-create-context",
    hub_splits={"train": "train[:95%]", "test": "train[95%:]"},
    pair=lambda row: (f"{row['context']}\n\n{row['question']}", row["answer"]),
    score=score,
    metric="sql_match",
    max_new_tokens=96,
)
