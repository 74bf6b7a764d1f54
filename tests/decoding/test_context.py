"""What the loop hands to drafters: the committed tokens, and the target's states of what the last pass committed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kit.drafters import ModelDrafter
from kit.models import noisy_copy, prompts_of, target_of

from semiar.core.draft import Draft
from semiar.decoding import Limits, decode
from semiar.drafters import Context, State
from semiar.targets import Target
from semiar.targets.target import LAST

LAYERS = (1, LAST)


class Watching(ModelDrafter):
    """Compares every context with plain passes over the committed tokens."""

    def __init__(self, target: Target, width: int):
        super().__init__(noisy_copy(target.lm, 0.1), 3, width=width)
        self.target, self.layers, self.rounds = target, LAYERS, 0
        self.fresh: set[int] = set()

    def propose(self, context: Context, state: State, *rest: Any) -> Draft:
        self.rounds += 1
        for row, (length, fresh) in enumerate(zip(context.lengths.tolist(), context.fresh.tolist(), strict=True)):
            text = context.tokens[row, :length]
            assert context.last()[row].tolist() == text[-1:].tolist()
            states = Target.forward(self.target, text[None], layers=LAYERS).hidden[0]
            found = context.hidden[row, :fresh]
            torch.testing.assert_close(found, states[length - 1 - fresh : length - 1], rtol=0, atol=2e-5)
            self.fresh.add(fresh)
        return super().propose(context, state, *rest)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
@pytest.mark.parametrize("width", [1, 2])
def test_fresh_states_are_those_of_the_newest_verified_positions(name: str, width: int) -> None:
    target = target_of(name)
    drafter = Watching(target, width)
    prompts = prompts_of(96, [1, 4, 12])
    steps = list(decode(target, drafter, prompts, Limits(16, (7,))))
    assert drafter.rounds >= len(steps) - 1  # the last pass may have nothing to draft
    assert {0, 3, 11} <= drafter.fresh  # whole prompts first, then what was accepted
    assert len(drafter.fresh - {0, 11}) >= 2
