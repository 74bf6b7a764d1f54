"""Tokens per second of training: LoRA alone, joint, and the drafter after it (online and on cached states).

    python benchmarks/training_speed.py --model MODEL --data sql --folder DATA [--small_lm context] [--steps 8]

All four kinds of step run on the same batches, interleaved.  Printed: median seconds of a step (forward, backward and
optimiser), its spread, tokens per second (prompt tokens included, padding not), and the peak memory of a process that
runs one kind alone.
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

import torch
from rich.console import Console

from semiar.drafters import DrafterSettings
from semiar.targets import load_tokenizer
from semiar.training.config import DataSettings, OptimSettings, TrainConfig
from semiar.training.prepare import build_pair, load_samples
from semiar.training.run import arguments, make_trainer
from semiar.training.states import Examples, cache_states

KINDS = {"lora": ("lora", False), "joint": ("joint", False), "after, online": ("after", False),
         "after, cached": ("after", True)}  # fmt: skip


def trainer_of(config: TrainConfig, work: Path, cached: bool) -> tuple[Any, list[dict[str, Any]]]:
    """A trainer of the configuration's mode with its optimiser, and the batches it would see first."""
    console = Console(quiet=True)
    tokenizer = load_tokenizer(config.model)
    samples = load_samples(config, tokenizer, console)
    args = arguments(config, work, False)
    pair = build_pair(config, samples, tokenizer, console)
    trainer: Any = make_trainer(config, pair, samples, args)
    trainer.create_optimizer()
    examples: Any = samples.train
    if cached:
        examples = Examples(
            examples, cache_states(pair.target, examples, pair.drafter.layers, work / "states", "bench")
        )
    size = config.optim.per_device_train_batch_size
    whole = range(0, len(examples) - size + 1, size)
    return trainer, [trainer.data_collator([examples[j] for j in range(i, i + size)]) for i in whole]


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
    options.add_argument("--alone", choices=list(KINDS), help=argparse.SUPPRESS)
    chosen = options.parse_args()
    config = TrainConfig(
        model=chosen.model,
        data=chosen.data,
        out="",
        drafter=DrafterSettings(small_lm=chosen.small_lm, num_speculative_tokens=chosen.count),
        optim=OptimSettings(load_best_model_at_end=False),
        samples=DataSettings(folder=chosen.folder, limit=8 * (chosen.steps + 2), eval_samples=8),
    )
    with tempfile.TemporaryDirectory() as folder:
        kinds = [chosen.alone] if chosen.alone else list(KINDS)
        made = {
            kind: trainer_of(
                replace(config, mode=KINDS[kind][0]), Path(folder) / kind.replace(" ", "-"), KINDS[kind][1]
            )
            for kind in kinds
        }
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        tokens = 0
        for index in range(chosen.steps + 1):
            for kind, (trainer, batches) in made.items():
                times[kind].append(step(trainer, batches[index % len(batches)]))
            tokens += (index > 0) * count_tokens(batches[index % len(batches)])
    if chosen.alone:
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
        return
    for kind in kinds:
        words = [*sys.argv, "--alone", kind]
        peak = subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True).stdout.split()[-1]
        kept = times[kind][1:]
        print(
            f"{kind:13s} {median(kept):6.2f} s a step ({min(kept):.2f} to {max(kept):.2f}), "
            f"{tokens / sum(kept):6.0f} tokens/s, peak memory {float(peak):.2f} GiB"
        )
    ratio = median(b / a for a, b in zip(times["lora"][1:], times["joint"][1:], strict=True))
    print(f"joint / lora: {ratio:.2f} (median of {chosen.steps} pairs)")


def count_tokens(batch: dict[str, Any]) -> int:
    """Tokens up to the last answer token of every row: what right padding follows."""
    places = torch.arange(batch["labels"].shape[1])
    return int(((batch["labels"] >= 0) * (places + 1)).amax(1).sum())


if __name__ == "__main__":
    main()
