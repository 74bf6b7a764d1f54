"""A seeded text-to-SQL set in a fixed house style: thousands of schemas, so that it cannot be memorised.

Every sample has its own schema of one table, or of two for a join:

    {"context": "CREATE TABLE lakes (country TEXT, depth INTEGER, salinity REAL)",
     "question": "List the country and salinity of lakes whose depth is above 120.",
     "answer": "SELECT lakes.country AS lake_country, lakes.salinity AS lake_salinity FROM lakes
                WHERE lakes.depth > 120 ORDER BY lakes.country ASC LIMIT 100"}   (in one line)

The house style is what a model without fine-tuning does not know: columns carry their table's name, everything that
is selected has an alias, rows are ordered by the first selected column and limited to 100 unless the question says
otherwise.  A table with its columns belongs to the training or to the test side by a hash of its text, so that no
schema is on both.  The same seed gives the same samples on every machine.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError
from . import sql_words as words
from .sql_schema import Column, Side, Table, draw_table, draw_value

Sample = dict[str, str]

LIMIT = 100  # rows of an answer whose question names no number


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a query and the words that ask for it."""

    sql: str
    words: str


def generate(count: int, seed: int, side: Side | None = None) -> list[Sample]:
    """`count` different samples {"context", "question", "answer"}; `side` keeps to the schemas of one split."""
    if count < 0:
        raise DataError(f"count {count}", "0 or more")
    rng = random.Random(f"{seed}/{side}")
    samples: dict[tuple[str, str], Sample] = {}
    while len(samples) < count:
        build = rng.choices(list(QUERIES), list(QUERIES.values()))[0]
        sample = build(rng, side)
        samples.setdefault((sample["context"], sample["question"]), sample)
    return list(samples.values())


def write(folder: str | Path, train: int, test: int, seed: int) -> None:
    """Write ``train.jsonl`` and ``test.jsonl`` with so many samples into `folder`, which is made if needed."""
    sides: tuple[tuple[Side, int], ...] = (("train", train), ("test", test))
    Path(folder).mkdir(parents=True, exist_ok=True)
    for side, count in sides:
        lines = [json.dumps(sample, ensure_ascii=False) + "\n" for sample in generate(count, seed, side)]
        (Path(folder) / f"{side}.jsonl").write_text("".join(lines), encoding="utf-8", newline="\n")


def _rows(rng: random.Random, side: Side | None) -> Sample:
    """Columns of the rows of a table, with conditions."""
    table = draw_table(rng, side)
    columns = rng.sample(table.columns, rng.randint(3, min(4, len(table.columns))))
    where = _where(rng, table, 2)
    sql = f"SELECT {_selected(table, columns)} FROM {table.name}{where.sql}"
    what = f"{_listed([column.words for column in columns])} of {table.name}{where.words}"
    return _sample(rng, table.create(), what, sql, _ordered(rng, table, columns))


def _join(rng: random.Random, side: Side | None) -> Sample:
    """Columns of the rows of a table and of the rows of another that they belong to."""
    parent = draw_table(rng, side, words.PARENTS, most=3)
    table = draw_table(rng, side, most=4)
    while table.noun == parent.noun:
        table = draw_table(rng, side, most=4)
    own, other = rng.sample(table.columns, 2), rng.sample(parent.columns, rng.randint(1, 2))
    where = _where(rng, table, 1)
    key = f"{parent.noun}_id"
    sql = (
        f"SELECT {_selected(table, own)}, {_selected(parent, other)} FROM {table.name} "
        f"JOIN {parent.name} ON {table.name}.{key} = {parent.name}.id{where.sql}"
    )
    what = (
        f"{_listed([column.words for column in own])} of {table.name} "
        f"and the {_listed([column.words for column in other])} of their {parent.noun}, for {table.name}{where.words}"
    )
    return _sample(rng, f"{table.create(key)}; {parent.create('id')}", what, sql, _ordered(rng, table, own))


def _group(rng: random.Random, side: Side | None) -> Sample:
    """Aggregates over groups of the rows of a table, under a condition."""
    table = draw_table(rng, side)
    key, measures, where = rng.choice(table.texts), _measures(rng, table), _where(rng, table, 1)
    sql = (
        f"SELECT {_selected(table, [key])}, {', '.join(measure.sql for measure in measures)} "
        f"FROM {table.name}{where.sql} GROUP BY {table.name}.{key.name}"
    )
    what = f"{_listed([measure.words for measure in measures])} for each {key.words} of {table.name}{where.words}"
    return _sample(rng, table.create(), what, sql, _ordered(rng, table, [key]))


QUERIES: dict[Callable[[random.Random, Side | None], Sample], int] = {_rows: 40, _join: 30, _group: 30}


def _selected(table: Table, columns: Sequence[Column]) -> str:
    return ", ".join(f"{table.name}.{column.name} AS {table.noun}_{column.name}" for column in columns)


def _measures(rng: random.Random, table: Table) -> list[Piece]:
    """Two different aggregates."""
    count = Piece(f"COUNT(*) AS number_of_{table.name}", "number")
    others = [
        Piece(f"{function}({table.name}.{column.name}) AS {word}_{column.name}", f"{word} {column.words}")
        for function, word in words.MEASURES.items()
        for column in table.numbers
    ]
    return rng.sample([count, *rng.sample(others, 3)], 2)


def _where(rng: random.Random, table: Table, most: int) -> Piece:
    """One to `most` conditions on different columns, joined by AND or by OR."""
    conditions = [_condition(rng, table, column) for column in rng.sample(table.columns, rng.randint(1, most))]
    joint = rng.choice(("and", "and", "or"))
    return Piece(
        " WHERE " + f" {joint.upper()} ".join(condition.sql for condition in conditions),
        " whose " + f" {joint} whose ".join(condition.words for condition in conditions),
    )


def _condition(rng: random.Random, table: Table, column: Column) -> Piece:
    tests = words.NUMBER_TESTS if column.is_number else words.DATE_TESTS if column.type == "DATE" else words.TEXT_TESTS
    test, value = rng.choice(list(tests)), draw_value(rng, column)
    literal = value if column.is_number else f"'{value}'"
    phrase = rng.choice(tests[test]).format(value=value)
    return Piece(f"{table.name}.{column.name} {test} {literal}", f"{column.words} is {phrase}")


def _ordered(rng: random.Random, table: Table, columns: Sequence[Column]) -> Piece:
    """ORDER BY and LIMIT: the first column and 100 rows, or what the question says."""
    column, direction, ask, count = columns[0], "ASC", "", LIMIT
    if rng.random() < 0.35:
        column, direction = rng.choice(columns), rng.choice(("ASC", "DESC"))
        ask = f", {words.ORDER_PHRASES[direction]} {column.words}"
    if rng.random() < 0.35:
        count = rng.randint(2, 20)
        ask += f", only the first {count}"
    return Piece(f" ORDER BY {table.name}.{column.name} {direction} LIMIT {count}", ask)


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def _sample(rng: random.Random, context: str, what: str, sql: str, last: Piece) -> Sample:
    question = rng.choice(words.FRAMES).format(what=what + last.words)
    return {"context": context, "question": question, "answer": sql + last.sql}
