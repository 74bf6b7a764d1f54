"""`semiar advise`: a short calibration on this machine and data, and what it says to do."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from time import perf_counter
from typing import Any

import yaml
from rich.console import Console

from semiar.advising.advice import Advice, show
from semiar.advising.budget import ANSWERING, Budget, Costs
from semiar.advising.choice import Heads, Length, choose
from semiar.advising.vocabulary import measure_heads
from semiar.data.batches import prepare
from semiar.data.chat import ChatRenderer
from semiar.data.samples import Record
from semiar.data.tasks.registry import load_any
from semiar.drafters.saving import read_config
from semiar.errors import ConfigError, DataError, TrainingError
from semiar.pair import ADAPTER_FILES, Pair, is_pair, local_folder
from semiar.records import check, stamped
from semiar.regenerate import RegenerateSettings, regenerate
from semiar.settings import DataSource, Decoding, Load, Training, at_least
from semiar.studies.config import CompareConfig, TaskSettings
from semiar.studies.grid import cells
from semiar.studies.making import trained, trained_as
from semiar.studies.run import run_compare
from semiar.studies.statistics import Row

CANDIDATES: dict[str, dict[str, Any]] = yaml.safe_load(
    (files("semiar.advising") / "presets" / "candidates.yaml").read_text(encoding="utf-8")
)
FIRST, MOST = 32, 400  # rows of the first batch of own answers, and most rows that the candidates learn from
LONGEST = 96  # tokens in an answer that is measured, unless said otherwise
HELD = 32  # most rows that acceptance is measured on while training
COUNTED = 4000  # most rows that draft vocabularies are counted in
PLAN = "question.json"


@dataclass(frozen=True)
class AdviseSettings:
    """What the advice is for, and how long it may take."""

    target: str
    """Model (hub id, folder or .gguf file), pair, or PEFT adapter."""
    data: DataSource
    """Like what will be asked; some of its training rows are held out to measure on."""
    model: str = ""
    """Where the target is a PEFT adapter: the model that it belongs to; default: as the adapter says."""
    prompts: int = 8
    """Held-out prompts that each candidate is measured on."""
    minutes: float = 5.0
    """How long it may take; what is measured first says how long the candidates may train."""
    regenerate: bool = True
    """Learn from the target's own answers instead of the data's."""
    out: str = ""
    """Folder of the work; one that exists is continued.  Default: runs/advise-DATA."""
    load: Load = field(default_factory=Load)
    decoding: Decoding = field(default_factory=Decoding)

    def __post_init__(self) -> None:
        at_least(self, prompts=2, minutes=0)
        object.__setattr__(self, "data", DataSource.of(self.data).filled(split="train"))
        object.__setattr__(self, "decoding", self.decoding.filled(max_new_tokens=LONGEST))
        if not self.data.source:
            raise ConfigError("no data", "a task, file or hub id like what will be asked", "say it with --data")
        if self.decoding.seed is not None or self.decoding.longest < 1:
            raise ConfigError(
                f"seed {self.decoding.seed}, max_new_tokens {self.decoding.longest}", "no seed, 1 or more"
            )
        if not self.out:
            object.__setattr__(self, "out", f"runs/advise-{Path(self.data.source).stem}")


def advise(settings: AdviseSettings, console: Console) -> Advice:
    """Train and measure the candidates (what is there already is taken), choose, show, and write ``advice.json``."""
    model, named = target_of(settings)
    adapter = "" if named == "none" else named
    folder = Path(settings.out).expanduser()
    _same_question(folder, settings)
    budget = Budget(settings.minutes)
    task, rows, seconds = material(settings, model, adapter, folder, budget, console)
    config = comparison(settings, model, task, rows, seconds)
    found = run_compare(config, console)
    good = [row for row in found if "error" not in row]
    if not good:
        raise TrainingError(f"no candidate could be measured; the first: {found[0]['error']}", "", "see compare.jsonl")
    heads = _heads(config, good, adapter)
    made = Advice(
        asdict(settings), model, adapter, [choose(row, heads) for row in good], heads,
        lengths(config, good, budget, console), good,
    )  # fmt: skip
    show(made, console)
    (folder / "advice.json").write_text(
        json.dumps(stamped(made.record()), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
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
    if note.is_file() and (known := check(json.loads(note.read_text()), str(note))["settings"]) != asked:
        other = ", ".join(name for name in asked if known.get(name) != asked[name])
        raise ConfigError(f"'{folder}' holds advice for another {other}", "the same options", "choose another --out")
    if not note.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(stamped({"settings": asked})))


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


def comparison(settings: AdviseSettings, model: str, task: TaskSettings, rows: int, seconds: float) -> CompareConfig:
    """The candidates under one budget."""
    held = min(HELD, max(1, rows // 10))
    training = Training(max_steps=250, max_seconds=seconds, eval_samples=held)
    return CompareConfig(
        model, settings.out, [task], CANDIDATES, data=DataSource(limit=max(2, rows - held)),
        test=DataSource(limit=settings.prompts), regenerate=False, training=training, load=settings.load,
        decoding=replace(settings.decoding, max_new_tokens=None),
    )  # fmt: skip


def lengths(config: CompareConfig, rows: list[Row], budget: Budget, console: Console) -> tuple[Length, Length] | None:
    """How far the first candidate came with half of its steps, and with all of them; None = it failed, or there is no
    time left to train it again.
    """
    if all(row["drafter"] != config.reference for row in rows):
        return None
    cell = cells(config)[0]
    whole = _length(trained(config, cell, console)[0])
    shorter = replace(cell, point={"steps": max(1, whole.steps // 2)})
    there = (Path(config.out) / "cells" / trained_as(config, shorter).key / "run.yaml").is_file()
    if not there and budget.left < config.training.max_seconds / 2:
        console.print("no time is left to train the first candidate half as long, for what more training may bring")
        return None
    return _length(trained(config, shorter, console)[0]), whole


def _length(folder: Path) -> Length:
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return Length(max(entry["step"] for entry in metrics["log"]), metrics["held_out"]["acceptance_length"])


def _heads(config: CompareConfig, rows: list[Row], adapter: str) -> Heads:
    pair = Pair.load(config.model, config.load, adapter=adapter)
    records = load_any(DataSource(config.tasks[0].data, "train"), seed=0).records  # shuffled as for the training
    examples = prepare(records, ChatRenderer(pair.tokenizer), config.data.max_length).examples
    learned = (config.data.limit or 0) + config.training.eval_samples
    return measure_heads(pair, examples, learned, config.draft_vocab_size)
