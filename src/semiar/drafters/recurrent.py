"""ReDrafter (Zhang et al. 2024, "Recurrent Drafter for Fast Speculative Decoding in Large Language Models")."""

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

FIRSTS = ("cell", "token")


@dataclass(frozen=True)
class RecurrentOptions(BlockOptions):
    """What ReDrafter has."""

    first: str = "cell"
    """State after d_1: cell (as after any token, from zero) or token (without the bias, which the original adds to
    the state before)."""

    def __post_init__(self) -> None:
        BlockOptions.__post_init__(self)
        if self.first not in FIRSTS:
            raise ConfigError(f"first '{self.first}'", " or ".join(FIRSTS))


@register("recurrent")
class RecurrentDrafter(HeadedDrafter):
    """s_k = silu(W e(d_k) + U s_{k-1}); residual blocks on [h_t; s_k], the same for all steps.

    An own head reads what comes out (2H); for the shared head a zero-initialised projection is added to h_t.
    """

    Options = RecurrentOptions
    tied_heads = True

    def __init__(
        self, settings: DrafterSettings, target: Target, vocab: Tensor | None, embedding_scale: float | None = None
    ):
        super().__init__(settings, target, vocab, embedding_scale)
        size = self.size
        self.token, self.state = nn.Linear(size, size), nn.Linear(size, size, bias=False)
        self.blocks = nn.Sequential(*(ResidualBlock(2 * size) for _ in range(self.options.blocks)))
        self.project = nn.Linear(2 * size, size, bias=False) if self.own is None else None
        if self.project is not None:
            nn.init.zeros_(self.project.weight)

    def head_width(self) -> int:
        return 2 * self.size

    def begin(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        last = hidden[:, :, -1]
        return last, torch.zeros_like(last)

    def step(
        self, ids: Tensor, inner: tuple[Tensor, Tensor], index: int, memory: Memory | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        (last, state), embedded = inner, self.embed(ids).to(self.token.weight.dtype)
        state = state.to(embedded.dtype)
        read = self.token(embedded) + self.state(state)
        if index == 0 and self.options.first == "token":
            read = read - self.token.bias
        state = F.silu(read)
        joined = self.blocks(torch.cat([last.to(state.dtype), state], -1))
        return joined if self.project is None else last + self.project(joined), (last, state)
