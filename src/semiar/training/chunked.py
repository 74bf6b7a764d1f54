"""Head and loss in chunks, so that a (positions, vocabulary) tensor never exists as a whole.

The forward pass of each chunk also computes its gradients and keeps only those; the backward pass scales them.  Nothing
is computed twice, and any differentiable chunk function will do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, function: Callable[..., Tensor], size: int, count: int, first: Tensor, *rest: Tensor
    ) -> Tensor:
        others, parameters = rest[: count - 1], rest[count - 1 :]
        total = first.new_zeros((), dtype=torch.float32)
        grad_first = torch.zeros_like(first)
        grads = [torch.zeros_like(p) for p in parameters]
        for start in range(0, len(first), size):
            piece = first[start : start + size].detach().requires_grad_()
            with torch.enable_grad():
                loss = function(piece, *(o[start : start + size] for o in others))
            found = torch.autograd.grad(loss, [piece, *parameters], allow_unused=True)
            total += loss.detach().float()
            if found[0] is not None:
                grad_first[start : start + size] = found[0]
            for grad, new in zip(grads, found[1:], strict=True):
                if new is not None:
                    grad += new
        ctx.save_for_backward(grad_first, *grads)
        ctx.others = len(others)
        return total

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        grad_first, *grads = ctx.saved_tensors
        scale = outer[0]
        return (
            None,
            None,
            None,
            grad_first * scale.to(grad_first.dtype),
            *([None] * ctx.others),
            *(grad * scale.to(grad.dtype) for grad in grads),
        )


def chunked_sum(
    function: Callable[..., Tensor], rows: Sequence[Tensor], parameters: Sequence[Tensor], size: int = 2048
) -> Tensor:
    """``function(*rows)`` for a function that sums over rows, evaluated `size` rows at a time.

    ``rows[0]`` (n, D) may need a gradient; the other rows (n, ...) are constants.  ``parameters`` are the trainable
    tensors that `function` uses.  Without gradients being recorded it simply adds up the chunks.
    """
    first, *others = rows
    if not torch.is_grad_enabled():
        total = first.new_zeros((), dtype=torch.float32)
        for start in range(0, len(first), size):
            total += function(*(r[start : start + size] for r in rows)).float()
        return total
    return _Chunked.apply(function, size, len(rows), first, *others, *parameters)  # type: ignore[return-value]
