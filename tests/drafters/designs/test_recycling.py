"""The table of candidates, by hand, and the shape of the static tree."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kit.models import chain_table, prompts_of, settings_of, table_model, target_of

from semiar.core.draft import Draft, Plan
from semiar.core.sampling import Sampling
from semiar.decoding import Limits, decode
from semiar.drafters import Context, State, build_drafter
from semiar.drafters.designs.recycling import followers, static_tree
from semiar.errors import ConfigError
from semiar.targets import Target

SIZE = 8
TABLE = [[float(-((following - token - 1) % SIZE)) for following in range(SIZE)] for token in range(SIZE)]


class Hand:
    """A drafter asked by hand; after token i the target's best tokens are i + 1, i + 2, ..."""

    def __init__(self, vocab: list[int] | None = None, **options: Any):
        self.target = Target(table_model(TABLE))
        ids = None if vocab is None else torch.tensor(vocab)
        self.drafter = build_drafter(settings_of("recycling", num_speculative_tokens=3, **options), self.target, ids)
        self.state = State()

    def propose(self, rows: list[list[int]], fresh: list[int] | None = None, plan: Plan | None = None) -> Draft:
        """Draft for these texts, of which the last pass brought these numbers of states."""
        fresh = fresh or [len(row) - 1 for row in rows]
        if not self.state.values:
            self.state = self.drafter.start(len(rows), 16, torch.device("cpu"))
        lengths, width = torch.tensor([len(row) for row in rows]), max(fresh)
        tokens = torch.tensor([row + [0] * (16 - len(row)) for row in rows])
        hidden = torch.zeros(len(rows), width, 1, SIZE, dtype=torch.float64)
        for index, (row, count) in enumerate(zip(rows, fresh, strict=True)):
            states = self.target(torch.tensor([row])).hidden[0]
            hidden[index, :count] = states[len(row) - 1 - count : len(row) - 1]
        context = Context(tokens, lengths, hidden, torch.tensor(fresh))
        return self.drafter.propose(context, self.state, plan or Plan(count=3), Sampling(), None)

    def candidates(self, token: int, row: int = 0) -> list[int]:
        return self.state.values["table"][row, token].tolist()


def test_candidates_are_what_followed_and_what_the_target_thought() -> None:
    hand = Hand(candidates=3)
    hand.propose([[2, 7, 3, 7, 5], [1, 2]])
    assert hand.candidates(2) == [7, 3, 4] and hand.candidates(3) == [7, 4, 5]
    assert hand.candidates(7) == [5, 0, 1]  # of two occurrences the newest counts
    assert hand.candidates(5) == [-1] * 3  # not run yet
    assert hand.candidates(1, 1) == [2, 3, 4] and hand.candidates(2, 1) == [-1] * 3  # rows know nothing of each other
    hand.propose([[2, 7, 3, 7, 5, 6, 2, 3], [1, 2, 3]], [3, 1])
    assert hand.candidates(2) == [3, 4, 5] and hand.candidates(5) == [6, 7, 0] and hand.candidates(2, 1) == [3, 4, 5]
    assert hand.candidates(7) == [5, 0, 1]


def test_a_small_vocabulary_leaves_room() -> None:
    hand = Hand([1, 4], candidates=4)
    hand.propose([[2, 1, 3, 0]])
    assert hand.candidates(2) == [1, 4, -1, -1] and hand.candidates(1) == [3, 4, 1, -1]


def test_a_chain_follows_the_first_candidates() -> None:
    hand = Hand()
    assert hand.propose([[2, 7, 3, 2], [4, 5, 4, 5], [6, 7, 0, 1]]).tokens.tolist() == [
        [7, 3, 2], [4, 5, 4], [-1, -1, -1],
    ]  # fmt: skip
    assert Hand().propose([[6, 7, 0, 1], [1, 2]]).count == 0
    assert Hand().propose([[0, 1, 2, 1], [3, 4]]).tokens.tolist() == [[2, 1, 2], [-1, -1, -1]]


def test_a_tree_follows_them_by_rank() -> None:
    draft = Hand(candidates=3).propose([[2, 7, 3, 2]], plan=Plan("best", count=2, nodes=5, branch=2))
    assert static_tree(5, 2, 2) == ((1, 0, 0), (1, 0, 1), (2, 1, 0), (2, 1, 1), (2, 2, 0))
    assert draft.parents.tolist() == [[0, 0, 1, 1, 2]]
    assert draft.tokens.tolist() == [[7, 3, 3, 0, 2]] and draft.probs is None


@pytest.mark.parametrize(("nodes", "branch", "depth"), [(1, 1, 1), (16, 4, 5), (7, 8, 2), (64, 8, 6), (9, 1, 4)])
def test_static_trees(nodes: int, branch: int, depth: int) -> None:
    shape = static_tree(nodes, branch, depth)
    full = sum(branch**level for level in range(1, depth + 1))
    assert len(shape) == min(nodes, full) and max(level for level, _, _ in shape) <= depth
    depths = [0] + [level for level, _, _ in shape]
    seen: dict[int, int] = {}
    for slot, (level, parent, rank) in enumerate(shape, 1):
        assert parent < slot and level == depths[parent] + 1
        assert rank == seen.get(parent, 0) < branch  # siblings stand best first
        seen[parent] = rank + 1


def test_training_answers_give_a_first_table() -> None:
    table = followers([[1, 2, 1, 3, 1, 3], [3, 5], [6]], 7, 2)
    assert table is not None and table.tolist()[1] == [3, 2] and sorted(table.tolist()[3]) == [1, 5]
    assert table.tolist()[2] == [1, -1] and table.tolist()[5] == [-1, -1]
    assert followers([[1]], 7, 2) is None
    hand = Hand()
    hand.drafter.read_answers([[6, 1, 4, 6]])
    assert hand.propose([[0, 6]]).tokens.tolist() == [[1, 4, 6]]


def test_what_has_been_seen_once_is_drafted_without_a_fault() -> None:
    target = Target(table_model(chain_table(8)))
    drafter = build_drafter(settings_of("recycling", num_speculative_tokens=4), target, None)
    steps = list(decode(target, drafter, [[0]], Limits(32)))
    assert [token for step in steps for token in step.tokens[0]] == [(i + 1) % 8 for i in range(32)]
    assert [step.accepted[0] for step in steps[:8]] == [0] * 8 and steps[8].accepted == [4]


def test_what_cannot_be() -> None:
    target = target_of("llama")
    with pytest.raises(ConfigError, match="candidates 0"):
        build_drafter(settings_of("recycling", candidates=0), target, None)
    drafter = build_drafter(settings_of("recycling"), target, None)
    assert not drafter.trainable
    with pytest.raises(ConfigError, match="tree sampled with drafter recycling"):
        list(decode(target, drafter, prompts_of(96, [5]), Limits(4), plan=Plan(tree="sampled")))
