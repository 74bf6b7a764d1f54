"""Prompt lookup: what followed the same tokens before, in the text itself or in the training answers.

Nothing is learned and no model is run (prompt lookup decoding, Saxena 2023; SAM decoding, Hu et al. 2024).  The drafted
tokens are chosen, not sampled, so the verifier keeps them with the target's own probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from semiar.core.draft import Draft, Plan
from semiar.core.sampling import Sampling
from semiar.drafters.base import Context, Drafter, State
from semiar.drafters.facts import Distant, Facts, Recent
from semiar.drafters.finding import Corpus, Finder, Finders, FindingSettings, fill
from semiar.drafters.registry import register


@dataclass(frozen=True)
class LookupSettings(FindingSettings):
    """Prompt lookup."""

    architecture: str = "lookup"


@register("lookup")
class LookupDrafter(Drafter):
    """The tokens after the longest earlier match of a row's end; a row without one drafts nothing.

    It has no head, so the draft vocabulary means nothing to it.
    """

    Settings = LookupSettings
    FACTS = Facts(
        "prompt lookup", "the tokens after the longest earlier match of the text's end",
        "Prompt Lookup Decoding (Saxena 2023); SAM Decoding (Hu et al. 2024)",
        Distant.TEXT, Recent.SAME, learns=False, head=False, searches=True, trees=(), stops=False, attach="alone",
    )  # fmt: skip

    def __init__(self, settings: LookupSettings, target: object = None, vocab: object = None, corpus_size: int = 0):
        super().__init__(settings)
        self.corpus = Corpus(corpus_size)

    def read_answers(self, answers: Sequence[Sequence[int]]) -> None:
        self.corpus.read(answers, self.settings.corpus_tokens)

    def extra_config(self) -> dict[str, Any]:
        return {"corpus_size": self.corpus.size}

    def start(self, batch: int, capacity: int, device: torch.device) -> Finders:
        corpus = self.corpus.matcher(self.settings)
        return Finders([Finder(self.settings, corpus) for _ in range(batch)])

    def propose(
        self, context: Context, state: State, plan: Plan, sampling: Sampling, rng: torch.Generator | None
    ) -> Draft:
        assert isinstance(state, Finders)
        state.follow(context)
        chains = state.propose(min(plan.count, self.settings.num_speculative_tokens))
        return Draft.chain(fill(chains, context.tokens.device))
