"""The semi-autoregressive drafter ("Semi-autoregressive Decoding for Efficient LLM Inference").

The target's own state h_p, computed when the last verified token was, carries the distant past; a small language model
h_q over the tokens drafted since carries the recent ones; a fusion gives the vector that the draft head reads:
``q(x_{t+1+k} | x_1..x_t, d_1..d_k) = softmax(Head(Fuse(h_p, h_q(d_1..d_k))))``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from semiar.drafters.base import DrafterSettings, register, resolve_layers
from semiar.drafters.chain import ChainDrafter
from semiar.drafters.context_lm import ContextLM
from semiar.drafters.fusion import Features, build_fusion
from semiar.drafters.hf_lm import HFSmallLM
from semiar.drafters.memory import Memory
from semiar.drafters.small_lm import build_small_lm, count_heads
from semiar.targets.target import Target


@register("semi")
class SemiDrafter(ChainDrafter):
    """h_p from the target, h_q from a small LM, fused by an MLP; see `DrafterSettings` for the choices."""

    reads = ("layers", "small_lm", "small_lm_model", "fusion", "num_layers", "num_heads", "bias_rank")

    def __init__(
        self,
        settings: DrafterSettings,
        target: Target,
        vocab: Tensor | None,
        embedding_scale: float | None = None,
        hf_config: dict[str, Any] | None = None,
    ):
        super().__init__(settings, target, vocab, embedding_scale, resolve_layers(settings, target))
        size = self.size
        self.features = Features(size, len(self.layers)) if settings.reads_features else None
        if settings.small_lm == "context":
            self.lm: Any = ContextLM(
                size, count_heads(settings, size), settings.num_layers, settings.num_speculative_tokens
            )
        elif settings.small_lm == "hf":
            self.lm = HFSmallLM(settings.small_lm_model, size, hf_config)
        elif settings.small_lm == "none":
            self.lm = None
        else:
            self.lm = build_small_lm(settings, size)
        self.fuse = build_fusion(settings, size, self.rows)
        self.compilable = settings.small_lm != "hf"

    def extra_config(self) -> dict[str, Any]:
        extra = super().extra_config()
        if isinstance(self.lm, HFSmallLM):
            extra["hf_config"] = self.lm.config()
        return extra

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
        self.lm.remember(self.distant(hidden), self.embed(tokens[:, 1:]), positions, memory)

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
