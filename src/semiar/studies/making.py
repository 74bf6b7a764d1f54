"""What a comparison measures, made when it is not there: targets, their own answers, and the drafters of its cells."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from rich.console import Console

from semiar.attach import AttachSettings, attach_to
from semiar.drafters import facts_of
from semiar.pair import Pair
from semiar.regenerate import RegenerateSettings, regenerate
from semiar.settings import Decoding, Load
from semiar.studies.config import ROWS, CompareConfig, TaskSettings
from semiar.studies.grid import Cell, joint_cells
from semiar.targets.lora import LoraSettings
from semiar.training.config import TrainConfig
from semiar.training.run import WORK, train

IN_SETTINGS = ("small_lm", "fusion", "draft_vocab_size", "lora_r")  # of a point, that the drafter's settings say too
LONGEST = 512  # tokens in an answer that a drafter of an untuned model, which knows no task's length, may learn from


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
        make = _attached if facts_of(cell.settings).attach else _learned
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
    usual = {"made_on": "tuned", "rows": config.data.limit}
    left = {name: value for name, value in point.items() if usual.get(name) != value and name not in IN_SETTINGS}
    for name in config.drafters if not left else ():
        if config.drafter(name) == cell.settings:
            return replace(cell, study="main", drafter=name, point={})
    return replace(cell, point=point)


def _learned(config: CompareConfig, cell: Cell, folder: Path, adapter: str, console: Console) -> None:
    one = _training(config, cell, folder, adapter, console)
    begin = perf_counter()
    done = _finished(one, console)
    facts = {"seconds": perf_counter() - begin, "rows": one.data.limit, **done.metrics.get("train", {})}
    (folder / "cell.json").write_text(json.dumps(facts, indent=2))


def _finished(one: TrainConfig, console: Console) -> Pair:
    """The trained pair, from where an earlier run was interrupted; Ctrl-C ends the comparison."""
    done = train(one, resume=(Path(one.out) / WORK).is_dir(), console=console)
    if done is None:
        raise KeyboardInterrupt
    return done


def _attached(config: CompareConfig, cell: Cell, folder: Path, adapter: str, console: Console) -> None:
    """A drafter that learns nothing, beside the target or around the reference, which is trained first."""
    source = folder
    if facts_of(cell.settings).attach == "around":
        name = config.reference
        source, _ = trained(config, replace(cell, drafter=name, settings=config.drafter(name)), console)
        pair = Pair.load(source, Load(engine="eager"))
    else:
        pair = Pair.load(config.model, Load(engine="eager"), adapter=adapter)
    attach_to(pair, source, AttachSettings(str(folder), cell.settings), console)


def _training(config: CompareConfig, cell: Cell, folder: Path, adapter: str, console: Console) -> TrainConfig:
    point = cell.point
    joint, own, base = point.get("mode") == "joint", "mode" not in point, point.get("made_on") == "base"
    target = "base" if base else cell.task.name if own else Path(adapter).name
    loss = replace(config.loss, draft_weight=point.get("draft_weight", config.loss.draft_weight))
    lora = LoraSettings(r=point["r"]) if "r" in point else LoraSettings()
    training = replace(
        config.training, seed=cell.seed, max_steps=point.get("steps", config.training.max_steps),
        max_seconds=0.0 if "steps" in point else config.training.max_seconds, eval_steps=1 << 30,
        load_best_model_at_end=False,
    )  # fmt: skip
    source = data_of(config, cell.task, console, base=base) if own else cell.task.source
    data = replace(config.data, source=source, limit=point.get("rows", config.data.limit))
    states = Path(config.out) / "states" / f"{cell.task.name}-{target}-{data.limit}"
    return TrainConfig(
        config.model, data, str(folder), mode="joint" if joint else "after", adapter=adapter,
        states_folder="" if joint else str(states), drafter=cell.settings, loss=loss, training=training, lora=lora,
    )  # fmt: skip


def target_of(config: CompareConfig, task: TaskSettings, console: Console) -> str:
    """The adapter of a task's target; one is trained when none was given.

    Where the joint run is studied and its draft loss does not reach the adapter, that is the target: no second one
    is trained.
    """
    if task.adapter:
        return "" if task.adapter == "none" else task.adapter
    folder = Path(config.out) / "targets" / task.name
    joint = next(joint_cells(config, Cell("joint", task, "", config.drafter(config.reference), config.seeds[0])))
    alone, together = ((one / "run.yaml").is_file() for one in (folder, Path(config.out) / "cells" / joint.key))
    if not alone and (together or "joint" in config.studies) and config.loss.detach_hidden:
        return str(trained(config, joint, console)[0])
    if not alone:
        console.rule(f"target of {task.name}")
        training = replace(config.training, max_steps=-1, max_seconds=0.0)
        data = replace(config.data, source=task.data)
        one = TrainConfig(config.model, data, str(folder), mode="lora", training=training)
        _finished(one, console)
    return str(folder)


def data_of(config: CompareConfig, task: TaskSettings, console: Console, *, base: bool = False) -> str:
    """What drafters learn from: the task's rows with the own answers of the target that they are made for, tuned or
    ``base``, unless the budget says otherwise or the task's file holds them (those of the tuned one) already.
    """
    if not config.regenerate or (not base and task.test and Path(task.data).is_file()):
        return task.data
    folder, name = Path(config.out) / "data", f"{task.name}-base" if base else task.name
    path = folder / f"{name}.jsonl"
    if not (folder / f"{name}.done").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        adapter = "" if base else target_of(config, task, console)
        console.rule(f"answers of the {'model as it is' if base else 'target'}: {task.name}")
        pair = Pair.load(config.model, Load(engine=config.load.engine), adapter=adapter)
        longest = max(LONGEST if base else 0, 2 * task.max_new_tokens)
        most = config.training.eval_samples + ((base and config.base_rows) or config.data.limit or ROWS)
        data = replace(config.data, source=task.data, limit=most)
        settings = RegenerateSettings(data, str(path), decoding=Decoding(max_new_tokens=longest))
        regenerate(pair, settings, console)
        (folder / f"{name}.done").touch()
    return str(path)
