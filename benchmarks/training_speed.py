"""Tokens per second of training: LoRA alone, joint, and the drafter after it (online and on cached states).

    python benchmarks/training_speed.py --model MODEL --data sql --data.folder DATA [--small_lm context] [--steps 8]
        [--kinds lora joint] [--padded]

All kinds of step run on the same batches, interleaved; with `--padded` each of them once more with padded passes of the
target.  Printed: median seconds of a step (forward, backward and
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

from rich.console import Console

from semiar.drafters import drafter_settings
from semiar.settings import DataSource, Training
from semiar.targets import load_tokenizer
from semiar.training.config import TrainConfig
from semiar.training.prepare import build_pair, load_samples
from semiar.training.run import arguments, make_trainer
from semiar.training.states import Examples, cache_states

KINDS = {"lora": ("lora", False), "joint": ("joint", False), "after, online": ("after", False),
         "after, cached": ("after", True)}  # fmt: skip
PADDED = ", padded"  # ends the names of the kinds with padded passes


def trainer_of(config: TrainConfig, kind: str, folder: Path) -> tuple[Any, list[dict[str, Any]]]:
    """A trainer of this kind with its optimiser, and the batches it would see first."""
    mode, cached = KINDS[kind.removesuffix(PADDED)]
    work = folder / kind.replace(" ", "-")
    config = replace(config, mode=mode, training=replace(config.training, padding_free=not kind.endswith(PADDED)))
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
    size = config.training.per_device_train_batch_size
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
    options.add_argument("--data.folder", dest="folder", default="")
    options.add_argument("--small_lm", default="context")
    options.add_argument("--count", type=int, default=5, help="K")
    options.add_argument("--steps", type=int, default=8)
    options.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    options.add_argument("--padded", action="store_true", help="also measure every kind with padded passes")
    options.add_argument(
        "--memory", type=int, default=1, help="0: leave out the peak memory, which takes half the time"
    )
    options.add_argument("--alone", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    config = TrainConfig(
        model=chosen.model,
        data=DataSource(chosen.data, folder=chosen.folder, limit=8 * (chosen.steps + 2)),
        out="",
        drafter=drafter_settings(
            {"architecture": "semi", "small_lm": chosen.small_lm, "num_speculative_tokens": chosen.count}
        ),
        training=Training(load_best_model_at_end=False, eval_samples=8),
    )
    with tempfile.TemporaryDirectory() as folder:
        kinds = [kind + end for kind in chosen.kinds for end in (("", PADDED) if chosen.padded else ("",))]
        kinds = [chosen.alone] if chosen.alone else kinds
        made = {kind: trainer_of(config, kind, Path(folder)) for kind in kinds}
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        tokens = slots = 0
        for index in range(chosen.steps + 1):
            for kind, (trainer, batches) in made.items():
                times[kind].append(step(trainer, batches[index % len(batches)]))
            tokens += (index > 0) * int(batches[index % len(batches)]["lengths"].sum())
            slots += (index > 0) * batches[index % len(batches)]["input_ids"].numel()
    if chosen.alone:
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
        return
    for kind in kinds:
        kept = times[kind][1:]
        print(
            f"{kind:21s} {median(kept):6.2f} s a step ({min(kept):.2f} to {max(kept):.2f}), "
            f"{tokens / sum(kept):6.0f} tokens/s" + (f", peak memory {peak_of(kind):.2f} GiB" if chosen.memory else "")
        )
    print(f"{1 - tokens / slots:.0%} of the padded batches are pads")
    pairs = [("joint", "lora"), *((kind + PADDED, kind) for kind in kinds)]
    for above, below in (pair for pair in pairs if set(pair) <= set(kinds)):
        ratio = median(a / b for a, b in zip(times[above][1:], times[below][1:], strict=True))
        print(f"{above} / {below}: {ratio:.2f} (median of {chosen.steps} pairs)")


def peak_of(kind: str) -> float:
    """Peak memory in GiB of a process that runs this kind alone."""
    words = [sys.executable, *sys.argv, "--alone", kind]
    return float(subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()[-1])


if __name__ == "__main__":
    main()
