"""`semiar advise`: a short calibration on this machine and data, and what it says to do."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from semiar.advising.advice import Advice, show
from semiar.advising.budget import Budget
from semiar.advising.choice import Heads, Length, choose
from semiar.advising.material import material
from semiar.advising.settings import CANDIDATES, AdviseSettings
from semiar.advising.vocabulary import measure_heads
from semiar.data.batches import prepare
from semiar.data.chat import ChatRenderer
from semiar.data.tasks.registry import load_any
from semiar.drafters.saving import read_config
from semiar.errors import ConfigError, TrainingError
from semiar.pair import ADAPTER_FILES, Pair, is_pair, local_folder
from semiar.records import check, stamped
from semiar.settings import DataSource, Training
from semiar.studies.config import CompareConfig, TaskSettings
from semiar.studies.grid import cells
from semiar.studies.making import trained, trained_as
from semiar.studies.run import run_compare
from semiar.studies.statistics import Row

HELD = 32  # most rows that acceptance is measured on while training
PLAN = "question.json"


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
