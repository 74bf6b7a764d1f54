"""The MLP speculator (Wertheimer et al. 2024, "Accelerating Production LLMs with Combined Token/Embedding
Speculators").

Its LSTM sibling is Snowflake's Arctic speculator (Wang et al. 2025, "Arctic Inference").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from semiar.drafters.chain import ChainDrafter
from semiar.drafters.facts import Distant, Facts, Recent
from semiar.drafters.memory import Memory
from semiar.drafters.registry import register
from semiar.drafters.settings import LearnedSettings
from semiar.settings import at_least, one_of
from semiar.targets.target import Target

CELLS = ("mlp", "lstm")


@dataclass(frozen=True)
class MLPSettings(LearnedSettings):
    """The MLP speculator."""

    architecture: str = "mlp"
    cell: str = "mlp"
    """mlp (projection, norm and GELU) or lstm (the same with gates and a cell state, Arctic)."""
    tied: bool = True
    """Whether all steps share their weights."""
    width: float = 0.0
    """Size of the state in hidden sizes; 0 = 2 for a tied mlp, else 1, which makes them alike in size."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, cell=CELLS)
        at_least(self, width=0)


class Speculator(nn.Module):
    """One step: ``state = GELU(norm(w_s P state + w_e E e(d)))``, or the same as the candidate of a gated cell.

    The weights keep the state's energy: what h_t brought is down to half of it after the last step.
    """

    def __init__(self, size: int, inputs: int, width: int, steps: int, gated: bool):
        super().__init__()
        parts = 4 if gated else 1
        keep = 0.5 ** (0.5 / steps)
        self.share = math.sqrt((1 - keep**2) / 2) / keep
        self.project = nn.Linear(inputs, parts * width, bias=False)
        self.token = nn.Linear(size, parts * width, bias=False)
        nn.init.normal_(self.token.weight, std=size**-0.5)
        self.norm = nn.LayerNorm(width)
        self.cell_norm = nn.LayerNorm(width) if gated else None
        self.out = nn.Linear(width, size, bias=False)
        nn.init.zeros_(self.out.weight)

    def forward(self, embedded: Tensor, state: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Embeddings (B, A, H), state (B, A, inputs) and cell (B, A, width) to the new state and cell."""
        mixed = self.project(state) + self.share * self.token(embedded.to(self.token.weight.dtype))
        if self.cell_norm is None:
            return F.gelu(self.norm(mixed)), None
        forget, write, show, candidate = mixed.chunk(4, -1)
        fresh = F.gelu(self.norm(candidate)) * write.sigmoid()
        cell = fresh if cell is None else cell * forget.sigmoid() + fresh
        return F.gelu(self.cell_norm(cell)) * show.sigmoid(), cell


@register("mlp")
class MLPDrafter(ChainDrafter):
    """The state starts as h_t, at half the energy, and takes in one drafted token after another."""

    Settings = MLPSettings
    FACTS = Facts(
        "MLP speculator", "a state that starts as the target's last one and takes in one drafted token after another",
        "Accelerating Production LLMs with Combined Token/Embedding Speculators (Wertheimer et al. 2024)",
        Distant.LAST_STATE, Recent.ADDED,
    )  # fmt: skip

    def __init__(
        self, settings: MLPSettings, target: Target, vocab: Tensor | None, embedding_scale: float | None = None
    ):
        super().__init__(settings, target, vocab, embedding_scale)
        steps, gated, tied = settings.num_speculative_tokens, settings.cell == "lstm", settings.tied
        width = round(self.size * (settings.width or (2 if tied and not gated else 1)))
        self.norm = nn.LayerNorm(self.size, elementwise_affine=False)
        self.first = nn.Linear(self.size, width, bias=False) if tied else None  # a tied step reads what it writes
        inputs = [width if tied or index else self.size for index in range(1 if tied else steps)]
        self.steps = nn.ModuleList(Speculator(self.size, one, width, steps, gated) for one in inputs)

    def begin(self, hidden: Tensor) -> tuple[Tensor, Tensor, None]:
        last = hidden[:, :, -1]
        state = self.norm(last.to(self.steps[0].norm.weight.dtype)) * 0.5**0.5  # type: ignore[union-attr,arg-type]
        return last, state if self.first is None else self.first(state), None

    def step(self, ids: Tensor, inner: Any, index: int, memory: Memory | None) -> tuple[Tensor, Any]:
        last, state, cell = inner
        speculator = self.steps[0 if self.settings.tied else index]
        assert isinstance(speculator, Speculator)
        state, cell = speculator(self.embed(ids), state, cell)
        return last + speculator.out(state), (last, state, cell)
