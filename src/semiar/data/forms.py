"""Field forms: which columns hold the chat, the prompt and the answer of a row.

Forms are tried in this order, and the first whose fields are there is used:

- ``messages`` (role/content) or ``conversations`` (from/value);
- a prompt (``instruction``, ``prompt``, ``context``, ``question``, ``input``; those present are joined in this order
  by an empty line) with an answer (one of ``completion``, ``answer``, ``output``, ``response``); ``prompt`` and
  ``completion`` may also be lists of messages;
- ``text``.

A string field ``system`` beside a chat or a prompt becomes its system turn.  Other fields are kept in
``Record.fields`` and not shown to the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import DataError
from .samples import ROLES, Message, Record, Row, Skipped

PROMPT_FIELDS = ("instruction", "prompt", "context", "question", "input")
ASKING_FIELDS = ("instruction", "prompt", "question", "input")  # `context` alone asks nothing
ANSWER_FIELDS = ("completion", "answer", "output", "response")
ROLE_NAMES = {role: role for role in ROLES} | {"human": "user", "gpt": "assistant", "model": "assistant"}
ACCEPTED = (
    "`messages` or `conversations`; a prompt (`prompt`, `question`, `instruction`, with `input` or `context`) "
    "and an answer (`completion`, `answer`, `output` or `response`); or `text`"
)


class _Unusable(Exception):
    """A well-formed row that has nothing to learn from."""


def read_row(row: Any, place: str) -> Record | Skipped:
    """Turn one row into a record, or say why it has nothing to learn from.

    Raises DataError, naming `place`, when the fields are unknown or hold the wrong type.
    """
    if not isinstance(row, Mapping):
        raise DataError(f"{place}: a row is {_kind(row)}", "an object with named fields")
    try:
        return _read(row, place)
    except _Unusable as reason:
        return Skipped(place, str(reason))


def chat_record(prompt: str, answer: str, place: str, fields: Row) -> Record | Skipped:
    """A record of one question and one answer, as the named tasks need it; skipped when either is empty."""
    if not prompt.strip():
        return Skipped(place, "no question")
    if not answer.strip():
        return Skipped(place, "no answer")
    return Record((Message("user", prompt), Message("assistant", answer)), None, place, fields)


def _read(row: Row, place: str) -> Record:
    if "messages" in row or "conversations" in row:
        name = "messages" if "messages" in row else "conversations"
        turns = _chat(row[name], f"{place}: `{name}`")
    elif any(name in row for name in ASKING_FIELDS + ANSWER_FIELDS):
        turns = _question(row, place) + _answer(row, place)
    elif "text" in row:
        return Record(None, _text(row["text"], f"{place}: `text`", "the text is empty"), place, row)
    else:
        found = ", ".join(f"`{name}`" for name in row) or "no field"
        raise DataError(f"{place}: unknown fields ({found})", ACCEPTED, "rename the fields")
    turns = _system(row, turns, place) + turns
    _check_order(turns)
    return Record(turns, None, place, row)


def _check_order(turns: tuple[Message, ...]) -> None:
    """A chat can be learned when a user turn comes before the first assistant turn."""
    roles = [turn.role for turn in turns]
    if not roles:
        raise _Unusable("the chat is empty")
    if "assistant" not in roles:
        raise _Unusable("no answer: the chat has no assistant turn")
    if "user" not in roles[: roles.index("assistant")]:
        raise _Unusable("the assistant speaks before any user turn")
    if not next(turn.content for turn in reversed(turns) if turn.role == "assistant").strip():
        raise _Unusable("no answer: the last assistant turn is empty")


def _system(row: Row, turns: tuple[Message, ...], place: str) -> tuple[Message, ...]:
    value = row.get("system")
    if value is None or value == "" or any(turn.role == "system" for turn in turns):
        return ()
    return (Message("system", _text(value, f"{place}: `system`", "")),)


def _question(row: Row, place: str) -> tuple[Message, ...]:
    prompt = row.get("prompt")
    if isinstance(prompt, list):
        return _chat(prompt, f"{place}: `prompt`")
    values = [(name, row[name]) for name in PROMPT_FIELDS if row.get(name) not in (None, "")]
    parts = [_text(value, f"{place}: `{name}`", f"`{name}` is empty") for name, value in values]
    if not any(name in ASKING_FIELDS for name, _ in values):
        raise _Unusable("no question")
    return (Message("user", "\n\n".join(parts)),)


def _answer(row: Row, place: str) -> tuple[Message, ...]:
    names = [name for name in ANSWER_FIELDS if row.get(name) not in (None, "")]
    if not names:
        raise _Unusable("no answer")
    if len(names) > 1:
        found = " and ".join(f"`{name}`" for name in names)
        raise DataError(f"{place}: {found} could both be the answer", "one of them", "drop or rename the others")
    value = row[names[0]]
    if names[0] == "completion" and isinstance(value, list):
        return _chat(value, f"{place}: `completion`")
    return (Message("assistant", _text(value, f"{place}: `{names[0]}`", "no answer")),)


def _chat(value: Any, place: str) -> tuple[Message, ...]:
    if value is None:
        raise _Unusable("the chat is empty")
    if not isinstance(value, list):
        raise DataError(f"{place} is {_kind(value)}", "a list of turns")
    return tuple(_turn(turn, f"{place}[{index}]") for index, turn in enumerate(value))


def _turn(turn: Any, place: str) -> Message:
    if not isinstance(turn, Mapping):
        raise DataError(f"{place} is {_kind(turn)}", "an object with `role` and `content`")
    if turn.get("tool_calls") or turn.get("function_call"):
        raise _Unusable("tool calls cannot be learned yet")
    name, body = ("role", "content") if "role" in turn else ("from", "value")
    if name not in turn or body not in turn:
        found = ", ".join(f"`{key}`" for key in turn) or "no field"
        raise DataError(f"{place} has {found}", "`role` and `content`, or `from` and `value`")
    role = turn[name]
    if not isinstance(role, str) or role not in ROLE_NAMES:
        raise DataError(f"{place}: unknown role {role!r}", "one of " + ", ".join(ROLE_NAMES))
    return Message(ROLE_NAMES[role], _content(turn[body], f"{place}.{body}"))


def _content(value: Any, place: str) -> str:
    """Text of a turn; a list of text parts (the form of multimodal APIs) is joined."""
    if value is None:
        raise _Unusable("a turn has no text")
    if not isinstance(value, list):
        return value if isinstance(value, str) else _text(value, place, "")
    kinds = [part.get("type") if isinstance(part, Mapping) else _kind(part) for part in value]
    if any(kind != "text" for kind in kinds):
        raise DataError(f"{place} holds parts of kind {kinds}", "text parts only")
    return "".join(_text(part.get("text"), place, "a turn has no text") for part in value)


def _text(value: Any, place: str, when_empty: str) -> str:
    if value is None:
        raise _Unusable(when_empty)
    if not isinstance(value, str):
        raise DataError(f"{place} is {_kind(value)}", "a string")
    if when_empty and not value.strip():
        raise _Unusable(when_empty)
    return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", int: "a number", float: "a number", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), f"a {type(value).__name__}")
