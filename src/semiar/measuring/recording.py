"""Decodings written down step by step, one alone or two side by side.

Plain and speculative steps are taken in turn, whichever text is behind, so that both meet the same moments of a machine
whose speed changes: figures of runs at different times once said that more had been gained than a pass yields tokens.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

from semiar.decoding import Limits, decode
from semiar.decoding.text import Detokenizer, generator
from semiar.pair import Pair
from semiar.settings import Decoding
from semiar.targets import Target


class Recording:
    """One decoding of a prompt, which goes on when it is told to and is timed by itself."""

    def __init__(
        self, pair: Pair, target: Target, prompt: list[int], limits: Limits, decoding: Decoding, count: int,
        *, seed: int = 0, profile: bool = False,
    ):  # fmt: skip
        self.pair, self.prompt, self.profile = pair, prompt, profile
        self.ids: list[int] = []
        self.origins: list[str] = []
        self.steps: list[dict[str, Any]] = []
        self.reason, self.going = "length", True
        self.seconds = self.prefill = 0.0
        self.loop = decode(
            target, pair.drafter, [prompt], limits, decoding.sampling, rng=generator(target, seed), profile=profile,
            num_speculative_tokens=count, rule=decoding.rule if count else "exact", plan=decoding.plan,
        )  # fmt: skip

    def advance(self) -> None:
        """One more step, the prompt before the first one; afterwards it may have come to its end."""
        begin = perf_counter()
        step = next(self.loop, None)
        spent = perf_counter() - begin
        self.seconds += spent
        if step is None:
            self.going = False
            return
        if not self.steps:
            self.prefill = spent - step.seconds  # what came before the first step
        new, accepted = step.tokens[0], step.accepted[0]
        self.ids.extend(new)
        self.origins.extend("drafted" if i < accepted else "target" for i in range(len(new)))
        self.reason = step.finished[0] or self.reason
        rest = step.seconds - step.draft_seconds - step.verify_seconds
        self.steps.append({
            "drafted": step.drafted, "depth": step.depth, "accepted": accepted, "emitted": len(new),
            "draft_ms": round(1e3 * step.draft_seconds, 4), "verify_ms": round(1e3 * step.verify_seconds, 4),
            "overhead_ms": round(1e3 * rest, 4),
        })  # fmt: skip
        if self.profile:
            self.steps[-1]["parts_ms"] = {part: round(1e3 * took, 4) for part, took in step.parts.items()}

    def whole(self) -> Recording:
        """The same, decoded to its end."""
        while self.going:
            self.advance()
        return self

    def record(self) -> dict[str, Any]:
        """What the trace keeps of it."""
        begin, pieces = perf_counter(), Detokenizer(self.pair.tokenizer)
        texts = [pieces.push([token], final=i + 1 == len(self.ids)) for i, token in enumerate(self.ids)]
        return {
            "detokenise_seconds": perf_counter() - begin, "prompt_tokens": len(self.prompt), "token_ids": self.ids,
            "pieces": texts, "origins": self.origins, "text": "".join(texts), "finish_reason": self.reason,
            "seconds": self.seconds, "prefill_seconds": self.prefill, "steps": self.steps,
        }  # fmt: skip


def side_by_side(plain: Recording, fast: Recording, *, plain_first: bool) -> None:
    """Decode both to their ends, in turn: after each step of one the other catches up with its tokens."""
    if plain_first:
        plain.advance()
    while fast.going or plain.going:
        if fast.going:
            fast.advance()
        while plain.going and (len(plain.ids) < len(fast.ids) or not fast.going):
            plain.advance()
