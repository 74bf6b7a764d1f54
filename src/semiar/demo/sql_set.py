"""A seeded text-to-SQL set: thousands of schemas, many clauses and phrasings, so that it cannot be memorised.

Every sample has its own schema of one table, or of two for a join, each with three to six columns:

    {"context": "CREATE TABLE lakes (name TEXT, country TEXT, depth INTEGER)",
     "question": "List the name of all lakes whose depth is more than 120.",
     "answer": "SELECT name FROM lakes WHERE depth > 120"}

A table with its columns belongs to the training or to the test side by a hash of its text, so that no schema is on
both.  The same seed gives the same samples on every machine.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError
from . import sql_words as words
from .sql_schema import Column, Side, Table, draw_table, draw_value

Sample = dict[str, str]

ANSWER_CHARACTERS = (56, 210)  # about 15 to 60 tokens of usual vocabularies


@dataclass(frozen=True, slots=True)
class Clause:
    """A piece of a query and the words that ask for it."""

    sql: str = ""
    words: str = ""


NOTHING = Clause()


def generate(count: int, seed: int, side: Side | None = None) -> list[Sample]:
    """`count` different samples {"context", "question", "answer"}; `side` keeps to the schemas of one split."""
    if count < 0:
        raise DataError(f"count {count}", "0 or more")
    rng = random.Random(f"{seed}/{side}")
    samples: dict[tuple[str, str], Sample] = {}
    low, high = ANSWER_CHARACTERS
    while len(samples) < count:
        build = rng.choices(list(QUERIES), list(QUERIES.values()))[0]
        sample = build(rng, side)
        if low <= len(sample["answer"]) <= high:
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
    """SELECT columns, with conditions and order."""
    table = draw_table(rng, side)
    columns = rng.sample(table.columns, rng.randint(1, 3))
    where = _where(rng, table) if rng.random() < 0.8 else NOTHING
    order = _order(rng, list(table.columns)) if rng.random() < 0.5 else NOTHING
    sql = f"SELECT {', '.join(column.name for column in columns)} FROM {table.name}{where.sql}{order.sql}"
    what = _listed([column.words for column in columns])
    frame = rng.choice(words.LIST_FRAMES)
    return _sample(table.create(), _ask(frame, order, what=what, rows=table.plural + where.words), sql)


def _distinct(rng: random.Random, side: Side | None) -> Sample:
    """SELECT DISTINCT a text column."""
    table = draw_table(rng, side)
    column = rng.choice(table.texts)
    where = _where(rng, table)
    order = _order(rng, [column]) if rng.random() < 0.3 else NOTHING
    sql = f"SELECT DISTINCT {column.name} FROM {table.name}{where.sql}{order.sql}"
    frame = rng.choice(words.DISTINCT_FRAMES)
    return _sample(table.create(), _ask(frame, order, what=column.words, rows=table.plural + where.words), sql)


def _count(rng: random.Random, side: Side | None) -> Sample:
    """COUNT of the rows under conditions."""
    table = draw_table(rng, side)
    where = _where(rng, table)
    question = rng.choice(words.COUNT_FRAMES).format(rows=table.plural + where.words)
    return _sample(table.create(), question, f"SELECT COUNT(*) FROM {table.name}{where.sql}")


def _value(rng: random.Random, side: Side | None) -> Sample:
    """One or two aggregates under conditions."""
    table = draw_table(rng, side)
    measures = [_measure(rng, table)]
    if rng.random() < 0.4:
        measures += [second for second in [_measure(rng, table)] if second.sql != measures[0].sql]
    where = _where(rng, table)
    sql = f"SELECT {', '.join(measure.sql for measure in measures)} FROM {table.name}{where.sql}"
    what = _listed([measure.words for measure in measures])
    question = rng.choice(words.VALUE_FRAMES).format(what=what, rows=table.plural + where.words)
    return _sample(table.create(), question, sql)


def _group(rng: random.Random, side: Side | None) -> Sample:
    """GROUP BY a text column, with conditions, HAVING or order."""
    table = draw_table(rng, side)
    key = rng.choice(table.texts)
    measure = Clause("COUNT(*)", words.MEASURES["COUNT"][0]) if rng.random() < 0.4 else _measure(rng, table)
    where = _where(rng, table, most=1) if rng.random() < 0.4 else NOTHING
    after = rng.choice((_having(rng, measure), _order(rng, [key]), _order_by_measure(rng, measure), NOTHING))
    sql = f"SELECT {key.name}, {measure.sql} FROM {table.name}{where.sql} GROUP BY {key.name}{after.sql}"
    parts = {"key": key.words, "what": measure.words, "rows": table.plural + where.words}
    return _sample(table.create(), _ask(rng.choice(words.GROUP_FRAMES), after, **parts), sql)


def _join(rng: random.Random, side: Side | None) -> Sample:
    """JOIN of a table with the one that its rows belong to."""
    table, parent, context, source = _joined(rng, side)
    own, other = rng.choice(table.columns), rng.choice(parent.columns)
    where, order = NOTHING, NOTHING
    if rng.random() < 0.75:
        where = _where(rng, table, most=1, prefix=f"{table.name}.")
    if rng.random() < 0.3:
        order = _order(rng, list(table.columns), prefix=f"{table.name}.")
    sql = f"SELECT {table.name}.{own.name}, {parent.name}.{other.name} {source}{where.sql}{order.sql}"
    parts = {"own": own.words, "rows": table.plural + where.words, "other": other.words, "parent": parent.noun}
    frame = rng.choice(words.JOIN_FRAMES).format(what=rng.choice(words.JOIN_PHRASES))
    return _sample(context, _ask(frame, order, **parts), sql)


def _join_count(rng: random.Random, side: Side | None) -> Sample:
    """JOIN, then the number of rows that belong to each value of the other table's column."""
    table, parent, context, source = _joined(rng, side)
    key = rng.choice(parent.texts)
    name = f"{parent.name}.{key.name}"
    after = _having(rng, Clause("COUNT(*)")) if rng.random() < 0.3 else NOTHING
    question = _ask(
        rng.choice(words.GROUP_FRAMES), after, key=f"{parent.noun} {key.words}", what="number", rows=table.plural
    )
    return _sample(context, question, f"SELECT {name}, COUNT(*) {source} GROUP BY {name}{after.sql}")


QUERIES: dict[Callable[[random.Random, Side | None], Sample], int] = {
    _rows: 36, _distinct: 7, _count: 8, _value: 14, _group: 17, _join: 13, _join_count: 5,
}  # fmt: skip


def _joined(rng: random.Random, side: Side | None) -> tuple[Table, Table, str, str]:
    """A table and its parent, the statements that make both, and their FROM clause."""
    parent = draw_table(rng, side, words.PARENTS, most=4)
    table = draw_table(rng, side, most=5)
    while table.noun == parent.noun:
        table = draw_table(rng, side, most=5)
    key = f"{parent.noun}_id"
    context = f"{table.create(key)}; {parent.create('id')}"
    return table, parent, context, f"FROM {table.name} JOIN {parent.name} ON {table.name}.{key} = {parent.name}.id"


def _where(rng: random.Random, table: Table, most: int = 2, prefix: str = "") -> Clause:
    """Up to `most` conditions on different columns, joined by AND or by OR."""
    conditions = [_condition(rng, column, prefix) for column in rng.sample(table.columns, rng.randint(1, most))]
    joint = rng.choice(("and", "and", "or"))
    return Clause(
        " WHERE " + f" {joint.upper()} ".join(condition.sql for condition in conditions),
        " " + f" {joint} ".join(condition.words for condition in conditions),
    )


def _condition(rng: random.Random, column: Column, prefix: str) -> Clause:
    phrases = (
        words.NUMBER_TESTS if column.is_number else words.DATE_TESTS if column.kind == "date" else words.TEXT_TESTS
    )
    test = rng.choice(list(phrases))
    value, other = draw_value(rng, column), draw_value(rng, column)
    if test == "between":
        value, other = sorted((value, other), key=float if column.is_number else str)
    cut, pattern = words.PATTERNS.get(test, (slice(None), ""))
    value = value[cut].strip()
    name = prefix + column.name
    if pattern:
        sql = f"{name} LIKE '{pattern.format(value)}'"
    elif test == "between":
        sql = f"{name} BETWEEN {_literal(column, value)} AND {_literal(column, other)}"
    else:
        sql = f"{name} {test} {_literal(column, value)}"
    return Clause(sql, rng.choice(phrases[test]).format(column=column.words, value=value, other=other))


def _order(rng: random.Random, columns: list[Column], prefix: str = "") -> Clause:
    """ORDER BY one of the columns, and a LIMIT half of the time."""
    column = rng.choice(columns)
    return _ordered(rng, prefix + column.name, column.words)


def _order_by_measure(rng: random.Random, measure: Clause) -> Clause:
    return _ordered(rng, measure.sql, f"the {measure.words}")


def _ordered(rng: random.Random, name: str, spoken: str) -> Clause:
    direction = rng.choice(("ASC", "DESC"))
    sql, ask = f" ORDER BY {name} {direction}", rng.choice(words.ORDER_PHRASES[direction]).format(column=spoken)
    if rng.random() < 0.5:
        return Clause(sql, ask)
    count = rng.randint(2, 20)
    return Clause(f"{sql} LIMIT {count}", f"{ask}, {rng.choice(words.LIMIT_PHRASES).format(count=count)}")


def _having(rng: random.Random, measure: Clause) -> Clause:
    test, value = rng.choice(list(words.HAVING_PHRASES)), rng.randint(2, 60)
    return Clause(f" HAVING {measure.sql} {test} {value}", rng.choice(words.HAVING_PHRASES[test]).format(value=value))


def _measure(rng: random.Random, table: Table) -> Clause:
    function, column = rng.choice(("SUM", "AVG", "MIN", "MAX")), rng.choice(table.numbers)
    return Clause(f"{function}({column.name})", rng.choice(words.MEASURES[function]).format(column=column.words))


def _literal(column: Column, value: str) -> str:
    return value if column.is_number else f"'{value}'"


def _ask(frame: str, last: Clause, **parts: str) -> str:
    """The question; the words of the last clause go before its final mark."""
    question = frame.format(**parts)
    return f"{question[:-1]}, {last.words}{question[-1]}" if last.words else question


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def _sample(context: str, question: str, answer: str) -> Sample:
    question = re.sub(r"\ba (?=[aeiou])", "an ", question[0].upper() + question[1:])
    return {"context": context, "question": question, "answer": answer}
