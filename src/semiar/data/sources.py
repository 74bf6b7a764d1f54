"""Rows of a file, of a folder with one file per split, or of a hub data set, each with the place it came from."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets import load_dataset
from datasets.exceptions import DatasetNotFoundError
from pyarrow import ArrowException, parquet

from ..errors import DataError, SourceNotFound
from ..hub import ask

Placed = tuple[str, Any]  # (place, row)


def read_rows(source: str, split: str) -> Iterator[Placed]:
    """Rows of `source`: a file, a folder, or a hub id ``owner/name``, optionally ``owner/name:configuration``.

    A file is one split, so `split` picks nothing there.  Raises SourceNotFound, or DataError with file and line.
    """
    path = Path(source).expanduser()
    if path.is_file():
        yield from _read_file(path)
    elif path.is_dir():
        for file in split_files(path, split):
            yield from _read_file(file)
    elif path.suffix in READERS or path.is_absolute() or source.startswith((".", "~")) or source.count("/") != 1:
        raise SourceNotFound(f"no file or folder {source!r}", f"a {_kinds()} file, a folder, or a hub id `owner/name`")
    else:
        hub_id, _, config = source.partition(":")
        yield from read_hub(hub_id, config or None, split)


def split_files(folder: Path, split: str) -> list[Path]:
    """Files of one split: ``<split>.<kind>`` or the shards ``<split>-*.<kind>``, in `folder` or its ``data``."""
    files = [file for place in (folder, folder / "data") if place.is_dir() for file in sorted(place.iterdir())]
    files = [file for file in files if file.suffix in READERS and file.is_file()]
    whole = [file for file in files if file.stem == split]
    chosen = whole or [file for file in files if file.stem.startswith((f"{split}-", f"{split}_"))]
    if not chosen:
        names = ", ".join(file.name for file in files) or "nothing readable"
        raise SourceNotFound(f"{folder}: no file for the split {split!r} (found {names})", f"{split}.jsonl or similar")
    if len(whole) > 1 or len({file.suffix for file in chosen}) > 1:
        names = ", ".join(file.name for file in chosen)
        raise DataError(f"{folder}: several files for the split {split!r} ({names})", "one", "name the file itself")
    return chosen


def read_hub(hub_id: str, config: str | None, split: str) -> Iterator[Placed]:
    """Rows of a hub data set.  Raises SourceNotFound when it cannot be reached, DataError for a wrong split."""
    ask(hub_id, "dataset")
    try:
        rows = load_dataset(hub_id, config, split=split)
    except (DatasetNotFoundError, FileNotFoundError, ConnectionError, OSError) as error:
        tried = f"tried the local path and the hub data set {hub_id!r}"
        hint = "check the name and the network, or give a local file"
        raise SourceNotFound(f"no data source {hub_id!r} ({tried}: {_first_line(error)})", "", hint) from error
    except (ValueError, RuntimeError) as error:  # unknown split, unknown configuration, script data set
        raise DataError(f"hub data set {hub_id!r}, split {split!r}: {_first_line(error)}") from error
    for number, row in enumerate(rows, 1):
        yield f"{hub_id}/{split}:row {number}", row


def _read_file(path: Path) -> Iterator[Placed]:
    reader = READERS.get(path.suffix)
    if reader is None:
        raise DataError(f"{path}: unknown kind of file {path.suffix!r}", _kinds())
    try:
        yield from reader(path)
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name}: not UTF-8 ({error.reason} at byte {error.start})", "UTF-8 text") from error
    except PermissionError as error:
        raise DataError(f"{path}: {error.strerror}", "a readable file") from error


def _read_jsonl(path: Path) -> Iterator[Placed]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                place = f"{path.name}:{number}"
                yield place, _parse(line, place)


def _read_json(path: Path) -> Iterator[Placed]:
    """A list of objects; a file that is no single JSON value is read as JSON lines."""
    text = path.read_text(encoding="utf-8-sig")
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and text.lstrip().startswith("{"):
            yield from _read_jsonl(path)
            return
        raise DataError(f"{path.name}:{error.lineno}: broken JSON ({error.msg})", "a list of objects") from error
    rows = [rows] if isinstance(rows, dict) else rows
    if not isinstance(rows, list):
        raise DataError(f"{path.name}: the top value is a {type(rows).__name__}", "a list of objects")
    for number, row in enumerate(rows, 1):
        yield f"{path.name}:item {number}", row


def _read_csv(path: Path) -> Iterator[Placed]:
    limit = csv.field_size_limit(sys.maxsize)  # the default refuses a long text; restored below
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            for row in reader:
                place = f"{path.name}:{reader.line_num}"
                if row and len(row) != len(header):
                    raise DataError(f"{place}: {len(row)} values", f"{len(header)}, as in the header")
                if row:
                    yield place, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise DataError(f"{path.name}:{reader.line_num}: broken CSV ({error})") from error
    finally:
        csv.field_size_limit(limit)


def _read_parquet(path: Path) -> Iterator[Placed]:
    number = 0
    try:
        for batch in parquet.ParquetFile(path).iter_batches(1024):
            for row in batch.to_pylist():
                number += 1
                yield f"{path.name}:row {number}", row
    except ArrowException as error:
        raise DataError(f"{path.name}: broken Parquet ({_first_line(error)})") from error


def _parse(line: str, place: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        message = f"{place}: broken JSON ({error.msg} at column {error.colno})"
        raise DataError(message, "one JSON object a line", "repair or delete the line") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _kinds() -> str:
    return ", ".join(READERS)


READERS = {".jsonl": _read_jsonl, ".json": _read_json, ".csv": _read_csv, ".parquet": _read_parquet}
