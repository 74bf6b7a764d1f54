"""SkipLayer: early exit after the target's first layers, and the paper's augmented form that also reads h_t.

The baseline of "Semi-autoregressive Decoding for Efficient LLM Inference"; exit heads are trained as in LayerSkip
(Elhoushi et al. 2024).  Distant and recent past are both recomputed by the same layers, from the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from semiar.core.draft import Draft, Plan
from semiar.core.sampling import Sampling, uniform
from semiar.drafters.base import Context, State
from semiar.drafters.cached import CacheState, Paths, unread
from semiar.drafters.drawing import draw_chain
from semiar.drafters.facts import Distant, Facts, Recent
from semiar.drafters.head_drafter import HeadDrafter
from semiar.drafters.layers.fusion import Fusion
from semiar.drafters.layers.norm import RMSNorm
from semiar.drafters.memory import newest
from semiar.drafters.registry import register
from semiar.drafters.settings import LearnedSettings
from semiar.settings import at_least
from semiar.targets.cache import Cache
from semiar.targets.early import EarlyLayers
from semiar.targets.target import LAST, Target


@dataclass(frozen=True)
class SkipSettings(LearnedSettings):
    """Early exit."""

    architecture: str = "skip"
    exit_layer: int = 0
    """Layers that are run; 0 = a quarter of the target's."""
    with_h_p: bool = False
    """Also read h_t, the target's own state of the last verified position (the paper's augmented version)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, exit_layer=0)


@register("skip")
class SkipDrafter(HeadDrafter):
    """The target's first layers and a trained exit: whatever it drafts costs these layers and the head."""

    Settings = SkipSettings
    FACTS = Facts(
        "SkipLayer (early exit)", "the target's own first layers and a trained exit",
        "baseline of Semi-autoregressive Decoding; LayerSkip (Elhoushi et al. 2024)",
        Distant.RECOMPUTED, Recent.SAME,
    )  # fmt: skip

    def __init__(
        self, settings: SkipSettings, target: Target, vocab: Tensor | None, embedding_scale: float | None = None
    ):
        count = settings.exit_layer or max(1, len(target.blocks) // 4)
        super().__init__(settings, target, vocab, embedding_scale, (count - 1, LAST))
        self.norm = RMSNorm(self.size)
        self.fuse = Fusion(self.size, with_distant=self.settings.with_h_p)
        self._early: list[EarlyLayers] = []

    @classmethod
    def facts(cls, settings: SkipSettings) -> Facts:
        if not settings.with_h_p:
            return cls.FACTS
        return replace(cls.FACTS, title=f"{cls.FACTS.title} + h_p", distant=Distant.BOTH)

    def bind(self, target: Target) -> SkipDrafter:
        super().bind(target)
        self._early = [EarlyLayers(target, self.layers[0] + 1)]
        return self

    def exit(self, early: Tensor, last: Tensor) -> Tensor:
        """What the draft head reads (B, A, H), of the exit layer's state and h_t."""
        early, last = self.norm(early), last.expand_as(early)
        return self.fuse(last, last, early, 0) if self.settings.with_h_p else self.fuse(early, early, early, 0)

    def unroll(self, hidden: Tensor, tokens: Tensor, anchors: Tensor) -> Iterator[Tensor]:
        rows = torch.arange(len(tokens), device=tokens.device)[:, None]
        for step in range(self.settings.num_speculative_tokens):
            places = (anchors + 1 + step).clamp(max=hidden.shape[1] - 1)
            yield self.exit(hidden[rows, places, 0], hidden[rows, anchors, -1])

    def start(self, batch: int, capacity: int, device: torch.device) -> State:
        return CacheState(self._early[0].start(batch, capacity))

    def propose(
        self, context: Context, state: State, plan: Plan, sampling: Sampling, rng: torch.Generator | None
    ) -> Draft:
        assert isinstance(state, CacheState)
        cache, count = state.cache, min(plan.count, self.settings.num_speculative_tokens)
        batch, device = len(context.lengths), context.tokens.device
        first = self._catch_up(context, cache)
        blind = context.hidden.shape[1] == 0 or bool((context.fresh == 0).any())  # one-token prompts have no h_t yet
        if count == 0 or (blind and self.settings.with_h_p):
            return Draft.empty(batch, device)
        last = first if blind else newest(context.hidden[:, :, -1], context.fresh)
        if plan.tree != "none":

            def run(tokens: Tensor, depths: Tensor, mask: Tensor) -> Tensor:
                return self._early[0].run(tokens, cache, depths, mask)

            paths = Paths(first, run, lambda state: self.head(self.exit(state, last), 0), self.vocab)
            return paths.tree(context.last(), plan, count, sampling, rng)
        committed = cache.lengths
        coins = None if sampling.greedy else uniform((batch, count), rng, device)

        def following(ids: Tensor, step: int) -> Tensor:
            return self.head(self.exit(self._read(ids, cache) if step else first, last), step)

        tokens, laws = draw_chain(
            following, context.last(), coins, count, sampling, self.vocab, plan.stop_below, self.calibration
        )
        cache.rewind(committed)
        return Draft.chain(tokens, laws, self.vocab)

    def _catch_up(self, context: Context, cache: Cache) -> Tensor:
        """Run what was committed since the last call; the exit layer's state (B, 1, H) of each newest token."""
        tokens, need = unread(context, cache)
        states = self._early[0].run(tokens, cache)
        steps = torch.arange(tokens.shape[1], device=need.device)
        cache.keep(torch.where(steps < need[:, None], steps, -1), chain=True)
        return newest(states, need)

    def _read(self, ids: Tensor, cache: Cache) -> Tensor:
        """Run one more drafted token (B, 1) of each row; its state (B, 1, H)."""
        states = self._early[0].run(ids, cache)
        cache.keep(torch.zeros_like(ids), chain=True)
        return states
