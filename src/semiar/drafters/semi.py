"""The semi-autoregressive drafter ("Semi-autoregressive Decoding for Efficient LLM Inference").

The target's own state h_p, computed when the last verified token was, carries the distant past; a small language model
h_q over the tokens drafted since carries the recent ones; a fusion gives the vector that the draft head reads:
``q(x_{t+1+k} | x_1..x_t, d_1..d_k) = softmax(Head(Fuse(h_p, h_q(d_1..d_k))))``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from semiar.drafters.base import DrafterSettings, register, resolve_layers
from semiar.drafters.chain import ChainDrafter
from semiar.drafters.context_lm import ContextLM
from semiar.drafters.fusion import Features, build_fusion
from semiar.drafters.hf_lm import HFSmallLM
from semiar.drafters.memory import Memory
from semiar.drafters.small_lm import build_small_lm, count_heads
from semiar.errors import ConfigError
from semiar.targets.target import Target


@dataclass(frozen=True)
class SemiOptions:
    """What the semi-autoregressive drafter has beside the general settings."""

    induction: bool = True
    """With small_lm context: keys know the token before their own, and half the heads start by looking for the newest
    token there (see `context_lm`); h_q also goes to the head directly."""


@register("semi")
class SemiDrafter(ChainDrafter):
    """h_p from the target, h_q from a small LM, fused by an MLP; see `DrafterSettings` for the choices."""

    Options = SemiOptions
    reads = ("layers", "small_lm", "small_lm_model", "fusion", "num_layers", "num_heads", "bias_rank")

    def __init__(
        self,
        settings: DrafterSettings,
        target: Target,
        vocab: Tensor | None,
        embedding_scale: float | None = None,
        hf_config: dict[str, Any] | None = None,
        induction: bool | None = None,
    ):
        super().__init__(settings, target, vocab, embedding_scale, resolve_layers(settings, target))
        size, saved = self.size, embedding_scale is not None
        if settings.small_lm != "context" and "induction" in settings.options:
            raise ConfigError(f"option induction with small_lm {settings.small_lm}", "small_lm context")
        if induction is None:  # drafters saved before there was a choice have none
            induction = settings.small_lm == "context" and not saved and self.options.induction
        self.features = Features(size, len(self.layers)) if settings.reads_features else None
        if settings.small_lm == "context":
            self.lm: Any = ContextLM(
                size, count_heads(settings, size), settings.num_layers, settings.num_speculative_tokens, induction
            )
        elif settings.small_lm == "hf":
            self.lm = HFSmallLM(settings.small_lm_model, size, hf_config)
        elif settings.small_lm == "none":
            self.lm = None
        else:
            self.lm = build_small_lm(settings, size)
        self.fuse = build_fusion(settings, size, self.rows, induction)
        self.compilable = settings.small_lm != "hf"

    def extra_config(self) -> dict[str, Any]:
        extra = super().extra_config()
        if isinstance(self.lm, HFSmallLM):
            extra["hf_config"] = self.lm.config()
        if isinstance(self.lm, ContextLM):
            extra["induction"] = self.lm.before is not None
        return extra

    @classmethod
    def structure(cls, settings: DrafterSettings, extra: dict[str, Any]) -> dict[str, Any]:
        return {"induction": extra.get("induction", False)}

    def distant(self, hidden: Tensor) -> Tensor:
        """h_p (B, n, H) of states (B, n, F, H), as h_q and the fusion read it."""
        return hidden[:, :, -1] if self.features is None else self.features(hidden)

    def begin(self, hidden: Tensor) -> tuple[Tensor, Tensor, Any]:
        distant = self.distant(hidden)
        return hidden[:, :, -1], distant, None if self.lm is None else self.lm.begin(distant)

    def step(self, ids: Tensor, inner: Any, index: int, memory: Memory | None) -> tuple[Tensor, Any]:
        (last, distant, seen), recent = inner, None
        if memory is not None:
            recent, seen = self.lm.step(self.embed(ids), seen, memory)
        elif self.lm is not None:
            recent, seen = self.lm.step(ids, self.embed(ids), seen)
        return self.fuse(last, distant, recent, index), (last, distant, seen)

    def memory_shape(self) -> tuple[int, int, int] | None:
        if not isinstance(self.lm, ContextLM):
            return None
        return len(self.lm.blocks), self.lm.heads, self.lm.size // self.lm.heads

    def remember(self, hidden: Tensor, tokens: Tensor, positions: Tensor, memory: Memory) -> None:
        before = None if self.lm.before is None else self.embed(tokens[:, :-1])
        self.lm.remember(self.distant(hidden), self.embed(tokens[:, 1:]), before, positions, memory)

    def carry(self, inner: Any, change: Callable[[Tensor], Tensor]) -> Any:
        if not isinstance(self.lm, HFSmallLM):
            return super().carry(inner, change)
        last, distant, seen = inner
        return change(last), change(distant), self.lm.carry(seen, change, len(last))

    def head(self, state: Tensor, step: int | Tensor) -> Tensor:
        return self.fuse.logits(self.draft_head, state)

    def head_parameters(self) -> list[nn.Parameter]:
        bias = getattr(self.fuse, "bias", None)
        return super().head_parameters() + ([] if bias is None else list(bias.parameters()))
