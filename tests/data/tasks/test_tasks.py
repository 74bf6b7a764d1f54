"""Prompts, metrics and sources of the named tasks."""

import json

import pytest

from semiar.data import sources
from semiar.data.samples import Skipped
from semiar.data.tasks import registry
from semiar.data.tasks.metrics import exact_match, rouge_score, text_score, token_f1
from semiar.data.tasks.registry import TASKS, get_task, load_any, load_task, scorer
from semiar.data.tasks.sql import match, normalise
from semiar.errors import DataError, SourceNotFound
from semiar.settings import DataSource

ROWS = {
    "gsm8k": {"question": "1+1?", "answer": "#### 2"},
    "sql": {"context": "CREATE TABLE t (a TEXT)", "question": "All a?", "answer": "SELECT a FROM t"},
    "samsum": {"dialogue": "A: hi", "summary": "A greets."},
    "dialogsum": {"dialogue": "#Person1#: hi", "summary": "#Person1# greets."},
    "chatdoctor": {"instruction": "Answer.", "question": "Ouch?", "answer": "Rest."},
    "medquad": {"question": "What is X ?", "answer": "X is Y."},
}


@pytest.mark.parametrize("name", TASKS)
def test_tasks_read_their_rows_and_score_the_reference_best(name):
    task, row = get_task(name), ROWS[name]
    record = task.record(row, "f:1")
    assert record.answer == row.get("answer", row.get("summary"))
    shown = record.prompt_messages[0].content
    assert all(value in shown for key, value in row.items() if key not in ("answer", "summary"))
    assert task.score([record.answer], [record.answer])[task.metric] == 1
    assert task.score(["nothing alike"], [record.answer])[task.metric] == 0
    assert task.metric == scorer(name)[1]


def test_chatdoctor_reads_the_names_of_the_hub():
    row = {"instruction": "Answer.", "input": "Ouch?", "output": "Rest."}
    assert get_task("chatdoctor").record(row).messages == get_task("chatdoctor").record(ROWS["chatdoctor"]).messages


def test_rows_of_another_shape():
    task = get_task("gsm8k")
    with pytest.raises(DataError, match=r"f:3: not a row of the task gsm8k \(`foo`\)"):
        task.record({"foo": "bar"}, "f:3")
    with pytest.raises(DataError, match="not a text"):
        task.record({"question": 1, "answer": "a"}, "f:3")
    assert task.record({"question": "q", "answer": None}, "f:3") == Skipped("f:3", "no answer")
    assert task.record({"question": " ", "answer": "a"}, "f:3") == Skipped("f:3", "no question")


@pytest.mark.parametrize(
    ("prediction", "right"),
    [
        ("so 3*4 = <<3*4=12>>12 apples\n#### 1,200", True),
        ("#### 1200.0", True),
        ("#### $1,200 dollars, which is 5 more", True),
        ("The answer is 1200.", True),
        ("first 5, then 1,200", True),
        ("1200, no: 7", False),
        ("#### 7\n1200", False),
        ("#### 7\nno, wait\n#### 1200", True),
        ("####\nnothing, but 1200 before", True),
        ("#### -1200", False),
        ("no number", False),
        ("", False),
    ],
)
def test_gsm8k_final_number(prediction, right):
    assert get_task("gsm8k").score([prediction], ["steps 9\n#### 1,200"]) == {"accuracy": float(right)}


@pytest.mark.parametrize(
    ("prediction", "reference", "same"),
    [
        ("select A from T where b='x'", 'SELECT a FROM t WHERE b = "x"', True),
        ("SELECT a FROM t WHERE b = 'x';", "SELECT a FROM t WHERE b = 'x'", True),
        ("```sql\nSELECT a FROM t\n```", "SELECT a FROM t", True),
        ("SELECT a FROM t WHERE b <> 1 AND c > 2", "SELECT a FROM t WHERE c > 2 AND b != 1", True),
        ("SELECT count(*)   FROM t", "SELECT COUNT(*) FROM t", True),
        ("SELECT `a` FROM [t]", "SELECT a FROM t", True),
        ("SELECT a, b FROM t", "SELECT b, a FROM t", False),
        ("SELECT a FROM t WHERE b = 'X'", "SELECT a FROM t WHERE b = 'x'", False),
        ("SELECT a FROM t WHERE b = '5'", "SELECT a FROM t WHERE b = 5", False),
        ("SELECT a FROM t WHERE b = 1 OR c = 2", "SELECT a FROM t WHERE b = 1 AND c = 2", False),
        ("SELECT a FROM t WHERE (b = 1 OR c = 2) AND d = 3", "SELECT a FROM t WHERE d = 3 AND (b = 1 OR c = 2)", True),
        ("SELECT a FROM t; SELECT b FROM t", "SELECT a FROM t", False),
        ("SELECT a FROM", "SELECT a FROM t", False),
        ("I do not know", "SELECT a FROM t", False),
        ("", "SELECT a FROM t", False),
        ("not ( sql", "not ( sql", True),
    ],
)
def test_sql_match(prediction, reference, same):
    assert match(prediction, reference) == float(same)


def test_sql_normal_form_is_stable():
    form = normalise('SELECT a FROM t WHERE c = "x" AND b LIKE "%y"')
    assert form == "SELECT a FROM t WHERE b LIKE '%y' AND c = 'x'"
    assert normalise(form) == form
    assert get_task("sql").score(["select a from t", "x"], ["SELECT a FROM t", "x"])["exact_match"] == 0.5


def test_word_metrics():
    assert token_f1("The cat sat.", "the CAT lay down") == pytest.approx(2 * 2 / 7)
    assert token_f1("a a b", "a b b") == pytest.approx(2 / 3)
    assert (token_f1("", ""), token_f1("", "a"), token_f1("!", "?")) == (1, 0, 1)
    assert (exact_match(" a\n", "a"), exact_match("A", "a")) == (1, 0)
    assert text_score(["a b", "c"], ["a b", "d"]) == {"token_f1": 0.5, "exact_match": 0.5}
    with pytest.raises(DataError, match="1 predictions for 2 references"):
        text_score(["a"], ["a", "b"])
    with pytest.raises(DataError, match="0 predictions"):
        rouge_score([], [])


def test_rouge_by_hand():
    scores = rouge_score(["the cat sat", "dogs"], ["the cat sat down", "dog"])
    assert scores["rouge1"] == pytest.approx((2 * 1 * 0.75 / 1.75 + 1) / 2)
    assert scores["rouge2"] == pytest.approx((2 * 1 * (2 / 3) / (5 / 3) + 0) / 2)
    assert scores["rougeL"] == scores["rouge1"]


def test_unknown_task_and_default_scorer():
    with pytest.raises(DataError, match="gsm8k, sql"):
        get_task("gsm9k")
    assert scorer("my.jsonl") == (text_score, "token_f1")


def save(folder, name, rows):
    (folder / name).mkdir(parents=True)
    for split in ("train", "test"):
        lines = [json.dumps({**row, "split": split}) + "\n" for row in rows]
        (folder / name / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")


def test_load_task_from_a_directory(tmp_path, monkeypatch):
    save(tmp_path, "sql", [ROWS["sql"], {**ROWS["sql"], "answer": ""}])
    result = load_task("sql", "test", str(tmp_path))
    assert [record.fields["split"] for record in result.records] == ["test"]
    assert result.skipped == [Skipped("test.jsonl:2", "no answer")]
    monkeypatch.setenv("SEMIAR_DATA", str(tmp_path))
    assert load_task("sql", "test") == result
    assert load_any(DataSource("sql", "test")) == result
    with pytest.raises(SourceNotFound, match="openai/gsm8k"):
        load_task("gsm8k")


def test_load_task_from_the_hub(monkeypatch):
    asked = []
    monkeypatch.delenv("SEMIAR_DATA", raising=False)
    monkeypatch.setattr(sources, "load_dataset", lambda *a, split: asked.append((*a, split)) or [ROWS["gsm8k"]])
    assert load_task("gsm8k", "test").records[0].answer == "#### 2"
    monkeypatch.setattr(sources, "load_dataset", lambda *a, split: asked.append((*a, split)) or [ROWS["sql"]])
    load_task("sql", "test")
    assert asked == [("openai/gsm8k", "main", "test"), ("b-mc2/sql-create-context", None, "train[95%:]")]


def test_load_any_of_other_sources(tmp_path):
    save(tmp_path, "mine", [ROWS["gsm8k"]])
    assert load_any(DataSource(str(tmp_path / "mine"))).records[0].answer == "#### 2"
    with pytest.raises(SourceNotFound, match=r"'gsm9k' is no task.*gsm8k"):
        load_any(DataSource("gsm9k"))


@pytest.mark.parametrize("name", TASKS)
def test_real_data(name, folder):
    train, test = (load_task(name, split, folder) for split in ("train", "test"))
    assert (len(train.records), train.skipped) == (3000, [])
    assert len(test.records) in (493, 500)
    references = [record.answer for record in test.records[:100]]
    assert registry.TASKS[name].score(references, references)[get_task(name).metric] == pytest.approx(1)
    rotated = references[1:] + references[:1]
    assert registry.TASKS[name].score(rotated, references)[get_task(name).metric] < 0.4
