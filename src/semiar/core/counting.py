"""What counts as drafted, accepted and yielded: the one definition behind every figure of acceptance.

* ``tokens_per_pass``: emitted tokens per target pass, the target's own among them; nothing past a stop.
* ``mean_acceptance_length``: accepted drafts + 1 per target pass (vLLM's name).  It is the same but for passes that a
  stop or a cap cut: their last token was never the target's.

An end-of-turn token or a cap may cut what a pass emitted.  Drafted tokens behind the cut were never part of the output,
so they are neither accepted nor rejected; positions that a rejection had already closed stay misses.  With a accepted
and e emitted tokens, a pass cut inside its drafted tokens (a >= e) thus counts as e accepted of e drafted, any other
one as a accepted of all that it drafted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Pass:
    """One target pass as it counts: drafted tokens that are part of the output or were rejected."""

    drafted: int
    depth: int  # of the longest path through them
    accepted: int
    cut: bool  # the output ended inside the drafted tokens: no token of the target was emitted


def counted(drafted: int, depth: int, accepted: int, emitted: int) -> Pass:
    """A pass that drafted so many tokens, so deep, of which so many were accepted, and that emitted so many."""
    if accepted >= emitted:
        return Pass(emitted, emitted, emitted, True)
    return Pass(drafted, depth, accepted, False)


def tokens_per_pass(tokens: float, passes: float) -> float:
    """Emitted tokens per target pass; 0 without passes."""
    return tokens / passes if passes else 0.0


def mean_acceptance_length(accepted: Any, passes: Any) -> Any:
    """Accepted drafts + 1 per target pass, of numbers or of arrays."""
    return 1 + accepted / passes
