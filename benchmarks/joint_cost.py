"""What the drafter adds to a LoRA step: both kinds of step on the same batches, interleaved.

    python benchmarks/joint_cost.py --model MODEL --data sql --folder DATA [--small_lm context] [--steps 8]

Prints the median seconds of a step of each kind (forward, backward and optimiser) and their ratio; memory is the peak
of a process that runs one kind alone.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from rich.console import Console

from semiar.drafters import DrafterSettings
from semiar.targets import load_tokenizer
from semiar.training.config import DataSettings, OptimSettings, TrainConfig
from semiar.training.prepare import build_pair, load_samples
from semiar.training.run import arguments, make_trainer


def trainer_of(config: TrainConfig, work: Path) -> tuple[Any, list[dict[str, Any]]]:
    """A trainer of the configuration's mode with its optimiser, and the batches it would see first."""
    console = Console(quiet=True)
    tokenizer = load_tokenizer(config.model)
    samples = load_samples(config, tokenizer, console)
    args = arguments(config, work, False)
    trainer: Any = make_trainer(config, build_pair(config, samples, tokenizer, console), samples, args)
    trainer.create_optimizer()
    size = config.optim.per_device_train_batch_size
    return trainer, [trainer.data_collator(samples.train[i : i + size]) for i in range(0, len(samples.train), size)]


def step(trainer: Any, batch: dict[str, Any]) -> float:
    """Seconds of one whole training step."""
    begin = perf_counter()
    trainer.model.train()
    with trainer.accelerator.autocast():
        loss = trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=200)
    loss.backward()
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    return perf_counter() - begin


def main() -> None:
    """Parse, measure, print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", required=True)
    options.add_argument("--data", default="sql")
    options.add_argument("--folder", default="")
    options.add_argument("--small_lm", default="context")
    options.add_argument("--count", type=int, default=5, help="K")
    options.add_argument("--steps", type=int, default=8)
    options.add_argument("--alone", choices=["lora", "joint"], help=argparse.SUPPRESS)
    chosen = options.parse_args()
    config = TrainConfig(
        model=chosen.model,
        data=chosen.data,
        out="",
        drafter=DrafterSettings(small_lm=chosen.small_lm, num_speculative_tokens=chosen.count),
        optim=OptimSettings(load_best_model_at_end=False),
        samples=DataSettings(folder=chosen.folder, limit=8 * (chosen.steps + 1), eval_samples=8),
    )
    with tempfile.TemporaryDirectory() as folder:
        kinds = [chosen.alone] if chosen.alone else ["lora", "joint"]
        made = {kind: trainer_of(replace(config, mode=kind), Path(folder) / kind) for kind in kinds}
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        for index in range(chosen.steps + 1):
            for kind, (trainer, batches) in made.items():
                times[kind].append(step(trainer, batches[index % len(batches)]))
    if chosen.alone:
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
        return
    for kind in kinds:
        words = [*sys.argv, "--alone", kind]
        peak = subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True).stdout.split()[-1]
        kept = times[kind][1:]
        spread = f"{min(kept):.2f} to {max(kept):.2f}"
        print(f"{kind:6s} {median(kept):6.2f} s a step ({spread}), peak memory {float(peak):.2f} GiB")
    ratio = median(b / a for a, b in zip(times["lora"][1:], times["joint"][1:], strict=True))
    print(f"joint / lora: {ratio:.2f} (median of {chosen.steps} pairs)")


if __name__ == "__main__":
    main()
