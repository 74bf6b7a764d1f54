"""The generated text-to-SQL set."""

import hashlib
import json
import re
import sqlite3
from collections import Counter

import pytest
import sqlglot
from sqlglot import exp

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
    assert len({re.sub(r"\b[a-z_]+\.[a-z_]+ AS [a-z_]+, ", "", sample["answer"]) for sample in samples}) > 1400


@pytest.mark.parametrize(
    "clause",
    [" = ", " < ", " > ", " <> ", " <= ", " >= ", " AND ", " OR ", " ASC LIMIT 100", " DESC LIMIT ", "GROUP BY",
     "COUNT(", "SUM(", "AVG(", "MIN(", "MAX(", "JOIN"],
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
        said, query = sample["question"], sample["answer"].removesuffix(" LIMIT 100")
        literals = re.findall(r"'([^']*)'|(?<![\w.])(\d+(?:\.\d+)?)", query)
        assert all((text or number) in said for text, number in literals), sample
        names = re.findall(r"\w+\.(\w+)", query)
        assert all(name.replace("_", " ") in said for name in names if not re.fullmatch(r"(\w+_)?id", name)), sample
        assert ("descending" in said) == (" DESC" in query)


def test_answers_keep_the_house_style(samples):
    limits = Counter()
    for sample in samples:
        tree = sqlglot.parse_one(sample["answer"], dialect="sqlite")
        assert all(isinstance(selected, exp.Alias) for selected in tree.selects), sample
        assert tree.args["where"] and all(column.table for column in tree.find_all(exp.Column)), sample
        order, first = tree.args.get("order"), tree.selects[0].this
        if "order" not in sample["question"]:
            assert order.expressions[0].this == first and not order.expressions[0].args["desc"], sample
        limits[int(tree.args["limit"].expression.name)] += 1
    assert 0.6 < limits.pop(100) / len(samples) < 0.7
    assert set(limits) == set(range(2, 21))


def test_answers_are_neither_trivial_nor_long(samples):
    lengths = sorted(len(sample["answer"]) for sample in samples)
    assert lengths[0] >= 100
    assert lengths[-1] <= 360
    assert 180 < lengths[len(lengths) // 2] < 250


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
    assert digest.startswith("8e8e2e0f9246ea6e"), "renew this where the vocabulary was changed on purpose"
    assert generate(40, 11) != generate(40, 12)
    assert generate(20, 11) == generate(40, 11)[:20]
    assert generate(0, 1) == []
    with pytest.raises(DataError, match="-1"):
        generate(-1, 1)
