"""What a comparison measures, made when it is not there: targets, their own answers, and the drafters of its cells."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from rich.console import Console

from semiar.attach import AttachSettings, attach_to
from semiar.compare.config import CompareConfig, TaskSettings
from semiar.compare.grid import Cell, joint_cells
from semiar.pair import Pair
from semiar.regenerate import RegenerateSettings, regenerate
from semiar.targets import LoadSettings
from semiar.targets.lora import LoraSettings
from semiar.training.config import DataSettings, OptimSettings, TrainConfig
from semiar.training.run import WORK, train

IN_SETTINGS = ("small_lm", "fusion", "draft_vocab_size", "lora_r")  # of a point, that the drafter's settings say too
LONGEST = 512  # tokens in an answer that a drafter of an untuned model, which knows no task's length, may learn from
UNTRAINED = ("lookup", "recycling", "model", "hybrid")  # put beside a target, or around the reference


def trained(config: CompareConfig, cell: Cell, console: Console) -> tuple[Path, str]:
    """The folder of the cell's trained pair, and the adapter whose target it is measured on ("" = the base model)."""
    measured_on = cell.point.get("measured_on", "tuned")
    cell = trained_as(config, cell)
    point = cell.point
    folder = Path(config.out) / "cells" / cell.key
    joint = point.get("mode") == "joint"
    tuned = str(folder) if joint else _target(config, cell, console)
    if not (folder / "run.yaml").is_file():
        made_on = "" if joint or point.get("made_on") == "base" else tuned
        make = _attached if cell.settings.architecture in UNTRAINED else _learned
        make(config, cell, folder, made_on, console)
    return folder, "" if measured_on == "base" else tuned


def _target(config: CompareConfig, cell: Cell, console: Console) -> str:
    """The adapter that a drafter is trained after: the task's, or in the study of joint training the joint run's own.

    There both drafters serve the very same target and have seen the same rows, so that only the order differs.
    """
    if cell.point.get("mode") != "after":
        return target_of(config, cell.task, console)
    folder, _ = trained(config, replace(cell, point={**cell.point, "mode": "joint"}), console)
    return str(folder)


def trained_as(config: CompareConfig, cell: Cell) -> Cell:
    """The cell that a pair is trained for; cells that only measure otherwise, or stand in the main study, share it."""
    point = {name: value for name, value in cell.point.items() if name not in ("measured_on", "count")}
    usual = {"made_on": "tuned", "rows": config.budget.rows}
    left = {name: value for name, value in point.items() if usual.get(name) != value and name not in IN_SETTINGS}
    for name in config.drafters if not left else ():
        if config.drafter(name) == cell.settings:
            return replace(cell, study="main", drafter=name, point={})
    return replace(cell, point=point)


def _learned(config: CompareConfig, cell: Cell, folder: Path, adapter: str, console: Console) -> None:
    one = _training(config, cell, folder, adapter, console)
    begin = perf_counter()
    done = _finished(one, console)
    facts = {"seconds": perf_counter() - begin, "rows": one.samples.limit, **done.metrics.get("train", {})}
    (folder / "cell.json").write_text(json.dumps(facts, indent=2))


def _finished(one: TrainConfig, console: Console) -> Pair:
    """The trained pair, from where an earlier run was interrupted; Ctrl-C ends the comparison."""
    done = train(one, resume=(Path(one.out) / WORK).is_dir(), console=console)
    if done is None:
        raise KeyboardInterrupt
    return done


def _attached(config: CompareConfig, cell: Cell, folder: Path, adapter: str, console: Console) -> None:
    """A drafter that learns nothing; a hybrid is put around the reference, which is trained first."""
    source = folder
    if cell.settings.architecture == "hybrid":
        name = config.reference
        source, _ = trained(config, replace(cell, drafter=name, settings=config.drafter(name)), console)
        pair = Pair.load(source, LoadSettings(engine="eager"))
    else:
        pair = Pair.plain(config.model, LoadSettings(engine="eager"), adapter=adapter)
    attach_to(pair, source, AttachSettings(str(folder), cell.settings), console)


def _training(config: CompareConfig, cell: Cell, folder: Path, adapter: str, console: Console) -> TrainConfig:
    budget, point = config.budget, cell.point
    joint, own, base = point.get("mode") == "joint", "mode" not in point, point.get("made_on") == "base"
    target = "base" if base else cell.task.name if own else Path(adapter).name
    loss = replace(config.loss, draft_weight=point.get("draft_weight", config.loss.draft_weight))
    lora = LoraSettings(r=point["r"]) if "r" in point else LoraSettings()
    optim = OptimSettings(
        per_device_train_batch_size=budget.batch_size, seed=cell.seed, max_steps=point.get("steps", budget.steps),
        max_seconds=0.0 if "steps" in point else budget.seconds, drafter_learning_rate=budget.learning_rate,
        learning_rate=budget.target_learning_rate, eval_steps=1 << 30, load_best_model_at_end=False,
    )  # fmt: skip
    samples = DataSettings(config.folder, point.get("rows", budget.rows), eval_samples=budget.eval_samples)
    states = Path(config.out) / "states" / f"{cell.task.name}-{target}-{samples.limit}"
    return TrainConfig(
        config.model, data_of(config, cell.task, console, base=base) if own else cell.task.source, str(folder),
        mode="joint" if joint else "after", adapter=adapter, states_folder="" if joint else str(states),
        drafter=cell.settings, loss=loss, optim=optim, samples=samples, lora=lora,
    )  # fmt: skip


def target_of(config: CompareConfig, task: TaskSettings, console: Console) -> str:
    """The adapter of a task's target; one is trained when none was given.

    Where the joint run is studied and its draft loss does not reach the adapter, that is the target: no second one
    is trained.
    """
    if task.adapter:
        return "" if task.adapter == "none" else task.adapter
    folder, budget = Path(config.out) / "targets" / task.name, config.budget
    joint = next(joint_cells(config, Cell("joint", task, "", config.drafter(config.reference), config.seeds[0])))
    alone, together = ((one / "run.yaml").is_file() for one in (folder, Path(config.out) / "cells" / joint.key))
    if not alone and (together or "joint" in config.studies) and config.loss.detach_hidden:
        return str(trained(config, joint, console)[0])
    if not alone:
        console.rule(f"target of {task.name}")
        optim = OptimSettings(
            per_device_train_batch_size=budget.batch_size, num_train_epochs=budget.target_epochs,
            learning_rate=budget.target_learning_rate,
        )  # fmt: skip
        samples = DataSettings(config.folder, budget.rows, eval_samples=budget.eval_samples)
        one = TrainConfig(config.model, task.data, str(folder), mode="lora", optim=optim, samples=samples)
        _finished(one, console)
    return str(folder)


def data_of(config: CompareConfig, task: TaskSettings, console: Console, *, base: bool = False) -> str:
    """What drafters learn from: the task's rows with the own answers of the target that they are made for, tuned or
    ``base``, unless the budget says otherwise or the task's file holds them (those of the tuned one) already.
    """
    if not config.budget.regenerate or (not base and task.prompts and Path(task.data).is_file()):
        return task.data
    folder, name = Path(config.out) / "data", f"{task.name}-base" if base else task.name
    path = folder / f"{name}.jsonl"
    if not (folder / f"{name}.done").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        adapter = "" if base else target_of(config, task, console)
        console.rule(f"answers of the {'model as it is' if base else 'target'}: {task.name}")
        pair = Pair.plain(config.model, LoadSettings(engine=config.measure.engine), adapter=adapter)
        longest = max(LONGEST if base else 0, 2 * task.max_new_tokens)
        budget = config.budget
        most = budget.eval_samples + ((base and budget.base_rows) or budget.rows)
        settings = RegenerateSettings(task.data, str(path), folder=config.folder, limit=most, max_new_tokens=longest)
        regenerate(pair, settings, console)
        (folder / f"{name}.done").touch()
    return str(path)
