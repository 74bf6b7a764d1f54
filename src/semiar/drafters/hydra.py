"""Hydra heads ("Hydra: Sequentially-Dependent Draft Heads for Medusa Decoding", Ankner et al. 2024), no Hydra++."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from semiar.drafters.base import DrafterSettings, register
from semiar.drafters.memory import Memory
from semiar.drafters.own_heads import BlockOptions, HeadedDrafter, ResidualBlock
from semiar.errors import ConfigError
from semiar.targets.target import Target

SKIPS = ("state", "linear")


@dataclass(frozen=True)
class HydraOptions(BlockOptions):
    """What Hydra has."""

    blocks: int = 1
    """Residual blocks of each step; the first one reads the drafted tokens, too."""
    skip: str = "state"
    """What goes past the first block: state (h_t itself) or linear (a matrix on all that is read, as the original)."""

    def __post_init__(self) -> None:
        BlockOptions.__post_init__(self)
        if self.skip not in SKIPS:
            raise ConfigError(f"skip '{self.skip}'", " or ".join(SKIPS))


class GroundedBlock(nn.Module):
    """``R x + silu(A x)`` for x = [h_t; e(d_1)..e(d_k)]; it starts as h_t."""

    def __init__(self, size: int, extra: int):
        super().__init__()
        self.linear, self.res_connection = (nn.Linear(size + extra, size) for _ in range(2))
        for layer in (self.linear, self.res_connection):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        nn.init.eye_(self.res_connection.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.linear.weight.dtype)
        return self.res_connection(x) + F.silu(self.linear(x))


@register("hydra")
class HydraDrafter(HeadedDrafter):
    """Step k guesses from h_t and the embeddings of d_1..d_k side by side, by an MLP of its own that grows with k."""

    Options = HydraOptions

    def __init__(
        self, settings: DrafterSettings, target: Target, vocab: Tensor | None, embedding_scale: float | None = None
    ):
        super().__init__(settings, target, vocab, embedding_scale)
        first = ResidualBlock if self.options.skip == "state" else GroundedBlock
        self.steps = nn.ModuleList(
            nn.Sequential(
                first(self.size, self.size * (index + 1)),
                *(ResidualBlock(self.size) for _ in range(self.options.blocks - 1)),
            )
            for index in range(settings.num_speculative_tokens)
        )

    def begin(self, hidden: Tensor) -> Tensor:
        return hidden[:, :, -1]

    def step(self, ids: Tensor, inner: Tensor, index: int, memory: Memory | None) -> tuple[Tensor, Tensor]:
        inner = torch.cat([inner, self.embed(ids)], -1)  # (B, A, (k + 1) H)
        return self.steps[index](inner), inner
