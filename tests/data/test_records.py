"""Files, folders and hub sets as sources of records (H33)."""

import csv
import json

import pyarrow as pa
import pytest
from datasets import Dataset
from datasets.exceptions import DatasetNotFoundError
from pyarrow import parquet

from semiar.data import sources
from semiar.data.records import Message, load_records
from semiar.errors import DataError, SemiarError, SourceNotFound

LONG = "x" * 5_000_000
ROWS = [
    {"question": "one?", "answer": "uno"},
    {"question": "two\u2028lines", "answer": 'with "quotes", commas'},
    {"question": "drei ü 日本", "answer": "a\nb"},
    {"question": LONG, "answer": "long"},
]


def chats(records):
    return [record.messages for record in records.records]


def turns(*pairs):
    return tuple(Message(role, content) for role, content in pairs)


EXPECTED = [turns(("user", row["question"]), ("assistant", row["answer"])) for row in ROWS]


def save(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


LINES = [json.dumps(row, ensure_ascii=False).encode() for row in ROWS]


@pytest.mark.parametrize(
    "content",
    {
        "lf": b"\n".join(LINES) + b"\n",
        "crlf": b"\r\n".join(LINES) + b"\r\n",
        "bom": b"\xef\xbb\xbf" + b"\n".join(LINES) + b"\n",
        "blank": b"\n\n" + b"\n  \n".join(LINES) + b"\n\n",
        "no final newline": b"\n".join(LINES),
    }.items(),
    ids=lambda item: item[0],
)
def test_h33_line_forms_give_the_same_samples(tmp_path, content):
    path = tmp_path / "set.jsonl"
    path.write_bytes(content[1])
    assert chats(load_records(str(path))) == EXPECTED


def test_h33_places_count_blank_lines(tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_bytes(b"\n" + LINES[0] + b"\r\n\r\n" + LINES[1])
    assert [record.place for record in load_records(str(path)).records] == ["set.jsonl:2", "set.jsonl:4"]


def test_h33_file_kinds_give_the_same_samples(tmp_path):
    (tmp_path / "set.json").write_text(json.dumps(ROWS), encoding="utf-8-sig")
    save(tmp_path / "lines.json", ROWS)
    parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "set.parquet")
    with (tmp_path / "set.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["question", "answer"])
        writer.writeheader()
        writer.writerows(ROWS)
    limit = csv.field_size_limit()
    for name in ("set.json", "lines.json", "set.parquet", "set.csv"):
        assert chats(load_records(str(tmp_path / name))) == EXPECTED, name
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("bad.jsonl", LINES[0] + b'\n\n{"question": "x", \n', "bad.jsonl:3"),
        ("bad.jsonl", LINES[0] + b"\n{} {}\n", "bad.jsonl:2"),
        ("bad.jsonl", LINES[0] + b'\n"text"\n', "bad.jsonl:2"),
        ("bad.json", b'[{"question": "x"},\n{"answer" "y"}]', "bad.json:2"),
        ("bad.json", b"3", "bad.json"),
        ("bad.csv", b"question,answer\na,b\nc\n", "bad.csv:3"),
        ("bad.csv", b'question,answer\na,"b\n', "bad.csv:2"),
        ("bad.parquet", b"PAR1 no", "bad.parquet"),
        ("bad.jsonl", b"\xff\xfe{}", "bad.jsonl"),
        ("bad.txt", b"hello", "bad.txt"),
    ],
)
def test_h33_broken_files_name_file_and_line(tmp_path, name, content, place):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=place) as raised:
        load_records(str(tmp_path / name))
    assert isinstance(raised.value, ValueError)


def test_all_skipped_is_an_error_that_says_why(tmp_path):
    with pytest.raises(DataError, match=r"among 2; the first, none\.jsonl:1: no answer"):
        load_records(save(tmp_path / "none.jsonl", [{"question": "a"}, {"question": "b"}]))
    with pytest.raises(DataError, match="it is empty"):
        load_records(save(tmp_path / "empty.jsonl", []))


def test_shuffle_and_limit_are_reproducible(tmp_path):
    rows = [{"question": str(i), "answer": "a"} for i in range(50)]
    rows.insert(0, {"question": "no answer"})
    path = save(tmp_path / "many.jsonl", rows)
    plain = load_records(path, limit=5)
    assert [record.fields["question"] for record in plain.records] == ["0", "1", "2", "3", "4"]
    assert len(plain.skipped) == 1
    first, again, other = (load_records(path, limit=20, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert len({record.place for record in first.records}) == 20
    with pytest.raises(DataError, match="limit"):
        load_records(path, limit=0)


def test_folder_picks_the_file_of_the_split(tmp_path):
    save(tmp_path / "train.jsonl", ROWS[:1])
    save(tmp_path / "test.jsonl", ROWS[1:2])
    (tmp_path / "data").mkdir()
    for index in (0, 1):
        name = tmp_path / "data" / f"validation-0000{index}-of-00002.parquet"
        parquet.write_table(pa.Table.from_pylist([ROWS[2 + index]]), name)
    assert chats(load_records(str(tmp_path))) == EXPECTED[:1]
    assert chats(load_records(str(tmp_path), split="test")) == EXPECTED[1:2]
    assert chats(load_records(str(tmp_path), split="validation")) == EXPECTED[2:]
    with pytest.raises(SourceNotFound, match="dev"):
        load_records(str(tmp_path), split="dev")
    save(tmp_path / "train.json", ROWS)
    with pytest.raises(DataError, match="several files"):
        load_records(str(tmp_path))


@pytest.mark.parametrize("source", ["missing.jsonl", "./nothing", "/no/such/folder", "name", "a/b/c"])
def test_missing_sources(source):
    with pytest.raises(SourceNotFound, match="no file or folder") as raised:
        load_records(source)
    assert isinstance(raised.value, FileNotFoundError)


def test_hub(monkeypatch):
    asked = []

    def load(*arguments, **options):
        asked.append((arguments, options))
        return Dataset.from_list(ROWS[:2])

    monkeypatch.setattr(sources, "load_dataset", load)
    result = load_records("owner/name:main", split="test")
    assert asked == [(("owner/name", "main"), {"split": "test"})]
    assert chats(result) == EXPECTED[:2]
    assert result.records[1].place == "owner/name/test:row 2"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DatasetNotFoundError("doesn't exist"), SourceNotFound),
        (ConnectionError("no network"), SourceNotFound),
        (ValueError("Unknown split"), DataError),
        (RuntimeError("Dataset scripts are no longer supported"), DataError),
    ],
)
def test_hub_failures_say_what_was_tried(monkeypatch, error, kind):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(sources, "load_dataset", fail)
    with pytest.raises(kind, match="owner/name") as raised:
        load_records("owner/name")
    assert str(error) in str(raised.value)
    assert isinstance(raised.value, SemiarError)
