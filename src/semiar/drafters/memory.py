"""What passes between the verified text and a drafter's steps: memory of verified positions, and the newest states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True)
class Memory:
    """Keys and values of verified positions, one (B, heads, T, d) pair per layer; pair i stands in slot i."""

    keys: list[Tensor]
    values: list[Tensor]
    visible: Tensor | None  # (B, A, T) which slots an anchor may see; None = all
    positions: Tensor  # (B, A) rotary position of the token after the anchor

    def write(self, layer: int, key: Tensor, value: Tensor, positions: Tensor) -> None:
        """Store a layer's keys and values (B, n, heads, d) at slots ``positions`` (B, n).

        A memory without buffers takes them as they are (training, whole sequences).
        """
        if layer < len(self.keys):
            rows = torch.arange(len(key), device=key.device)[:, None]
            self.keys[layer][rows, :, positions] = key.to(self.keys[layer].dtype)
            self.values[layer][rows, :, positions] = value.to(self.values[layer].dtype)
        else:
            self.keys.append(key.transpose(1, 2))
            self.values.append(value.transpose(1, 2))

    def attend(self, layer: int, query: Tensor, own_keys: list[Tensor], own_values: list[Tensor]) -> Tensor:
        """What queries (B, A, heads, d) find in a layer of the memory and in an anchor's own tokens; see `attend`."""
        return attend(query, self.keys[layer], self.values[layer], self.visible, own_keys, own_values)


def attend(
    query: Tensor,  # (B, A, heads, d)
    keys: Tensor,  # (B, heads, T, d)
    values: Tensor,
    visible: Tensor | None,  # (B, A, T)
    own_keys: list[Tensor],  # each (B, A, heads, d)
    own_values: list[Tensor],
) -> Tensor:
    """Softmax attention over memory and the anchor's own drafted tokens; (B, A, heads * d)."""
    asked = query.transpose(1, 2)  # (B, heads, A, d)
    scores = (asked @ keys.transpose(2, 3)).float()
    if visible is not None:
        scores = scores.masked_fill(~visible[:, None], -torch.inf)
    if own_keys:
        own = torch.stack(own_keys, 3)  # (B, A, heads, k, d); products and sums beat thousands of tiny matmuls
        near = (own * query[..., None, :]).sum(-1).transpose(1, 2)  # (B, heads, A, k)
        scores = torch.cat([scores, near.float()], -1)
    weights = (scores * query.shape[-1] ** -0.5).softmax(-1).to(values.dtype)
    width = keys.shape[2]
    mixed = (weights[..., :width] @ values).transpose(1, 2)  # (B, A, heads, d)
    if own_values:
        own = torch.stack(own_values, 3)
        near = weights[..., width:].transpose(1, 2)[..., None]  # (B, A, heads, k, 1)
        mixed = mixed + (near * own).sum(-2)
    return mixed.flatten(-2)


@dataclass(slots=True)
class Fresh:
    """What the last target pass brought; row b has ``count[b]`` states that the drafter has not seen yet."""

    last: Tensor  # (B, 1) newest committed token
    tokens: Tensor  # (B, n + 1) tokens at the fresh positions, and the one after them
    positions: Tensor  # (B, n) where they stand
    hidden: Tensor  # (B, n, F, H)
    count: Tensor  # (B,)
    lengths: Tensor  # (B,) committed tokens
    keys: list[Tensor]  # (B, heads, T, d) of each layer of the drafter's memory, if it has one
    values: list[Tensor]
    visible: Tensor | None  # (B, 1, width) which slots of it a row may see

    def newest(self) -> Tensor:
        """State of each row's last verified position, (B, 1, F, H)."""
        return newest(self.hidden, self.count)


def newest(states: Tensor, count: Tensor) -> Tensor:
    """The last of each row's ``count`` (B,) real states (B, n, ...): (B, 1, ...)."""
    return states[torch.arange(len(count), device=count.device), count - 1][:, None]


def map_tensors(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same lists, tuples, dicts and dataclasses with every tensor changed; all else is kept."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(change, one) for one in value)
    if isinstance(value, dict):
        return {name: map_tensors(change, one) for name, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: map_tensors(change, getattr(value, f.name)) for f in fields(value)})
    return value
