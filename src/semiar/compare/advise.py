"""`semiar advise`: a short calibration on this machine and data, and what it says to do."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console

from semiar.compare.advice import Advice, show
from semiar.compare.choice import Heads, Length, choose
from semiar.compare.config import BudgetSettings, CompareConfig, MeasureSettings, TaskSettings
from semiar.compare.grid import cells
from semiar.compare.making import trained
from semiar.compare.run import run_compare
from semiar.compare.statistics import Row
from semiar.compare.vocabulary import measure_heads
from semiar.data.batches import prepare
from semiar.data.chat import ChatRenderer
from semiar.data.samples import Record
from semiar.data.tasks.registry import load_any
from semiar.drafters.saving import read_config
from semiar.errors import ConfigError, DataError, TrainingError
from semiar.pair import ADAPTER_FILES, Pair, is_pair, local_folder
from semiar.regenerate import RegenerateSettings, regenerate
from semiar.targets import LoadSettings
from semiar.training.config import DataSettings, at_least

CANDIDATES: dict[str, dict[str, Any]] = {
    "semi": {"small_lm": "context"},
    "medusa": {"architecture": "medusa"},
    "lookup": {"architecture": "lookup", "num_speculative_tokens": 8},
}
ANSWERING, TRAINING = 0.3, 0.2  # shares of the time: own answers, and each candidate's training
FIRST, MOST = 32, 400  # rows of the first batch of own answers, and most rows that the candidates learn from
COUNTED = 4000  # most rows that draft vocabularies are counted in
PLAN = "question.json"


@dataclass(frozen=True)
class AdviseSettings:
    """What the advice is for, and how long it may take."""

    target: str
    """Model (hub id, folder or .gguf file), pair, or PEFT adapter."""
    data: str
    """Task, file or hub id like what will be asked; some of its training rows are held out to measure on."""
    model: str = ""
    """Where the target is a PEFT adapter: the model that it belongs to; default: as the adapter says."""
    folder: str = ""
    """Local folder of the named tasks; default: SEMIAR_DATA, else the hub."""
    prompts: int = 8
    """Held-out prompts that each candidate is measured on."""
    minutes: float = 5.0
    """About how long it may take; half of it is training, and measuring takes as long as it takes."""
    max_new_tokens: int = 96
    """Longest answer that is measured."""
    regenerate: bool = True
    """Learn from the target's own answers instead of the data's."""
    out: str = ""
    """Folder of the work; one that exists is continued.  Default: runs/advise-DATA."""

    def __post_init__(self) -> None:
        at_least(self, prompts=2, minutes=0, max_new_tokens=1)


def options(one: ArgumentParser) -> None:
    """What can be said on the line."""
    one.add_argument("target", type=str, help="model (hub id, folder or .gguf file), pair folder or PEFT adapter")
    one.add_class_arguments(AdviseSettings, None, skip={"target"})


def run(chosen: Namespace) -> int:
    """The verb."""
    settings = AdviseSettings(**{field.name: chosen[field.name] for field in fields(AdviseSettings)})
    settings = replace(settings, out=settings.out or f"runs/advise-{Path(settings.data).stem}")
    advise(settings, Console())
    return 0


def advise(settings: AdviseSettings, console: Console) -> Advice:
    """Train and measure the candidates (what is there already is taken), choose, show, and write ``advice.json``."""
    model, named = target_of(settings)
    adapter = "" if named == "none" else named
    folder = Path(settings.out).expanduser()
    _same_question(folder, settings)
    task, rows = material(settings, model, adapter, folder, console)
    config = comparison(settings, model, task, rows)
    found = run_compare(config, console)
    good = [row for row in found if "error" not in row]
    if not good:
        raise TrainingError(f"no candidate could be measured; the first: {found[0]['error']}", "", "see compare.jsonl")
    heads = _heads(config, good, adapter)
    made = Advice(
        asdict(settings), model, adapter, [choose(row, heads) for row in good], heads,
        lengths(config, good, console), good,
    )  # fmt: skip
    show(made, console)
    (folder / "advice.json").write_text(
        json.dumps(made.record(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    return made


def target_of(settings: AdviseSettings) -> tuple[str, str]:
    """The model, and the adapter on it; none = no adapter."""
    whole = is_pair(settings.target)
    folder = local_folder(settings.target) if whole else Path(settings.target).expanduser()
    adapted = (folder / ADAPTER_FILES[0]).is_file()
    if settings.model and (whole or not adapted):
        raise ConfigError(f"--model beside '{settings.target}'", "a PEFT adapter as the target", "leave --model out")
    if whole:
        model = read_config(folder / "drafter")["base_model_name_or_path"]
    elif adapted:
        known = json.loads((folder / ADAPTER_FILES[0]).read_text(encoding="utf-8"))
        model = settings.model or known.get("base_model_name_or_path") or ""
    else:
        model = settings.target
    if not model:
        raise ConfigError(f"the adapter '{folder}' does not say its model", "--model")
    return model, str(folder) if adapted else "none"


def _same_question(folder: Path, settings: AdviseSettings) -> None:
    """Refuse to mix the work for two questions."""
    note, asked = folder / PLAN, asdict(settings) | {"out": ""}
    if note.is_file() and (known := json.loads(note.read_text())["settings"]) != asked:
        other = ", ".join(name for name in asked if known.get(name) != asked[name])
        raise ConfigError(f"'{folder}' holds advice for another {other}", "the same options", "choose another --out")
    if not note.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps({"settings": asked}))


def material(
    settings: AdviseSettings, model: str, adapter: str, folder: Path, console: Console
) -> tuple[TaskSettings, int]:
    """Rows to learn from and prompts to measure on, which are not among them; how many rows are learned from."""
    name = f"{Path(settings.data).stem}.jsonl"
    learned, held, own = (folder / place / name for place in ("rows", "prompts", "answers"))
    if not held.is_file():
        records = load_any(settings.data, "train", settings.folder or None, COUNTED + settings.prompts, 0).records
        if len(records) < settings.prompts + 2:
            raise DataError(f"{len(records)} samples in '{settings.data}'", f"{settings.prompts + 2} or more")
        _write(learned, records[settings.prompts :])
        _write(held, records[: settings.prompts])
    rows = min(MOST, len(learned.read_text(encoding="utf-8").splitlines()))
    if settings.regenerate:
        rows = own_answers(settings, Pair.plain(model, adapter=adapter), learned, own, rows, console)
    source = own if settings.regenerate else learned
    return TaskSettings(str(source), adapter or "none", str(held), settings.max_new_tokens), rows


def _write(path: Path, records: list[Record]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = [
        {"messages": [asdict(turn) for turn in one.messages]} if one.messages else {"text": one.text} for one in records
    ]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def own_answers(settings: AdviseSettings, pair: Pair, source: Path, out: Path, rows: int, console: Console) -> int:
    """Have the target answer as many prompts as its share of the time allows, by the time of the first ones."""
    note = out.with_suffix(".rows")
    first = RegenerateSettings(
        str(source), str(out), limit=min(FIRST, rows), max_new_tokens=2 * settings.max_new_tokens
    )
    if not note.is_file():
        begin = perf_counter()
        regenerate(pair, first, console)
        fitting = first.limit * ANSWERING * 60 * settings.minutes / (perf_counter() - begin)
        note.write_text(str(max(first.limit, min(rows, int(fitting)))))
    rows = int(note.read_text())
    regenerate(pair, replace(first, limit=rows), console)
    ended = sum(json.loads(line)["finish_reason"] == "stop" for line in out.read_text(encoding="utf-8").splitlines())
    if 2 * ended < rows:
        raise DataError(
            f"{rows - ended} of the target's own {rows} answers did not end within {first.max_new_tokens} tokens",
            "most of them", "raise --max_new_tokens, or learn from the data's answers: --regenerate false",
        )  # fmt: skip
    return rows


def comparison(settings: AdviseSettings, model: str, task: TaskSettings, rows: int) -> CompareConfig:
    """The candidates under one budget."""
    held = min(BudgetSettings().eval_samples, max(1, rows // 10))
    budget = BudgetSettings(
        rows=max(2, rows - held), seconds=TRAINING * 60 * settings.minutes, eval_samples=held, regenerate=False
    )
    measure = MeasureSettings(settings.prompts, drafting="auto")  # as the drafter will run
    return CompareConfig(model, settings.out, [task], CANDIDATES, budget=budget, measure=measure)


def lengths(config: CompareConfig, rows: list[Row], console: Console) -> tuple[Length, Length] | None:
    """How far the first candidate came with half of its steps, and with all of them; None = it failed."""
    if all(row["drafter"] != config.reference for row in rows):
        return None
    cell = cells(config)[0]
    whole = _length(trained(config, cell, console)[0])
    shorter = replace(cell, point={"steps": max(1, whole.steps // 2)})
    return _length(trained(config, shorter, console)[0]), whole


def _length(folder: Path) -> Length:
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return Length(max(entry["step"] for entry in metrics["log"]), metrics["held_out"]["acceptance_length"])


def _heads(config: CompareConfig, rows: list[Row], adapter: str) -> Heads:
    load = LoadSettings(engine=config.measure.engine)
    pair = Pair.plain(config.model, load, adapter=adapter)
    records = load_any(config.tasks[0].data, "train", seed=0).records  # shuffled as for the training
    examples = prepare(records, ChatRenderer(pair.tokenizer), DataSettings().max_length).examples
    return measure_heads(pair, examples, config.budget.rows + config.budget.eval_samples, config.draft_vocab_size)
