"""The tasks by name, and one door for everything that can be loaded: a task or any other source."""

from __future__ import annotations

import os
from pathlib import Path

from ...errors import DataError, SourceNotFound
from ...settings import DataSource
from ..records import Records, gather, load_records
from ..sources import read_hub, read_rows
from . import chatdoctor, dialogsum, gsm8k, medquad, samsum, sql
from .metrics import text_score
from .task import Score, Task

TASKS: dict[str, Task] = {
    module.TASK.name: module.TASK for module in (gsm8k, sql, samsum, dialogsum, chatdoctor, medquad)
}

DATA_VARIABLE = "SEMIAR_DATA"


def get_task(name: str) -> Task:
    """The task of that name.  Raises DataError that lists the names."""
    if name not in TASKS:
        raise DataError(f"unknown task {name!r}", "one of " + ", ".join(TASKS))
    return TASKS[name]


def load_task(
    name: str, split: str = "train", folder: str | None = None, limit: int | None = None, seed: int | None = None
) -> Records:
    """Records of a task, from ``<folder>/<name>/<split>.jsonl`` or, without a data directory, from the hub.

    The environment variable SEMIAR_DATA is the default of `folder`.  Raises SourceNotFound when the directory is
    given and does not hold the task, or when the hub cannot be reached.
    """
    task = get_task(name)
    directory = folder or os.environ.get(DATA_VARIABLE)
    if directory:
        place = Path(directory).expanduser() / name
        if not place.is_dir():
            hint = f"correct --data.folder or {DATA_VARIABLE}, or leave both out to read {task.hub_id} from the hub"
            raise SourceNotFound(f"no folder {place} for the task {name!r}", "", hint)
        rows = read_rows(str(place), split)
    else:
        rows = read_hub(task.hub_id, task.hub_config, task.hub_splits.get(split, split))
    return gather(rows, task.record, name, limit=limit, seed=seed)


def load_any(data: DataSource, seed: int | None = None) -> Records:
    """Records of a task if the source is the name of one (write ``./sql`` for a folder of that name), else of a source.

    Raises as `load_task` and `load_records` do.
    """
    source, split, limit = data.source, data.split or "train", data.limit
    if source in TASKS:
        return load_task(source, split, data.folder or None, limit, seed)
    if "/" not in source and not Path(source).suffix and not Path(source).exists():
        tasks = ", ".join(TASKS)
        raise SourceNotFound(
            f"{source!r} is no task, file or folder", f"a task ({tasks}), a path or a hub id owner/name"
        )
    return load_records(source, split=split, limit=limit, seed=seed)


def scorer(source: str) -> tuple[Score, str]:
    """How answers to this source are scored, and the metric that counts; word F1 where there is no task."""
    return (TASKS[source].score, TASKS[source].metric) if source in TASKS else (text_score, "token_f1")
