"""The values that a data source turns into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Row = Mapping[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat; ``role`` is one of `ROLES`."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Record:
    """One usable sample: either a chat that ends in an assistant turn, or a plain text."""

    messages: tuple[Message, ...] | None
    text: str | None
    place: str  # where it was read, such as "file.jsonl:17"
    fields: Row = field(default_factory=dict)  # the row as the source has it

    @property
    def answer(self) -> str:
        """Content of the last assistant turn; the text itself when there is no chat."""
        return self.messages[self._last].content if self.messages else self.text or ""

    @property
    def prompt_messages(self) -> tuple[Message, ...]:
        """All turns before the last assistant turn; empty for a plain text."""
        return self.messages[: self._last] if self.messages else ()

    @property
    def _last(self) -> int:
        assert self.messages is not None
        return max(i for i, message in enumerate(self.messages) if message.role == "assistant")


@dataclass(frozen=True, slots=True)
class Skipped:
    """A sample that was left out, and why."""

    place: str
    reason: str


@dataclass(frozen=True, slots=True)
class Records:
    """The usable samples of a source, and those that were left out."""

    records: list[Record]
    skipped: list[Skipped]
