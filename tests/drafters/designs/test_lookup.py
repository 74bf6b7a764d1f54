"""The matchers against a brute-force search, and what lookup drafts from them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.models import chain_table, prompts_of, settings_of, table_model, target_of
from kit.recording import record

from semiar.core.draft import Plan
from semiar.core.sampling import Sampling
from semiar.decoding import Limits, decode
from semiar.drafters import Context, build_drafter
from semiar.drafters.finding import BORDER, Finder, FindingSettings
from semiar.drafters.matching import MATCHERS
from semiar.errors import ConfigError
from semiar.targets import Target

TEXTS = st.lists(st.integers(0, 2), max_size=40) | st.lists(st.integers(0, 9), max_size=40)
both = pytest.mark.parametrize("kind", MATCHERS)


def search(text: list[int], tail: list[int], least: int, most: int, last: int) -> tuple[int, int]:
    """The longest end of ``tail`` that stands in ``text`` and ends no later than ``last``; the latest among equals."""
    for length in range(min(most, len(tail)), least - 1, -1):
        for end in range(last, length - 1, -1):
            if text[end - length : end] == tail[len(tail) - length :]:
                return length, end
    return 0, 0


@both
@settings(max_examples=60, deadline=None)
@given(text=TEXTS, least=st.integers(1, 3), span=st.integers(0, 9))
def test_the_match_is_the_longest_and_the_latest(kind: str, text: list[int], least: int, span: int) -> None:
    matcher = MATCHERS[kind](least, least + span)
    for index, token in enumerate(text):
        matcher.push(token)
        seen = text[: index + 1]
        assert matcher.match == search(seen, seen, least, least + span, index)


@both
@settings(max_examples=60, deadline=None)
@given(text=TEXTS, tail=TEXTS, least=st.integers(1, 3), span=st.integers(0, 9))
def test_another_text_s_end_is_found(kind: str, text: list[int], tail: list[int], least: int, span: int) -> None:
    matcher = MATCHERS[kind](least, least + span)
    for token in text:
        matcher.push(token)
    assert matcher.find(tail) == search(text, tail, least, least + span, len(text))


def test_the_automaton_s_work_does_not_grow_with_the_text() -> None:
    """The worst text for it, one token over and over: at most two states and ``most`` marks per token."""
    matcher: Any = FindingSettings(max_match=8).matcher_of([7] * 3000)
    assert matcher.match == (8, 2999) and len(matcher.paths) <= 2 * 3000
    steps, state = 0, matcher.state
    while state > 0:
        steps, state = steps + 1, matcher.links[state]
    assert steps <= 8


def finder(text: list[int], answers: list[list[int]] | None = None, **options: Any) -> Finder:
    chosen = FindingSettings(**options)
    corpus = [token for answer in answers or [] for token in [*answer, BORDER]]
    found = Finder(chosen, chosen.matcher_of(corpus) if answers else None)
    found.extend(text)
    return found


@pytest.mark.parametrize("matcher", MATCHERS)
def test_what_is_proposed(matcher: str) -> None:
    assert finder([1, 2, 3, 4, 5, 1, 2], matcher=matcher).propose(3) == [3, 4, 5]
    assert finder([1, 2, 3, 1, 2, 4, 1, 2], matcher=matcher).propose(2) == [4, 1]  # the latest of equals
    assert finder([9, 1, 2, 3, 1, 2, 4, 9, 1, 2], matcher=matcher).propose(1) == [3]  # the longer one before the later
    assert finder([1, 2, 3, 4, 5, 2], matcher=matcher).propose(3) == []  # one token is too short
    assert finder([1, 2, 3, 4, 5, 2], matcher=matcher, min_match=1).propose(2) == [3, 4]
    assert finder([5, 6, 5, 6], matcher=matcher).propose(5) == [5, 6, 5, 6, 5]  # it goes on in its own draft
    assert finder([5], matcher=matcher).propose(5) == [] and finder([5, 5, 5], matcher=matcher).propose(0) == []


def test_training_answers() -> None:
    answers = [[1, 2, 3, 4], [2, 3, 7, 8]]
    assert finder([0, 2, 3], answers).propose(4) == [7, 8]  # ends with its answer
    assert finder([0, 1, 2, 3], answers).propose(4) == [4]
    assert finder([0, 3, 4], answers).propose(4) == []  # nothing follows it
    assert finder([4, 2], answers).propose(4) == []  # no match goes across two answers
    assert finder([2, 3, 9, 2, 3], answers).propose(2) == [9, 2]  # the row's own text before the answers
    assert finder([2, 3, 9, 1, 2, 3], answers).propose(2) == [4]  # but not when their match is longer


def test_answers_are_taken_whole_and_up_to_the_limit() -> None:
    drafter: Any = build_drafter(settings_of("lookup", corpus_tokens=9), target_of("llama"), None)
    drafter.read_answers([[1, 2, 3], [4, 5, 6], [7]])
    assert drafter.corpus.tokens.tolist() == [1, 2, 3, -1, 4, 5, 6, -1]
    drafter.read_answers([])
    assert drafter.corpus.size == 0 and drafter.state_dict() == {}


def test_a_text_that_repeats_itself_is_drafted_without_a_fault() -> None:
    target = Target(table_model(chain_table(8)))
    drafter = build_drafter(settings_of("lookup", num_speculative_tokens=4), target, None)
    rows, proposals = record(target, drafter, [[0, 1, 2]], 30)
    assert rows == [[(3 + i) % 8 for i in range(30)]]
    for proposal in proposals:
        following = [(proposal.text[-1] + 1 + i) % 8 for i in range(len(proposal.tokens))]
        assert proposal.tokens == following
    assert len(proposals[0].text) == 10 and all(len(p.tokens) == 4 for p in proposals[:-1])


def test_rows_without_a_match_wait() -> None:
    drafter = build_drafter(settings_of("lookup", num_speculative_tokens=3), target_of("llama"), None)
    state = drafter.start(2, 16, torch.device("cpu"))

    def propose(rows: list[list[int]]) -> list[list[int]]:
        lengths = torch.tensor([len(row) for row in rows])
        tokens = torch.tensor([row + [0] * (16 - len(row)) for row in rows])
        context = Context(tokens, lengths, torch.zeros(2, 0, 1, 8), lengths * 0)
        return drafter.propose(context, state, Plan(count=3), Sampling(), None).tokens.tolist()

    assert propose([[1, 2, 3], [4]]) == [[], []]
    assert propose([[1, 2, 3, 1, 2], [4, 5]]) == [[3, 1, 2], [-1, -1, -1]]
    assert propose([[1, 2, 3, 1, 2, 9], [4, 5, 4, 5]]) == [[-1, -1, -1], [4, 5, 4]]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"matcher": "trie"}, "trie"),
        ({"min_match": 0}, "min_match 0"),
        ({"min_match": 5, "max_match": 4}, "max_match 4"),
        ({"corpus_tokens": -1}, "corpus_tokens"),
        ({"min_match": "2"}, "min_match '2'"),
        ({"n": 3}, "'n'"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        build_drafter(settings_of("lookup", **options), target_of("llama"), None)


@pytest.mark.parametrize("name", ["lookup", "recycling", "none"])
def test_what_a_design_does_not_draft_is_refused(name: str) -> None:
    """It used to be taken without effect."""
    target = target_of("llama")
    drafter = build_drafter(settings_of(name), target, None)
    for plan, told in ((Plan(tree="beam"), "tree beam"), (Plan(stop_below=0.5), "stop_below 0.5")):
        with pytest.raises(ConfigError, match=f"{told} with drafter {name}"):
            list(decode(target, drafter, prompts_of(96, [5]), Limits(4), plan=plan))
