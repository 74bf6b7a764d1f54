"""EAGLE's two versions in training: single true steps with a regression, or its own states."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kit.models import prompts_of, semi_drafter, target_of
from torch import Tensor

from semiar.training.config import LossSettings
from semiar.training.learner import DraftLearner

FIRST: dict[str, Any] = {"architecture": "eagle", "version": 1, "feature_weight": 0.5}
ANCHORS = torch.tensor([[0, 3, 7], [2, 5, 10]])


@pytest.fixture(scope="module")
def batch() -> tuple[Tensor, Tensor]:
    """States and tokens of two samples."""
    tokens = torch.tensor(prompts_of(96, [14, 14], seed=3))
    return target_of("llama")(tokens).hidden.detach(), tokens


def regression(drafter: Any, states: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    hidden, tokens = batch
    valid = torch.ones(states.shape[:3], dtype=torch.bool)
    loss = drafter.extra_loss(states, hidden, tokens, ANCHORS, valid)
    assert loss is not None and loss.shape == states.shape[:3]
    return loss


def test_the_regression_is_zero_where_the_states_are_the_next_ones(batch: tuple[Tensor, Tensor]) -> None:
    drafter, hidden = semi_drafter(target_of("llama"), **FIRST), batch[0]
    places = (ANCHORS[..., None] + 1 + torch.arange(3)).clamp(max=13)
    states = hidden[torch.arange(2)[:, None, None], places, -1]
    assert bool((regression(drafter, states, batch) == 0).all())
    off = torch.zeros_like(states)
    off[0, 1, 2, 5] = 3.0  # beyond 1 the loss is the distance less a half
    off[1, 2, 0, :2] = 0.5  # below, half its square
    wanted = torch.zeros(2, 3, 3)
    wanted[0, 1, 2], wanted[1, 2, 0] = 0.5 * 2.5 / 32, 0.5 * 2 * 0.125 / 32
    torch.testing.assert_close(regression(drafter, states + off, batch), wanted, rtol=1e-5, atol=1e-7)
    same = states + torch.randn(32)
    assert bool((regression(drafter, same, batch) > 0).all())


def test_training_lowers_the_regression(batch: tuple[Tensor, Tensor]) -> None:
    drafter: Any = semi_drafter(target_of("llama"), **FIRST)
    hidden, tokens = batch
    labels = torch.where(torch.arange(14) < 2, -100, tokens)
    learner = DraftLearner(drafter, LossSettings(anchors_per_sample=0)).train()
    optimizer = torch.optim.Adam(learner.parameters(), lr=3e-3)
    found = []
    for _ in range(30):
        states = list(drafter.unroll(hidden, tokens, ANCHORS))
        assert len(states) == 1  # a later step from true states would be the first one of a later anchor
        found.append(float(regression(drafter, states[0][:, :, None], batch).sum().detach()))
        optimizer.zero_grad()
        learner(hidden, tokens, labels).backward()
        optimizer.step()
    assert found[-1] < 0.7 * found[0]


def test_a_regression_that_weighs_nothing_is_not_computed(batch: tuple[Tensor, Tensor]) -> None:
    for options in ({"version": 3}, {"version": 1, "feature_weight": 0.0}):
        drafter: Any = semi_drafter(target_of("llama"), architecture="eagle", **options)
        states = torch.zeros(2, 3, 1, 32, dtype=torch.float64)
        assert drafter.extra_loss(states, *batch, ANCHORS, torch.ones(2, 3, 1, dtype=torch.bool)) is None


def test_later_steps_read_their_own_states_in_version_3_also_in_training(batch: tuple[Tensor, Tensor]) -> None:
    """The states of a text after the anchor do not matter: what is read there is what was guessed."""
    drafter: Any = semi_drafter(target_of("llama"), architecture="eagle").train()
    hidden, tokens = batch
    other = hidden.clone()
    other[:, 6:] += 1.0
    anchors = torch.tensor([[4, 5], [3, 5]])
    pairs = zip(drafter.unroll(hidden, tokens, anchors), drafter.unroll(other, tokens, anchors), strict=True)
    for one, changed in pairs:
        torch.testing.assert_close(one, changed, rtol=0, atol=1e-12)
