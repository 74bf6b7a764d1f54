"""No drafter: the loop then is plain decoding, the baseline of every comparison."""

from __future__ import annotations

import torch

from semiar.core.draft import Draft, Plan
from semiar.core.sampling import Sampling
from semiar.drafters.base import Context, Drafter, DrafterSettings, State, register


@register("none")
class NoDrafter(Drafter):
    """Proposes nothing, so every target pass yields one token."""

    def __init__(self, settings: DrafterSettings | None = None, target: object = None, vocab: object = None):
        super().__init__(settings or DrafterSettings(architecture="none"))

    def propose(
        self, context: Context, state: State, plan: Plan, sampling: Sampling, rng: torch.Generator | None
    ) -> Draft:
        return Draft.empty(len(context.lengths), context.tokens.device)
