"""Keys and values of committed positions.  The only file that touches Hugging Face cache layers.

Every layer owns a preallocated buffer.  Row ``b`` holds position ``i`` in slot ``i`` while ``i < lengths[b]``.  A pass
over n new tokens writes them into slots ``lengths[b] .. lengths[b] + n - 1`` of each row (`open` says so beforehand);
`keep` then commits those that survived verification.  What a chain keeps stands where it belongs already, so rolling
back moves nothing; a path through a tree moves its own slots and no others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache as HFCache
from transformers.cache_utils import CacheLayerMixin

GROWTH = 256  # slots added when a buffer is full


class Place:
    """Where the pass that is about to run writes, shared by all layers."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.slots: Tensor = torch.zeros(0, 0, dtype=torch.long)  # (B, n)
        self.span = 0  # slots that the pass may look at, its own included


class Buffer(CacheLayerMixin):
    """One layer's keys and values, (B, heads, capacity, head size)."""

    is_sliding = False
    is_compileable = True
    keys: Any
    values: Any

    def __init__(self, place: Place):
        super().__init__()
        self.place = place

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        batch, heads, _, size = key_states.shape
        self.dtype, self.device = key_states.dtype, key_states.device
        capacity = self.place.capacity
        self.keys = key_states.new_zeros(batch, heads, capacity, size)
        self.values = value_states.new_zeros(batch, value_states.shape[1], capacity, value_states.shape[-1])
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write the new slots; return what the pass may look at.  (The extra arguments are Hugging Face's, unused.)"""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        slots, span = self.place.slots, self.place.span
        if len(slots) == 1:
            self.keys.index_copy_(2, slots[0], key_states)
            self.values.index_copy_(2, slots[0], value_states)
        else:
            rows = torch.arange(len(slots), device=slots.device)[:, None]
            self.keys[rows, :, slots] = key_states.transpose(1, 2)
            self.values[rows, :, slots] = value_states.transpose(1, 2)
        return self.keys[:, :, :span], self.values[:, :, :span]

    def resize(self, extra: int) -> None:
        """Give a buffer that is in use so many more slots."""
        if self.is_initialized:
            self.keys = torch.nn.functional.pad(self.keys, (0, 0, 0, extra))
            self.values = torch.nn.functional.pad(self.values, (0, 0, 0, extra))

    def fit(self, other: Buffer, batch: int) -> None:
        """Allocate a buffer that has not been written yet for `batch` rows like the other one's."""
        if not self.is_initialized and other.is_initialized:
            self.lazy_initialization(
                other.keys[:1].expand(batch, -1, -1, -1), other.values[:1].expand(batch, -1, -1, -1)
            )

    def get_seq_length(self) -> int:
        return self.place.span - self.place.slots.shape[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.place.span, 0

    def get_max_length(self) -> int:
        return -1


def take_rows(states: Tensor, rows: Tensor) -> Tensor:
    """``states[rows]``; where rows only fill the gaps that others left (see `survivors`), nothing else is copied."""
    picked = rows.tolist()
    moves = [(goal, source) for goal, source in enumerate(picked) if goal != source]
    if any(source < len(picked) for _, source in moves):
        return states[rows]
    for goal, source in moves:
        states[goal] = states[source]
    return states[: len(picked)]


def survivors(alive: Tensor) -> Tensor:
    """Indices of the rows that are ``alive`` (B,) bool, in place where possible; the last ones fill the gaps."""
    left = alive.nonzero()[:, 0].tolist()
    count = len(left)
    spare = [row for row in left if row >= count]
    kept = set(left)
    order = [row if row in kept else spare.pop() for row in range(count)]
    return torch.tensor(order, dtype=torch.long, device=alive.device)


class Cache:
    """The committed memory of a batch of rows of unequal length."""

    def __init__(self, layers: int, batch: int, capacity: int, device: torch.device):
        self.place = Place(capacity)
        self.buffers = [Buffer(self.place) for _ in range(layers)]
        self.hf = HFCache(layers=list(self.buffers))
        self.lengths = torch.zeros(batch, dtype=torch.long, device=device)  # (B,)
        self.width = 0  # the longest row's length

    @property
    def capacity(self) -> int:
        """Slots of every row."""
        return self.place.capacity

    def open(self, count: int, span: int | None = None) -> Tensor:
        """Announce a pass over `count` new slots; the slots (B, count) it will write.

        ``span`` widens what the pass looks at (a mask must then hide the rest); default: just enough.
        """
        needed = max(self.width + count, span or 0)
        if needed > self.capacity:
            self.grow(max(needed, self.capacity + GROWTH))
        steps = torch.arange(count, device=self.lengths.device)
        self.place.slots, self.place.span = self.lengths[:, None] + steps, needed
        return self.place.slots

    def grow(self, capacity: int) -> None:
        """Give every row room for at least this many slots."""
        extra = capacity - self.capacity
        if extra > 0:
            for buffer in self.buffers:
                buffer.resize(extra)
            self.place.capacity = capacity

    def allocate(self, heads: int, size: int, dtype: torch.dtype) -> None:
        """Make the buffers now, (B, heads, capacity, size) each, where the first pass has not made them."""
        if not self.buffers[0].is_initialized:
            like = torch.empty(len(self.lengths), heads, 0, size, dtype=dtype, device=self.lengths.device)
            for buffer in self.buffers:
                buffer.lazy_initialization(like, like)

    def keep(self, path: Tensor, *, chain: bool = False) -> None:
        """Of the slots opened last, commit ``path`` (B, n) in order; -1 = none, at a row's end only.

        ``chain`` promises that path is 0, 1, 2, ... , so that nothing has to be moved.
        """
        if not chain:
            self._move(path)
        self.lengths = self.lengths + (path >= 0).sum(-1)
        self.width = int(self.lengths.max()) if len(self.lengths) else 0

    def rewind(self, lengths: Tensor) -> None:
        """Take back what was committed beyond these lengths (B,); nothing is moved."""
        self.lengths = lengths
        self.width = int(lengths.max()) if len(lengths) else 0

    def _move(self, path: Tensor) -> None:
        steps = torch.arange(path.shape[1], device=path.device)
        row, step = ((path >= 0) & (path != steps)).nonzero(as_tuple=True)
        if not len(row):
            return
        source, goal = self.lengths[row] + path[row, step], self.lengths[row] + step
        for buffer in self.buffers:
            for states in (buffer.keys, buffer.values):
                states[row, :, goal] = states[row, :, source]  # the right side is a copy

    def select(self, rows: Tensor) -> None:
        """Keep only these rows, in this order; ``rows`` (B',) are indices."""
        self.lengths = self.lengths[rows]
        self.width = int(self.lengths.max()) if len(rows) else 0
        for buffer in self.buffers:
            if buffer.is_initialized:
                buffer.keys, buffer.values = take_rows(buffer.keys, rows), take_rows(buffer.values, rows)

    def join(self, other: Cache) -> None:
        """Append the rows of another cache of the same model."""
        capacity = max(self.capacity, other.capacity)
        self.grow(capacity)
        other.grow(capacity)
        for mine, theirs in zip(self.buffers, other.buffers, strict=True):
            mine.fit(theirs, len(self.lengths))
            theirs.fit(mine, len(other.lengths))
            if mine.is_initialized:
                mine.keys = torch.cat([mine.keys, theirs.keys])
                mine.values = torch.cat([mine.values, theirs.values])
        self.lengths = torch.cat([self.lengths, other.lengths])
        self.width = max(self.width, other.width)

    def bytes(self) -> int:
        """Memory held by the buffers."""
        tensors = [states for buffer in self.buffers for states in (buffer.keys, buffer.values) if states is not None]
        return sum(states.numel() * states.element_size() for states in tensors)
