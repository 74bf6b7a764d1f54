"""Reported faults of verifiers (H05 to H09), through the real loop: the published numbers, at every position."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from kit.drafters import TableDrafter
from kit.laws import THREE, check_texts, laws_of, sample
from kit.models import table_model

from semiar.core.sampling import Sampling
from semiar.decoding import Limits, decode
from semiar.targets import Target

ROWS = 6000
NEVER = -80.0  # a logit that no draw takes


def rows_of(law: list[float]) -> list[list[float]]:
    """Logits of this law after every token."""
    return [[math.log(p) if p else NEVER for p in law] for _ in law]


def texts(table: Any, drafter: TableDrafter, seed: int, count: int = 12, heat: float = 1.0) -> list[int]:
    rng = torch.Generator().manual_seed(seed)
    steps = decode(Target(table_model(table)), drafter, [[0]], Limits(count), Sampling(heat), rng=rng)
    return [token for step in steps for token in step.tokens[0]]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_h05_a_draft_that_takes_its_best_token(count: int) -> None:
    """Dividing by the draft's 0.6 gives 0.83 and 0.17."""
    drafter = TableDrafter(rows_of([0.6, 0.4]), count, how="chosen")
    check_texts(
        sample(rows_of([0.5, 0.5]), drafter, 5, Sampling(1.0), rows=ROWS), laws_of(rows_of([0.5, 0.5]), Sampling(1.0))
    )


@pytest.mark.parametrize("rule", ["exact", "block"])
@pytest.mark.parametrize(
    ("target", "draft"),
    [([0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 0.0, 0.0]), ([0.2, 0.8], [0.8, 0.2])],
    ids=["nothing in common", "turned round"],
)
def test_h06_degenerate_leftovers(target: list[float], draft: list[float], rule: str) -> None:
    """What is left over is normalised, not softmaxed: that would give 0.41 and 0.59 for the last one."""
    found = sample(rows_of(target), TableDrafter(rows_of(draft), 2), 4, Sampling(1.0), rows=ROWS, rule=rule)
    check_texts(found, laws_of(rows_of(target), Sampling(1.0)))
    assert set(found.unique().tolist()) == {token for token, p in enumerate(target) if p}


@pytest.mark.parametrize("rule", ["exact", "block"])
def test_h06_a_draft_with_the_target_s_law_is_accepted_whole(rule: str) -> None:
    rng = torch.Generator().manual_seed(0)
    target, drafter = Target(table_model(THREE)), TableDrafter(THREE, 4)
    steps = list(decode(target, drafter, [[0]] * 50, Limits(20), Sampling(1.0), rng=rng, rule=rule))
    assert len(steps) == 4 and all(accepted == step.drafted for step in steps for accepted in step.accepted)


def test_h06_nearly_one_hot() -> None:
    sharp = [[2.0, 1.9, -5.0], [1.9, 2.0, -5.0], [2.0, -5.0, 1.9]]
    other = [[1.9, 2.0, -9.0], [2.0, 1.9, -9.0], [-9.0, 2.0, 2.0]]
    found = sample(sharp, TableDrafter(other, 3), 6, Sampling(0.01), rows=500)
    check_texts(found[:, :4], laws_of(sharp, Sampling(0.01)))


HOT: list[tuple[Sampling, list[float]]] = [
    (Sampling(1.0), [0.844, 0.114, 0.042]),
    (Sampling(0.5), [0.980, 0.018, 0.002]),
    (Sampling(top_k=2), [0.881, 0.119, 0.0]),
    (Sampling(1e-6), [1.0, 0.0, 0.0]),
    (Sampling(0.0), [1.0, 0.0, 0.0]),
]


@pytest.mark.parametrize(("sampling", "law"), HOT, ids=str)
@pytest.mark.parametrize("width", [1, 2])
def test_h07_temperature_reaches_the_verifier(sampling: Sampling, law: list[float], width: int) -> None:
    """At the first, the middle and the bonus position, in a chain and in a tree, with a uniform draft."""
    table, drafter = [[2.0, 0.0, -1.0]] * 3, TableDrafter([[0.0] * 3] * 3, 2, width=width)
    found = sample(table, drafter, 4, sampling, rows=ROWS)
    for position in range(4):
        seen = torch.bincount(found[:, position], minlength=3) / ROWS
        torch.testing.assert_close(seen.double(), torch.tensor(law).double(), rtol=0, atol=0.02)
    if max(law) == 1:
        assert not found.any()
    else:
        check_texts(found, laws_of(table, sampling))


@pytest.mark.parametrize("target", [[0.5, 0.3, 0.2], [0.34, 0.33, 0.33]], ids=str)
def test_h08_a_tree_with_children_taken_by_rank(target: list[float]) -> None:
    """Faulty builds give 0.50, 0.15, 0.35 and 0.68, 0.10, 0.22."""
    drafter = TableDrafter(rows_of([0.5, 0.3, 0.2]), 2, width=2, how="chosen")
    check_texts(sample(rows_of(target), drafter, 4, Sampling(1.0), rows=ROWS), laws_of(rows_of(target), Sampling(1.0)))


SEVENTH = {1: [0, 0, 0, 1, 2, 2, 0, 0, 2, 2, 2, 1], 2: [0, 2, 1, 0, 0, 2, 2, 1, 1, 2, 1, 1]}


@pytest.mark.parametrize("width", [1, 2])
def test_h09_a_seed_decides_the_text(width: int) -> None:
    """The same in every process, and another seed gives another text."""
    drafter = TableDrafter([[0.0] * 3] * 3, 3, width=width)
    found = [texts(THREE, drafter, seed, 24) for seed in range(20)]
    assert found[:3] == [texts(THREE, drafter, seed, 24) for seed in range(3)]
    assert len({str(text) for text in found}) == 20
    assert texts(THREE, drafter, 0, 24, heat=0.0) == texts(THREE, drafter, 1, 24, heat=0.0)
    assert found[7][:12] == SEVENTH[width]  # written down by another process
