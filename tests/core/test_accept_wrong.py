"""Planted bugs: rules known not to be exact, played with the same machine, must fail the same test by far.

Without these, a test of losslessness that can never fail would look just like one that passes.
"""

from __future__ import annotations

import pytest
import torch
from enumeration import World, misfit, play_chain, play_tree

from semiar.core import accept as accept_module
from semiar.core import accept_tree as tree_module
from semiar.core.accept import accept
from semiar.core.draft import Draft
from semiar.core.sampling import Law

FAR = 3.0  # times the bound that a right rule stays below


@pytest.mark.parametrize("block", [False, True])
def test_best_token_judged_as_if_sampled(block):
    world = World(3, 3, 0)
    assert misfit(play_chain(world, 2, pick=lambda law: law.argmax(-1), block=block)[0], world.exact()) > FAR


@pytest.mark.parametrize("block", [False, True])
def test_unlikely_token_dropped_after_it_was_drawn(block):
    def drop(tokens, probs):
        return torch.where(probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) < 0.4, -1, tokens)

    world = World(3, 3, 1)
    assert misfit(play_chain(world, 2, edit=drop, block=block)[0], world.exact()) > FAR


def test_cut_chosen_by_a_later_token():
    def cut(tokens, probs):
        bad = probs[:, 1].gather(-1, tokens[:, 1:]) < 0.4
        return torch.where(bad, -1, tokens)  # the first token goes because the second is unlikely

    world = World(3, 3, 2)
    assert misfit(play_chain(world, 2, edit=cut)[0], world.exact()) > FAR


def test_law_reported_is_not_the_law_sampled_from():
    world = World(3, 3, 3)
    sharp = lambda law: torch.multinomial(law**2, 1, generator=world.rng).squeeze(-1)  # noqa: E731
    assert misfit(play_chain(world, 2, pick=sharp)[0], world.exact()) > FAR


@pytest.mark.parametrize("block", [False, True])
def test_leftover_not_subtracted(monkeypatch, block):
    monkeypatch.setattr(accept_module, "leftover", lambda law, draft, node: law)
    world = World(3, 3, 4)
    assert misfit(play_chain(world, 2, block=block)[0], world.exact()) > FAR


def test_block_corrected_by_the_unscaled_leftover(monkeypatch):
    whole = accept_module._corrected
    monkeypatch.setattr(
        accept_module, "_corrected", lambda law, scaled, draft, counts, given: whole(law, law, draft, counts, given)
    )
    world = World(4, 4, 5)
    assert misfit(play_chain(world, 3, block=True)[0], world.exact()) > FAR


def test_siblings_without_replacement_judged_as_independent():
    world = World(4, 3, 9)
    assert misfit(play_tree(world, [0, 0, 1, 1, 2, 2], "without", replacement=True)[0], world.exact()) > FAR


def test_siblings_by_rank_judged_as_sampled():
    target, guess, rows = torch.tensor([0.34, 0.33, 0.33]), torch.tensor([0.5, 0.3, 0.2]), 100_000
    children = torch.tensor([[0, 1]]).expand(rows, -1)
    draft = Draft(children, torch.zeros_like(children), guess.expand(rows, 2, -1))
    verdict = accept(draft, Law(probs=target.expand(rows, 3, -1)), torch.Generator().manual_seed(0))
    assert misfit(verdict.tokens[:, 0], target.double()) > FAR


def test_second_sibling_against_the_first_law(monkeypatch):
    monkeypatch.setattr(tree_module._Siblings, "leftover", lambda self, law, slot: law)
    world = World(3, 3, 7)
    assert misfit(play_tree(world, [0, 0, 1], "iid")[0], world.exact()) > FAR
