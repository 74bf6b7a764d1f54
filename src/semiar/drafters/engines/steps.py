"""All that an engine may know of a drafter: its steps, what they remember, and the tensors around them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from semiar.core.sampling import Sampling
from semiar.drafters.memory import Fresh, Memory

Drafted = tuple[Tensor, Tensor | None]  # ids (B, count) and, when sampling, their laws (B, count, rows)


class Depth(Protocol):
    """The one setting that an engine reads."""

    @property
    def num_speculative_tokens(self) -> int:
        """K, the most tokens of a draft."""


class Held(Protocol):
    """The memory of one batch."""

    @property
    def values(self) -> Mapping[str, Any]:
        """Its tensors; ``keys`` and ``values``, one (B, heads, T, d) per layer, where it keeps any."""


class Steps(Protocol):
    """A drafter of single steps as its engines see it; `ChainDrafter` says what each of the hooks has to do."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def settings(self) -> Depth:
        """How many steps it makes."""

    @property
    def size(self) -> int:
        """H, units of a target state."""

    @property
    def rows(self) -> int:
        """Size of the draft vocabulary."""

    @property
    def layers(self) -> tuple[int, ...]:
        """The F target layers that it reads."""

    @property
    def vocab(self) -> Tensor | None:
        """Target ids (rows,) of the draft vocabulary; None = all of them."""

    @property
    def embedding(self) -> Tensor:
        """The target's input embeddings (V, H); their type and device are the drafter's."""

    @property
    def training(self) -> bool:
        """Whether its weights may still change."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Its own weights."""

    def modules(self) -> Iterator[nn.Module]:
        """Its parts, among which packed layers are looked for."""

    def memory_shape(self) -> tuple[int, int, int] | None:
        """Layers, heads and units per head of its memory; None = it has none."""

    def start(self, batch: int, capacity: int, device: torch.device) -> Held:
        """An empty memory for ``batch`` rows of at most ``capacity`` tokens."""

    def remember(self, hidden: Tensor, tokens: Tensor, positions: Tensor, memory: Memory) -> None:
        """Write newly verified positions into ``memory``."""

    def recall(self, fresh: Fresh) -> Memory | None:
        """The memory with what the last step completed added to it."""

    def begin(self, hidden: Tensor) -> Any:
        """Inner state of target states (B, A, F, H)."""

    def step(self, ids: Tensor, inner: Any, index: int, memory: Memory | None) -> tuple[Tensor, Any]:
        """Read drafted token number ``index``, ``ids`` (B, A): a state (B, A, D), and the new inner state."""

    def head(self, state: Tensor, step: int) -> Tensor:
        """Logits (B, A, rows) of a step's state."""

    def draft(self, fresh: Fresh, coins: Tensor | None, count: int, sampling: Sampling) -> Drafted:
        """The same steps one after another, as an engine has to give them."""
