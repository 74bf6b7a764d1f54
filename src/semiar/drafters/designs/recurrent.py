"""ReDrafter (Zhang et al. 2024, "Recurrent Drafter for Fast Speculative Decoding in Large Language Models")."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from semiar.drafters.facts import Distant, Facts, Recent
from semiar.drafters.head_drafter import unit_scale
from semiar.drafters.headed import BlockSettings, HeadedDrafter, ResidualBlock
from semiar.drafters.memory import Memory
from semiar.drafters.originals import PARTS, Original, Tensors, stripped, take
from semiar.drafters.registry import register
from semiar.settings import one_of
from semiar.targets.target import Target

FIRSTS = ("cell", "token")


@dataclass(frozen=True)
class RecurrentSettings(BlockSettings):
    """ReDrafter."""

    architecture: str = "recurrent"
    first: str = "cell"
    """State after d_1: cell (as after any token, from zero) or token (without the bias, which the original adds to
    the state before)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, first=FIRSTS)


@register("recurrent")
class RecurrentDrafter(HeadedDrafter):
    """s_k = silu(W e(d_k) + U s_{k-1}); residual blocks on [h_t; s_k], the same for all steps.

    An own head reads what comes out (2H); for the shared head a zero-initialised projection is added to h_t.
    """

    Settings = RecurrentSettings
    FACTS = Facts(
        "ReDrafter", "a recurrent state over the drafted tokens beside the target's last state",
        "Recurrent Drafter for Fast Speculative Decoding in Large Language Models (Zhang et al. 2024)",
        Distant.LAST_STATE, Recent.RECURRENT, original="ReDrafter",
    )  # fmt: skip
    tied_heads = True

    def __init__(
        self, settings: RecurrentSettings, target: Target, vocab: Tensor | None, embedding_scale: float | None = None
    ):
        super().__init__(settings, target, vocab, embedding_scale)
        size = self.size
        self.token, self.state = nn.Linear(size, size), nn.Linear(size, size, bias=False)
        self.blocks = nn.Sequential(*(ResidualBlock(2 * size) for _ in range(settings.blocks)))
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
        if index == 0 and self.settings.first == "token":
            read = read - self.token.bias
        state = F.silu(read)
        joined = self.blocks(torch.cat([last.to(state.dtype), state], -1))
        return joined if self.project is None else last + self.project(joined), (last, state)

    @classmethod
    def original(cls, tensors: Tensors, target: Target) -> Original:
        """ReDrafter: ``rnn_w`` reads the token, ``rnn_u`` (biased) the state; ``lm_head`` is blocks, then a matrix."""
        tensors = stripped(tensors, "drafter.")
        number = len({name for name in tensors if re.fullmatch(r"lm_head\.\d+\.linear\.weight", name)})
        weights = {
            "token.weight": take(tensors, "rnn_w.weight") / unit_scale(target),
            "token.bias": take(tensors, "rnn_u.bias"),
            "state.weight": take(tensors, "rnn_u.weight"),
            "own.0.weight": take(tensors, f"lm_head.{number}.weight"),
        }
        for block in range(number):
            for part in PARTS:
                weights[f"blocks.{block}.linear.{part}"] = take(tensors, f"lm_head.{block}.linear.{part}")
        return Original(None, {"blocks": number, "heads": "own", "first": "token"}, weights)
