"""Attention for grouped key/value heads that never repeats them.

Query heads that share a key/value head are put side by side as further rows of one query, so that the cache is read
once per key/value head and not copied for every query head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from semiar.targets.cache import Cache

NAME = "semiar_grouped"


def grouped_attention(
    module: nn.Module,
    query: Tensor,  # (B, heads, n, d)
    key: Tensor,  # (B, key/value heads, T, d)
    value: Tensor,
    attention_mask: Tensor | None,  # (B, 1, n, T) additive; None = causal, or everything for one token
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """Hugging Face's attention interface; returns (B, n, heads, d)."""
    batch, heads, count, size = query.shape
    shared = heads // key.shape[1]
    if attention_mask is None and count > 1:
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=shared > 1)
        return out.transpose(1, 2), None
    if attention_mask is not None:
        attention_mask = attention_mask.repeat(1, 1, shared, 1)
    rows = query.reshape(batch, key.shape[1], shared * count, size)
    out = F.scaled_dot_product_attention(rows, key, value, attn_mask=attention_mask, scale=scaling)
    return out.view(batch, heads, count, size).transpose(1, 2), None


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def use_grouped_attention(model: Any) -> bool:
    """Switch `model` to `grouped_attention` where that is the same function; says whether it did."""
    if why_not_plain(model):
        return False
    model.set_attn_implementation(NAME)
    return True


def why_not_plain(model: Any) -> str:
    """What makes the attention of `model` more than transformers' "sdpa"; empty when nothing does.

    Models that cap their scores or add sinks are told by the extra arguments that they pass to the interface.
    """
    config = model.config.get_text_config(decoder=True)
    if getattr(config, "attn_logit_softcapping", None):
        return "attention scores are capped"
    if config.model_type == "gpt_oss":
        return "attention has sinks"
    found = getattr(model.config, "_attn_implementation", None)
    return "" if found == "sdpa" else f"attention is '{found}', not 'sdpa'"


def additive_mask(seen: Tensor, queries: Tensor, keys: Tensor, window: int | None, dtype: torch.dtype) -> Tensor:
    """(B, 1, n, T) mask, which every kernel takes, from what is seen (B, n, T) and the positions (B, n) and (B, T)."""
    if window is not None:
        seen = seen & (queries[:, :, None] - keys[:, None] < window)
    seen = seen[:, None]
    bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return bias.masked_fill_(~seen, torch.finfo(dtype).min)


def attention_masks(
    cache: Cache,
    slots: Tensor,  # (B, n) that a pass writes
    positions: Tensor,  # (B, n)
    mask: Tensor | None,  # (B, n, n) bool, which new slots a new slot may see; None = a chain
    windows: dict[str, int | None],  # of each kind of layer
    dtype: torch.dtype,
    always: bool,
) -> Tensor | dict[str, Tensor] | None:
    """What each new token sees of a cache; see `Target.attention`."""
    count, span = slots.shape[1], cache.place.span
    if mask is None and cache.width == 0 and span == count and not always:
        return None  # plain causal attention from the start of every row: right padding cannot be seen
    if slots.numel() == 1 and span == cache.width + 1 and windows == {"": None} and not always:
        return None  # one new token of one row sees everything
    keys = torch.arange(span, device=positions.device)[None]  # position of the key in each slot
    if mask is None:
        seen = keys[:, None] <= positions[:, :, None]
    else:
        past = keys < cache.lengths[:, None]
        own = slots[:, None].expand(-1, count, -1)
        seen = past[:, None].expand(-1, count, -1).scatter(2, own, mask)
        keys = keys.expand(len(slots), -1).scatter(1, slots, positions)
    masks = {kind: additive_mask(seen, positions, keys, window, dtype) for kind, window in windows.items()}
    return masks.get("", masks)
