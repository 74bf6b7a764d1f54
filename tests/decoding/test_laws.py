"""Sampling through the real loop: the law of the emitted tokens is the target's, whatever law drafts come from.

Table pairs make the exact law of the first tokens known (see `kit.laws`).  The last tests show that wrong laws are
found.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kit.drafters import TableDrafter
from kit.laws import FOREIGN, FOUR, OTHER, ROWS, THREE, check, check_texts, distances, joint_chance, laws_of, sample
from kit.models import semi_drafter, table_model
from torch import Tensor

from semiar.core.calibration import Calibration
from semiar.core.draft import Draft, Plan
from semiar.core.sampling import Sampling
from semiar.drafters import NoDrafter
from semiar.targets import Target

DRAFTS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    # drafter, tokens emitted (K + 1, so that the first block is whole and its bonus token is among them), options
    "plain": (lambda: NoDrafter(), 4, {}),
    "chain": (lambda: TableDrafter(OTHER, 4), 5, {}),
    "chain of one": (lambda: TableDrafter(OTHER, 1), 4, {}),
    "chain, block rule": (lambda: TableDrafter(OTHER, 4), 5, {"rule": "block"}),
    "the target's own law": (lambda: TableDrafter(THREE, 3), 4, {}),
    "chosen chain": (lambda: TableDrafter(OTHER, 3, how="chosen"), 4, {}),
    "tree, siblings drawn independently": (lambda: TableDrafter(OTHER, 2, width=2), 4, {}),
    "tree, siblings drawn without replacement": (lambda: TableDrafter(OTHER, 2, width=2, how="without"), 4, {}),
    "tree, all siblings without replacement": (lambda: TableDrafter(OTHER, 2, width=3, how="without"), 4, {}),
    "tree, chosen siblings": (lambda: TableDrafter(OTHER, 2, width=2, how="chosen"), 4, {}),
}


@pytest.mark.parametrize("name", DRAFTS)
def test_the_law_is_the_target_s(name: str) -> None:
    build, count, options = DRAFTS[name]
    found = sample(THREE, build(), count, Sampling(1.0), **options)
    check(found, laws_of(THREE, Sampling(1.0)))
    assert len(torch.unique(found, dim=0)) > 50


REDUCED: dict[str, tuple[Any, dict[str, Any]]] = {
    "chain": (lambda: TableDrafter(FOREIGN, 3, vocab=[0, 2, 3]), {}),
    "chain, block rule": (lambda: TableDrafter(FOREIGN, 3, vocab=[1, 2]), {"rule": "block"}),
    "tree": (lambda: TableDrafter(FOREIGN, 2, width=2, vocab=[0, 2, 3]), {}),
    "tree without replacement": (lambda: TableDrafter(FOREIGN, 2, width=2, how="without", vocab=[0, 2, 3]), {}),
    "one token": (lambda: TableDrafter(FOREIGN, 3, vocab=[2]), {}),
}


@pytest.mark.parametrize("name", REDUCED)
def test_a_reduced_draft_vocabulary_keeps_the_law(name: str) -> None:
    build, options = REDUCED[name]
    check(sample(FOUR, build(), 4, Sampling(1.0), **options), laws_of(FOUR, Sampling(1.0)))


@pytest.mark.parametrize(
    ("sampling", "rule"),
    [
        (Sampling(0.5), "exact"),
        (Sampling(top_k=2), "exact"),
        (Sampling(1.2, top_p=0.7), "block"),
        (Sampling(0.9, top_k=3, top_p=0.9, min_p=0.1), "exact"),
    ],
    ids=str,
)
def test_filters_reach_every_position(sampling: Sampling, rule: str) -> None:
    found = sample(FOUR, TableDrafter(FOREIGN, 3), 4, sampling, rule=rule)
    check(found, laws_of(FOUR, sampling))


@pytest.mark.parametrize(("small_lm", "rule"), [("lstm", "exact"), ("context", "exact"), ("context", "block")])
def test_a_trained_drafter_keeps_the_law(small_lm: str, rule: str) -> None:
    target = Target(table_model(FOUR))
    drafter = semi_drafter(target, torch.tensor([0, 1, 3]), small_lm=small_lm, num_heads=1)
    found = sample(FOUR, drafter, 4, Sampling(1.0), prompt=[2, 3, 0], rule=rule)
    check(found, laws_of(FOUR, Sampling(1.0)))


PLANS: dict[str, tuple[dict[str, Any], Plan]] = {
    "best": ({"small_lm": "context", "num_heads": 1}, Plan(tree="best", nodes=5, branch=2)),
    "beam": ({"architecture": "mlp"}, Plan(tree="beam", nodes=5, branch=2)),
    "sampled": ({"architecture": "hydra"}, Plan(tree="sampled", nodes=5, branch=3)),
    "stop": ({"architecture": "recurrent"}, Plan(stop_below=0.34)),
}


def test_stopping_by_calibrated_confidence_keeps_the_law() -> None:
    settings: dict[str, Any] = {"architecture": "recurrent", "num_speculative_tokens": 3}
    drafter: Any = semi_drafter(Target(table_model(FOUR)), torch.tensor([0, 1, 3]), **settings)
    drafter.calibration = Calibration([0.3, 0.4], [[0.2, 0.6, 0.9], [0.1, 0.2, 0.8], [0.5, 0.5, 0.5]])
    found = sample(FOUR, drafter, 4, Sampling(1.0), prompt=[2, 3, 0], plan=Plan(stop_below=0.5))
    check(found, laws_of(FOUR, Sampling(1.0)))


@pytest.mark.parametrize("name", PLANS)
def test_trees_and_stopping_keep_the_law(name: str) -> None:
    changes, plan = PLANS[name]
    drafter = semi_drafter(Target(table_model(FOUR)), torch.tensor([0, 1, 3]), num_speculative_tokens=3, **changes)
    found = sample(FOUR, drafter, 4, Sampling(1.0), prompt=[2, 3, 0], plan=plan)
    check(found, laws_of(FOUR, Sampling(1.0)))


OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "eagle": ({"architecture": "eagle"}, {}),
    "eagle, block rule": ({"architecture": "eagle"}, {"rule": "block"}),
    "eagle, best": ({"architecture": "eagle"}, {"plan": Plan(tree="best", nodes=5, branch=2)}),
    "eagle, sampled": ({"architecture": "eagle"}, {"plan": Plan(tree="sampled", nodes=5, branch=3)}),
    "eagle 1": ({"architecture": "eagle", "version": 1}, {}),
    "parallel": ({"architecture": "parallel", "num_heads": 1}, {}),
    "parallel, beam": ({"architecture": "parallel", "num_heads": 1}, {"plan": Plan(tree="beam", nodes=5, branch=2)}),
    "parallel, sampled": (
        {"architecture": "parallel", "num_heads": 1},
        {"plan": Plan(tree="sampled", nodes=5, branch=3)},
    ),
    "skip": ({"architecture": "skip"}, {}),
    "skip, stop": ({"architecture": "skip"}, {"plan": Plan(stop_below=0.34)}),
    "skip with h_p": ({"architecture": "skip", "with_h_p": True}, {}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_texts_of_the_larger_drafters_have_the_law_of_their_enumeration(name: str) -> None:
    changes, options = OTHERS[name]
    target = Target(table_model(FOUR, layers=2))
    drafter = semi_drafter(target, torch.tensor([0, 1, 3]), num_speculative_tokens=3, **changes)
    found = sample(FOUR, drafter, 4, Sampling(1.0), prompt=[2, 3, 0], rows=6000, layers=2, **options)
    check_texts(found, laws_of(FOUR, Sampling(1.0)))


class Stopping(TableDrafter):
    """Stops after keeping a token that its own law finds unlikely: exact."""

    BAR = 0.35

    def propose(self, *arguments: Any) -> Draft:
        draft = super().propose(*arguments)
        own = draft.probs.gather(-1, draft.tokens[..., None])[..., 0]
        return Draft.chain(torch.where(self.stays(own >= self.BAR), draft.tokens, -1), draft.probs)

    def stays(self, sure: Tensor) -> Tensor:
        """Which tokens (B, N) are verified, given which ones the drafter is ``sure`` of."""
        return torch.cat([torch.ones_like(sure[:, :1]), sure[:, :-1]], 1).long().cumprod(1).bool()


class Dropping(Stopping):
    """Leaves the unlikely token itself out, too: not exact (it looked at what it had drawn)."""

    def stays(self, sure: Tensor) -> Tensor:
        return sure.long().cumprod(1).bool()


class Peeking(Stopping):
    """Decides whether to verify a token by how likely the one after it came out: not exact."""

    def stays(self, sure: Tensor) -> Tensor:
        return torch.cat([sure[:, 1:], sure[:, -1:]], 1).long().cumprod(1).bool()


def test_stopping_after_a_token_is_exact_and_looking_ahead_is_not() -> None:
    laws = laws_of(THREE, Sampling(1.0))
    check(sample(THREE, Stopping(OTHER, 3), 4, Sampling(1.0)), laws)
    for wrong in (Dropping(OTHER, 3), Peeking(OTHER, 3)):
        found = sample(THREE, wrong, 4, Sampling(1.0))
        assert max(distances(found, laws)) > 0.025 and joint_chance(found, laws) < 1e-9


class Overconfident(TableDrafter):
    """Takes its best token and says that it sampled: the published fault (H05)."""

    def propose(self, *arguments: Any) -> Draft:
        draft = super().propose(*arguments)
        tokens, law = [], self.laws[arguments[0].last()[:, 0]]
        for _ in range(draft.count):
            tokens.append(law.argmax(-1))
            law = self.laws[tokens[-1]]
        return Draft.chain(torch.stack(tokens, 1), draft.probs)


class Dishonest(TableDrafter):
    """Samples from one law and reports another."""

    def propose(self, *arguments: Any) -> Draft:
        draft = super().propose(*arguments)
        return Draft.chain(draft.tokens, (draft.probs * 0.5).softmax(-1))


@pytest.mark.parametrize(("kind", "rule"), [(Overconfident, "exact"), (Overconfident, "block"), (Dishonest, "exact")])
def test_a_draft_that_lies_about_its_law_is_seen_by_these_tests(kind: type[TableDrafter], rule: str) -> None:
    found = sample(THREE, kind(OTHER, 2), 3, Sampling(1.0), rule=rule)
    laws = laws_of(THREE, Sampling(1.0))
    assert max(distances(found, laws)) > 0.025 and joint_chance(found, laws) < 1e-9


def test_without_verification_the_law_is_not_the_target_s() -> None:
    found = sample(THREE, TableDrafter(OTHER, 2), 3, Sampling(1.0), rule="none")
    assert max(distances(found, laws_of(THREE, Sampling(1.0)))) > 0.1
    first = torch.bincount(found[:, 0], minlength=3) / ROWS
    assert float((first - laws_of(OTHER, Sampling(1.0))[0]).abs().max()) < 0.02  # it is the draft's


@pytest.mark.parametrize("small_lm", ["lstm", "context"])
def test_rows_that_join_later_keep_the_law(small_lm: str) -> None:
    drafter = semi_drafter(Target(table_model(FOUR)), torch.tensor([0, 1, 3]), small_lm=small_lm, num_heads=1)
    found = sample(FOUR, drafter, 4, Sampling(1.0), prompt=[2, 3, 0], max_batch=6000)
    check(found, laws_of(FOUR, Sampling(1.0)))
