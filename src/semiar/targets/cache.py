"""Keys and values of committed positions.  The only file that touches Hugging Face cache layers.

Every layer owns a preallocated buffer.  Row ``b`` of a buffer holds position ``i`` in slot ``i`` while
``i < lengths[b]``.  A pass writes its new slots behind the widest row; `keep` then moves the slots that survived
verification to the end of each row's committed prefix.  Rolling back a chain, following a tree path and compacting a
ragged batch are that one move, and it touches only the slots just written.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache as HFCache
from transformers.cache_utils import CacheLayerMixin

GROWTH = 256  # slots added when a buffer is full


class Buffer(CacheLayerMixin):
    """One layer's keys and values, (B, heads, capacity, head size), of which `filled` slots are in use."""

    is_sliding = False
    is_compileable = False
    keys: Any
    values: Any

    def __init__(self, capacity: int):
        super().__init__()
        self.capacity = capacity
        self.filled = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        batch, heads, _, size = key_states.shape
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys = key_states.new_zeros(batch, heads, self.capacity, size)
        self.values = value_states.new_zeros(batch, value_states.shape[1], self.capacity, value_states.shape[-1])
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append to the buffer; return everything in use.  (The extra arguments are Hugging Face's, and unused.)"""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.filled + key_states.shape[2]
        if end > self.capacity:
            self._grow(end)
        self.keys[:, :, self.filled : end] = key_states
        self.values[:, :, self.filled : end] = value_states
        self.filled = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _grow(self, needed: int) -> None:
        self.resize(max(needed, self.capacity + GROWTH))

    def resize(self, capacity: int) -> None:
        """Give the buffer room for at least this many slots."""
        extra = capacity - self.capacity
        if extra <= 0:
            return
        if self.is_initialized:
            self.keys = torch.nn.functional.pad(self.keys, (0, 0, 0, extra))
            self.values = torch.nn.functional.pad(self.values, (0, 0, 0, extra))
        self.capacity += extra

    def fit(self, other: Buffer, batch: int) -> None:
        """Allocate a buffer that has not been written yet for `batch` rows like the other one's."""
        if not self.is_initialized and other.is_initialized:
            self.lazy_initialization(
                other.keys[:1].expand(batch, -1, -1, -1), other.values[:1].expand(batch, -1, -1, -1)
            )

    def get_seq_length(self) -> int:
        return self.filled

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.filled + query_length, 0

    def get_max_length(self) -> int:
        return -1


class Cache:
    """The committed memory of a batch of rows of unequal length."""

    def __init__(self, layers: int, batch: int, capacity: int, device: torch.device):
        self.buffers = [Buffer(capacity) for _ in range(layers)]
        self.hf = HFCache(layers=list(self.buffers))
        self.lengths = torch.zeros(batch, dtype=torch.long, device=device)  # (B,)

    @property
    def width(self) -> int:
        """Slots in use: the length of the longest row once `keep` has been called."""
        return self.buffers[0].filled

    def keep(self, start: int, path: Tensor) -> None:
        """Of the slots written from `start` on, commit ``path`` (B, n) in order; -1 = none, at a row's end only."""
        kept = (path >= 0).sum(-1)
        lengths = self.lengths + kept
        width = int(lengths.max())
        if not self._in_place(start, path):
            self._move(start, path)
        self.lengths = lengths
        for buffer in self.buffers:
            buffer.filled = width

    def _in_place(self, start: int, path: Tensor) -> bool:
        """True when every surviving slot already stands where it belongs."""
        steps = torch.arange(path.shape[1], device=path.device)
        there = (start + path == self.lengths[:, None] + steps) | (path < 0)
        return bool(there.all())

    def _move(self, start: int, path: Tensor) -> None:
        batch, count = path.shape
        rows = torch.arange(batch, device=path.device)[:, None].expand(-1, count)
        kept = path >= 0
        source = (start + path)[kept]
        goal = (self.lengths[:, None] + torch.arange(count, device=path.device))[kept]
        for buffer in self.buffers:
            for states in (buffer.keys, buffer.values):
                states[rows[kept], :, goal] = states[rows[kept], :, source]  # the right side is a copy

    def select(self, rows: Tensor) -> None:
        """Keep only these rows, in this order; ``rows`` (B',) are indices."""
        self.lengths = self.lengths[rows]
        width = int(self.lengths.max()) if len(rows) else 0
        for buffer in self.buffers:
            buffer.filled = width
            if buffer.is_initialized:
                buffer.keys, buffer.values = buffer.keys[rows], buffer.values[rows]

    def join(self, other: Cache) -> None:
        """Append the rows of another cache of the same model."""
        capacity = max(self.buffers[0].capacity, other.buffers[0].capacity)
        width = max(self.width, other.width)
        for mine, theirs in zip(self.buffers, other.buffers, strict=True):
            mine.fit(theirs, len(self.lengths))
            theirs.fit(mine, len(other.lengths))
            mine.resize(capacity)
            theirs.resize(capacity)
            if mine.is_initialized:
                mine.keys = torch.cat([mine.keys, theirs.keys])
                mine.values = torch.cat([mine.values, theirs.values])
            mine.filled = width
        self.lengths = torch.cat([self.lengths, other.lengths])

    def bytes(self) -> int:
        """Memory held by the buffers."""
        tensors = [states for buffer in self.buffers for states in (buffer.keys, buffer.values) if states is not None]
        return sum(states.numel() * states.element_size() for states in tensors)
