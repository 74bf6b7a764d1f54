"""`semiar compare`: every cell trained and measured, one row each in ``compare.jsonl``; none is done twice."""

from __future__ import annotations

import datetime
import json
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from semiar.drafters import facts_of
from semiar.errors import ConfigError
from semiar.measuring.blocks import COLUMNS, blocks_of
from semiar.measuring.metrics import summarise
from semiar.measuring.run import BenchSettings, run_bench
from semiar.measuring.trace import Trace, read_trace
from semiar.pair import Pair
from semiar.pair.files import read_metrics
from semiar.records import check, code_hash, stamped
from semiar.settings import AUTO
from semiar.studies.config import CompareConfig
from semiar.studies.grid import Cell, cells
from semiar.studies.making import trained, trained_as
from semiar.studies.memory import peak_bytes, reset_peak
from semiar.studies.mixed import earlier

ROWS = "compare.jsonl"
VERSION = 3  # of what is measured; 2: context has induction heads, all run natively; 3: rows hold their designs' facts


def run_compare(config: CompareConfig, console: Console) -> list[dict[str, Any]]:
    """Train and measure what is missing; all rows.  Ctrl-C loses at most the cell in work, which is then continued."""
    folder = Path(config.out).expanduser()
    _same_comparison(folder, config)
    rows = read_rows(folder)
    done = {row["key"] for row in rows if "error" not in row}
    wanted = cells(config)
    own = {row["key"]: row for row in rows if row["key"] in done and "same_as" not in row}
    known = {_measurement(config, cell): own[cell.key] for cell in wanted if cell.key in own}
    console.print(f"{len(wanted)} cells, {sum(cell.key in done for cell in wanted)} of them done, in {folder}")
    for told in earlier(rows):
        console.print(f"[yellow]{told}[/]", soft_wrap=True)
    for number, cell in enumerate(wanted, 1):
        if cell.key in done:
            continue
        console.rule(f"{number}/{len(wanted)}  {cell.key}")
        what = _measurement(config, cell)
        row = _shared(cell, known[what], console) if what in known else _guarded(config, cell, console)
        if "error" not in row:
            known.setdefault(what, row)
        rows = [one for one in rows if one["key"] != cell.key] + [row]
        _append(folder, row)
    return rows


def _measurement(config: CompareConfig, cell: Cell) -> tuple[str, str, int]:
    """What tells one measurement from another: the pair, the target, and K (0 = chosen by measuring)."""
    return trained_as(config, cell).key, cell.point.get("measured_on", "tuned"), _count(config, cell)


def _count(config: CompareConfig, cell: Cell) -> int:
    return int(cell.point.get("count", 0 if config.decoding.num_speculative_tokens == AUTO else config.most))


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The newest row of every cell."""
    path = folder / ROWS
    if not path.is_file():
        return []
    rows: dict[str, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue  # broken off while it was written; its cell is done again
        rows[row["key"]] = check(row, f"{path}, row {row['key']}")
    return list(rows.values())


def _append(folder: Path, row: dict[str, Any]) -> None:
    with (folder / ROWS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(stamped(row), ensure_ascii=False) + "\n")


def _same_comparison(folder: Path, config: CompareConfig) -> None:
    """Refuse to mix rows of another model or budget."""
    free = ("out", "tasks", "drafters", "studies", "seeds")
    same = {"version": VERSION} | {name: value for name, value in asdict(config).items() if name not in free}
    for name in ("data", "test"):  # where it lies is no matter
        same[name] = {key: value for key, value in same[name].items() if key != "folder"}
    note = folder / "compare.json"
    if note.is_file() and (known := check(json.loads(note.read_text()), str(note))) != same:
        other = [name for name in same if known.get(name) != same[name]]
        raise ConfigError(
            f"'{folder}' holds a comparison with another {', '.join(other)}",
            "the same model, budget and measurement for all rows",
            "choose another --out, or restore the settings",
        )
    folder.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(stamped(same), indent=2))


def _about(cell: Cell) -> dict[str, Any]:
    """What a row says of its cell."""
    return {
        "key": cell.key, "study": cell.study, "task": cell.task.name, "drafter": cell.drafter, "seed": cell.seed,
        "point": cell.point, "settings": asdict(cell.settings), "facts": facts_of(cell.settings).record(),
        "code": code_hash(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


def _shared(cell: Cell, same: dict[str, Any], console: Console) -> dict[str, Any]:
    """The cell's row with the figures of one that measured the same pair on the same target at the same K."""
    console.print(f"measured as {same['key']}")
    return same | _about(cell) | {"same_as": same["key"], "code": same.get("code", "")}


def _guarded(config: CompareConfig, cell: Cell, console: Console) -> dict[str, Any]:
    """The cell's row; when it fails, a row that says why."""
    about = _about(cell)
    try:
        return about | run_cell(config, cell, console)
    except Exception as error:  # whatever it is, the other cells go on
        console.print(f"[red]{cell.key} failed: {error}[/]")
        return about | {"error": str(error) or type(error).__name__, "trace": traceback.format_exc()}


def run_cell(config: CompareConfig, cell: Cell, console: Console) -> dict[str, Any]:
    """Train one drafter, unless it is there, and measure it."""
    folder, adapter = trained(config, cell, console)
    pair = _pair(config, cell, folder, adapter)
    reset_peak()
    trace = Path(config.out) / "traces" / f"{cell.key}.jsonl"
    data, most = replace(config.test, source=cell.task.source), cell.task.max_new_tokens
    asked = replace(config.decoding, max_new_tokens=most, num_speculative_tokens=_count(config, cell) or AUTO)
    settings = BenchSettings(data, decoding=asked)
    run_bench(pair, settings, trace, None, console)
    read = read_trace(trace)
    return {
        "parameters": sum(p.numel() for p in pair.drafter.parameters()),
        "train": _facts(folder),
        "held_out": pair.metrics.get("held_out", {}),
        "measured": asdict(summarise(read)),
        "by_prompt": by_prompt(read),
        "machine": read.machine,
        "prompts": read.header["prompts"],
        "peak_bytes": peak_bytes(),
    }


def by_prompt(trace: Trace) -> list[dict[str, Any]]:
    """What each prompt's two decodings came to, stretch by stretch (columns: `COLUMNS`), for intervals and paired
    differences between drafters.
    """
    pairs = trace.pairs()
    prompts = sorted({plain["prompt"] for plain, _ in pairs})
    tables = [blocks_of([pair for pair in pairs if pair[0]["prompt"] == prompt]) for prompt in prompts]
    return [{"prompt": prompt, "blocks": table[:, : len(COLUMNS)].tolist()} for prompt, table in zip(prompts, tables)]


def _pair(config: CompareConfig, cell: Cell, folder: Path, adapter: str) -> Pair:
    """The trained drafter on the target that it is measured on."""
    if adapter == str(folder) or cell.study != "staleness":
        return Pair.load(folder, config.load)
    pair = Pair.load(config.model, config.load, adapter=adapter, drafter=folder / "drafter")
    pair.metrics = read_metrics(folder)
    return pair


def _facts(folder: Path) -> dict[str, Any]:
    path = folder / "cell.json"
    return json.loads(path.read_text()) if path.is_file() else {}
