"""What stops a training, in words that say what to do; an error that nobody expected keeps its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from semiar.errors import ConfigError, SemiarError, TrainingError
from semiar.settings import Training

FULL = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")  # words of allocators


@contextmanager
def refused_options() -> Iterator[None]:
    """What Hugging Face's Trainer says of an option's value, in our words."""
    try:
        yield
    except SemiarError:
        raise
    except (ValueError, ImportError) as error:
        raise ConfigError(str(error).strip().splitlines()[0], "", "see the options below training") from error


@contextmanager
def enough_memory(training: Training) -> Iterator[None]:
    """Running out of memory, told as such, with what to lower."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not isinstance(error, torch.OutOfMemoryError | MemoryError) and not any(
            word in str(error).lower() for word in FULL
        ):
            raise
        size = training.per_device_train_batch_size
        lower = ["raise --training.gradient_accumulation_steps and lower --training.per_device_train_batch_size"] * (
            size > 1
        )
        lower += [] if training.gradient_checkpointing else ["try --training.gradient_checkpointing"]
        raise TrainingError(
            f"out of memory at {size} samples a step: {str(error).strip().splitlines()[0]}",
            "a smaller step",
            "; ".join([*lower, "or lower --data.max_length"]),
        ) from error
