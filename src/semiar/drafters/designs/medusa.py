"""Medusa ("Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads", Cai et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from semiar.drafters.facts import Distant, Facts, Recent
from semiar.drafters.headed import BlockSettings, HeadedDrafter, ResidualBlock
from semiar.drafters.memory import Memory
from semiar.drafters.originals import Original, Tensors, blocks, headed, residual, stripped
from semiar.drafters.registry import register
from semiar.targets.target import Target


@dataclass(frozen=True)
class MedusaSettings(BlockSettings):
    """Medusa."""

    architecture: str = "medusa"


@register("medusa")
class MedusaDrafter(HeadedDrafter):
    """Every step k guesses from h_t alone, by residual blocks of its own ``h + silu(A_k h)``; drafts are not read."""

    Settings = MedusaSettings
    FACTS = Facts(
        "Medusa", "a head for every step guesses from the target's last state alone; drafts are not read",
        "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads (Cai et al. 2024)",
        Distant.LAST_STATE, Recent.NOTHING, original="Medusa",
    )  # fmt: skip

    def __init__(
        self, settings: MedusaSettings, target: Target, vocab: Tensor | None, embedding_scale: float | None = None
    ):
        super().__init__(settings, target, vocab, embedding_scale)
        self.steps = nn.ModuleList(
            nn.Sequential(*(ResidualBlock(self.size) for _ in range(settings.blocks)))
            for _ in range(settings.num_speculative_tokens)
        )

    def begin(self, hidden: Tensor) -> Tensor:
        return hidden[:, :, -1]

    def step(self, ids: Tensor, inner: Tensor, index: int, memory: Memory | None) -> tuple[Tensor, Tensor]:
        return self.steps[index](inner), inner

    @classmethod
    def original(cls, tensors: Tensors, target: Target) -> Original:
        """Medusa: ``K.L.linear`` is block L of head K, ``K.N.weight`` behind N blocks its matrix (may be absent)."""
        tensors = stripped(tensors, "medusa_head.")
        count, number = blocks(tensors, "", "0.0.linear.weight")
        weights = residual(tensors, "", count, number)
        own = {f"own.{head}.weight": tensors[f"{head}.{number}.weight"] for head in headed(tensors, count, number)}
        heads = "own" if len(own) == count else "shared"
        return Original(count, {"blocks": number, "heads": heads}, weights | own)
