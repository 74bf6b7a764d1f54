"""EAGLE ("EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", Li et al. 2024; EAGLE-3, 2025).

One decoder layer over all positions predicts the target's next state from the states and tokens so far, and reads its
own prediction in the next step.  EAGLE-1 learns single steps from true states, with a regression on them beside the
draft loss; EAGLE-3 learns from what it fed itself (training-time test), may fuse states of several layers, and has no
regression.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from semiar.drafters.chain import ChainDrafter
from semiar.drafters.facts import Distant, Facts, Recent
from semiar.drafters.head_drafter import resolve_layers
from semiar.drafters.layers.context_lm import rotary, rotate
from semiar.drafters.layers.fusion import Features
from semiar.drafters.layers.norm import EPSILON, RMSNorm
from semiar.drafters.memory import Memory
from semiar.drafters.originals import PARTS, Original, Tensors, alike, take
from semiar.drafters.registry import register
from semiar.drafters.settings import LAYERS, LearnedSettings
from semiar.errors import ConfigError, PairError
from semiar.settings import at_least, one_of
from semiar.targets.target import Target

NAMES = {
    **{f"fc.{part}": f"fc.{part}" for part in PARTS},
    **{f"layer.{name}_proj.weight": f"layers.0.self_attn.{name}_proj.weight" for name in "qkvo"},
    **{f"layer.{name}_proj.weight": f"layers.0.mlp.{name}_proj.weight" for name in ("gate", "up", "down")},
    "layer.norm.weight": "layers.0.post_attention_layernorm.weight",
}  # our names, and those of EAGLE-1


@dataclass(frozen=True)
class EagleSettings(LearnedSettings):
    """EAGLE."""

    architecture: str = "eagle"
    layers: str = "last"
    """Target states that are read: last (after the final norm), or low_mid_high (three layers fused with it)."""
    num_heads: int = 0
    """Attention heads; 0 = as many as the target has."""
    version: int = 3
    """1: true states in training, with a regression on them.  3: its own states in training; norms on its inputs."""
    feature_weight: float = 1.0
    """Version 1: weight of the regression (smooth L1 on the next state) beside the draft loss."""
    inner_size: int = 0
    """Units of the feed-forward; 0 = as the target has."""
    rope_theta: float = 10000.0
    """Base of its rotary positions."""
    norm_epsilon: float = EPSILON
    """What the norm before the feed-forward adds to the mean square."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, layers=LAYERS)
        if self.version not in (1, 3):
            raise ConfigError(f"version {self.version}", "1 or 3")
        at_least(self, feature_weight=0, inner_size=0, num_heads=0)
        if self.version == 1 and self.layers != "last":
            raise ConfigError(f"layers {self.layers} with EAGLE version 1", "last: it predicts that state")


class DecoderLayer(nn.Module):
    """A Llama layer without a norm before its attention; it starts as the identity."""

    def __init__(self, size: int, heads: int, shared: int, inner: int, epsilon: float):
        super().__init__()
        self.heads, self.shared, width = heads, shared, size // heads
        self.q_proj = nn.Linear(size, size, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(size, shared * width, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(size, size, bias=False)
        self.norm = RMSNorm(size, epsilon)
        self.gate_proj, self.up_proj = (nn.Linear(size, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, size, bias=False)
        for last in (self.o_proj, self.down_proj):
            nn.init.zeros_(last.weight)

    def project(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value (B, n, heads, d) of ``x`` (B, n, H), keys and values once per query head."""
        query = self.q_proj(x).unflatten(-1, (self.heads, -1))
        key, value = (proj(x).unflatten(-1, (self.shared, -1)) for proj in (self.k_proj, self.v_proj))
        key = rotate(key, turn)
        times = self.heads // self.shared
        return rotate(query, turn), key.repeat_interleave(times, -2), value.repeat_interleave(times, -2)

    def close(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Output projection, residual and feed-forward."""
        x = x + self.o_proj(mixed)
        y = self.norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))


@dataclass(slots=True)
class Guess:
    """What a step hands on: the state read next and the keys and values of the tokens drafted so far."""

    feature: Tensor  # (B, A, H)
    keys: list[Tensor]  # (B, A, heads, d) each
    values: list[Tensor]


@register("eagle")
class EagleDrafter(ChainDrafter):
    """All verified states through one layer with its own keys and values; the same layer reads its own guesses."""

    Settings = EagleSettings
    FACTS = Facts(
        "EAGLE", "one decoder layer over all positions, which reads its own features in the next step",
        "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty (Li et al. 2024); EAGLE-3 (2025)",
        Distant.ALL_STATES, Recent.FEATURES, original="EAGLE-1",
    )  # fmt: skip

    def __init__(
        self, settings: EagleSettings, target: Target, vocab: Tensor | None, embedding_scale: float | None = None
    ):
        super().__init__(settings, target, vocab, embedding_scale, resolve_layers(settings.layers, target))
        heads, shared, inner = layer_sizes(settings, target)
        self.features = Features(self.size, len(self.layers)) if self.settings.version == 3 else None
        self.token_norm = RMSNorm(self.size) if self.settings.version == 3 else None
        self.fc = nn.Linear(2 * self.size, self.size)
        self.layer = DecoderLayer(self.size, heads, shared, inner, self.settings.norm_epsilon)
        self.norm = RMSNorm(self.size) if self.settings.version == 3 else None
        with torch.no_grad():  # x starts as the state itself
            self.fc.weight.copy_(torch.eye(self.size, 2 * self.size).roll(self.size, 1))
            self.fc.bias.zero_()

    def read(self, feature: Tensor, tokens: Tensor) -> Tensor:
        """What enters the layer: the state and the token after it."""
        embedded = self.embed(tokens)
        embedded = embedded if self.token_norm is None else self.token_norm(embedded)
        both = torch.cat([embedded.to(self.fc.weight.dtype), feature.to(self.fc.weight.dtype)], -1)
        return self.fc(both)

    def feature(self, hidden: Tensor) -> Tensor:
        """States (B, n, F, H) of verified positions as the layer reads them, (B, n, H)."""
        return hidden[:, :, -1] if self.features is None else self.features(hidden)

    def begin(self, hidden: Tensor) -> Guess:
        return Guess(self.feature(hidden), [], [])

    def step(self, ids: Tensor, inner: Guess, index: int, memory: Memory | None) -> tuple[Tensor, Guess]:
        assert memory is not None
        x = self.read(inner.feature, ids)
        query, key, value = self.layer.project(x, self.turn(memory.positions + index, x.dtype))
        keys, values = inner.keys, inner.values
        if index:  # the pair of h_t and d_1 is in the memory
            keys, values = [*keys, key], [*values, value]
        x = self.layer.close(x, memory.attend(0, query, keys, values))
        return x if self.norm is None else self.norm(x), Guess(x, keys, values)

    def memory_shape(self) -> tuple[int, int, int]:
        return 1, self.layer.heads, self.size // self.layer.heads

    def remember(self, hidden: Tensor, tokens: Tensor, positions: Tensor, memory: Memory) -> None:
        x = self.read(self.feature(hidden), tokens[:, 1:])
        _, key, value = self.layer.project(x, self.turn(positions + 1, x.dtype))
        memory.write(0, key, value, positions)

    def turn(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Rotary cosines and sines."""
        return rotary(positions, self.size // self.layer.heads, self.settings.rope_theta, dtype)

    def unroll(self, hidden: Tensor, tokens: Tensor, anchors: Tensor) -> Iterator[Tensor]:
        """Version 1 in training: one step from true states, which is what every later step would be, too."""
        steps = super().unroll(hidden, tokens, anchors)
        return islice(steps, 1) if self.training and self.settings.version == 1 else steps

    def extra_loss(
        self, states: Tensor, hidden: Tensor, tokens: Tensor, anchors: Tensor, valid: Tensor
    ) -> Tensor | None:
        if self.settings.version == 3 or not self.settings.feature_weight:
            return None
        places = anchors[..., None] + 1 + torch.arange(states.shape[2], device=anchors.device)
        rows = torch.arange(len(tokens), device=anchors.device)[:, None, None]
        wanted = hidden[rows, places.clamp(max=hidden.shape[1] - 1), -1].detach()
        loss = F.smooth_l1_loss(states.float(), wanted.float(), reduction="none").mean(-1)
        return self.settings.feature_weight * loss

    @classmethod
    def original(cls, tensors: Tensors, target: Target) -> Original:
        """EAGLE-1: ``fc`` reads [e(x); h], ``layers.0`` is a Llama layer without a norm before its attention."""
        tensors = {name: value for name, value in tensors.items() if not name.endswith("rotary_emb.inv_freq")}
        embedding = tensors.pop("embed_tokens.weight", target.embedding)
        if embedding.shape != target.embedding.shape or not alike(embedding, target.embedding):
            raise PairError(
                "the checkpoint has other token embeddings than the model", "the model that it was trained for"
            )
        if "fc.bias" not in tensors:  # some versions have none
            tensors["fc.bias"] = torch.zeros_like(take(tensors, "fc.weight")[:, 0])
        weights = {ours: take(tensors, theirs) for ours, theirs in NAMES.items()}
        unknown = sorted(set(tensors) - set(NAMES.values()))
        if unknown:
            raise PairError(f"the checkpoint has {', '.join(unknown[:3])}", "EAGLE-1's layout, of one layer")
        rope = getattr(target.config, "rope_parameters", None) or {}
        if rope.get("rope_type") != "default":
            raise PairError(f"rotary positions {rope.get('rope_type')} in the model", "plain ones, as EAGLE-1 has them")
        inner, epsilon = len(weights["layer.gate_proj.weight"]), getattr(target.config, "rms_norm_eps", 1e-6)
        shape = {"inner_size": inner, "rope_theta": float(rope["rope_theta"]), "norm_epsilon": float(epsilon)}
        return Original(None, {"version": 1, **shape}, weights, scale=1.0)


def layer_sizes(settings: EagleSettings, target: Target) -> tuple[int, int, int]:
    """Heads, key/value heads and feed-forward units of the layer: the target's, where they fit."""
    config = target.config
    heads = settings.num_heads or int(config.num_attention_heads)
    shared = heads if settings.num_heads else int(getattr(config, "num_key_value_heads", None) or heads)
    if target.hidden_size % (2 * heads):
        raise ConfigError(
            f"{heads} heads for a hidden size of {target.hidden_size}", "a number that divides it into even parts"
        )
    return (
        heads,
        shared,
        settings.inner_size or int(getattr(config, "intermediate_size", None) or 4 * target.hidden_size),
    )
