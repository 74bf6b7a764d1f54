"""Who drafts, what a mixed draft says of itself, and that the trained drafter goes on learning and following."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kit.models import draft_settings, plain_greedy, prompts_of, semi_drafter, settings_of, target_of
from kit.recording import record

from semiar.core.calibration import Calibration
from semiar.core.draft import Draft, Plan
from semiar.decoding import Limits, decode
from semiar.drafters import build_drafter
from semiar.drafters.designs.hybrid import HybridDrafter, inner_settings, mix
from semiar.drafters.finding import FindingSettings
from semiar.errors import ConfigError
from semiar.targets import Target


@pytest.fixture(scope="module")
def target() -> Target:
    return target_of("llama")


def hybrid_of(target: Target, inner: Any, **options: Any) -> Any:
    """A hybrid around a copy of this drafter."""
    hybrid = HybridDrafter.around(settings_of("hybrid", num_speculative_tokens=4, **options), inner, target)
    hybrid.inner.load_state_dict(inner.state_dict())
    return hybrid.to(target.dtype).eval().bind(target)


def copied(text: list[int], count: int, least: int) -> list[int]:
    finder = FindingSettings(min_match=least).matcher_of(text)
    length, start = finder.match
    whole = list(text)
    for index in range(count if length else 0):
        whole.append(whole[start + index])
    return whole[len(text) :]


@pytest.mark.parametrize("small_lm", ["context", "lstm"])
def test_each_row_is_drafted_by_the_one_that_its_prefix_names(target: Target, small_lm: str) -> None:
    """Turn and turn about, also within a batch: what each drafts is what it drafts alone, its memory complete."""
    inner = semi_drafter(target, torch.arange(0, 96, 2), small_lm=small_lm)
    hybrid = hybrid_of(target, inner, min_match=2)
    prompts = prompts_of(96, [9, 5])
    prompts = [prompts[0] * 2, prompts[1], [*prompts[1], 7, *prompts[1]]]
    alone = {tuple(p.text): p.tokens for p in record(target, inner, prompts, 24)[1]}
    kinds = set()
    for proposal in record(target, hybrid, prompts, 24)[1]:
        tokens = [token for token in proposal.tokens if token >= 0]
        looked = copied(proposal.text, len(tokens), 2)
        kinds.add(bool(looked))
        if looked:
            assert tokens == looked
        elif tuple(proposal.text) in alone:
            other = alone[tuple(proposal.text)]
            assert tokens[: len(other)] == other[: len(tokens)]
    assert kinds == {True, False}


def test_a_hybrid_keeps_what_its_drafter_knows_of_itself(target: Target) -> None:
    inner: Any = semi_drafter(target, small_lm="lstm")
    assert "calibration" not in inner.extra_config()
    inner.calibration = Calibration([0.5], [[0.2, 0.9]])
    hybrid = hybrid_of(target, inner)
    assert hybrid.inner.calibration == inner.calibration
    hybrid.take_calibration(Calibration([0.5], [[0.1, 0.8]]))
    assert hybrid.extra_config()["inner"]["calibration"] == {"edges": [0.5], "rates": [[0.1, 0.8]]}


def test_a_mixed_draft_says_of_chosen_tokens_that_they_are_sure() -> None:
    laws = torch.tensor([[[0.5, 0.5], [0.2, 0.8]], [[0.1, 0.9], [1.0, 0.0]]])
    draft = Draft.chain(torch.tensor([[5, 5], [5, 3]]), laws, torch.tensor([3, 5]))
    mixed = mix(draft, torch.tensor([[-1, -1, -1], [5, 4, 0]]))
    assert mixed.tokens.tolist() == [[5, 5, -1], [5, 4, 0]] and mixed.vocab is not None and mixed.probs is not None
    assert mixed.vocab.tolist() == [3, 5, 0, 4] and mixed.probs.shape == (2, 3, 4)
    torch.testing.assert_close(mixed.probs[0, :2, :2], laws[0])
    assert float(mixed.probs[0, 2].sum()) == 0 and float(mixed.probs[0, :, 2:].sum()) == 0
    assert mixed.vocab[mixed.probs[1].argmax(-1)].tolist() == [5, 4, 0]
    assert mixed.probs[1].sum(-1).tolist() == [1, 1, 1] and mixed.probs[1].max(-1).values.tolist() == [1, 1, 1]


def test_a_mixed_draft_with_a_shorter_lookup_and_the_whole_vocabulary() -> None:
    laws = torch.full((2, 3, 4), 0.25)
    mixed = mix(Draft.chain(torch.tensor([[1, 2, 3], [1, 2, 3]]), laws), torch.tensor([[2, -1], [-1, -1]]))
    assert mixed.tokens.tolist() == [[2, -1, -1], [1, 2, 3]] and mixed.vocab is None and mixed.probs is not None
    assert mixed.probs[0].tolist() == [[0, 0, 1, 0], [0] * 4, [0] * 4]
    torch.testing.assert_close(mixed.probs[1], laws[1])
    empty = mix(Draft.empty(2), torch.tensor([[2], [-1]]))
    assert empty.tokens.tolist() == [[2], [-1]] and empty.probs is None


def test_it_learns_as_its_trained_drafter(target: Target) -> None:
    inner = semi_drafter(target)
    hybrid = hybrid_of(target, inner)
    assert hybrid.trainable and hybrid.layers == inner.layers
    tokens, anchors = torch.tensor(prompts_of(96, [12, 12])), torch.tensor([[2, 5], [1, 6]])
    hidden = target(tokens).hidden.detach()
    for ours, theirs in zip(hybrid.unroll(hidden, tokens, anchors), inner.unroll(hidden, tokens, anchors), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_k_is_the_pair_s_unless_another_is_said() -> None:
    """A pair of K = 3 used to become a hybrid of K = 5 in silence."""
    target = target_of("llama")
    inner = semi_drafter(target, None, num_speculative_tokens=3)
    hybrid = HybridDrafter.around(settings_of("hybrid"), inner, target)
    assert hybrid.settings.num_speculative_tokens == hybrid.inner.settings.num_speculative_tokens == 3
    assert hybrid_of(target, inner).settings.num_speculative_tokens == 4


def test_the_settings_of_the_trained_drafter() -> None:
    inner = {"small_lm": "gru", "num_heads": 2, "lora_r": 2}
    settings = draft_settings("hybrid", min_match=3, inner=inner, draft_vocab_size=50)
    inner = inner_settings(settings)
    assert (inner.architecture, inner.small_lm, inner.lora_r, inner.num_heads) == ("semi", "gru", 2, 2)
    assert inner.num_speculative_tokens == 4 and inner.draft_vocab_size == 50


@pytest.mark.parametrize(
    ("inner", "named"),
    [
        ({"width": 3}, "option 'width' with drafter semi"),
        ({"architecture": "hybrid"}, "a hybrid inside a hybrid"),
        ({"architecture": "lookup"}, "a hybrid of lookup and lookup"),
        ({"fusion": "sum"}, "sum"),
        ("semi", "inner 'semi'"),
    ],
)
def test_what_cannot_be_inside(inner: Any, named: str, target: Target) -> None:
    with pytest.raises(ConfigError, match=named):
        build_drafter(settings_of("hybrid", inner=inner), target, None)


def test_trees_are_drafted_where_nothing_is_looked_up(target: Target) -> None:
    inner = semi_drafter(target, small_lm="lstm")
    hybrid, plan = hybrid_of(target, inner, min_match=2), Plan(tree="best", nodes=6, branch=2)
    prompt = prompts_of(96, [9])[0] * 2
    rows, proposals = record(target, hybrid, [prompt], 24, plan=plan)
    assert rows == plain_greedy(target.lm, [prompt], 24)
    alone = {tuple(p.text): p for p in record(target, inner, [prompt], 24, plan=plan)[1]}
    kinds = set()
    for proposal in proposals:
        looked = copied(proposal.text, len(proposal.tokens), 2)
        kinds.add(bool(looked))
        if looked:
            assert proposal.tokens == looked and proposal.parents == list(range(len(looked)))
        elif tuple(proposal.text) in alone:
            assert (proposal.tokens, proposal.parents) == (
                alone[tuple(proposal.text)].tokens, alone[tuple(proposal.text)].parents,
            )  # fmt: skip
    assert kinds == {True, False}


@pytest.mark.parametrize("rule", ["block", "none"])
def test_a_tree_goes_with_the_exact_rule_alone(target: Target, rule: str) -> None:
    """Said before the first token, even where a hybrid would draft chains for a while."""
    hybrid = hybrid_of(target, semi_drafter(target, small_lm="lstm"))
    steps = decode(target, hybrid, prompts_of(96, [9]), Limits(8), plan=Plan(tree="sampled"), rule=rule)
    with pytest.raises(ConfigError, match=f"tree sampled with verification rule {rule}; expected rule exact"):
        next(steps)
