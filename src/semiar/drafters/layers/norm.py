"""Root-mean-square norm that works in its own weight's precision."""

from __future__ import annotations

from torch import Tensor, nn

EPSILON = 1e-6


class RMSNorm(nn.RMSNorm):
    """`nn.RMSNorm` for inputs of any float type; the output has the weight's type."""

    def __init__(self, size: int, epsilon: float = EPSILON):
        super().__init__(size, eps=epsilon)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))
