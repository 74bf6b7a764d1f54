"""Text from the loop: whole completions, and pieces as they come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from semiar.core.counting import tokens_per_pass
from semiar.core.draft import Plan
from semiar.core.sampling import Sampling
from semiar.decoding.loop import Limits, Step, decode
from semiar.drafters.base import Drafter
from semiar.targets.target import Target

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(slots=True)
class Completion:
    """One finished row."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = "length"
    accepted: list[int] = field(default_factory=list)  # drafted tokens accepted by each target pass
    drafted: list[int] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)  # tokens delivered by each target pass

    @property
    def tokens_per_pass(self) -> float:
        """Emitted tokens per target pass, the target's own among them."""
        return tokens_per_pass(sum(self.emitted), len(self.emitted))


class Detokenizer:
    """Turns token ids into text piece by piece, never handing out half a character."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        self.start = 0  # first token of the window that is decoded together
        self.read = 0  # tokens whose text has been handed out

    def push(self, ids: Sequence[int], final: bool = False) -> str:
        """The text that these tokens complete; with ``final`` also what an unfinished character left."""
        self.ids.extend(ids)
        before = self._decode(self.ids[self.start : self.read])
        after = self._decode(self.ids[self.start :])
        if after.endswith(REPLACEMENT) and not final:
            return ""
        piece = after[len(before) :]
        self.start, self.read = self.read, len(self.ids)
        return piece

    def _decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def complete(
    target: Target,
    drafter: Drafter,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    limits: Limits,
    sampling: Sampling | None = None,
    *,
    seed: int | None = None,
    num_speculative_tokens: int | Mapping[int, int] | None = None,
    rule: str = "exact",
    plan: Plan | None = None,
    max_batch: int | None = None,
) -> list[Completion]:
    """Run the loop to its end for a batch of token-id prompts."""
    done = [Completion() for _ in prompts]
    rng = generator(target, seed)
    for step in decode(
        target, drafter, prompts, limits, sampling, rng=rng, num_speculative_tokens=num_speculative_tokens, rule=rule,
        plan=plan, max_batch=max_batch,
    ):  # fmt: skip
        record(done, step)
    for completion in done:
        completion.text = Detokenizer(tokenizer).push(completion.token_ids, final=True)
    return done


def record(done: list[Completion], step: Step) -> None:
    """Add one step's tokens to the completions of its rows."""
    for row, tokens, accepted, reason in zip(step.rows, step.tokens, step.accepted, step.finished, strict=True):
        completion = done[row]
        completion.token_ids.extend(tokens)
        completion.accepted.append(accepted)
        completion.drafted.append(step.drafted)
        completion.emitted.append(len(tokens))
        completion.finish_reason = reason or completion.finish_reason


def stream(
    target: Target,
    drafter: Drafter,
    tokenizer: Any,
    prompt: Sequence[int],
    limits: Limits,
    sampling: Sampling | None = None,
    *,
    seed: int | None = None,
    num_speculative_tokens: int | Mapping[int, int] | None = None,
    rule: str = "exact",
    plan: Plan | None = None,
) -> Iterator[str]:
    """Pieces of text of one prompt as soon as they are certain; joined they equal `complete`'s text."""
    pieces = Detokenizer(tokenizer)
    rng = generator(target, seed)
    for step in decode(
        target, drafter, [prompt], limits, sampling, rng=rng, num_speculative_tokens=num_speculative_tokens, rule=rule,
        plan=plan,
    ):  # fmt: skip
        piece = pieces.push(step.tokens[0], final=step.finished[0] is not None)
        if piece:
            yield piece


def generator(target: Target, seed: int | None) -> torch.Generator:
    """A generator on the target's device; without a seed it is seeded by the system."""
    rng = torch.Generator(device=target.device)
    if seed is None:
        rng.seed()
    else:
        rng.manual_seed(seed)
    return rng
