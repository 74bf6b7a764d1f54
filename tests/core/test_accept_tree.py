"""The output law of the real `accept` on trees, against exact enumeration."""

from __future__ import annotations

import math

import pytest
import reference
import torch
from enumeration import ROWS, World, misfit, play_tree
from hypothesis import given, settings
from hypothesis import strategies as st

from semiar.core.accept import accept
from semiar.core.draft import Draft
from semiar.core.sampling import Law, draw

KINDS = ["iid", "without", "chosen"]
TWO_LEVELS = [0, 0, 1, 1, 2, 2]  # two children each, breadth first


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("how", KINDS)
def test_rules_are_lossless_in_fractions(how):
    for seed in range(2):
        world = World(3, 3, seed)
        assert reference.output_law(world, reference.tree_rule(world, [2, 2], how))[0] == reference.plain(world)
        world = World(3, 2, seed, [0, 2])
        assert reference.output_law(world, reference.tree_rule(world, [3], how))[0] == reference.plain(world)


@pytest.mark.parametrize("vocab", [None, [3, 0, 2]])
@pytest.mark.parametrize("how", KINDS)
def test_tree_keeps_the_law(how, vocab):
    world = World(4, 3, 9, vocab)
    codes, _ = play_tree(world, TWO_LEVELS, how)
    assert misfit(codes, world.exact()) < 1


@pytest.mark.parametrize("parents", [[0, 1, 0, 3, 0], [0, 0, 0, 2, 4]], ids=["depth first", "a chain below the second"])
@pytest.mark.parametrize("how", KINDS)
def test_other_shapes_keep_the_law(how, parents):
    world = World(3, 4, 4)
    codes, _ = play_tree(world, parents, how)
    assert misfit(codes, world.exact()) < 1


@pytest.mark.parametrize("how", KINDS)
def test_mean_acceptance_is_that_of_the_rule(how):
    world = World(3, 3, 6)
    expected = float(reference.output_law(world, reference.tree_rule(world, [2, 2], how))[1])
    counts = play_tree(world, TWO_LEVELS, how)[1].counts.double()
    assert abs(float(counts.mean()) - expected) < 5 * float(counts.std()) / math.sqrt(ROWS)


def test_iid_siblings_may_be_declared_as_without_replacement():
    """A repeated sibling is skipped, and what is left is a draw without replacement."""
    world = World(3, 3, 8)
    codes, _ = play_tree(world, TWO_LEVELS, "iid", replacement=False)
    assert misfit(codes, world.exact()) < 1


@pytest.mark.parametrize("target", [[0.5, 0.3, 0.2], [0.34, 0.33, 0.33]])
def test_h08_children_taken_by_rank(target):
    law = torch.tensor(target, dtype=torch.float64)
    children = torch.tensor([[0, 1]]).expand(ROWS, -1)
    verdict = accept(Draft(children, torch.zeros_like(children)), Law(probs=law.expand(ROWS, 3, -1)), rng())
    assert verdict.tokens.shape == (ROWS, 2)
    assert misfit(verdict.tokens[:, 0], law) < 1


def test_a_chain_is_a_tree():
    d = torch.rand(500, 3, 5, generator=rng(1)).softmax(-1)
    law = Law(probs=torch.rand(500, 4, 5, generator=rng(2)).mul(3).softmax(-1))
    chain = Draft.chain(draw(d, rng(3)), d)
    tree = Draft(chain.tokens, chain.parents, d)
    one, other = accept(chain, law, rng(4)), accept(tree, law, rng(4))
    assert torch.equal(one.counts, other.counts)
    assert torch.equal(one.tokens, other.tokens) and torch.equal(one.path, other.path)


def test_greedy_tree():
    parents = torch.tensor([[0, 0, 1, 2, 2]] * 4)
    tokens = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, 9, 8], [5, 5, 7, 8, 7], [-1, 4, 1, -1, 2]])
    best = torch.tensor([[6, 0, 8, 0, 3, 4], [6, 0, 8, 0, 3, 4], [5, 7, 8, 2, 0, 0], [1, 0, 2, 0, 0, 0]])
    for probs in (None, torch.full((4, 5, 10), 0.1)):
        verdict = accept(Draft(tokens, parents, probs), Law(tokens=best), None)
        assert verdict.tokens.tolist() == [[6, 8, 3], [6, 8, 4], [5, 7, 2], [1, -1, -1]]
        assert verdict.path.tolist() == [[0, 2, 4], [0, 2, 5], [0, 1, 3], [0, -1, -1]]
        assert verdict.counts.tolist() == [2, 2, 2, 0]


def test_tree_without_nodes():
    nothing = torch.zeros(2, 0, dtype=torch.long)
    assert accept(Draft(nothing, nothing), Law(tokens=torch.tensor([[3], [1]])), None).tokens.tolist() == [[3], [1]]
    hidden = torch.full((2, 3), -1)
    verdict = accept(Draft(hidden, torch.zeros_like(hidden)), Law(probs=torch.eye(4).expand(2, -1, -1)), rng())
    assert verdict.tokens.tolist() == [[0], [0]] and verdict.path.tolist() == [[0], [0]]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 4),
    count=st.integers(1, 7),
    how=st.sampled_from([*KINDS, "greedy"]),
)
def test_verdict_properties(seed, rows, count, how):
    source, size = rng(seed), 5
    parents = torch.stack([torch.randint(0, i + 1, (rows,), generator=source) for i in range(count)], 1)
    d = torch.rand(rows, count, size, generator=source).softmax(-1)
    tokens = draw(d, source)
    tokens[torch.rand(tokens.shape, generator=source) < 0.2] = -1
    logits = torch.rand(rows, count + 1, size, generator=source) * 3
    logits[..., seed % size] = -math.inf
    law = Law(tokens=logits.argmax(-1)) if how == "greedy" else Law(probs=logits.softmax(-1))
    probs = None if how == "chosen" else d
    verdict = accept(Draft(tokens, parents, probs, None, how != "without"), law, source)
    for row in range(rows):
        n = int(verdict.counts[row])
        path, emitted = verdict.path[row].tolist(), verdict.tokens[row].tolist()
        assert path[0] == 0 and all(s >= 0 for s in path[: n + 1]) and set(path[n + 1 :]) <= {-1}
        for before, slot, token in zip(path, path[1 : n + 1], emitted):
            assert int(parents[row, slot - 1]) == before and int(tokens[row, slot - 1]) == token
        for slot, token in zip(path[: n + 1], emitted):
            assert float(logits[row, slot].softmax(-1)[token]) > 0
        assert all(t >= 0 for t in emitted[: n + 1]) and set(emitted[n + 1 :]) <= {-1}
