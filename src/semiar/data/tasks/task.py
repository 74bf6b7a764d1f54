"""What a task is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import DataError
from ..forms import chat_record
from ..samples import Record, Row, Skipped

Score = Callable[[Sequence[str], Sequence[str]], dict[str, float]]  # (predictions, references) -> metrics in 0..1


@dataclass(frozen=True, slots=True)
class Task:
    """A data set with its prompt and its metric."""

    name: str  # also the name of its folder in a data directory
    hub_id: str
    pair: Callable[[Row], tuple[Any, Any]]  # a row's question and answer
    score: Score
    metric: str  # the key of `score` that counts
    max_new_tokens: int  # enough for nearly every reference answer
    hub_config: str | None = None
    hub_splits: Mapping[str, str] = field(default_factory=dict)  # where the hub's splits are named or cut otherwise

    def record(self, row: Row, place: str = "") -> Record | Skipped:
        """The row as a chat of one question and its answer.  Raises DataError when a field is missing or no text."""
        try:
            question, answer = self.pair(row)
        except (KeyError, TypeError) as error:
            found = ", ".join(f"`{name}`" for name in row) if isinstance(row, Mapping) else type(row).__name__
            raise DataError(f"{place}: not a row of the task {self.name} ({found}): {error}") from error
        if answer is None:
            return Skipped(place, "no answer")
        if not isinstance(question, str) or not isinstance(answer, str):
            raise DataError(f"{place}: question or answer is not a text", "strings")
        return chat_record(question, answer, place, row)
