"""What stops a training: out of memory says what to lower, and an error that nobody expected keeps its own text."""

from __future__ import annotations

import pytest
import torch

from semiar.errors import ConfigError, TrainingError
from semiar.settings import Training
from semiar.training.failures import enough_memory, refused_options

ALLOCATOR = "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory. Tried"), RuntimeError(ALLOCATOR),
                                   MemoryError("none left")], ids=lambda error: type(error).__name__)  # fmt: skip
def test_out_of_memory_says_what_to_lower(error: Exception) -> None:
    with pytest.raises(TrainingError) as caught, enough_memory(Training(per_device_train_batch_size=4)):
        raise error
    for words in ("out of memory at 4 samples", "per_device_train_batch_size", "gradient_checkpointing", "max_length"):
        assert words in str(caught.value)
    with pytest.raises(TrainingError) as caught, enough_memory(Training(per_device_train_batch_size=1)):
        raise error
    assert "per_device" not in str(caught.value)  # one sample cannot be fewer


def test_any_other_error_keeps_its_own_text() -> None:
    """Every RuntimeError used to end as a hint about the optimiser."""
    with pytest.raises(RuntimeError, match=r"^shapes do not fit$") as caught, enough_memory(Training()):
        raise RuntimeError("shapes do not fit")
    assert not isinstance(caught.value, TrainingError)
    with pytest.raises(RuntimeError, match=r"^shapes do not fit$"), refused_options():
        raise RuntimeError("shapes do not fit")


def test_a_value_that_the_trainer_refuses_is_an_option() -> None:
    with pytest.raises(ConfigError, match="no such optimizer"), refused_options():
        raise ValueError("no such optimizer\nand a page of names")
