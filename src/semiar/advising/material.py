"""What candidates learn from and are measured on: held-out prompts, and the target's own answers to the others."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console

from semiar.advising.budget import ANSWERING, Budget, Costs
from semiar.advising.settings import CANDIDATES, AdviseSettings
from semiar.data.batches import prepare
from semiar.data.chat import ChatRenderer
from semiar.data.samples import Record
from semiar.data.tasks.registry import load_any
from semiar.errors import DataError
from semiar.pair import Pair
from semiar.records import check, stamped
from semiar.regenerate import RegenerateSettings, regenerate
from semiar.settings import DataSource, Decoding
from semiar.studies.config import TaskSettings

FIRST, MOST = 32, 400  # rows of the first batch of own answers, and most rows that the candidates learn from
COUNTED = 4000  # most rows that draft vocabularies are counted in


def material(
    settings: AdviseSettings, model: str, adapter: str, folder: Path, budget: Budget, console: Console
) -> tuple[TaskSettings, int, float]:
    """Rows to learn from and prompts to measure on, which are not among them; how many rows are learned from, and for
    how many seconds each candidate may do so.
    """
    name = f"{Path(settings.data.source).stem}.jsonl"
    learned, held, own = (folder / place / name for place in ("rows", "prompts", "answers"))
    if not held.is_file():
        most = min(COUNTED, settings.data.limit or COUNTED) + settings.prompts
        records = load_any(replace(settings.data, limit=most), 0).records
        if len(records) < settings.prompts + 2:
            raise DataError(f"{len(records)} samples in '{settings.data.source}'", f"{settings.prompts + 2} or more")
        _write(learned, records[settings.prompts :])
        _write(held, records[: settings.prompts])
    begin = perf_counter()
    pair = Pair.load(model, settings.load, adapter=adapter)
    loading = perf_counter() - begin
    rows = min(MOST, len(learned.read_text(encoding="utf-8").splitlines()))
    if settings.regenerate:
        rows = own_answers(settings, pair, learned, own, rows, budget, console)
    source = own if settings.regenerate else learned
    task = TaskSettings(str(source), adapter or "none", str(held), settings.decoding.longest)
    return task, rows, _seconds(settings, pair, task, rows, loading, folder, budget, console)


def _seconds(
    settings: AdviseSettings, pair: Pair, task: TaskSettings, rows: int, loading: float, folder: Path, budget: Budget,
    console: Console,
) -> float:  # fmt: skip
    """How long each candidate may train; as it was begun, where the work is continued."""
    note = folder / "seconds.json"
    if note.is_file():
        return float(check(json.loads(note.read_text()), str(note))["training"])
    prompts = [pair.encode(one.prompt_messages) for one in load_any(DataSource(task.test)).records]
    examples = prepare(load_any(DataSource(task.data, limit=rows)).records, ChatRenderer(pair.tokenizer), 1024)
    costs = Costs.of(pair, prompts, settings.decoding.longest, loading)
    seconds = budget.training(costs, len(CANDIDATES), settings.prompts, examples.tokens)
    note.write_text(json.dumps(stamped({"training": seconds})))
    console.print(
        f"{budget.left / 60:.1f} of {settings.minutes:g} minutes are left: {seconds:.0f} s of training on {rows} rows "
        f"for each candidate that learns, {len(CANDIDATES)} candidates measured on {settings.prompts} prompts",
        soft_wrap=True,
    )
    return seconds


def _write(path: Path, records: list[Record]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = [
        {"messages": [asdict(turn) for turn in one.messages]} if one.messages else {"text": one.text} for one in records
    ]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def own_answers(
    settings: AdviseSettings, pair: Pair, source: Path, out: Path, rows: int, budget: Budget, console: Console
) -> int:
    """Have the target answer as many prompts as its share of the time allows, by the time of the first ones."""
    note = out.with_suffix(".rows")
    limit, longest = min(FIRST, rows), 2 * settings.decoding.longest
    first = RegenerateSettings(
        DataSource(str(source), limit=limit), str(out), decoding=Decoding(max_new_tokens=longest)
    )
    if not note.is_file():
        begin = perf_counter()
        regenerate(pair, first, console)
        fitting = limit * ANSWERING * max(0.0, budget.left) / (perf_counter() - begin)
        note.write_text(str(max(limit, min(rows, int(fitting)))))
    rows = int(note.read_text())
    regenerate(pair, replace(first, data=replace(first.data, limit=rows)), console)
    ended = sum(json.loads(line)["finish_reason"] == "stop" for line in out.read_text(encoding="utf-8").splitlines())
    if 2 * ended < rows:
        raise DataError(
            f"{rows - ended} of the target's own {rows} answers did not end within {longest} tokens",
            "most of them", "raise --max_new_tokens, or learn from the data's answers: --no_regenerate",
        )  # fmt: skip
    return rows
