"""What a run will cost, measured on one batch before anything is spent."""

from __future__ import annotations

import resource
from time import perf_counter
from typing import Any

import torch
from rich.console import Console

from semiar.pair import Pair
from semiar.training.config import TrainConfig
from semiar.training.mixin import count
from semiar.training.prepare import Samples
from semiar.training.states import states_bytes

GIB = 1 << 30


def estimate(trainer: Any, config: TrainConfig, pair: Pair, samples: Samples, console: Console) -> dict[str, float]:
    """Print and return seconds, peak memory (bytes) and disk (bytes) of the run, from one timed batch."""
    learns = count(trainer.model.parameters())
    steps = _steps(config, len(samples.train), trainer.args.world_size)
    step_seconds = _one_pass(trainer, config) * config.training.gradient_accumulation_steps
    seconds = config.training.max_seconds or step_seconds * steps
    cached = config.mode == "after" and config.cache_states
    layers = len(getattr(pair.drafter, "layers", (0,)))
    everything = [*samples.train, *samples.held_out]
    states = states_bytes(everything, layers, pair.target.hidden_size) if cached else 0
    checkpoints = (config.training.save_total_limit + 1) * learns * 12
    memory = _peak(pair) + learns * 8  # Adam's two moments are not there yet
    console.print(
        f"{learns / 1e6:.1f} M parameters learn; {steps} steps, about {_minutes(seconds)}; memory about "
        f"{memory / GIB:.1f} GiB; disk about {(states + checkpoints) / GIB:.2f} GiB"
        + (f" ({states / GIB:.2f} GiB of them cached target states)" if states else "")
        + f"; {trainer.passes}"
    )
    return {"seconds": seconds, "step_seconds": step_seconds, "memory": memory, "disk": states + checkpoints}


def _steps(config: TrainConfig, samples: int, processes: int) -> int:
    optim = config.training
    if optim.max_steps > 0:
        return optim.max_steps
    per_step = optim.per_device_train_batch_size * optim.gradient_accumulation_steps * processes
    return max(1, round(optim.num_train_epochs * -(-samples // per_step)))


def _one_pass(trainer: Any, config: TrainConfig) -> float:
    """Seconds of one forward and backward pass on a batch of about average cost."""
    batch = trainer.data_collator(typical(trainer, config))
    batch = {name: value.to(trainer.args.device) for name, value in batch.items()}
    if config.mode == "after" and config.cache_states:
        batch["hidden"] = trainer.states(batch).to(torch.bfloat16)
    trainer.model.train()
    best = float("inf")
    with torch.random.fork_rng():
        for _ in range(2):  # the first pass also warms up the allocator and the kernels
            begin = perf_counter()
            with torch.autocast(trainer.args.device.type, torch.bfloat16, enabled=config.training.bf16):
                loss = trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=100)
            loss.backward()
            best = min(best, perf_counter() - begin)
    trainer.model.zero_grad(set_to_none=True)
    if hasattr(trainer, "sums"):
        trainer.sums.clear()
    return best


def typical(trainer: Any, config: TrainConfig) -> list[dict[str, Any]]:
    """The first epoch's batch whose computed tokens, pads included where they are run, are closest to the mean."""
    data, size = trainer.train_dataset, config.training.per_device_train_batch_size
    order = list(trainer._get_train_sampler())
    batches = [[data[i] for i in order[start : start + size]] for start in range(0, len(order), size)]
    flat = trainer.target.flat_limit and not (config.mode == "after" and config.cache_states)
    costs = []
    for batch in batches:
        lengths = [len(example["input_ids"]) for example in batch]
        costs.append(sum(lengths) if flat else len(lengths) * max(lengths))
    mean = sum(costs) / len(costs)
    return batches[min(range(len(costs)), key=lambda i: abs(costs[i] - mean))]


def _peak(pair: Pair) -> int:
    if pair.target.device.type == "cuda":
        return torch.cuda.max_memory_allocated(pair.target.device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
