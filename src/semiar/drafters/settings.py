"""The shape of a drafter, and the options that only its architecture knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from semiar.errors import ConfigError

CHOICES = {
    "layers": ("last", "low_mid_high"),
    "small_lm": ("context", "lstm", "gru", "rnn", "fixed_attention", "attention", "hf", "none"),
    "fusion": ("concat", "initial_state", "both", "additive"),
}


@dataclass(frozen=True)
class DrafterSettings:
    """The shape of a drafter; saved with it."""

    architecture: str = "semi"
    """semi (semi-autoregressive), medusa, hydra, recurrent (ReDrafter), mlp (speculator), eagle, skip (early exit),
    parallel (mask tokens), hybrid (lookup before a trained one); lookup, recycling and model need no training; none."""
    num_speculative_tokens: int = 5
    """K: tokens drafted per target pass."""
    draft_vocab_size: int | str = 4096
    """Most frequent answer tokens that can be drafted, or full."""
    layers: str = "last"
    """Target states that are read: last (after the final norm), or low_mid_high (three layers fused with it)."""
    lora_r: int = 64
    """Rank of the low-rank update on the draft head; 0 = the target's own rows."""
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
    options: dict[str, Any] = field(default_factory=dict)
    """What only this architecture knows, as --drafter.options.NAME VALUE; see docs/drafters.md."""

    def __post_init__(self) -> None:
        if self.num_speculative_tokens < 1:
            raise ConfigError(f"num_speculative_tokens {self.num_speculative_tokens}", "at least 1")
        if self.draft_vocab_size != "full" and (isinstance(self.draft_vocab_size, str) or self.draft_vocab_size < 1):
            raise ConfigError(f"draft_vocab_size '{self.draft_vocab_size}'", "a number above 0, or full")
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} '{getattr(self, name)}'", f"{', '.join(known[:-1])} or {known[-1]}")
        for name, least in (("lora_r", 0), ("num_layers", 1), ("num_heads", 0), ("bias_rank", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} {getattr(self, name)}", f"at least {least}")
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

    @property
    def reads_features(self) -> bool:
        """Whether h_p is also read through `Features`, and not only by the heads."""
        return self.small_lm == "context" or (self.small_lm != "none" and self.fusion != "additive")


@dataclass(frozen=True)
class NoOptions:
    """Of an architecture that has none of its own."""


def read_options(kind: type[Any], given: dict[str, Any], name: str) -> Any:
    """An architecture's own options from the settings.  Raises ``ConfigError`` for unknown names and other types."""
    known = {f.name: f for f in fields(kind)}
    for key, value in given.items():
        if key not in known:
            raise ConfigError(f"option '{key}' of drafter {name}", ", ".join(known) or "no options")
        default = known[key].default
        wanted = dict if default is MISSING else type(default)
        if not isinstance(value, (int, float) if wanted is float else wanted) or (wanted is int and value is True):
            raise ConfigError(f"option {key} {value!r} of drafter {name}", f"a value of type {wanted.__name__}")
    return kind(**given)


GENERAL = ("architecture", "num_speculative_tokens", "draft_vocab_size", "options")


def refuse_unused(settings: DrafterSettings, name: str, reads: Sequence[str] = ()) -> None:
    """Raise ``ConfigError`` for a setting beside the general ones and ``reads`` that is not as when left out."""
    for one in fields(DrafterSettings):
        value = getattr(settings, one.name)
        if one.name not in (*GENERAL, *reads) and value != one.default:
            raise ConfigError(f"{one.name} {value} with drafter {name}", "to leave it out")
