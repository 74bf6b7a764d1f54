"""What a drafter computes for one row, as a program of small operations for the kernel of `native.cpp`.

The drafter's own hooks are run once, on one position, while `Recorder` sees every tensor operation below them and
`rules` says what becomes of it.  What depends on nothing but weights is a constant; what only looks at a tensor in
another way (view, slice, transpose) is not an operation: a `View` says where the numbers lie.  So a drafter needs no
kernel, and nothing is written twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

DIMS = 4
SAME = ("neg", "silu", "sigmoid", "tanh", "cos", "sin", "rsqrt", "exp", "relu")  # operations of PyTorch's names
OTHERS = (
    "copy", "gelu", "gelu_tanh", "square", "affine", "add", "mul", "div", "sum", "softmax", "linear", "embed", "keep",
    "attend", "choose",
)  # fmt: skip
CODES = SAME + OTHERS


class CannotRecord(ValueError):
    """What the drafter does cannot be written down; says what it is."""


@dataclass
class View:
    """Numbers of a buffer: where the first one lies, and how far it is to the next one along each dimension."""

    start: int
    stride: list[int]
    row: int = 0  # from one row's numbers to the next row's
    constant: bool = False


@dataclass
class Operation:
    """One instruction; ``index``, ``place`` and so on mean what `native.cpp` says."""

    code: str
    size: list[int] = field(default_factory=lambda: [1] * DIMS)
    out: View | None = None
    a: View | None = None
    b: View | None = None
    x: float = 1.0
    y: float = 0.0
    weight: Tensor | None = None
    bias: Tensor | None = None
    inputs: int = 0
    outs: int = 0
    place: int = 0
    index: int = 0
    half: bool = False


def merge(size: list[int], views: list[View], keep_last: bool = False) -> list[int]:
    """Put dimensions together where all views allow it; sizes of at most four, the strides changed in place."""
    last = len(size) - 1
    for dim in range(last, -1, -1):
        if size[dim] == 1 and len(size) > 1 and not (keep_last and dim == len(size) - 1):
            del size[dim]
            for view in views:
                del view.stride[dim]
    dim = len(size) - 1 - keep_last
    while dim > 0:
        if all(view.stride[dim - 1] == view.stride[dim] * size[dim] for view in views):
            outer = size.pop(dim - 1)
            size[dim - 1] *= outer
            for view in views:
                del view.stride[dim - 1]
        dim -= 1
    if len(size) > DIMS:
        raise CannotRecord(f"a tensor of {len(size)} dimensions")
    missing = DIMS - len(size)
    for view in views:
        view.stride = [0] * missing + view.stride
    return [1] * missing + size
