"""The output law of the real `accept` on chains, against exact enumeration."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import reference
import torch
from enumeration import ROWS, World, misfit, play_chain
from hypothesis import given, settings
from hypothesis import strategies as st

from semiar.core import accept as accept_module
from semiar.core.accept import accept
from semiar.core.draft import Draft
from semiar.core.sampling import Law, Sampling, distribution, draw
from semiar.errors import ConfigError, PairError


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("vocab", [None, [2, 0]])
@pytest.mark.parametrize("rule", [reference.chain_rule, reference.block_rule])
def test_rules_are_lossless_in_fractions(rule, vocab):
    for seed in range(3):
        world = World(3, 3, seed, vocab)
        assert reference.output_law(world, rule(world, 2))[0] == reference.plain(world)


@pytest.mark.parametrize("vocab", [None, [2, 0]])
@pytest.mark.parametrize("chosen", [False, True])
def test_chain_is_exact_on_a_grid_of_all_uniforms(monkeypatch, chosen, vocab):
    """Every pair of acceptance numbers on a grid that all thresholds fall on, and the final law itself: no noise."""
    world = World(3, 3, 5, vocab)
    cells, laws = 120, []  # thresholds are a / 2b with b <= 6
    grid = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
    coins = torch.cartesian_prod(grid, grid)
    monkeypatch.setattr(accept_module, "uniform", lambda shape, rng, device: coins)
    monkeypatch.setattr(accept_module, "draw", lambda law, rng: laws.append(law) or law.argmax(-1))
    found: dict[tuple[int, ...], float] = {}
    for chain, weight in reference.drafts(world, 2):
        rows = len(coins)
        guess = [world.guess[i][world._code(chain[:i])] for i in range(2)]
        target = [world.target[i][world._code(chain[:i])] for i in range(3)]
        draft = Draft.chain(
            torch.tensor([chain]).expand(rows, -1),
            None if chosen else torch.stack(guess).expand(rows, -1, -1),
            None if chosen else world.vocab,
        )
        verdict = accept(draft, Law(probs=torch.stack(target).expand(rows, -1, -1)), rng())
        last = laws.pop()
        last = last / last.sum(1, keepdim=True)
        for count in range(3):
            chosen_rows = verdict.counts == count
            for token, p in enumerate((last * chosen_rows.unsqueeze(1)).sum(0).tolist()):
                if p:
                    tail: dict[tuple[int, ...], Fraction] = {}
                    reference._continue(world, (*chain[:count], token), Fraction(1), tail)
                    for sequence, q in tail.items():
                        found[sequence] = found.get(sequence, 0.0) + float(weight) * p / rows * float(q)
    exact = reference.plain(world)
    assert found.keys() == exact.keys()
    assert all(abs(found[s] - float(exact[s])) < 1e-12 for s in exact)


@pytest.mark.parametrize("vocab", [None, [3, 0, 2]])
@pytest.mark.parametrize("how", ["sampled", "block", "chosen", "chosen block"])
def test_chain_keeps_the_law(how, vocab):
    world = World(4, 4, 5, vocab)
    codes, _ = play_chain(world, 3, block="block" in how, report="chosen" not in how)
    assert misfit(codes, world.exact()) < 1


def test_mean_acceptance_is_that_of_the_rules():
    for rule, block in ((reference.chain_rule, False), (reference.block_rule, True)):
        world = World(3, 3, 11)
        expected = float(reference.output_law(world, rule(world, 2))[1])
        counts = play_chain(world, 2, block=block)[1].counts.double()
        assert abs(float(counts.mean()) - expected) < 5 * float(counts.std()) / math.sqrt(ROWS)


def test_block_accepts_at_least_as_much():
    for seed in range(4):
        world = World(3, 4, seed)
        means = [
            reference.output_law(world, rule(world, 3))[1] for rule in (reference.chain_rule, reference.block_rule)
        ]
        assert means[1] >= means[0]


@pytest.mark.parametrize("block", [False, True])
def test_ragged_chains_keep_the_law(block):
    """Some rows end early: where the prefix says so, and after a token that was kept although it is unlikely."""

    def end_early(tokens, probs):
        taken = probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        stop = (taken < 0.3).long().cumsum(1)
        after = torch.cat((torch.zeros_like(stop[:, :1]), stop[:, :-1]), 1) > 0  # the unlikely token itself stays
        return torch.where(after | (torch.arange(len(tokens)) % 5 == 0).unsqueeze(1), -1, tokens)

    world = World(4, 4, 13)
    codes, verdict = play_chain(world, 3, block=block, edit=end_early)
    assert misfit(codes, world.exact()) < 1
    assert int(verdict.counts[::5].max()) == 0


def test_h05_draft_that_takes_its_best_token():
    target = Law(probs=torch.tensor([0.5, 0.5]).expand(ROWS, 2, -1))
    verdict = accept(Draft.chain(torch.zeros(ROWS, 1, dtype=torch.long)), target, rng())
    assert misfit(verdict.tokens[:, 0], torch.tensor([0.5, 0.5], dtype=torch.float64)) < 1


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize(
    ("target", "guess", "expected"),
    [
        ([0.3, 0.7, 0.0, 0.0], [0.3, 0.7, 0.0, 0.0], [0.3, 0.7, 0.0, 0.0]),
        ([0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]),
        ([0.2, 0.8, 0.0, 0.0], [0.8, 0.2, 0.0, 0.0], [0.2, 0.8, 0.0, 0.0]),
    ],
)
def test_h06_degenerate_leftovers(target, guess, expected, block):
    for kind in (torch.float32, torch.float64):
        d = torch.tensor(guess, dtype=kind).expand(ROWS, 2, -1)
        chain = draw(d, rng(1))
        verdict = accept(
            Draft.chain(chain, d), Law(probs=torch.tensor(target, dtype=kind).expand(ROWS, 3, -1)), rng(), block=block
        )
        assert misfit(verdict.tokens[:, 0], torch.tensor(expected, dtype=torch.float64)) < 1
        if target == guess:
            assert bool((verdict.counts == 2).all())


@pytest.mark.parametrize("block", [False, True])
def test_h06_nearly_one_hot(block):
    cold = Sampling(temperature=0.01)
    t = distribution(torch.tensor([2.0, 1.9, -5.0, -math.inf]).expand(1000, 3, -1), cold)
    d = distribution(torch.tensor([1.9, 2.0, -9.0, 3e38]).expand(1000, 2, -1), cold).probs
    verdict = accept(Draft.chain(draw(d, rng(1)), d), t, rng(), block=block)
    assert bool(((verdict.tokens[:, 0] == 0) | (verdict.tokens[:, 0] == 1)).all())


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(1.0), [0.8438, 0.1142, 0.0420]),
        (Sampling(0.5), [0.9796, 0.0179, 0.0024]),
        (Sampling(top_k=2), [0.8808, 0.1192, 0.0]),
        (Sampling(1e-6), [1.0, 0.0, 0.0]),
        (Sampling(0.0), [1.0, 0.0, 0.0]),
        (Sampling(), [1.0, 0.0, 0.0]),
    ],
)
def test_h07_temperature_reaches_the_verifier(sampling, expected):
    """First, middle and bonus positions, uniform draft; the target's logits are the same everywhere."""
    law = distribution(torch.tensor([2.0, 0.0, -1.0], dtype=torch.float64).expand(ROWS, 3, -1), sampling)
    d = torch.full((ROWS, 2, 3), 1 / 3)
    exact = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64) if sampling.greedy else law.probs[0, 0]
    assert torch.allclose(exact, torch.tensor(expected, dtype=torch.float64), atol=6e-4)
    for block in (False, True):
        tokens = accept(Draft.chain(draw(d, rng(3)), d), law, None if sampling.greedy else rng(), block=block).tokens
        for position in range(3):
            seen = tokens[:, position]
            assert misfit(seen[seen >= 0], exact) < 1  # laws do not depend on the prefix here


def test_greedy_is_equality_without_randomness():
    best = torch.tensor([[1, 2, 3, 4]] * 4)
    chain = torch.tensor([[1, 2, 3], [1, 0, 3], [0, 2, 3], [1, -1, 3]])
    for probs in (None, torch.full((4, 3, 5), 0.2)):
        for block in (False, True):
            verdict = accept(Draft.chain(chain, probs), Law(tokens=best), None, block=block)
            assert verdict.tokens.tolist() == [[1, 2, 3, 4], [1, 2, -1, -1], [1, -1, -1, -1], [1, 2, -1, -1]]
            assert verdict.path.tolist() == [[0, 1, 2, 3], [0, 1, -1, -1], [0, -1, -1, -1], [0, 1, -1, -1]]
            assert verdict.counts.tolist() == [3, 1, 0, 1]


def test_empty_draft_is_plain_sampling():
    world = World(4, 1, 0)
    law = Law(probs=world.target[0].expand(ROWS, 1, -1))
    for block in (False, True):
        verdict = accept(Draft.empty(ROWS), law, rng(), block=block)
        assert verdict.tokens.shape == (ROWS, 1)
        assert misfit(verdict.tokens[:, 0], world.exact()) < 1
    assert accept(Draft.empty(2), Law(tokens=torch.tensor([[3], [1]])), None).tokens.tolist() == [[3], [1]]


def test_token_outside_its_own_law_counts_as_no_node():
    t = torch.tensor([0.25, 0.25, 0.5])
    d = torch.tensor([0.5, 0.5, 0.0]).expand(ROWS, 1, -1)
    verdict = accept(Draft.chain(torch.full((ROWS, 1), 2), d), Law(probs=t.expand(ROWS, 2, -1)), rng())
    assert int(verdict.counts.max()) == 0
    assert misfit(verdict.tokens[:, 0], t.double()) < 1


def test_errors():
    law = Law(probs=torch.full((1, 2, 4), 0.25))
    chain = torch.zeros(1, 1, dtype=torch.long)
    with pytest.raises(ConfigError, match="generator"):
        accept(Draft.chain(chain), law, None)
    with pytest.raises(PairError, match="3 columns"):
        accept(Draft.chain(chain, torch.full((1, 1, 3), 1 / 3)), law, rng())
    with pytest.raises(ConfigError, match="tree"):
        accept(Draft(chain, chain), law, rng(), block=True)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000), rows=st.integers(1, 5), count=st.integers(0, 5), size=st.integers(2, 7),
    block=st.booleans(), same=st.booleans(), missing=st.booleans(),
)  # fmt: skip
def test_verdict_properties(seed, rows, count, size, block, same, missing):
    source = rng(seed)
    hot = Sampling(temperature=0.3)
    logits = torch.randn(rows, count + 1, size, generator=source) * 3
    logits[torch.rand(logits.shape, generator=source) < 0.3] = -math.inf
    logits[..., 0] = logits[..., 0].clamp(min=-2)
    law = distribution(logits, hot)
    d = law.probs[:, :-1] if same else distribution(torch.randn(rows, count, size, generator=source), hot).probs
    chain = draw(d, source) if count else torch.zeros(rows, 0, dtype=torch.long)
    if missing and count:
        chain[:, seed % count] = -1
    verdict = accept(Draft.chain(chain, d), law, source, block=block)
    assert verdict.tokens.shape == verdict.path.shape == (rows, count + 1)
    slots = torch.arange(count + 1)
    end = verdict.counts.unsqueeze(1)
    assert torch.equal(verdict.path, torch.where(slots <= end, slots, -1).expand(rows, -1))
    assert torch.equal(verdict.tokens >= 0, verdict.path >= 0)
    kept = slots[:count] < end
    assert torch.equal(verdict.tokens[:, :count][kept], chain[kept])
    assert bool((law.at(verdict.tokens)[verdict.tokens >= 0] > 0).all())
    if same and not missing:
        assert bool((verdict.counts == count).all())
