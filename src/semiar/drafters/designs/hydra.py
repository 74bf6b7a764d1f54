"""Hydra heads ("Hydra: Sequentially-Dependent Draft Heads for Medusa Decoding", Ankner et al. 2024), no Hydra++."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from semiar.drafters.facts import Distant, Facts, Recent
from semiar.drafters.head_drafter import unit_scale
from semiar.drafters.headed import BlockSettings, HeadedDrafter, ResidualBlock
from semiar.drafters.memory import Memory
from semiar.drafters.originals import PARTS, Original, Tensors, blocks, residual, stripped, take
from semiar.drafters.registry import register
from semiar.settings import one_of
from semiar.targets.target import Target

SKIPS = ("state", "linear")


@dataclass(frozen=True)
class HydraSettings(BlockSettings):
    """Hydra."""

    architecture: str = "hydra"
    blocks: int = 1
    """Residual blocks of each step; the first one reads the drafted tokens, too."""
    skip: str = "state"
    """What goes past the first block: state (h_t itself) or linear (a matrix on all that is read, as the original)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, skip=SKIPS)


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

    Settings = HydraSettings
    FACTS = Facts(
        "Hydra", "an MLP for every step reads the target's last state and the drafted tokens' embeddings side by side",
        "Hydra: Sequentially-Dependent Draft Heads for Medusa Decoding (Ankner et al. 2024)",
        Distant.LAST_STATE, Recent.EMBEDDINGS, original="Hydra",
    )  # fmt: skip

    def __init__(
        self, settings: HydraSettings, target: Target, vocab: Tensor | None, embedding_scale: float | None = None
    ):
        super().__init__(settings, target, vocab, embedding_scale)
        first = ResidualBlock if settings.skip == "state" else GroundedBlock
        self.steps = nn.ModuleList(
            nn.Sequential(
                first(self.size, self.size * (index + 1)),
                *(ResidualBlock(self.size) for _ in range(settings.blocks - 1)),
            )
            for index in range(settings.num_speculative_tokens)
        )

    def begin(self, hidden: Tensor) -> Tensor:
        return hidden[:, :, -1]

    def step(self, ids: Tensor, inner: Tensor, index: int, memory: Memory | None) -> tuple[Tensor, Tensor]:
        inner = torch.cat([inner, self.embed(ids)], -1)  # (B, A, (k + 1) H)
        return self.steps[index](inner), inner

    @classmethod
    def original(cls, tensors: Tensors, target: Target) -> Original:
        """Hydra: ``hydra_mlp.K.0`` reads [h; e(d_1)..e(d_K)], with ``res_connection`` past it; ``hydra_lm_head.K``."""
        tensors = stripped(tensors, "hydra_head.")
        scale = unit_scale(target)
        count, number = blocks(tensors, "hydra_mlp.", "hydra_mlp.0.0.res_connection.weight")
        weights = residual(tensors, "hydra_mlp.", count, number)
        for head in range(count):
            for part in PARTS:
                name = f"{head}.0.res_connection.{part}"
                weights[f"steps.{name}"] = take(tensors, f"hydra_mlp.{name}")
            for part in ("linear", "res_connection"):
                name = f"steps.{head}.0.{part}.weight"
                size = weights[name].shape[0]
                weights[name] = torch.cat([weights[name][:, :size], weights[name][:, size:] / scale], 1)
        own = {
            f"own.{i}.weight": t for i in range(count) if (t := tensors.get(f"hydra_lm_head.{i}.weight")) is not None
        }
        heads = "own" if len(own) == count else "shared"
        return Original(count, {"blocks": number, "heads": heads, "skip": "linear"}, weights | own)
