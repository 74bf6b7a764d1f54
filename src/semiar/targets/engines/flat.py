"""Padding-free passes: the samples of a batch one after another in one row, each attending to itself alone.

Where a model expects its attention mask it gets the lengths of the samples instead and hands them to `flat_attention`,
so nothing is kept outside the pass and a checkpointed layer finds them again when it is run a second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "semiar_flat"


class Flat:
    """Where the real tokens of a right-padded batch (B, T) stand, and the same tokens as one row (1, N)."""

    def __init__(self, lengths: Sequence[int], width: int, device: torch.device):
        self.rows, self.width = len(lengths), width
        self.lengths = torch.tensor(lengths)[None, None, None]  # (1, 1, 1, B), on the CPU: read by every layer
        steps = [torch.arange(length) for length in lengths]
        self.positions = torch.cat(steps)[None].to(device)  # (1, N), from 0 in every sample
        self.places = torch.cat([row * width + step for row, step in enumerate(steps)]).to(device)  # (N,) of B * T

    @classmethod
    def of(cls, tokens: Tensor, lengths: Tensor, limit: int) -> Flat | None:
        """The layout of tokens (B, T) with these lengths (B,); None without pads or with a sample above the limit."""
        known = lengths.tolist()
        if max(known) > limit or sum(known) == tokens.numel():
            return None
        return cls(known, tokens.shape[1], tokens.device)

    def inputs(self, tokens: Tensor, kinds: Iterable[str]) -> dict[str, Any]:
        """What the decoder is called with; ``kinds`` are the names of its masks (see `windows`)."""
        masks = dict.fromkeys(kinds, self.lengths)
        return {
            "input_ids": tokens.flatten()[self.places][None],
            "position_ids": self.positions,
            "attention_mask": masks.get("", masks),
        }

    def spread(self, state: Tensor) -> Tensor:
        """A state (1, N, H) of the flat row as (B, T, H), zero at the pads."""
        whole = state.new_zeros(self.rows * self.width, state.shape[-1])
        return whole.index_copy(0, self.places, state[0]).view(self.rows, self.width, -1)


def flat_attention(
    module: nn.Module,
    query: Tensor,  # (B, heads, n, d)
    key: Tensor,  # (B, key/value heads, T, d)
    value: Tensor,
    attention_mask: Tensor | None,  # lengths (1, 1, 1, B) as integers in a flat pass, else a mask
    **rest: Any,
) -> tuple[Tensor, None]:
    """Hugging Face's attention interface; returns (B, n, heads, d).  Outside flat passes it is theirs of "sdpa"."""
    if attention_mask is None or attention_mask.dtype != torch.long:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **rest)
    lengths = attention_mask.flatten().tolist()
    parts = zip(query.split(lengths, 2), key.split(lengths, 2), value.split(lengths, 2), strict=True)
    return torch.cat([sdpa_attention_forward(module, q, k, v, None, **rest)[0] for q, k, v in parts], 1), None


AttentionInterface.register(NAME, flat_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
