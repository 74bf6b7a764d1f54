"""Output matrices of the drafter's own, where the original design has them, and the block that stands before them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from semiar.drafters.chain import ChainDrafter
from semiar.drafters.layers.heads import DraftHead
from semiar.drafters.settings import LearnedSettings
from semiar.settings import at_least, one_of
from semiar.targets.target import Target

HEADS = ("shared", "own")


class ResidualBlock(nn.Module):
    """Medusa's ``x + silu(A x)``, zero-initialised.  A may read more than x: ``extra`` further units behind it."""

    def __init__(self, size: int, extra: int = 0):
        super().__init__()
        self.size = size
        self.linear = nn.Linear(size + extra, size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., size + extra) to (..., size)."""
        x = x.to(self.linear.weight.dtype)
        return x[..., : self.size] + F.silu(self.linear(x))


@dataclass(frozen=True)
class HeadedSettings(LearnedSettings):
    """Which output matrices a drafter has."""

    heads: str = "shared"
    """shared (the target's rows with a low-rank update, for all steps) or own (whole matrices, trained and saved)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, heads=HEADS)


@dataclass(frozen=True)
class BlockSettings(HeadedSettings):
    """The same, and residual blocks."""

    blocks: int = 2
    """Residual blocks before the heads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, blocks=1)


class HeadedDrafter(ChainDrafter):
    """A chain drafter whose output matrices may be its own (``heads`` own, as the originals have them).

    Own matrices start as the target's rows and have no low-rank update.  One matrix serves all steps where
    ``tied_heads`` says so, else each step has its own.
    """

    tied_heads = False

    def __init__(
        self, settings: BlockSettings, target: Target, vocab: Tensor | None, embedding_scale: float | None = None
    ):
        super().__init__(settings, target, vocab, embedding_scale)
        self.own: nn.ModuleList | None = None
        if settings.heads == "own":
            self.draft_head = DraftHead(self.size, self.rows, 0)
            count = 1 if self.tied_heads else settings.num_speculative_tokens
            self.own = nn.ModuleList(self._matrix(target, vocab) for _ in range(count))

    def head_width(self) -> int:
        """Units of the state that own matrices read; h_t comes first."""
        return self.size

    @torch.no_grad()
    def _matrix(self, target: Target, vocab: Tensor | None) -> nn.Linear:
        ids = torch.arange(target.vocab_size) if vocab is None else vocab
        weight, bias = target.head_rows(ids.to(target.device))
        own = nn.Linear(self.head_width(), self.rows, bias=bias is not None)
        own.weight.zero_()
        own.weight[:, : self.size] = weight
        if bias is not None:
            own.bias.copy_(bias)
        return own

    def head(self, state: Tensor, step: int | Tensor) -> Tensor:
        if self.own is None:
            return self.draft_head(state)
        state = state.to(self.own[0].weight.dtype)  # type: ignore[arg-type]
        if len(self.own) == 1 or isinstance(step, int):
            return self.draft_head.finish(
                self.own[0 if isinstance(step, Tensor) or len(self.own) == 1 else step](state)
            )
        logits = torch.cat([own(state[step == index]) for index, own in enumerate(self.own)])
        return self.draft_head.finish(logits[step.argsort(stable=True).argsort()])

    def head_parameters(self) -> list[nn.Parameter]:
        return super().head_parameters() if self.own is None else list(self.own.parameters())
