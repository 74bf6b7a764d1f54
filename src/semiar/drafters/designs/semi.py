"""The semi-autoregressive drafter ("Semi-autoregressive Decoding for Efficient LLM Inference").

The target's own state h_p, computed when the last verified token was, carries the distant past; a small language model
h_q over the tokens drafted since carries the recent ones; a fusion gives the vector that the draft head reads:
``q(x_{t+1+k} | x_1..x_t, d_1..d_k) = softmax(Head(Fuse(h_p, h_q(d_1..d_k))))``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor, nn

from semiar.drafters.chain import ChainDrafter
from semiar.drafters.facts import Distant, Facts, Recent
from semiar.drafters.head_drafter import resolve_layers
from semiar.drafters.layers.context_lm import ContextLM
from semiar.drafters.layers.fusion import AdditiveFusion, Features, Fusion, ParallelFusion
from semiar.drafters.layers.hf_lm import HFSmallLM
from semiar.drafters.layers.small_lm import DraftedAttention, FixedAttention, Recurrent, SmallLM, count_heads
from semiar.drafters.memory import Memory
from semiar.drafters.registry import register
from semiar.drafters.settings import LAYERS, LearnedSettings
from semiar.errors import ConfigError
from semiar.settings import at_least, one_of
from semiar.targets.target import Target

SMALL_LMS = ("context", "lstm", "gru", "rnn", "fixed_attention", "attention", "hf", "none")
FUSIONS = ("concat", "initial_state", "both", "additive")


@dataclass(frozen=True)
class SemiSettings(LearnedSettings):
    """The semi-autoregressive drafter: which h_q, and how it meets h_p."""

    architecture: str = "semi"
    layers: str = "last"
    """Target states that are read: last (after the final norm), or low_mid_high (three layers fused with it)."""
    small_lm: str = "context"
    """h_q: context, lstm, gru, rnn, fixed_attention, attention, hf or none."""
    small_lm_model: str = ""
    """With small_lm hf: the tiny causal LM (hub id or folder) that reads the drafted tokens."""
    fusion: str = "concat"
    """How h_p and h_q meet: concat, initial_state, both or additive."""
    num_layers: int = 1
    """Attention layers of context and attention."""
    num_heads: int = 0
    """Attention heads; 0 = one per 64 hidden units."""
    bias_rank: int = 256
    """With fusion additive: rank of the bias that h_q adds to the logits."""
    induction: bool = True
    """With small_lm context: keys know the token before their own, and half the heads start by looking for the newest
    token there; h_q also goes to the head directly."""

    inherited: ClassVar[tuple[str, ...]] = ("induction",)

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, layers=LAYERS, small_lm=SMALL_LMS, fusion=FUSIONS)
        at_least(self, num_layers=1, num_heads=0, bias_rank=1)
        if self.small_lm in ("context", "hf") and self.fusion in ("initial_state", "both"):
            raise ConfigError(
                f"small_lm {self.small_lm} with fusion {self.fusion}", "concat or additive: it has no state"
            )
        if self.small_lm == "none" and self.fusion != "concat":
            raise ConfigError(f"small_lm none with fusion {self.fusion}", "concat: there is no h_q to fuse")
        if self.layers != "last" and not self.reads_features:
            raise ConfigError(
                f"layers {self.layers} with small_lm {self.small_lm} and fusion {self.fusion}",
                "last: only the state that the output head reads is used there",
            )
        if self.small_lm != "context" and not self.induction:
            raise ConfigError(f"induction false with small_lm {self.small_lm}", "small_lm context, or to leave it out")

    @property
    def reads_features(self) -> bool:
        """Whether h_p is also read through `Features`, and not only by the heads."""
        return self.small_lm == "context" or (self.small_lm != "none" and self.fusion != "additive")


@register("semi")
class SemiDrafter(ChainDrafter):
    """h_p from the target, h_q from a small LM, fused by an MLP; see `SemiSettings` for the choices."""

    Settings = SemiSettings
    FACTS = Facts(
        "semi-autoregressive",
        "the target's own states for the distant past, a small language model for the drafted tokens, fused by an MLP",
        "Semi-autoregressive Decoding for Efficient LLM Inference (2024)",
        Distant.LAST_STATE, Recent.SMALL_LM,
    )  # fmt: skip
    FORMS = (
        *({"small_lm": one, "fusion": "concat"} for one in ("none", "lstm", "gru", "rnn", *SMALL_LMS[4:6], "context")),
        *({"small_lm": "lstm", "fusion": one} for one in FUSIONS[1:]),
    )

    def __init__(
        self,
        settings: SemiSettings,
        target: Target,
        vocab: Tensor | None,
        embedding_scale: float | None = None,
        hf_config: dict[str, Any] | None = None,
    ):
        super().__init__(settings, target, vocab, embedding_scale, resolve_layers(settings.layers, target))
        size, induction = self.size, settings.small_lm == "context" and settings.induction
        self.features = Features(size, len(self.layers)) if settings.reads_features else None
        if settings.small_lm == "context":
            heads, count = count_heads(settings.num_heads, size), settings.num_speculative_tokens
            self.lm: Any = ContextLM(size, heads, settings.num_layers, count, induction)
        elif settings.small_lm == "hf":
            self.lm = HFSmallLM(settings.small_lm_model, size, hf_config)
        elif settings.small_lm == "none":
            self.lm = None
        else:
            self.lm = build_small_lm(settings, size)
        self.fuse = build_fusion(settings, size, self.rows, induction)
        self.own_steps = "h_q is a Hugging Face model" if settings.small_lm == "hf" else ""

    @classmethod
    def facts(cls, settings: SemiSettings) -> Facts:
        distant = Distant.ALL_STATES if settings.small_lm == "context" else Distant.LAST_STATE
        recent = Recent.NOTHING if settings.small_lm == "none" else Recent.SMALL_LM
        return replace(cls.FACTS, distant=distant, recent=recent, form=settings.small_lm)

    @property
    def label(self) -> str:
        return f"{self.name} ({self.settings.small_lm}, {self.settings.fusion})"

    @classmethod
    def modernised(cls, old: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
        """Drafters saved before there was a choice have no induction."""
        known = super().modernised(old, extra)
        induction = extra.pop("induction", False) or known["small_lm"] != "context"
        return known | {"induction": induction}

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


def build_small_lm(settings: SemiSettings, size: int) -> SmallLM:
    """The recurrent and windowed kinds of h_q."""
    kind, window = settings.small_lm, settings.num_speculative_tokens
    from_distant = settings.fusion in ("initial_state", "both")
    if kind == "fixed_attention":
        return FixedAttention(size, count_heads(settings.num_heads, size), window, from_distant)
    if kind == "attention":
        heads = count_heads(settings.num_heads, size)
        return DraftedAttention(size, heads, settings.num_layers, window, from_distant)
    return Recurrent(kind, size, from_distant)


def build_fusion(settings: SemiSettings, size: int, rows: int, direct: bool) -> Fusion | ParallelFusion:
    """Without an h_q it is Medusa's.  ``direct``: see `Fusion`."""
    if settings.small_lm == "none":
        return ParallelFusion(size, settings.num_speculative_tokens)
    if settings.fusion == "additive":
        return AdditiveFusion(size, settings.num_speculative_tokens, rows, settings.bias_rank)
    return Fusion(size, settings.fusion != "initial_state", direct)
