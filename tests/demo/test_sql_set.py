"""The generated text-to-SQL set."""

import hashlib
import json
import re
import sqlite3
from collections import Counter

import pytest
import sqlglot

from semiar.demo.sql_set import generate, write
from semiar.errors import DataError


@pytest.fixture(scope="module")
def samples():
    return generate(1500, seed=3)


def schemas(samples):
    """Tables with the set of their columns, key columns of joins left out."""
    found = set()
    for sample in samples:
        for name, columns in re.findall(r"CREATE TABLE (\w+) \(([^)]*)\)", sample["context"]):
            names = [column.split()[0] for column in columns.split(", ")]
            found.add((name, frozenset(column for column in names if column != "id" and not column.endswith("_id"))))
    return found


def test_every_query_parses_and_runs(samples):
    for sample in samples:
        assert sqlglot.parse_one(sample["answer"], dialect="sqlite")
        connection = sqlite3.connect(":memory:")
        connection.executescript(sample["context"])
        connection.execute(sample["answer"]).fetchall()
        connection.close()


def test_it_cannot_be_memorised(samples):
    assert len({sample["context"] for sample in samples}) > 1450
    assert len({sample["answer"] for sample in samples}) > 1450
    assert len({sample["question"] for sample in samples}) > 1450
    openings = Counter(" ".join(sample["question"].split()[:3]) for sample in samples)
    assert len(openings) > 40


@pytest.mark.parametrize(
    "clause",
    [" = ", " < ", " > ", " <> ", " <= ", " >= ", "LIKE", "BETWEEN", " AND ", " OR ", "ORDER BY", "LIMIT", "GROUP BY",
     "HAVING", "COUNT(", "SUM(", "AVG(", "MIN(", "MAX(", "DISTINCT", "JOIN"],
)  # fmt: skip
def test_every_clause_occurs(samples, clause):
    assert sum(clause in sample["answer"] for sample in samples) >= 30


def test_tables_have_three_to_six_columns_of_a_type(samples):
    for sample in samples:
        for columns in re.findall(r"\(([^)]*)\)", sample["context"]):
            assert 3 <= len(columns.split(", ")) <= 6
            assert all(re.fullmatch(r"\w+ (TEXT|INTEGER|REAL|DATE)", column) for column in columns.split(", "))


def test_questions_name_what_the_query_needs(samples):
    for sample in samples:
        literals = re.findall(r"'%?([^'%]*)%?'|(?<![\w.])(\d+(?:\.\d+)?)", sample["answer"])
        assert all((text or number) in sample["question"] for text, number in literals), sample


def test_answers_are_neither_trivial_nor_long(samples):
    lengths = sorted(len(sample["answer"]) for sample in samples)
    assert lengths[0] >= 56
    assert lengths[-1] <= 210
    assert 70 < lengths[len(lengths) // 2] < 130


def test_splits_share_no_schema_whatever_the_seeds(tmp_path):
    assert not schemas(generate(1500, 1, "train")) & schemas(generate(500, 2, "test"))
    write(tmp_path / "new" / "set", train=300, test=60, seed=5)
    train, test = (
        [json.loads(line) for line in (tmp_path / "new" / "set" / f"{split}.jsonl").read_text("utf-8").splitlines()]
        for split in ("train", "test")
    )
    assert (len(train), len(test)) == (300, 60)
    assert set(train[0]) == {"context", "question", "answer"}
    assert not schemas(train) & schemas(test)


def test_the_same_seed_gives_the_same_set_in_every_process():
    digest = hashlib.sha256(json.dumps(generate(40, 11)).encode()).hexdigest()
    assert digest.startswith("a697484eebd54042"), "renew this where the vocabulary was changed on purpose"
    assert generate(40, 11) != generate(40, 12)
    assert generate(20, 11) == generate(40, 11)[:20]
    assert generate(0, 1) == []
    with pytest.raises(DataError, match="-1"):
        generate(-1, 1)
