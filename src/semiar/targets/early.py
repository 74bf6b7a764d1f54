"""The first layers of a target as a model of their own, sharing its weights: what early-exit drafters run."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from semiar.errors import ConfigError
from semiar.targets.cache import Cache
from semiar.targets.engines.native import Native
from semiar.targets.target import Target

FINAL_NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm")  # the decoders' names for it


class EarlyLayers:
    """Runs layers 0 .. ``count`` - 1 of a target over tokens; their output is that of layer ``count`` - 1, unnormed."""

    def __init__(self, target: Target, count: int):
        if not 1 <= count < len(target.blocks):
            raise ConfigError(f"an exit after {count} layers", f"1 to {len(target.blocks) - 1} for this target")
        self.target, self.count = target, count
        self.decoder = _cut(target, count)
        self.native: Native | None = None  # once the target has been prepared for it

    def start(self, batch: int, capacity: int) -> Cache:
        """An empty memory of these layers."""
        return Cache(self.count, batch, capacity, self.target.device)

    def run(self, tokens: Tensor, cache: Cache, depths: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """States (B, n, H) of tokens (B, n) that follow what the cache holds; `cache.keep` decides what stays.

        ``depths`` (B, n) and ``mask`` (B, n, n) are those of `Target.forward`; left out, the tokens are a chain.
        """
        if self.target.native is not None:
            self.native = self.native or self.target.native.first(self.count)
            return self.native.run(tokens, cache, depths, mask, (self.count - 1,), False)[1][:, :, 0]
        slots = cache.open(tokens.shape[1])
        steps = torch.arange(tokens.shape[1], device=tokens.device) if depths is None else depths
        positions = cache.lengths[:, None] + steps
        seen = self.target.attention(cache, slots, positions, mask)
        out: Any = self.decoder(
            input_ids=tokens, position_ids=positions, attention_mask=seen, past_key_values=cache.hf, use_cache=True
        )
        return out.last_hidden_state


def _cut(target: Target, count: int) -> Any:
    """The decoder with fewer layers and no final norm; modules are shared, not copied."""
    decoder = copy.copy(target.decoder)
    parts: dict[str, Any] = dict(target.decoder.named_children())
    stack = next(name for name, part in parts.items() if part is target.blocks)
    final = next((name for name in FINAL_NORMS if name in parts), None)
    if final is None:
        raise ConfigError(f"an early exit of {type(decoder).__name__}", f"a decoder with {', '.join(FINAL_NORMS)}")
    object.__setattr__(decoder, "_modules", parts | {stack: target.blocks[:count], final: nn.Identity()})
    for name in ("_forward_hooks", "_forward_pre_hooks"):  # the target's hooks are not for these passes
        object.__setattr__(decoder, name, OrderedDict())
    return decoder
