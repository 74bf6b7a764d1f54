"""PyTorch's way to matrices that lie as oneDNN's kernels read them.  Nothing of it is public: it is all in this file.

Three operators that PyTorch's own compiler uses when it freezes a graph.  Their names and arguments may change with any
release; `tests/targets/engines/test_private.py` says when they do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LINEAR, REORDER, BFLOAT16 = "_linear_pointwise", "_reorder_linear_weight", "_is_mkldnn_bf16_supported"


def operators() -> dict[str, Any]:
    """The private operators of ``torch.ops.mkldnn`` by name; none where this build of PyTorch lacks one of them."""
    found = {name: getattr(torch.ops.mkldnn, name, None) for name in (LINEAR, REORDER, BFLOAT16)}
    return {} if None in found.values() else found


FOUND = operators()
PRODUCT = FOUND[LINEAR].default if FOUND else None  # what `product` is in a traced graph


def available(dtype: torch.dtype) -> bool:
    """Whether this build and processor can lay matrices of this type out and multiply with them."""
    if not FOUND or not torch.backends.mkldnn.is_available():
        return False
    return dtype != torch.bfloat16 or bool(FOUND[BFLOAT16]())


def lay_out(weight: Tensor, rows: int) -> Tensor:
    """A matrix (out, in) as the kernel for inputs (rows, in) reads it: an opaque tensor."""
    return FOUND[REORDER](weight, rows)


def product(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias`` with a weight that `lay_out` gave."""
    assert PRODUCT is not None, "lay_out comes first"
    return PRODUCT(x, packed, bias, "none", [], "")
