"""Drafters that read the target's embeddings and guess by rows of its output head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from semiar.drafters.base import Drafter
from semiar.drafters.layers.heads import DraftHead
from semiar.errors import PairError
from semiar.targets.engines.packed import pack
from semiar.targets.target import LAST, Target


class HeadDrafter(Drafter):
    """A drafter with a draft vocabulary, the target's embeddings and a draft head, all of which are borrowed."""

    def __init__(
        self,
        settings: Any,
        target: Target,
        vocab: Tensor | None,
        embedding_scale: float | None = None,
        layers: tuple[int, ...] = (LAST,),
    ):
        super().__init__(settings, layers)
        if vocab is not None and int(vocab.max()) >= target.vocab_size:
            raise PairError(f"a draft vocabulary with token {int(vocab.max())}", f"ids below {target.vocab_size}")
        self.register_buffer("d2t", vocab)
        self.size = target.hidden_size
        self.rows = target.vocab_size if vocab is None else len(vocab)
        self.scale = embedding_scale or unit_scale(target)
        self.draft_head = DraftHead(self.size, self.rows, settings.lora_r)
        self._embedding: list[Tensor] = []

    @property
    def embedding(self) -> Tensor:
        """The target's input embeddings (rows, H), as they are."""
        return self._embedding[0]

    def bind(self, target: Target) -> HeadDrafter:
        ids = torch.arange(target.vocab_size) if self.vocab is None else self.vocab
        self.draft_head.bind(target, ids)
        self._embedding = [target.embedding.detach()]
        return self

    def prepare(self, engine: str = "packed") -> None:
        self.draft_head.prepare()
        pack(self, keep=True, spare=(self.draft_head,))

    def extra_config(self) -> dict[str, Any]:
        return super().extra_config() | {"embedding_scale": self.scale}

    def embed(self, tokens: Tensor) -> Tensor:
        """The target's input embeddings, brought to unit scale."""
        return F.embedding(tokens, self._embedding[0]) * self.scale

    def head(self, state: Tensor, step: int | Tensor) -> Tensor:
        return self.draft_head(state)

    def head_parameters(self) -> list[nn.Parameter]:
        return list(self.draft_head.parameters())

    def teacher(self, hidden: Tensor) -> Tensor:
        return self.draft_head.teacher(hidden)


def unit_scale(target: Target) -> float:
    """What brings the target's embeddings to unit scale."""
    return 1 / float(target.embedding[:4096].detach().float().std())


def resolve_layers(layers: str, target: Target) -> tuple[int, ...]:
    """Layer indices for `Target.forward`, lowest first, the head's input last; ``layers`` is one of `LAYERS`."""
    if layers == "last":
        return (LAST,)
    depth = len(target.blocks)
    picks = sorted({max(0, min(2, depth - 1)), depth // 2, max(0, depth - 3)})
    return (*picks, LAST)
