"""Calls on the same objects do not know of each other (H03); the verification rules; what a step reports."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kit.models import (
    ScriptDrafter,
    TableDrafter,
    chain_table,
    noisy_drafter,
    plain_greedy,
    prompts_of,
    semi_drafter,
    table_model,
    target_of,
)

from semiar.core.sampling import Sampling
from semiar.decoding import Limits, decode
from semiar.drafters import Drafter, NoDrafter
from semiar.errors import ConfigError
from semiar.targets import Target


def build(kind: str) -> tuple[Target, Drafter]:
    target = target_of("llama", torch.float32)
    if kind == "model":
        return target, noisy_drafter(target.lm, 3)
    return target, drafter_of(kind, target)


def drafter_of(kind: str, target: Target, **changes: Any) -> Drafter:
    return semi_drafter(target, **{"small_lm" if kind in ("lstm", "context") else "architecture": kind}, **changes)


def call(target: Target, drafter: Drafter, seed: int, count: int, **options: Any) -> list[tuple[Any, ...]]:
    """Everything but the times."""
    rng = torch.Generator().manual_seed(seed)
    prompts = prompts_of(96, [4, 9], seed)
    steps = decode(target, drafter, prompts, Limits(count), Sampling(0.8), rng=rng, **options)
    return [(s.rows, s.tokens, s.accepted, s.finished, s.drafted) for s in steps]


@pytest.mark.parametrize("kind", ["model", "lstm", "context", "eagle", "skip"])
def test_a_second_call_is_like_a_first(kind: str) -> None:
    target, drafter = build(kind)
    first = call(target, drafter, 1, 40, num_speculative_tokens=2)
    assert max(step[4] for step in first) == 2
    second = call(target, drafter, 2, 20)
    assert second == call(*build(kind), 2, 20)
    assert second[0][4] == drafter.settings.num_speculative_tokens  # the default again


class Gone(Exception):
    pass


@pytest.mark.parametrize("kind", ["model", "lstm", "context", "eagle", "skip"])
def test_a_call_after_one_that_was_broken_off(kind: str) -> None:
    target, drafter = build(kind)
    with pytest.raises(Gone):
        for number, _ in enumerate(decode(target, drafter, prompts_of(96, [7]), Limits(40))):
            if number == 3:
                raise Gone
    assert not torch.is_inference_mode_enabled()
    assert call(target, drafter, 2, 20) == call(*build(kind), 2, 20)


def test_two_calls_at_the_same_time() -> None:
    target, drafter = build("context")
    calls = [decode(target, drafter, prompts_of(96, [6], seed), Limits(16)) for seed in (1, 2)]
    turns = list(zip(*calls, strict=False))
    for which, seed in enumerate((1, 2)):
        alone = list(decode(*build("context"), prompts_of(96, [6], seed), Limits(16)))
        assert [turn[which].tokens for turn in turns] == [step.tokens for step in alone[: len(turns)]]


@pytest.mark.parametrize("kind", ["model", "context", "lstm", "eagle", "skip"])
def test_gradients_can_be_taken_between_calls(kind: str) -> None:
    """Nothing that decoding leaves behind may be an inference tensor that training then trips over."""
    target, drafter = build(kind)
    call(target, drafter, 1, 8)
    assert torch.is_grad_enabled()
    if kind != "model":
        tokens = torch.tensor(prompts_of(96, [12]))
        hidden = target(tokens, layers=drafter.layers).hidden.detach().clone()
        states = drafter.unroll(hidden, tokens, torch.tensor([[3, 5]]))
        torch.stack([drafter.head(state, 0) for state in states]).sum().backward()
        assert all(p.grad is not None for p in drafter.parameters())


def test_seeds() -> None:
    target, drafter = build("model")
    texts = [call(target, drafter, 3, 24) for _ in range(2)]
    assert texts[0] == texts[1]
    rng = torch.Generator().manual_seed(5)
    many = {
        str([s.tokens for s in decode(target, drafter, [[1, 2]], Limits(24), Sampling(1.0), rng=rng)]) for _ in range(5)
    }
    assert len(many) == 5


def test_sampling_needs_a_generator() -> None:
    target, drafter = build("model")
    with pytest.raises(ConfigError, match="generator"):
        next(decode(target, drafter, [[1, 2]], Limits(4), Sampling(1.0)))


@pytest.mark.parametrize(("count", "most"), [(0, 0), (1, 1), (3, 3), (None, 4)])
def test_fewer_drafts_than_the_drafter_can(count: int | None, most: int) -> None:
    target = target_of("llama", torch.float32)
    drafter = semi_drafter(target, small_lm="lstm")  # K = 4
    steps = list(decode(target, drafter, [[1, 2, 3]], Limits(20), num_speculative_tokens=count))
    assert max(step.drafted for step in steps) == most


@pytest.mark.parametrize("count", [-1, 5])
def test_more_drafts_than_the_drafter_can(count: int) -> None:
    target = target_of("llama", torch.float32)
    with pytest.raises(ConfigError, match="0 to 4"):
        next(decode(target, semi_drafter(target, small_lm="lstm"), [[1]], Limits(4), num_speculative_tokens=count))


def test_unknown_rule() -> None:
    with pytest.raises(ConfigError, match=r"typical.*exact, block, none"):
        next(decode(*build("model"), [[1]], Limits(4), rule="typical"))


@pytest.fixture(scope="module")
def chain() -> Target:
    return Target(table_model(chain_table(12)))


@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_without_verification_the_drafts_come_out(chain: Target, heat: float) -> None:
    wrong = ScriptDrafter(lambda tokens, count: [9, 7, 5][:count], 3)
    steps = list(decode(chain, wrong, [[0]], Limits(9), Sampling(heat), rng=torch.Generator(), rule="none"))
    if heat == 0:
        assert [step.tokens for step in steps] == [[[9, 7, 5, 6]], [[9, 7, 5, 6]], [[7]]]
    assert all(step.tokens[0][:3] == [9, 7, 5] for step in steps[:2])
    assert steps[0].accepted == [3] and steps[-1].finished == ["length"]


def test_without_verification_the_end_still_ends(chain: Target) -> None:
    wrong = ScriptDrafter(lambda tokens, count: [9, 7, 5][:count], 3)
    steps = list(decode(chain, wrong, [[0]], Limits(20, (7,)), rule="none"))
    assert [step.tokens for step in steps] == [[[9, 7]]] and steps[0].finished == ["stop"]


@pytest.mark.parametrize(("rule", "heat"), [("none", 0.0), ("none", 1.0), ("block", 1.0)])
def test_rules_that_need_a_chain_refuse_trees(chain: Target, rule: str, heat: float) -> None:
    tree = TableDrafter(chain_table(12), 2, width=2)
    with pytest.raises(ConfigError, match="tree"):
        list(decode(chain, tree, [[0]], Limits(6), Sampling(heat), rng=torch.Generator(), rule=rule))


def test_block_rule_in_greedy_decoding_is_the_ordinary_rule() -> None:
    target, drafter = build("model")
    prompts = prompts_of(96, [4, 9])
    runs = [
        [(s.tokens, s.accepted) for s in decode(target, drafter, prompts, Limits(24), rule=rule)]
        for rule in ("exact", "block")
    ]
    assert runs[0] == runs[1]


def test_block_rule_accepts_more() -> None:
    target = Target(table_model([[1.0, 0.2, -0.5], [0.0, 1.5, 0.3], [-1.0, 0.4, 0.6]]))
    drafter = TableDrafter([[0.5, 0.8, -0.4], [0.6, 0.9, 0.5], [-0.5, 0.1, 0.8]], 4)
    passes = []
    for rule in ("exact", "block"):
        rng = torch.Generator().manual_seed(0)
        steps = decode(target, drafter, [[0]] * 400, Limits(40), Sampling(1.0), rng=rng, rule=rule)
        passes.append(sum(len(step.rows) for step in steps))
    assert passes[1] < 0.99 * passes[0]


def test_rows_keep_their_number_when_others_leave(chain: Target) -> None:
    steps = list(decode(chain, NoDrafter(), [[0], [5], [3]], Limits(9, (6,))))
    assert [step.rows for step in steps] == [[0, 1, 2], [0, 2], [0, 2], [0], [0], [0]]
    assert [step.finished for step in steps][2] == [None, "stop"]


def test_a_one_token_prompt_beside_long_ones() -> None:
    """Its first round has no state to draft from."""
    target = target_of("llama")
    drafter = semi_drafter(target, small_lm="context")
    prompts = prompts_of(96, [1, 20])
    seen: dict[int, list[int]] = {0: [], 1: []}
    for step in decode(target, drafter, prompts, Limits(12)):
        for index, tokens in zip(step.rows, step.tokens, strict=True):
            seen[index] += tokens
    for index in (0, 1):
        alone = [t for step in decode(target, drafter, [prompts[index]], Limits(12)) for t in step.tokens[0]]
        assert seen[index] == alone


@pytest.mark.parametrize("kind", ["context", "lstm", "eagle", "skip"])
def test_the_count_follows_the_rows_and_a_resting_drafter_keeps_up(kind: str) -> None:
    """One row ends early; from then on the other gets drafts, the same ones as after a prompt of all its tokens."""
    target = target_of("llama")
    drafter: Any = drafter_of(kind, target, num_speculative_tokens=3)
    prompts = prompts_of(96, [9, 14])
    wanted = plain_greedy(target.lm, prompts, 30)
    end = next(token for token in wanted[0][4:] if token not in wanted[1] and token not in wanted[0][:4])
    propose, seen = drafter.propose, []

    def note(context: Any, *arguments: Any) -> Any:
        draft = propose(context, *arguments)
        if draft.count:
            seen.append((int(context.lengths[0]), draft.tokens[0].tolist()))
        return draft

    drafter.propose = note
    limits = Limits(30, (end,))
    steps = list(decode(target, drafter, prompts, limits, num_speculative_tokens={1: 3, 2: 0}))
    assert [step.drafted for step in steps if len(step.rows) == 2] == [0] * (wanted[0].index(end) + 1)
    assert [t for step in steps for row, one in zip(step.rows, step.tokens) if row == 1 for t in one] == wanted[1]
    length, draft = seen[0]
    seen.clear()
    next(iter(decode(target, drafter, [(prompts[1] + wanted[1])[:length]], limits)))
    assert seen == [(length, draft)]


@pytest.mark.parametrize("counts", [{}, {2: 3}, {0: 1, 1: 1}, {1: 2, 4: 9}])
def test_counts_that_leave_a_batch_size_open(counts: dict[int, int]) -> None:
    target = target_of("llama")
    with pytest.raises(ConfigError, match="num_speculative_tokens"):
        list(decode(target, semi_drafter(target), prompts_of(96, [3]), Limits(4), num_speculative_tokens=counts))
