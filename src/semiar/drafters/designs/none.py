"""No drafter: the loop then is plain decoding, the baseline of every comparison."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from semiar.core.draft import Draft, Plan
from semiar.core.sampling import Sampling
from semiar.drafters.base import Context, Drafter, State
from semiar.drafters.facts import Distant, Facts, Recent
from semiar.drafters.registry import register
from semiar.drafters.settings import DrafterSettings


@dataclass(frozen=True)
class NoSettings(DrafterSettings):
    """Nothing to set."""

    architecture: str = "none"


@register("none")
class NoDrafter(Drafter):
    """Proposes nothing, so every target pass yields one token."""

    Settings = NoSettings
    FACTS = Facts(
        "no drafter", "plain decoding, the baseline of every comparison", "",
        Distant.NOTHING, Recent.NOTHING, drafts=False, learns=False, head=False, attach="alone", trees=(), stops=False,
    )  # fmt: skip

    def __init__(self, settings: DrafterSettings | None = None, target: object = None, vocab: object = None):
        super().__init__(settings or NoSettings())

    def propose(
        self, context: Context, state: State, plan: Plan, sampling: Sampling, rng: torch.Generator | None
    ) -> Draft:
        return Draft.empty(len(context.lengths), context.tokens.device)
