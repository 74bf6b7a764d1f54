"""A target's weights as the native kernels read them: one after another, matrices in blocks."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from semiar.targets.engines.packed import given_up

BLOCK = 32  # rows of a matrix that lie together
PAGE, LINE = 1 << 21, 64  # bytes of a large page and of a cache line
HUGE = 14  # MADV_HUGEPAGE
Weights = dict[str, Tensor | None]


class Given(nn.Module):
    """Stands where a linear layer was whose weights the kernel has taken over."""

    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features

    def _save_to_state_dict(self, *arguments: Any, **options: Any) -> None:
        raise given_up()

    def forward(self, x: Tensor) -> Tensor:
        raise given_up()


def give_up(block: nn.Module) -> None:
    """Let go of the plain weights of a layer's matrices."""
    for parent in list(block.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, Given(child))


def gather(
    blocks: list[Weights], others: list[Tensor], grouped: bool, tables: Sequence[str] = ()
) -> tuple[list[Any], list[Tensor]]:
    """Copies of all these weights one after another, in pages as large as the system gives; made one by one.

    ``grouped``: matrices in blocks (`in_blocks`), but those in ``tables``, which are looked up row by row.
    """
    plain = {id(block[name]) for block in blocks for name in tables}
    tensors = [tensor for block in blocks for tensor in block.values() if tensor is not None] + others
    shapes = [block_shape(one) if grouped and one.ndim > 1 and id(one) not in plain else one.shape for one in tensors]
    sizes = [shape.numel() * one.element_size() for shape, one in zip(shapes, tensors, strict=True)]
    memory = torch.empty(sum(size + LINE for size in sizes) + 2 * PAGE, dtype=torch.uint8)
    start = -memory.data_ptr() % PAGE
    advise(memory.data_ptr() + start, memory.nbytes - start - PAGE)
    copies = {}
    for tensor, shape, size in zip(tensors, shapes, sizes, strict=True):
        place = memory[start : start + size].view(tensor.dtype).view(shape)
        copies[id(tensor)] = place.copy_(tensor.detach() if shape == tensor.shape else in_blocks(tensor))
        start += -(-size // LINE) * LINE
    return (
        [{name: None if one is None else copies[id(one)] for name, one in block.items()} for block in blocks],
        [copies[id(one)] for one in others],
    )


def advise(begin: int, size: int) -> None:
    """Ask for large pages, where the system knows them."""
    try:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), HUGE)
    except (AttributeError, OSError, TypeError):
        return


def block_shape(matrix: Tensor) -> torch.Size:
    """Shape of `in_blocks`."""
    out, size = matrix.shape
    return torch.Size((-(-out // BLOCK), (size + 1) // 2, BLOCK, 2))


def in_blocks(matrix: Tensor) -> Tensor:
    """A matrix (out, in) as (out / 32, in / 2, 32, 2), filled up with zeros."""
    out, size = matrix.shape
    filled = F.pad(matrix.detach(), (0, size % 2, 0, -out % BLOCK))
    return filled.view(-1, BLOCK, (size + 1) // 2, 2).transpose(1, 2)


def address(tensor: Tensor | None) -> int | None:
    """Where a contiguous tensor begins."""
    if tensor is None:
        return None
    assert tensor.is_contiguous()
    return tensor.data_ptr()
