"""The test kit itself: its models are what the cases ask for."""

from __future__ import annotations

import pytest
import torch

from kit.drafters import ScriptDrafter, TableDrafter, noisy_drafter
from kit.models import NAMES, chain_table, plain_greedy, prompts_of, table_model, target_of, tiny
from semiar.core.draft import Plan
from semiar.core.sampling import Sampling
from semiar.decoding import Limits, decode
from semiar.drafters import Context

TABLE = [[1.0, -2.0, 0.5], [0.0, 3.0, -1.0], [-40.0, 0.25, 0.75]]


def context_of(rows: list[list[int]]) -> Context:
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    empty = torch.zeros(len(rows), 0, 1, 4)
    return Context(tokens, torch.tensor([len(row) for row in rows]), empty, torch.zeros(len(rows), dtype=torch.long))


@torch.inference_mode()
def test_a_table_model_says_its_table_whatever_came_before() -> None:
    model = table_model(TABLE)
    for text in ([0, 1, 2], [2, 2, 1, 0, 0], [1]):
        logits = model(input_ids=torch.tensor([text])).logits[0]
        torch.testing.assert_close(logits, torch.tensor(TABLE, dtype=torch.float64)[text], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_random_models_lead_clearly_and_vary(name: str) -> None:
    model = tiny(name)
    texts = torch.randint(0, 96, (4, 30))
    best = model(input_ids=texts).logits.topk(2).values
    assert float((best[..., 0] - best[..., 1]).median()) > 0.5
    answers = plain_greedy(model, prompts_of(96, [4, 9, 12, 16]), 16)
    assert len({tuple(answer) for answer in answers}) >= 3
    assert torch.equal(tiny(name)(input_ids=texts).logits, model(input_ids=texts).logits)  # the seed decides


def test_history_matters() -> None:
    one, other = plain_greedy(tiny("llama"), [[5, 6, 7, 8], [9, 1, 2, 8]], 12)
    assert one != other


def test_noisy_drafts_are_partly_right() -> None:
    target = target_of("llama", torch.float32)
    steps = list(decode(target, noisy_drafter(target.lm, 2), prompts_of(96, [5] * 8), Limits(40)))
    accepted = sum(sum(step.accepted) for step in steps)
    drafted = sum(step.drafted * len(step.rows) for step in steps)
    assert 0.3 < accepted / drafted < 0.8


def test_a_table_drafter_proposes_from_its_rows() -> None:
    drafter = TableDrafter(TABLE, 2, width=2, how="chosen")
    draft = drafter.propose(
        context_of([[0], [1, 2]]), drafter.start(2, 8, torch.device("cpu")), Plan(count=2), Sampling(1.0), None
    )
    assert draft.tokens.tolist() == [[0, 2, 0, 2, 2, 1], [2, 1, 2, 1, 1, 0]]
    assert draft.parents.tolist() == [[0, 0, 1, 1, 2, 2]] * 2 and draft.probs is None


@pytest.mark.parametrize("how", ["sampled", "without"])
def test_a_table_drafter_says_the_law_it_samples_from(how: str) -> None:
    drafter = TableDrafter(TABLE, 1, width=2, how=how, vocab=[0, 2])
    rows = context_of([[0]] * 4000)
    draft = drafter.propose(
        rows, drafter.start(1, 8, rows.tokens.device), Plan(count=1), Sampling(1.0), torch.Generator()
    )
    law = torch.tensor([1.0, 0.5], dtype=torch.float64).softmax(0)
    torch.testing.assert_close(draft.probs[0, 0], law)
    assert abs(float((draft.tokens[:, 0] == 0).double().mean()) - float(law[0])) < 0.04
    same = float((draft.tokens[:, 0] == draft.tokens[:, 1]).double().mean())
    assert same == 0 if how == "without" else abs(same - float((law**2).sum())) < 0.04
    assert draft.replacement is (how == "sampled")


def test_a_script_drafter_fills_short_rows() -> None:
    drafter = ScriptDrafter(lambda tokens, count: tokens[-2:])
    draft = drafter.propose(
        context_of([[7], [8, 9]]), drafter.start(2, 8, torch.device("cpu")), Plan(count=4), Sampling(), None
    )
    assert draft.tokens.tolist() == [[7, -1], [8, 9]] and draft.is_chain


def test_chain_table() -> None:
    assert plain_greedy(table_model(chain_table(5, changes={3: 0})), [[1]], 5) == [[2, 3, 0, 1, 2]]
