"""Field forms of rows, and rows that are skipped or refused (H33)."""

import json

import pytest

from semiar.data.records import Message, load_records
from semiar.errors import DataError

GOOD = {"question": "one?", "answer": "uno"}


def turns(*pairs):
    return tuple(Message(role, content) for role, content in pairs)


def read_one(tmp_path, row):
    """The record of a row, or why it was skipped; a second, good row keeps the source usable."""
    path = tmp_path / "one.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in (row, GOOD)), encoding="utf-8")
    result = load_records(str(path))
    return result.records[0] if len(result.records) == 2 else result.skipped[0]


SIX = [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e"), ("assistant", "f")]


def test_h33_system_and_all_turns_are_kept(tmp_path):
    chat = [("system", "be short"), *SIX]
    record = read_one(tmp_path, {"messages": [{"role": role, "content": content} for role, content in chat]})
    assert record.messages == turns(*chat)
    assert record.answer == "f"
    assert record.prompt_messages == turns(*chat[:-1])


@pytest.mark.parametrize(
    ("chat", "reason"),
    [
        ([("assistant", "hello"), ("user", "hi"), ("assistant", "yes")], "before any user"),
        ([("system", "s"), ("assistant", "hello")], "before any user"),
        ([], "empty"),
        ([("user", "hi")], "no assistant"),
        ([("user", "hi"), ("assistant", "  ")], "no answer"),
        ([("user", "hi"), ("assistant", None)], "no text"),
    ],
)
def test_h33_unusable_chats_are_skipped_with_place_and_reason(tmp_path, chat, reason):
    skipped = read_one(tmp_path, {"messages": [{"role": role, "content": content} for role, content in chat]})
    assert skipped.place == "one.jsonl:1"
    assert reason in skipped.reason


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "system": "s"},
            turns(("system", "s"), ("user", "q"), ("assistant", "a")),
        ),
        ({"prompt": "q", "completion": "a"}, turns(("user", "q"), ("assistant", "a"))),
        (
            {"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "a"}]},
            turns(("user", "q"), ("assistant", "a")),
        ),
        ({"instruction": "do", "input": "this", "output": "a"}, turns(("user", "do\n\nthis"), ("assistant", "a"))),
        ({"instruction": "do", "input": "", "output": "a"}, turns(("user", "do"), ("assistant", "a"))),
        ({"instruction": "do", "context": "c", "response": "a"}, turns(("user", "do\n\nc"), ("assistant", "a"))),
        (
            {"context": "schema", "question": "q", "answer": "a", "id": 3},
            turns(("user", "schema\n\nq"), ("assistant", "a")),
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "q"}]},
                    {"role": "gpt", "content": "a"},
                ]
            },
            turns(("user", "q"), ("assistant", "a")),
        ),
        ({"question": "q", "answer": "a", "text": "both"}, turns(("user", "q"), ("assistant", "a"))),
    ],
)
def test_field_forms(tmp_path, row, expected):
    record = read_one(tmp_path, row)
    assert record.messages == expected
    assert record.fields == row


def test_text_form(tmp_path):
    record = read_one(tmp_path, {"text": " once upon "})
    assert record.messages is None
    assert record.text == record.answer == " once upon "
    assert record.prompt_messages == ()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"foo": "a", "bar": "b"}, ["`foo`", "`bar`", "messages"]),
        ({}, ["no field"]),
        ({"question": 3, "answer": "a"}, ["`question`", "a number"]),
        ({"question": "q", "answer": {"text": ["a"]}}, ["`answer`", "an object"]),
        ({"question": "q", "answer": "a", "output": "b"}, ["`answer` and `output`"]),
        ({"messages": "hi"}, ["`messages`", "a string"]),
        ({"messages": ["hi"]}, ["[0]"]),
        ({"messages": [{"role": "wizard", "content": "x"}]}, ["wizard"]),
        ({"messages": [{"speaker": "x"}]}, ["`speaker`"]),
        ({"messages": [{"role": "user", "content": 5}]}, ["a number"]),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, ["image"]),
        ({"text": 7}, ["`text`", "a number"]),
    ],
)
def test_wrong_rows_are_refused_with_place_and_fields(tmp_path, row, words):
    with pytest.raises(DataError) as raised:
        read_one(tmp_path, row)
    assert all(word in str(raised.value) for word in [*words, "one.jsonl:1"])


@pytest.mark.parametrize(
    "row",
    [
        {"question": "q"},
        {"question": "q", "answer": None},
        {"question": "q", "answer": " "},
        {"answer": "a"},
        {"context": "c", "answer": "a"},
        {"text": ""},
        {"messages": None},
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [{}], "content": None}]},
    ],
)
def test_rows_without_question_or_answer_are_skipped(tmp_path, row):
    assert read_one(tmp_path, row).place == "one.jsonl:1"
