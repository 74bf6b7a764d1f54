"""What is known of a design beside its code: for tables, claims, advice and the verbs, which never name one.

The framework of "Semi-autoregressive Decoding for Efficient LLM Inference" orders drafters by two questions: what
carries the distant past, and what carries the recently drafted tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Distant(StrEnum):
    """What carries the verified past."""

    LAST_STATE = "the target's last state h_t"
    ALL_STATES = "all of the target's states"
    RECOMPUTED = "recomputed by the target's first layers"
    BOTH = "recomputed by the target's first layers, and h_t"
    OWN = "a model of its own"
    TEXT = "the text itself"
    NOTHING = "nothing"


class Recent(StrEnum):
    """What carries the tokens drafted since."""

    NOTHING = "nothing"
    EMBEDDINGS = "their embeddings, side by side"
    RECURRENT = "a recurrent state"
    ADDED = "a state that takes them in one by one"
    SMALL_LM = "a small language model h_q"
    FEATURES = "its own features, fed back"
    SAME = "what carries the distant past"


@dataclass(frozen=True, slots=True)
class Facts:
    """A design, as its settings make it."""

    title: str
    line: str
    """One line for tables and docs."""
    paper: str
    distant: Distant
    recent: Recent
    form: str = ""
    """Which kind of h_q, where there are several."""
    drafts: bool = True
    learns: bool = True
    head: bool = True
    """Whether it has an output head, and so a draft vocabulary."""
    searches: bool = False
    """Whether it looks up what followed the same tokens before."""
    trees: tuple[str, ...] = ("best", "beam", "sampled")
    stops: bool = True
    """Whether a chain can end early, after a token that its own law finds unlikely."""
    attach: str = ""
    """"" = it has to be trained; alone = it can be put beside any target; around = around a trained drafter."""

    original: str = ""
    """Whose checkpoints `semiar import` reads into it."""

    @property
    def semi_autoregressive(self) -> bool:
        """Whether it is of the paper's kind: h_p of the target, h_q of a small LM."""
        return self.recent is Recent.SMALL_LM and self.distant in (Distant.LAST_STATE, Distant.ALL_STATES)

    def record(self) -> dict[str, Any]:
        """What rows and traces keep of it."""
        return {
            "title": self.title, "distant": self.distant.name, "recent": self.recent.name, "form": self.form,
            "learns": self.learns, "head": self.head, "searches": self.searches, "attach": self.attach,
            "semi_autoregressive": self.semi_autoregressive,
        }  # fmt: skip
