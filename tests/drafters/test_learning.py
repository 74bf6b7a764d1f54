"""Draft targets line up: what has been learned by heart is drafted without a fault (H27)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kit.models import chain_table, draft_settings, table_model

from semiar.decoding import Limits, decode
from semiar.drafters import build_drafter
from semiar.targets import Target
from semiar.training.config import LossSettings
from semiar.training.learner import DraftLearner

LENGTH = 32


@pytest.mark.parametrize(
    "changes",
    [
        {"small_lm": "lstm"},
        {"small_lm": "context", "num_heads": 1},
        {"small_lm": "attention", "fusion": "both", "num_heads": 1},
        {"small_lm": "gru", "fusion": "additive"},
        {"small_lm": "none"},
        {"architecture": "medusa"},
        {"architecture": "hydra"},
        {"architecture": "recurrent"},
        {"architecture": "mlp"},
        {"architecture": "mlp", "cell": "lstm"},
        {"architecture": "eagle"},
        {"architecture": "eagle", "version": 1},
        {"architecture": "parallel", "num_heads": 1},
        {"architecture": "skip"},
        {"architecture": "skip", "with_h_p": True},
    ],
    ids=str,
)
def test_a_sequence_learned_by_heart_is_drafted_without_a_fault(changes: dict[str, Any]) -> None:
    """32 distinct tokens until the loss is below 0.01; then all drafts are right at every depth and from the start."""
    target = Target(table_model(chain_table(LENGTH), dtype=torch.float32, layers=2))
    drafter = build_drafter(draft_settings(**changes), target, None)
    tokens = torch.arange(LENGTH)[None]
    labels = tokens.clone()
    labels[:, :4] = -100
    with torch.no_grad():
        hidden = target(tokens, layers=drafter.layers).hidden
    learner = DraftLearner(drafter, LossSettings(terms="ce", step_decay=1.0, anchors_per_sample=0)).train()
    optimizer = torch.optim.Adam(learner.parameters(), lr=0.01)
    drafts = sum(min(4, LENGTH - 2 - anchor) for anchor in range(2, LENGTH - 2))
    for _ in range(300):
        loss = learner(hidden, tokens, labels) / drafts
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.01:
            break
    assert loss.item() < 0.01
    learner.eval()
    steps = list(decode(target, drafter, [[0, 1, 2, 3]], Limits(LENGTH - 4)))
    assert [token for step in steps for token in step.tokens[0]] == list(range(4, LENGTH))
    assert [step.accepted[0] for step in steps] == [step.drafted for step in steps] and steps[0].drafted == 4
