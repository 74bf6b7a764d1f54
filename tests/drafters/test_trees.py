"""Shapes and contents of drafted trees, against enumeration of all paths."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from kit.models import prompts_of, semi_drafter, target_of
from kit.recording import Proposal, record, teacher_forced

from semiar.core.calibration import Calibration
from semiar.core.draft import Draft, Plan
from semiar.core.sampling import Sampling
from semiar.drafters import Drafter
from semiar.drafters.trees import shape_of
from semiar.errors import ConfigError
from semiar.targets import Target

VOCAB = [3, 8, 40, 77, 90]
PROMPT = prompts_of(96, [9])
DEPTH = 3


def pair_with(architecture: str) -> tuple[Target, Drafter]:
    target = target_of("llama")
    changes: dict[str, Any] = {"architecture": architecture, "num_speculative_tokens": DEPTH}
    return target, semi_drafter(target, torch.tensor(VOCAB), **changes)


@pytest.fixture(scope="module")
def pair() -> tuple[Target, Drafter]:
    return pair_with("recurrent")


def first(pair: tuple[Target, Drafter], plan: Plan, sampling: Sampling | None = None) -> Proposal:
    return record(*pair, PROMPT, 8, sampling, plan=plan)[1][0]


@pytest.fixture(scope="module")
def totals(pair: tuple[Target, Drafter]) -> dict[tuple[int, ...], float]:
    """Log probability of every path of up to three tokens."""
    scores: dict[tuple[int, ...], float] = {}
    text = first(pair, Plan()).text
    for path in itertools.product(range(len(VOCAB)), repeat=DEPTH - 1):
        forced = Proposal(text, [VOCAB[i] for i in path] + [VOCAB[0]], None, [])
        logs = teacher_forced(*pair, forced, Sampling(1.0)).log()
        for last in range(len(VOCAB)):
            whole = (*path, last)
            for depth in range(1, DEPTH + 1):
                scores[whole[:depth]] = float(sum(logs[i, whole[i]] for i in range(depth)))
    return scores


def tokens_of(proposal: Proposal) -> set[tuple[int, ...]]:
    """Paths to every node, as places in the draft vocabulary."""
    ways = [way[:depth] for way in proposal.paths() for depth in range(1, len(way) + 1)]
    return {tuple(VOCAB.index(proposal.tokens[slot - 1]) for slot in way) for way in ways}


@pytest.mark.parametrize("nodes", [1, 3, 5])
def test_best_holds_the_most_probable_paths(pair: Any, totals: dict[tuple[int, ...], float], nodes: int) -> None:
    proposal = first(pair, Plan(tree="best", nodes=nodes, branch=5))
    best = sorted(totals, key=totals.__getitem__, reverse=True)[:nodes]
    assert tokens_of(proposal) == set(best) and len(proposal.tokens) == nodes


def test_a_wide_beam_holds_the_best_whole_paths(pair: Any, totals: dict[tuple[int, ...], float]) -> None:
    whole = sorted((p for p in totals if len(p) == DEPTH), key=totals.__getitem__, reverse=True)
    assert tokens_of(first(pair, Plan(tree="beam", nodes=DEPTH, branch=25))) == {whole[0][:d] for d in (1, 2, 3)}
    wanted = {path[:d] for path in whole[:3] for d in (1, 2, 3)}
    found = tokens_of(first(pair, Plan(tree="beam", nodes=len(wanted), branch=25)))
    assert found == wanted


def test_the_number_of_nodes_follows_from_the_plan(pair: Any) -> None:
    for tree, nodes, branch, wanted in (
        ("best", 40, 2, 2 + 2 * 4),
        ("beam", 40, 2, 3 * 2),
        ("best", 7, 2, 7),
        ("beam", 5, 9, 5),
        ("sampled", 40, 2, 2 + 4 + 8),
        ("sampled", 6, 2, 6),
        ("sampled", 40, 1, 3),
    ):
        proposal = first(pair, Plan(tree=tree, nodes=nodes, branch=branch), Sampling(1.0))
        assert len(proposal.tokens) == wanted and min(proposal.tokens) >= 0
        assert all(parent < slot for slot, parent in enumerate(proposal.parents, 1))
        assert (proposal.probs is not None) is (tree == "sampled")  # the others are chosen


def test_sampled_shapes_are_fixed_and_fall_to_best_when_greedy(pair: Any) -> None:
    assert shape_of(5, 6, 1) == ((0,), (0,), (0,), (0,), (0,))
    shape = shape_of(5, 16, 4)
    assert len(shape) == 5 and sum(map(len, shape)) == 16 and len(shape[0]) > 1
    for above, level in itertools.pairwise(shape):
        assert max(level) < len(above) and max(level.count(place) for place in level) <= 4
    plans = [Plan(tree=tree, nodes=6, branch=3) for tree in ("sampled", "best")]
    assert first(pair, plans[0]).tokens == first(pair, plans[1]).tokens


def test_geometry_is_the_ancestors() -> None:
    rng = torch.Generator().manual_seed(1)
    limits = torch.arange(1, 12)
    parents = (torch.rand(5, 11, generator=rng) * limits).long()  # any earlier slot
    depths, mask = Draft(torch.zeros(5, 11, dtype=torch.long), parents).geometry()
    for row in range(5):
        for slot in range(12):
            way = {slot}
            here = slot
            while here:
                here = int(parents[row, here - 1])
                way.add(here)
            assert set(mask[row, slot].nonzero()[:, 0].tolist()) == way and int(depths[row, slot]) == len(way) - 1


CURVES = Calibration([0.3, 0.4, 0.6], [[0.1, 0.5, 0.6, 0.9], [0.0, 0.1, 0.3, 0.8], [0.5] * 4])


@pytest.mark.parametrize("sampling", [None, Sampling(1.0)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("curves", [None, CURVES], ids=["own probability", "calibrated"])
@pytest.mark.parametrize("architecture", ["recurrent", "skip"])
def test_a_chain_stops_after_the_first_unlikely_token(
    architecture: str, curves: Calibration | None, sampling: Sampling | None
) -> None:
    pair, bar, lengths = pair_with(architecture), 0.4, set()
    pair[1].calibration = curves
    prompts = prompts_of(96, [4, 9, 12, 7])
    for proposal in record(*pair, prompts, 12, sampling, plan=Plan(stop_below=bar))[1]:
        kept = [token for token in proposal.tokens if token >= 0]
        assert proposal.tokens == kept + [-1] * (len(proposal.tokens) - len(kept))
        own = teacher_forced(*pair, Proposal(proposal.text, kept, None, []), Sampling(1.0))
        chances = [law[VOCAB.index(token)] for law, token in zip(own, kept, strict=True)]
        sure = [float(curves(p, k) if curves else p) >= bar for k, p in enumerate(chances)]
        assert all(sure[:-1]) and (not sure[-1] or len(kept) == len(proposal.tokens))
        lengths.add(len(kept))
    assert len(lengths) == DEPTH
    single = record(*pair, prompts[:1], 12, sampling, plan=Plan(stop_below=bar))[1]
    assert all(min(p.tokens) >= 0 for p in single)  # one row does not go on for nothing
    assert 1 in {len(proposal.tokens) for proposal in single}


def test_plans_that_cannot_be() -> None:
    for changes, named in (
        ({"tree": "oak"}, "tree 'oak'"),
        ({"nodes": 0}, "nodes 0"),
        ({"branch": 0}, "branch 0"),
        ({"stop_below": 1.0}, "stop_below"),
        ({"stop_below": 0.5, "tree": "best"}, "chain"),
    ):
        with pytest.raises(ConfigError, match=named):
            Plan(**changes)
