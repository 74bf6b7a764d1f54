"""What a drafter proposed in the loop, and what it would say of the same texts in training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kit.drafters import TestDrafter
from semiar.core.draft import Draft, Plan
from semiar.core.sampling import Sampling, distribution
from semiar.decoding import Limits, decode
from semiar.drafters import Context, Drafter, State
from semiar.targets import Target


@dataclass
class Proposal:
    """The draft of one row in one round."""

    text: list[int]  # committed tokens
    tokens: list[int]
    probs: Tensor | None  # (K, V_draft)
    parents: list[int]  # slot of each token's parent, 0 = the text

    def paths(self) -> list[list[int]]:
        """Slots (from 1) on the way to each leaf."""
        ways: dict[int, list[int]] = {0: []}
        for slot, parent in enumerate(self.parents, 1):
            ways[slot] = [*ways[parent], slot]
        return [way for slot, way in ways.items() if way and slot not in self.parents]


class Recorder(TestDrafter):
    """Drafts as the drafter inside does, and remembers it."""

    def __init__(self, inner: Drafter):
        super().__init__(inner.settings.num_speculative_tokens)
        self.inner, self.layers = inner, inner.layers
        self.seen: list[Proposal] = []

    def start(self, batch: int, capacity: int, device: torch.device) -> State:
        return self.inner.start(batch, capacity, device)

    def propose(self, context: Context, state: State, *rest: Any) -> Draft:
        draft = self.inner.propose(context, state, *rest)
        for row, length in enumerate(context.lengths.tolist()):
            probs = None if draft.probs is None else draft.probs[row]
            if draft.count:
                text, nodes = context.tokens[row, :length].tolist(), draft.tokens[row].tolist()
                self.seen.append(Proposal(text, nodes, probs, draft.parents[row].tolist()))
        return draft


def record(
    target: Target,
    drafter: Drafter,
    prompts: list[list[int]],
    count: int,
    sampling: Sampling | None = None,
    seed: int = 0,
    plan: Plan | None = None,
) -> tuple[list[list[int]], list[Proposal]]:
    """Ids of every row and all proposals on the way."""
    recorder = Recorder(drafter)
    rows: list[list[int]] = [[] for _ in prompts]
    rng = torch.Generator().manual_seed(seed)
    for step in decode(target, recorder, prompts, Limits(count), sampling, rng=rng, plan=plan):
        for row, tokens in zip(step.rows, step.tokens, strict=True):
            rows[row] += tokens
    return rows, recorder.seen


@torch.inference_mode()
def teacher_forced(target: Target, drafter: Drafter, proposal: Proposal, sampling: Sampling) -> Tensor:
    """Laws (K, V_draft) that `unroll` gives for the same text and drafts, computed from nothing."""
    tokens = torch.tensor([proposal.text + proposal.tokens])
    hidden = target(tokens, layers=drafter.layers).hidden
    anchors = torch.tensor([[len(proposal.text) - 2]])
    states = list(drafter.unroll(hidden, tokens, anchors))[: len(proposal.tokens)]
    laws = [distribution(drafter.head(state, step), sampling).probs[0] for step, state in enumerate(states)]
    return torch.cat(laws)
