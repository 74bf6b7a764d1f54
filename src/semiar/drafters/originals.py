"""What reads drafters that other projects trained: a checkpoint's tensors by name, found or missed.

A design's ``original`` gets the tensors and the target that they were trained for, and says what it found as an
`Original`.  Our drafters' embeddings are brought to unit scale, so what multiplies an original embedding is divided by
that scale.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from semiar.errors import PairError

Tensors = dict[str, Tensor]
PARTS = ("weight", "bias")


@dataclass(frozen=True, slots=True)
class Original:
    """A checkpoint in our terms."""

    count: int | None  # K, or None where any number of steps can be drafted
    settings: dict[str, object]  # that the design has to be built with
    weights: Tensors  # by our names
    scale: float | None = None  # of the embeddings, where it is not the one that brings them to unit scale


def stripped(tensors: Tensors, prefix: str) -> Tensors:
    """The names without a prefix that some versions of a checkpoint have."""
    return {name.removeprefix(prefix): value for name, value in tensors.items()}


def blocks(tensors: Tensors, prefix: str, first: str) -> tuple[int, int]:
    """How many heads there are, and blocks in each."""
    take(tensors, first)
    found = [re.fullmatch(re.escape(prefix) + r"(\d+)\.(\d+)\.linear\.weight", name) for name in tensors]
    places = {(int(m[1]), int(m[2])) for m in found if m}
    return 1 + max(head for head, _ in places), 1 + max(block for _, block in places)


def residual(tensors: Tensors, prefix: str, count: int, number: int) -> Tensors:
    """The blocks ``silu(linear(x))`` of every head."""
    names = [f"{head}.{block}.linear.{part}" for head in range(count) for block in range(number) for part in PARTS]
    return {f"steps.{name}": take(tensors, prefix + name) for name in names}


def headed(tensors: Tensors, count: int, number: int) -> list[int]:
    """Heads that come with an output matrix."""
    return [head for head in range(count) if f"{head}.{number}.weight" in tensors]


def alike(one: Tensor, other: Tensor) -> bool:
    """Whether these are the same numbers, each rounded to its own precision."""
    return torch.allclose(one.float(), other.detach().float(), rtol=1e-2, atol=1e-6)


def take(tensors: Tensors, name: str) -> Tensor:
    """A tensor.  Raises ``PairError`` when it is not there."""
    if name not in tensors:
        raise PairError(
            f"the checkpoint has no tensor '{name}' (but {', '.join(sorted(tensors)[:3])}, ...)",
            "the original project's layout",
            "check --architecture",
        )
    return tensors[name]
