"""Random tables of the generated text-to-SQL set, and values for their columns."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from . import sql_words as words

Side = Literal["train", "test"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name and the kind of values it holds, a key of the vocabulary's VALUES, RANGES or DECIMALS."""

    name: str
    kind: str

    @property
    def words(self) -> str:
        """The name as a question says it."""
        return self.name.replace("_", " ")

    @property
    def type(self) -> str:
        """The SQL type."""
        if self.kind in words.VALUES:
            return "TEXT"
        return "DATE" if self.kind == "date" else "INTEGER" if self.kind in words.RANGES else "REAL"

    @property
    def is_number(self) -> bool:
        """Whether it can be summed."""
        return self.kind in words.RANGES or self.kind in words.DECIMALS


@dataclass(frozen=True, slots=True)
class Table:
    """A table: what a row is, the name, which says what the rows are, and the columns that questions are about."""

    noun: str
    name: str
    columns: tuple[Column, ...]

    def where(self, test: Callable[[Column], bool]) -> list[Column]:
        """The columns that pass a test."""
        return [column for column in self.columns if test(column)]

    @property
    def numbers(self) -> list[Column]:
        """The columns that can be summed."""
        return self.where(lambda column: column.is_number)

    @property
    def texts(self) -> list[Column]:
        """The columns that rows can be grouped by."""
        return self.where(lambda column: column.type == "TEXT")

    def create(self, *keys: str) -> str:
        """The statement that makes it, `keys` being integer columns in front."""
        columns = [f"{key} INTEGER" for key in keys] + [f"{column.name} {column.type}" for column in self.columns]
        return f"CREATE TABLE {self.name} ({', '.join(columns)})"

    @property
    def side(self) -> Side:
        """The split that this noun with this set of columns belongs to; a fifth is for testing."""
        key = self.noun + ":" + ",".join(sorted(column.name for column in self.columns))
        return "test" if zlib.crc32(key.encode()) % 5 == 0 else "train"


def draw_table(rng: random.Random, side: Side | None, nouns: tuple[str, ...] = (), most: int = 5) -> Table:
    """A table of one of `nouns` (default: any) with three to `most` columns, a text and a number among them."""
    while True:
        noun = rng.choice(nouns or tuple(NOUNS))
        plural, own, common = NOUNS[noun]
        columns = rng.sample(own + rng.sample(common, 2), rng.randint(3, most))
        table = Table(noun, plural, tuple(columns))
        if table.texts and table.numbers and side in (None, table.side):
            return table


def draw_value(rng: random.Random, column: Column) -> str:
    """A value for a column, as it stands in a question."""
    if column.kind in words.VALUES:
        return rng.choice(words.VALUES[column.kind].split()).replace("_", " ")
    if column.kind == "date":
        return f"{rng.randint(1985, 2024)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    if column.kind in words.RANGES:
        return str(rng.randrange(*words.RANGES[column.kind]))
    low, high, digits = words.DECIMALS[column.kind]
    return f"{rng.uniform(low, high):.{digits}f}"


def _parse_columns(text: str) -> list[Column]:
    return [Column(*entry.split(":")) for entry in text.split()]


def _parse_tables() -> dict[str, tuple[str, list[Column], list[Column]]]:
    """Singular noun -> plural noun, its own columns, and those that any table may have."""
    common = _parse_columns(words.COMMON)
    nouns = {}
    for line in words.TABLES.strip().splitlines():
        names, _, text = line.partition(": ")
        singular, plural = names.split()
        own = _parse_columns(text)
        taken = {column.name for column in own}
        nouns[singular] = (plural, own, [column for column in common if column.name not in taken])
    return nouns


NOUNS = _parse_tables()
