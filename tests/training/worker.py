"""One of two processes: run the jobs in a file one after another and note what this process saw.

``python -m torch.distributed.run --nproc_per_node 2 worker.py jobs.json``
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import semiar.training.run as run
from semiar.drafters import drafter_settings
from semiar.settings import DataSource, Load, Training
from semiar.targets.lora import LoraSettings
from semiar.training.config import LossSettings, TrainConfig

PARTS = {
    "lora": LoraSettings, "loss": LossSettings, "training": Training, "data": DataSource, "load": Load,
}  # fmt: skip


def config_of(values: dict[str, Any]) -> TrainConfig:
    """A configuration from ``asdict`` of one."""
    made: dict[str, Any] = {k: PARTS[k](**v) if k in PARTS else v for k, v in values.items()}
    return TrainConfig(**made | {"drafter": drafter_settings(values["drafter"])})


def job(config: TrainConfig, *, resume: bool = False, interrupt: int = 0) -> dict[str, Any]:
    """One job as it stands in the file; ``interrupt`` presses Ctrl-C in the second process at that step."""
    return {"config": asdict(config), "resume": resume, "interrupt": interrupt}


def main(path: Path) -> None:
    rank = int(os.environ["RANK"])
    for number, one in enumerate(json.loads(path.read_text())):
        asked = run.Interruptible.on_step_end

        def press(self: Any, args: Any, state: Any, control: Any, at: int = one["interrupt"], **rest: Any) -> None:
            self.asked = self.asked or (rank == 1 and state.global_step == at)
            asked(self, args, state, control, **rest)  # noqa: B023

        run.Interruptible.on_step_end = press  # type: ignore[method-assign,assignment]
        pair = run.train(config_of(one["config"]), resume=one["resume"])
        run.Interruptible.on_step_end = asked  # type: ignore[method-assign]
        seen = None if pair is None else pair.metrics
        path.with_name(f"job{number}-rank{rank}.json").write_text(json.dumps(seen))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
