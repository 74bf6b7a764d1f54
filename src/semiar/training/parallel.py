"""Several processes, one run: who writes, who waits, and in which order samples come."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import torch
from torch import distributed
from torch.utils.data import Sampler


def is_main() -> bool:
    """True in the one process that prints and writes files; known before the process group exists."""
    return int(os.environ.get("RANK", "0")) == 0


def own_device() -> None:
    """Make "cuda" mean this process's own GPU."""
    if torch.cuda.is_available() and "LOCAL_RANK" in os.environ:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def wait() -> None:
    """Return when every process of the run has come here."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.barrier()


def any_process(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set in any process; every process has to ask."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return flag
    found = torch.tensor(float(flag), device=device)
    distributed.all_reduce(found, distributed.ReduceOp.MAX)
    return bool(found)


class Order(Sampler[int]):
    """Every sample once per epoch, in an order that seed and epoch alone decide.

    Then come indices past the last sample (see `Examples`: samples without targets) up to a multiple of ``whole``, so
    that every process gets as many batches as the others and no sample is seen twice.
    """

    def __init__(self, count: int, whole: int, seed: int, epoch: Callable[[], int]):
        self.count, self.whole, self.seed, self.epoch = count, whole, seed, epoch

    def __len__(self) -> int:
        return -(-self.count // self.whole) * self.whole

    def __iter__(self) -> Iterator[int]:
        rng = torch.Generator().manual_seed(self.seed + self.epoch())
        yield from torch.randperm(self.count, generator=rng).tolist()
        yield from range(self.count, len(self))
