"""Objectives, chunking and the alignment of draft labels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.models import prompts_of, semi_drafter, target_of
from torch.nn import functional as F

from semiar.drafters.designs.medusa import MedusaDrafter
from semiar.errors import ConfigError
from semiar.training.chunked import chunked_sum
from semiar.training.config import LossSettings
from semiar.training.learner import IGNORED, DraftLearner, choose_anchors, targets_of
from semiar.training.objectives import draft_loss, parse_loss


@given(st.integers(1, 17), st.integers(1, 9), st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_chunks_give_the_loss_and_gradients_of_the_whole(rows: int, size: int, seed: int) -> None:
    torch.manual_seed(seed)
    weight = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    state = torch.randn(rows, 5, dtype=torch.float64, requires_grad=True)
    label = torch.randint(0, 7, (rows,))

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x @ weight.T, y, reduction="sum")

    whole = loss(state, label)
    expected = torch.autograd.grad(3 * whole, [state, weight])
    found = chunked_sum(loss, (state, label), [weight], size)
    gradients = torch.autograd.grad(3 * found, [state, weight])
    assert torch.allclose(found.double(), whole, rtol=1e-5)
    for a, b in zip(gradients, expected, strict=True):
        assert torch.allclose(a, b, atol=1e-10)


def test_objectives_match_their_definitions() -> None:
    torch.manual_seed(0)
    draft, teacher = torch.randn(6, 9), torch.randn(6, 9)
    label = torch.tensor([0, 3, 8, -1, 2, 5])
    d, t = draft.softmax(-1), teacher.softmax(-1)
    middle = (d + t) / 2
    expected = {
        "ce": torch.where(label >= 0, -d.log()[torch.arange(6), label.clamp(min=0)], 0),
        "kl": (t * (t / d).log()).sum(-1),
        "reverse_kl": (d * (d / t).log()).sum(-1),
        "js": 0.5 * ((t * (t / middle).log()).sum(-1) + (d * (d / middle).log()).sum(-1)),
        "tv": 0.5 * (t - d).abs().sum(-1),
    }
    for name, value in expected.items():
        assert torch.allclose(draft_loss(draft, teacher, label, {name: 1.0}), value, atol=1e-5), name
    mix = draft_loss(draft, teacher, label, parse_loss("0.9*tv + 0.1 kl"))
    assert torch.allclose(mix, 0.9 * expected["tv"] + 0.1 * expected["kl"], atol=1e-5)


class Regressing(MedusaDrafter):
    """Adds the squared distance of each state to the target's own."""

    def extra_loss(
        self, states: torch.Tensor, hidden: torch.Tensor, tokens: torch.Tensor, anchors: torch.Tensor, valid: Any
    ) -> torch.Tensor:
        places = (anchors[..., None] + 1 + torch.arange(states.shape[2])).clamp(max=tokens.shape[1] - 1)
        wanted = hidden[torch.arange(len(tokens))[:, None, None], places, -1]
        return (states - wanted).square().sum(-1)


def test_a_drafter_may_add_a_loss_of_its_own() -> None:
    """Weighted by step like that of the drafts, over exactly the positions that count."""
    target, settings = target_of("llama"), LossSettings(anchors_per_sample=0, step_decay=0.5)
    drafter = semi_drafter(target, architecture="medusa")
    tokens = torch.tensor(prompts_of(96, [10]))
    labels = torch.where(torch.arange(10) < 4, -100, tokens)
    hidden = target(tokens).hidden.detach()
    plain = DraftLearner(drafter, settings)(hidden, tokens, labels)
    drafter.__class__ = Regressing
    added = DraftLearner(drafter, settings)(hidden, tokens, labels) - plain
    wanted = torch.zeros((), dtype=torch.float64)
    for anchor in range(2, 8):
        states = drafter.unroll(hidden, tokens, torch.tensor([[anchor]]))
        for step, state in enumerate(states):
            if anchor + 2 + step < 10:
                wanted = wanted + 0.5**step * (state[0, 0] - hidden[0, anchor + 1 + step, -1]).square().sum()
    torch.testing.assert_close(added.double(), wanted, rtol=1e-4, atol=1e-4)
    added.backward()
    assert all(value.grad is not None for name, value in drafter.named_parameters() if name.startswith("steps"))


@pytest.mark.parametrize("text", ["", "0.5*mse", "tv +", "0*ce"])
def test_unknown_losses_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_loss(text)


def test_anchors_and_targets_line_up() -> None:
    labels = torch.full((2, 9), IGNORED)
    labels[0, 3:7] = torch.arange(3, 7)  # answer at positions 3..6
    labels[1, 5:9] = torch.arange(5, 9)
    anchors, scale = choose_anchors(labels, 0)
    assert anchors[0, scale[0] > 0].tolist() == [1, 2, 3, 4]  # the label of step 1 is anchor + 2
    assert anchors[1, scale[1] > 0].tolist() == [3, 4, 5, 6]
    where, valid = targets_of(anchors, labels, 3)
    assert where[0, 0].tolist() == [3, 4, 5] and valid[0, 0].all()
    assert where[0, 2].tolist() == [5, 6, 7] and valid[0, 2].tolist() == [True, True, False]


@given(st.integers(1, 30), st.integers(1, 12), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_sampled_anchors_are_real_and_weighted_to_the_whole(answer: int, most: int, seed: int) -> None:
    torch.manual_seed(seed)
    labels = torch.full((2, 40), IGNORED)
    labels[0, 5 : 5 + answer] = 1
    labels[1, 2:4] = 1
    anchors, scale = choose_anchors(labels, most)
    assert anchors.shape[1] <= max(most, 1) or most == 0
    for row, count in ((0, answer), (1, 2)):
        real = scale[row] > 0
        assert (labels[row, anchors[row, real] + 2] == 1).all()
        assert len(set(anchors[row, real].tolist())) == int(real.sum())
        assert float(scale[row].sum()) == pytest.approx(count)
