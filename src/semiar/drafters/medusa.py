"""Medusa ("Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads", Cai et al. 2024)."""

from __future__ import annotations

from torch import Tensor, nn

from semiar.drafters.base import DrafterSettings, register
from semiar.drafters.memory import Memory
from semiar.drafters.own_heads import BlockOptions, HeadedDrafter, ResidualBlock
from semiar.targets.target import Target


@register("medusa")
class MedusaDrafter(HeadedDrafter):
    """Every step k guesses from h_t alone, by residual blocks of its own ``h + silu(A_k h)``; drafts are not read."""

    Options = BlockOptions

    def __init__(
        self, settings: DrafterSettings, target: Target, vocab: Tensor | None, embedding_scale: float | None = None
    ):
        super().__init__(settings, target, vocab, embedding_scale)
        self.steps = nn.ModuleList(
            nn.Sequential(*(ResidualBlock(self.size) for _ in range(self.options.blocks)))
            for _ in range(settings.num_speculative_tokens)
        )

    def begin(self, hidden: Tensor) -> Tensor:
        return hidden[:, :, -1]

    def step(self, ids: Tensor, inner: Tensor, index: int, memory: Memory | None) -> tuple[Tensor, Tensor]:
        return self.steps[index](inner), inner
