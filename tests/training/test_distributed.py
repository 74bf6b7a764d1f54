"""H30: two processes learn what one learns with the same global batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from semiar.training.config import TrainConfig
from semiar.training.parallel import Order
from semiar.training.run import WORK, train
from semiar.training.states import Examples, StatesCollator

from .conftest import ROWS, with_optim
from .worker import job

TIMEOUT = 150  # seconds; a hang fails instead of blocking the suite
MODES = ("joint", "after", "lora")
COUNTS = (3, 7, 8)  # with 3, the second process has no sample at all


def test_blanks_fill_up_the_last_global_batch_and_every_sample_comes_once() -> None:
    for count, whole in ((7, 8), (8, 8), (9, 4), (1, 6), (5, 1)):
        orders = [list(Order(count, whole, 3, lambda e=epoch: e)) for epoch in (0, 0, 1)]
        assert orders[0] == orders[1] and (orders[0] != orders[2] or count == 1)
        assert sorted(orders[2][:count]) == list(range(count))
        assert len(orders[0]) == len(Order(count, whole, 3, lambda: 0)) and len(orders[0]) % whole == 0
        assert all(index >= count for index in orders[0][count:])


def test_a_blank_sample_has_no_target_and_the_form_of_the_others() -> None:
    examples = [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}]
    for states in (None, [torch.ones(3, 4, dtype=torch.bfloat16)] * 2):
        data = Examples(examples, states)
        batch = StatesCollator(9)([data[0], data[1]])
        assert batch["input_ids"].tolist() == [[5, 6, 7], [0, 0, 9]]
        assert batch["labels"].tolist() == [[-100, 6, 7], [-100, -100, -100]]
        assert states is None or (batch["hidden"].shape == (2, 3, 2, 4) and not batch["hidden"][1].any())


def jobs_for(config: TrainConfig, data: Path, out: Path, batch: int) -> dict[str, TrainConfig]:
    """Every mode with each number of samples to learn from, one more held out."""
    found = {}
    for count in COUNTS:
        path = data / f"{count}.jsonl"
        rows = [{"prompt": q, "completion": a} for q, a in ROWS[: count + 1]]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        for mode in MODES:
            one = replace(config, mode=mode, data=str(path), out=str(out / f"{mode}{count}"))
            found[f"{mode}{count}"] = with_optim(
                one,
                max_steps=4,
                eval_steps=2,
                save_steps=2,
                per_device_train_batch_size=batch,
                load_best_model_at_end=True,
            )
    return found


def launch(jobs: list[dict[str, Any]], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the jobs in two processes; what they saw lies in ``folder``."""
    path = folder / "jobs.json"
    path.write_text(json.dumps(jobs))
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    tests = Path(__file__).parents[1]
    paths = [str(tests.parent / "src"), str(tests), os.environ.get("PYTHONPATH", "")]
    settings = {
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    return subprocess.run(
        [*words, str(Path(__file__).with_name("worker.py")), str(path)],
        env=os.environ | settings, timeout=TIMEOUT, text=True, capture_output=True, check=False,
    )  # fmt: skip


def weights(folder: Path) -> dict[str, Tensor]:
    found = {}
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("drafter/*.safetensors")]):
        found |= {f"{path.relative_to(folder)}/{name}": value for name, value in load_file(path).items()}
    return found


@pytest.mark.slow
def test_two_processes_equal_one(config: TrainConfig, tmp_path: Path) -> None:
    two = jobs_for(config, tmp_path, tmp_path / "two", 4)
    whole = with_optim(two["joint8"], per_device_train_batch_size=1, max_steps=8)  # 4 steps an epoch
    whole, broken = (replace(whole, out=str(tmp_path / name)) for name in ("whole", "broken"))
    jobs = [*map(job, [*two.values(), whole]), job(broken, interrupt=5), job(broken, resume=True)]
    done = launch(jobs, tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == ""
    assert done.stderr.count("saved the pair in") == len(two) + 2  # only one of them speaks
    assert done.stderr.count("samples to learn from") == len(jobs)
    assert done.stderr.count("stopped at step 5") == 1
    for number, (name, config_of_two) in enumerate(two.items()):
        seen = [json.loads((tmp_path / f"job{number}-rank{rank}.json").read_text()) for rank in (0, 1)]
        one = jobs_for(config, tmp_path, tmp_path / "one", 8)[name]
        pair = train(one)
        assert pair is not None
        compare(pair.metrics, seen[0], name)
        compare(pair.metrics, seen[1], name)
        first, second = weights(Path(one.out)), weights(Path(config_of_two.out))
        assert first.keys() == second.keys()
        for key, value in first.items():
            assert torch.allclose(value, second[key], atol=2e-5), (name, key)
        assert not (Path(config_of_two.out) / WORK).exists()
    first, second = weights(Path(whole.out)), weights(Path(broken.out))
    assert all(torch.equal(value, second[key]) for key, value in first.items())


def compare(one: dict[str, Any], two: dict[str, Any], name: str) -> None:
    """Same updates, learning rates, losses and measurements."""
    for key in ("loss", "draft_loss", "lm_loss", "learning_rate", "step", "eval_acceptance_length", "eval_lm_loss"):
        values = [[entry[key] for entry in metrics["log"] if key in entry] for metrics in (one, two)]
        assert values[0] == pytest.approx(values[1], rel=1e-3, abs=2e-4), (name, key, values)
        assert values[0] or key in ("draft_loss", "lm_loss", "eval_acceptance_length", "eval_lm_loss")
    assert one["held_out"] == pytest.approx(two["held_out"], abs=1e-3)
