"""Parallel drafting with mask tokens ("PARD: Accelerating LLM Inference with Low-Cost PARallel Draft Model Adaptation",
An et al. 2025), at the size of a drafter: all K tokens from one pass of one small layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from semiar.drafters.chain import ChainDrafter
from semiar.drafters.facts import Distant, Facts, Recent
from semiar.drafters.head_drafter import resolve_layers
from semiar.drafters.layers.context_lm import ContextLM
from semiar.drafters.layers.fusion import Features, Fusion
from semiar.drafters.layers.small_lm import count_heads
from semiar.drafters.memory import Memory
from semiar.drafters.registry import register
from semiar.drafters.settings import LAYERS, LearnedSettings
from semiar.settings import at_least, one_of
from semiar.targets.target import Target


@dataclass(frozen=True)
class ParallelSettings(LearnedSettings):
    """Parallel drafting with mask tokens."""

    architecture: str = "parallel"
    layers: str = "last"
    """Target states that are read: last (after the final norm), or low_mid_high (three layers fused with it)."""
    num_layers: int = 1
    """Attention layers."""
    num_heads: int = 0
    """Attention heads; 0 = one per 64 hidden units."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, layers=LAYERS)
        at_least(self, num_layers=1, num_heads=0)


@register("parallel")
class ParallelDrafter(ChainDrafter):
    """The layer of a `context` semi-autoregressive drafter, asked at d_1 and at K - 1 learned masks after it, at once.

    The distant past is all of the target's states; of the recent tokens only d_1 is read.
    """

    Settings = ParallelSettings
    FACTS = Facts(
        "parallel (PARD)", "all K tokens at once, from one layer over the target's states and learned mask tokens",
        "PARD: Accelerating LLM Inference with Low-Cost PARallel Draft Model Adaptation (An et al. 2025)",
        Distant.ALL_STATES, Recent.NOTHING,
    )  # fmt: skip

    def __init__(
        self, settings: ParallelSettings, target: Target, vocab: Tensor | None, embedding_scale: float | None = None
    ):
        super().__init__(settings, target, vocab, embedding_scale, resolve_layers(settings.layers, target))
        count, heads = settings.num_speculative_tokens, count_heads(settings.num_heads, self.size)
        self.features = Features(self.size, len(self.layers))
        self.lm = ContextLM(self.size, heads, settings.num_layers, count)
        self.masks = nn.Embedding(count, self.size)  # the first one stands for d_1 and is not used
        self.fuse = Fusion(self.size, with_distant=True)

    def begin(self, hidden: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        return hidden[:, :, -1], self.features(hidden), []

    def step(self, ids: Tensor, inner: Any, index: int, memory: Memory | None) -> tuple[Tensor, Any]:
        last, distant, states = inner
        if not index:
            assert memory is not None
            first = self.embed(ids)[:, :, None]
            masks = self.masks.weight[1:].to(first.dtype).expand(*ids.shape, -1, -1)
            recent = self.lm.at_once(torch.cat([first, masks], 2), distant, memory)
            states = list(self.fuse(last[:, :, None], distant[:, :, None].expand_as(recent), recent, 0).unbind(2))
        return states[index], (last, distant, states)

    def memory_shape(self) -> tuple[int, int, int]:
        return len(self.lm.blocks), self.lm.heads, self.lm.size // self.lm.heads

    def remember(self, hidden: Tensor, tokens: Tensor, positions: Tensor, memory: Memory) -> None:
        self.lm.remember(self.features(hidden), self.embed(tokens[:, 1:]), None, positions, memory)
