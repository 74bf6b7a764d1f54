"""What is compared: tasks, drafters, seeds and the one budget that all of them get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from semiar.drafters import DrafterSettings
from semiar.drafters.settings import CHOICES
from semiar.errors import ConfigError
from semiar.training.config import LossSettings, at_least
from semiar.training.objectives import parse_loss

STUDIES = ("main", "rows", "vocabulary", "ablation", "count", "staleness", "joint", "lambda", "rank")

DRAFTERS: dict[str, dict[str, Any]] = {
    "semi": {"small_lm": "context"},
    "semi lstm": {"small_lm": "lstm"},
    "medusa": {"architecture": "medusa"},
    "hydra": {"architecture": "hydra"},
    "redrafter": {"architecture": "recurrent"},
    "eagle": {"architecture": "eagle"},
    "skip": {"architecture": "skip"},
    "skip + h_p": {"architecture": "skip", "options": {"with_h_p": True}},
    "lookup": {"architecture": "lookup"},
    "hybrid": {"architecture": "hybrid"},
}


@dataclass(frozen=True)
class TaskSettings:
    """One task and the target that is drafted for."""

    data: str
    """Task, file or hub id."""
    adapter: str = ""
    """PEFT adapter (or pair) of the target; left out, one is trained first.  none: the model as it is."""
    prompts: str = ""
    """Whose test split is decoded, when `data` is a file of regenerated answers; default: data itself."""
    max_new_tokens: int = 128
    """Longest answer that is measured."""

    @property
    def source(self) -> str:
        """Where the prompts that are measured come from."""
        return self.prompts or self.data

    @property
    def name(self) -> str:
        """The task's name, or the file's."""
        return Path(self.source).stem


@dataclass(frozen=True)
class BudgetSettings:
    """What every drafter gets: the same rows, and the same steps or the same seconds."""

    rows: int = 1000
    """Training samples."""
    steps: int = 250
    """Optimiser steps."""
    seconds: float = 0.0
    """Above 0: train for about so many seconds instead."""
    batch_size: int = 8
    """Samples per step."""
    learning_rate: float = 1e-3
    eval_samples: int = 32
    """Held-out samples on which teacher-forced acceptance is measured."""
    target_epochs: float = 1.0
    """Epochs over the rows of a target's adapter that has to be trained first (if `joint` is studied, its run does)."""
    target_learning_rate: float = 4e-4
    regenerate: bool = True
    """Train on the target's own answers instead of the data's."""
    base_rows: int = 0
    """Staleness: prompts that the model as it is answers (slowly: it knows no task's length); 0 = as many as rows."""

    def __post_init__(self) -> None:
        at_least(
            self, rows=2, steps=1, seconds=0, batch_size=1, learning_rate=0, eval_samples=1,
            target_epochs=0, base_rows=0,
        )  # fmt: skip


@dataclass(frozen=True)
class MeasureSettings:
    """How every drafter is measured."""

    prompts: int = 12
    """Prompts decoded plainly and speculatively."""
    temperature: float = 0.0
    own_count: bool = False
    """Let each drafter use the K that its own costs and acceptance recommend, instead of the same K for all."""
    engine: str = "auto"
    """Of the target, see --load.engine."""
    drafting: str = "auto"
    """How all the drafters run: auto (as `generate` does), packed or compiled (minutes more), see --load.drafting."""

    def __post_init__(self) -> None:
        at_least(self, prompts=1, temperature=0)


@dataclass(frozen=True)
class CompareConfig:
    """One comparison."""

    model: str
    """The target: hub id, local folder or .gguf file."""
    out: str
    """Folder of the results; one that exists is continued."""
    tasks: list[TaskSettings] = field(default_factory=lambda: [TaskSettings("gsm8k"), TaskSettings("sql")])
    drafters: dict[str, dict[str, Any]] = field(default_factory=lambda: dict(DRAFTERS))
    """Name -> drafter settings that differ from --drafter's defaults; the first one is the reference of the studies."""
    studies: list[str] = field(default_factory=lambda: ["main"])
    """main, rows (learning curve), vocabulary, ablation (h_q and fusion), count (K), staleness, joint (against after),
    lambda, rank."""
    seeds: list[int] = field(default_factory=lambda: [0])
    num_speculative_tokens: int = 5
    """Most tokens drafted per pass, K."""
    draft_vocab_size: int | str = 4096
    folder: str = ""
    """Local folder of the named tasks; default: SEMIAR_DATA, else the hub."""
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    loss: LossSettings = field(default_factory=LossSettings)
    measure: MeasureSettings = field(default_factory=MeasureSettings)

    def __post_init__(self) -> None:
        unknown = [study for study in self.studies if study not in STUDIES]
        if unknown:
            raise ConfigError(f"studies {unknown}", f"some of {', '.join(STUDIES)}")
        if not (self.tasks and self.drafters and self.seeds and self.studies):
            raise ConfigError("no tasks, drafters, studies or seeds", "at least one of each")
        names = [task.name for task in self.tasks]
        if len(set(names)) < len(names):
            raise ConfigError(f"tasks {names}", "different names", "set prompts, or leave one out")
        parse_loss(self.loss.terms)
        for name in self.drafters:
            self.drafter(name)

    @property
    def reference(self) -> str:
        """The drafter that the studies vary."""
        return next(iter(self.drafters))

    def drafter(self, name: str, **changes: Any) -> DrafterSettings:
        """Settings of a drafter of the comparison."""
        shared = {"num_speculative_tokens": self.num_speculative_tokens, "draft_vocab_size": self.draft_vocab_size}
        try:
            return DrafterSettings(**{**shared, **self.drafters[name], **changes})
        except TypeError as error:
            known = f"settings of --drafter, such as {', '.join(CHOICES)}"
            raise ConfigError(f"drafter '{name}': {error}", known) from error


def quick(config: CompareConfig) -> CompareConfig:
    """About 15 minutes on two cores: one short task, the drafters that differ most, a small budget."""
    names = ("semi", "medusa", "redrafter", "skip")
    return replace(
        config,
        tasks=[TaskSettings("sql", max_new_tokens=64)],
        drafters={name: DRAFTERS[name] for name in names},
        studies=["main"],
        budget=replace(config.budget, rows=400, steps=100),
        measure=replace(config.measure, prompts=8),
    )


def paper(config: CompareConfig) -> CompareConfig:
    """What the paper's claims need: four tasks, all drafters, joint against after, staleness and the ablation."""
    tasks = {"gsm8k": 160, "sql": 96, "samsum": 96, "chatdoctor": 128}
    given = {task.name: task for task in config.tasks}
    return replace(
        config,
        tasks=[given.get(name) or TaskSettings(name, max_new_tokens=most) for name, most in tasks.items()],
        drafters=dict(DRAFTERS),
        studies=["main", "staleness", "ablation", "joint", "count"],
    )


PRESETS: dict[str, Callable[[CompareConfig], CompareConfig]] = {"quick": quick, "paper": paper}


def preset(name: str, config: CompareConfig) -> CompareConfig:
    """``config`` with the tasks, studies and budget of a preset."""
    if name not in PRESETS:
        raise ConfigError(f"preset '{name}'", f"one of {', '.join(PRESETS)}")
    return PRESETS[name](config)
