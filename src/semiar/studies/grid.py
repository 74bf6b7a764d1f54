"""The cells of a comparison: one drafter, trained once and measured once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from semiar.drafters import DrafterSettings
from semiar.errors import ConfigError
from semiar.studies.config import CompareConfig, TaskSettings

ROWS = (250, 500, 1000, 2000, 3000)
VOCABULARIES: tuple[int | str, ...] = (1024, 2048, 4096, 8192, "full")
WEIGHTS = (0.1, 0.3, 0.5, 0.7, 0.9)
RANKS = (4, 16, 64)


@dataclass(frozen=True)
class Cell:
    """One drafter to train and measure."""

    study: str
    task: TaskSettings
    drafter: str  # its name in the comparison
    settings: DrafterSettings
    seed: int
    point: dict[str, Any] = field(default_factory=dict)  # where it stands in its study

    @property
    def key(self) -> str:
        """Name of its row and folder."""
        words = [self.study, self.task.name, self.drafter, *(f"{k}={v}" for k, v in self.point.items()), self.seed]
        return "-".join(re.sub(r"[^A-Za-z0-9_.=]+", "_", str(word)) for word in words)


def cells(config: CompareConfig) -> list[Cell]:
    """All cells, the main comparison of all tasks first; what two studies share is done once per study."""
    found = []
    for study in sorted(config.studies, key=lambda name: name != "main"):
        for task in config.tasks:
            for seed in config.seeds if study == "main" else config.seeds[:1]:
                found += list(_STUDIES[study](config, Cell(study, task, "", config.drafter(config.reference), seed)))
    return found


def _main(config: CompareConfig, cell: Cell) -> Iterator[Cell]:
    for name in config.drafters:
        yield replace(cell, drafter=name, settings=config.drafter(name))


def _of_reference(config: CompareConfig, cell: Cell, point: dict[str, Any], **changes: Any) -> Cell:
    name = config.reference
    return replace(cell, drafter=name, settings=config.drafter(name, **changes), point=point)


def _rows(config: CompareConfig, cell: Cell) -> Iterator[Cell]:
    for rows in ROWS:
        yield _of_reference(config, cell, {"rows": rows})


def _vocabulary(config: CompareConfig, cell: Cell) -> Iterator[Cell]:
    for size in VOCABULARIES:
        yield _of_reference(config, cell, {"draft_vocab_size": size}, draft_vocab_size=size)


def _ablation(config: CompareConfig, cell: Cell) -> Iterator[Cell]:
    if not config.forms():
        raise ConfigError(f"an ablation of drafter '{config.reference}'", "a reference that has several forms")
    for point in config.forms():
        settings = config.drafter(config.reference, **point)
        yield replace(cell, drafter=" ".join(point.values()), settings=settings, point=dict(point))


def _count(config: CompareConfig, cell: Cell) -> Iterator[Cell]:
    for count in range(1, config.most + 1):
        yield _of_reference(config, cell, {"count": count})


def _staleness(config: CompareConfig, cell: Cell) -> Iterator[Cell]:
    for made_on in ("base", "tuned"):
        for measured_on in ("base", "tuned"):
            if (made_on, measured_on) != ("tuned", "base"):
                yield _of_reference(config, cell, {"made_on": made_on, "measured_on": measured_on})


def joint_cells(config: CompareConfig, cell: Cell) -> Iterator[Cell]:
    """The joint run, and the drafter trained after it, in the place of a task and seed that ``cell`` names."""
    for mode in ("joint", "after"):
        yield _of_reference(config, cell, {"mode": mode})


def _lambda(config: CompareConfig, cell: Cell) -> Iterator[Cell]:
    for weight in WEIGHTS:
        yield _of_reference(config, cell, {"mode": "joint", "draft_weight": weight})


def _rank(config: CompareConfig, cell: Cell) -> Iterator[Cell]:
    for target in RANKS:
        for drafter in RANKS:
            yield _of_reference(config, cell, {"mode": "joint", "r": target, "lora_r": drafter}, lora_r=drafter)


_STUDIES = {
    "main": _main, "rows": _rows, "vocabulary": _vocabulary, "ablation": _ablation, "count": _count,
    "staleness": _staleness, "joint": joint_cells, "lambda": _lambda, "rank": _rank,
}  # fmt: skip
