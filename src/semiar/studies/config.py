"""What is compared: tasks, drafters, seeds and the one budget that all of them get."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from semiar.drafters import DrafterSettings, design, drafter_settings, shared
from semiar.errors import ConfigError
from semiar.settings import DataSource, Decoding, Load, Training, at_least
from semiar.training.config import LossSettings
from semiar.training.objectives import parse_loss

ROWS, PROMPTS = 1000, 12  # learned from and measured on, unless said otherwise
STUDIES = ("main", "rows", "vocabulary", "ablation", "count", "staleness", "joint", "lambda", "rank")

PRESETS = ("quick", "paper")


def read_preset(name: str) -> Any:
    """What a file of this room's presets says."""
    return yaml.safe_load((files("semiar.studies") / "presets" / f"{name}.yaml").read_text(encoding="utf-8"))


DRAFTERS: dict[str, dict[str, Any]] = read_preset("drafters")


@dataclass(frozen=True)
class TaskSettings:
    """One task and the target that is drafted for."""

    data: str
    """Task, file or hub id."""
    adapter: str = ""
    """PEFT adapter (or pair) of the target; left out, one is trained first.  none: the model as it is."""
    test: str = ""
    """Whose test split is decoded, when `data` is a file of regenerated answers; left out: data itself."""
    max_new_tokens: int = 128
    """Longest answer that is measured."""

    @property
    def source(self) -> str:
        """Where the prompts that are measured come from."""
        return self.test or self.data

    @property
    def name(self) -> str:
        """The task's name, or the file's."""
        return Path(self.source).stem


@dataclass(frozen=True)
class CompareConfig:
    """One comparison."""

    model: str
    """The target: hub id, local folder or .gguf file."""
    out: str
    """Folder of the results; one that exists is continued."""
    tasks: list[TaskSettings] = field(default_factory=lambda: [TaskSettings("gsm8k"), TaskSettings("sql")])
    drafters: dict[str, dict[str, Any]] = field(default_factory=lambda: dict(DRAFTERS))
    """Name -> settings of a drafter that differ from its design's; the first one is the reference of the studies."""
    studies: list[str] = field(default_factory=lambda: ["main"])
    """main, rows (learning curve), vocabulary, ablation (h_q and fusion), count (K), staleness, joint (against after),
    lambda, rank."""
    seeds: list[int] = field(default_factory=lambda: [0])
    draft_vocab_size: int | str = 4096
    """Of every drafter that has a vocabulary."""
    data: DataSource = field(default_factory=DataSource)
    """What is learned from; the tasks say the source.  Limit left out: 1000."""
    test: DataSource = field(default_factory=DataSource)
    """What is measured on; the tasks say the source.  Limit left out: 12."""
    regenerate: bool = True
    """Train on the target's own answers instead of the data's."""
    base_rows: int = 0
    """Staleness: prompts that the model as it is answers (slowly: it knows no task's length); 0 = as many as rows."""
    training: Training = field(default_factory=lambda: Training(max_steps=250, eval_samples=32, learning_rate=4e-4))
    """What every drafter gets: the same max_steps, or the same max_seconds.  learning_rate and num_train_epochs are
    those of a target's adapter that has to be trained first (if `joint` is studied, its run does)."""
    loss: LossSettings = field(default_factory=LossSettings)
    load: Load = field(default_factory=Load)
    """How all are measured; drafting compiled takes minutes more."""
    decoding: Decoding = field(default_factory=Decoding)
    """How all are measured.  K left out is 5; all drafters learn for it; auto lets each use the one that its own costs
    and acceptance recommend."""

    def __post_init__(self) -> None:
        at_least(self, base_rows=0)
        for name, where in (("max_new_tokens", "tasks"), ("seed", "seeds")):
            if getattr(self.decoding, name) is not None:
                raise ConfigError(f"{name} {getattr(self.decoding, name)}", f"what {where} say", f"say it in {where}")
        if self.decoding.num_speculative_tokens == 0:
            raise ConfigError(
                "num_speculative_tokens 0", "1 or more", "plain decoding is measured beside every drafter"
            )
        for name, limit in (("data", ROWS), ("test", PROMPTS)):
            said = DataSource.of(getattr(self, name))
            if said.source:
                raise ConfigError(
                    f"{name} {said.source}", "the tasks' own sources", f"say it in tasks, leave {name} out"
                )
            object.__setattr__(self, name, said.filled(split="train" if name == "data" else "test", limit=limit))
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
    def most(self) -> int:
        """K that the drafters learn for."""
        wanted = self.decoding.num_speculative_tokens
        return wanted if isinstance(wanted, int) else DrafterSettings.num_speculative_tokens

    @property
    def reference(self) -> str:
        """The drafter that the studies vary."""
        return next(iter(self.drafters))

    def drafter(self, name: str, **changes: Any) -> DrafterSettings:
        """Settings of a drafter of the comparison."""
        given = {**self.drafters[name], **changes}
        if "architecture" not in given:
            raise ConfigError(f"drafter '{name}' without an architecture", "the design, as in architecture: NAME")
        common = {"num_speculative_tokens": self.most, "draft_vocab_size": self.draft_vocab_size}
        try:
            return drafter_settings({**shared(common, given["architecture"]), **given})
        except ConfigError as error:
            raise ConfigError(f"drafter '{name}': {error.found}", error.expected, error.hint) from error

    def forms(self) -> tuple[dict[str, Any], ...]:
        """What an ablation of the reference compares, as its design says; empty when it has one form only."""
        return design(self.drafters[self.reference]["architecture"]).FORMS


def preset(name: str, config: CompareConfig) -> CompareConfig:
    """``config`` with the tasks, drafters, studies and budget of a preset; where it names a preset's task, its own."""
    if name not in PRESETS:
        raise ConfigError(f"preset '{name}'", f"one of {', '.join(PRESETS)}")
    said = read_preset(name)
    given = {task.name: task for task in config.tasks if task != TaskSettings(task.data)}
    return replace(
        config,
        tasks=[given.get(task["data"]) or TaskSettings(**task) for task in said["tasks"]],
        drafters={name: DRAFTERS[name] for name in said.get("drafters", DRAFTERS)},
        studies=said["studies"],
        training=replace(config.training, **said.get("training", {})),
        data=replace(config.data, **said.get("data", {})),
        test=replace(config.test, **said.get("test", {})),
    )
