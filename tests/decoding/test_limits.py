"""Where a row ends: end-of-turn tokens inside a block, exact caps, the model's context (H12, H13, H15, H16)."""

from __future__ import annotations

import pytest
import torch
from kit.drafters import ScriptDrafter, TableDrafter, noisy_drafter
from kit.models import chain_table, plain_greedy, prompts_of, table_model, target_of

from semiar.decoding import Limits, Step, decode
from semiar.drafters import Drafter, NoDrafter
from semiar.errors import ConfigError, TargetError
from semiar.targets import Target

SIZE = 16


@pytest.fixture(scope="module")
def chain() -> Target:
    """0 -> 1 -> 2 -> ... -> 15 -> 0."""
    return Target(table_model(chain_table(SIZE)))


def row(
    target: Target, drafter: Drafter, prompt: list[int], limits: Limits
) -> tuple[list[int], str | None, list[Step]]:
    """Ids, finish reason and steps of one prompt."""
    steps = list(decode(target, drafter, [prompt], limits))
    ids = [token for step in steps for token in step.tokens[0]]
    assert all(step.finished == [None] for step in steps[:-1])
    return ids, steps[-1].finished[0] if steps else None, steps


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("end", range(1, 11))
def test_an_end_token_anywhere_in_a_block_or_as_bonus(chain: Target, end: int, width: int) -> None:
    count = 4 if width == 1 else 2
    drafter = TableDrafter(chain_table(SIZE), count, width=width)
    ids, reason, steps = row(chain, drafter, [0], Limits(30, (end,)))
    assert ids == list(range(1, end + 1)) and reason == "stop"
    assert len(steps) == -(-end // (count + 1))  # blocks of K + 1 until the one that holds it
    assert (ids, reason) == row(chain, NoDrafter(), [0], Limits(30, (end,)))[:2]


def test_the_first_of_several_end_tokens(chain: Target) -> None:
    drafter = TableDrafter(chain_table(SIZE), 4)
    for start, last in ((0, 3), (3, 9), (9, 3), (8, 9)):
        ids, reason, _ = row(chain, drafter, [start], Limits(30, (3, 9)))
        assert ids[-1] == last and reason == "stop" and not {3, 9} & set(ids[:-1])


def test_an_end_token_in_the_prompt_ends_nothing(chain: Target) -> None:
    ids, reason, _ = row(chain, TableDrafter(chain_table(SIZE), 4), [5, 6, 5], Limits(3, (5,)))
    assert (ids, reason) == ([6, 7, 8], "length")


def test_where_the_draft_would_end_nothing_ends(chain: Target) -> None:
    def script(tokens: list[int], count: int) -> list[int]:
        if tokens[-1] == 2:
            return []  # its own end of sequence
        return [2] * count if tokens[-1] == 5 else [(tokens[-1] + 1 + i) % SIZE for i in range(count)]

    ids, reason, _ = row(chain, ScriptDrafter(script, 4), [0], Limits(9))
    assert (ids, reason) == (list(range(1, 10)), "length")


def test_a_rejected_end_token_ends_nothing(chain: Target) -> None:
    ids, reason, _ = row(chain, ScriptDrafter(lambda tokens, count: [9] * count, 4), [0], Limits(5, (9,)))
    assert (ids, reason) == ([1, 2, 3, 4, 5], "length")


@pytest.mark.parametrize("cap", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("width", [1, 2])
def test_exactly_the_cap(chain: Target, cap: int, width: int) -> None:
    drafter = TableDrafter(chain_table(SIZE), 8 if width == 1 else 3, width=width)
    ids, reason, _ = row(chain, drafter, [0], Limits(cap))
    assert (ids, reason) == (list(range(1, cap + 1)), "length")


def test_the_cap_holds_for_every_row_of_a_ragged_batch() -> None:
    target, prompts = target_of("llama", torch.float32, context=24), prompts_of(96, [3, 20, 11])
    rows: list[list[int]] = [[], [], []]
    for step in decode(target, noisy_drafter(target.lm, 8), prompts, Limits(9)):
        for index, tokens in zip(step.rows, step.tokens, strict=True):
            rows[index] += tokens
    assert [len(ids) for ids in rows] == [9, 4, 9]
    assert rows[1] == plain_greedy(target.lm, prompts[1:2], 4)[0]


@pytest.mark.parametrize("drafter", [NoDrafter(), TableDrafter(chain_table(SIZE), 8)])
def test_no_tokens_asked_for(chain: Target, drafter: Drafter) -> None:
    assert row(chain, drafter, [0], Limits(0)) == ([], None, [])
    assert list(decode(chain, drafter, [], Limits(5))) == []


def test_fewer_than_no_tokens_is_an_error() -> None:
    with pytest.raises(ConfigError, match="max_new_tokens"):
        Limits(-1)


def test_empty_rounds_are_plain_steps(chain: Target) -> None:
    asked = []

    def script(tokens: list[int], count: int) -> list[int]:
        asked.append(len(tokens))
        return [] if len(asked) % 2 else [(tokens[-1] + 1 + i) % SIZE for i in range(count)]

    ids, _, steps = row(chain, ScriptDrafter(script, 2), [5], Limits(8))
    assert ids == [6, 7, 8, 9, 10, 11, 12, 13]
    assert [step.drafted for step in steps] == [0, 2, 0, 2]
    assert [step.accepted for step in steps] == [[0], [2], [0], [2]]


def test_rows_without_a_draft_are_not_proposed_token_0() -> None:
    target = Target(table_model(chain_table(4, step=0)))  # every token repeats itself
    script = ScriptDrafter(lambda tokens, count: [0] * count if tokens[-1] == 0 else [], 3)
    steps = list(decode(target, script, [[0], [2]], Limits(4)))
    assert steps[0].tokens == [[0, 0, 0, 0], [2]] and steps[0].accepted == [3, 0]


def test_without_end_token_it_runs_to_the_cap(chain: Target) -> None:
    prompt = [1, 2, 1, 2, 1, 2, 1, 2]  # a repeated pair
    ids, reason, _ = row(chain, TableDrafter(chain_table(SIZE), 4), prompt, Limits(40))
    assert len(ids) == 40 and reason == "length" and ids[:3] == [3, 4, 5]


@pytest.mark.parametrize("drafter", ["none", "noisy", "tree"])
def test_the_context_limit(drafter: str) -> None:
    target = target_of("llama", torch.float32, context=64)
    own: Drafter = NoDrafter() if drafter == "none" else noisy_drafter(target.lm, 8 if drafter == "noisy" else 3)
    if drafter == "tree":
        own = noisy_drafter(target.lm, 3, width=2)
    for length, left in ((60, 4), (63, 1)):
        prompt = prompts_of(96, [length])[0]
        ids, reason, _ = row(target, own, prompt, Limits(10_000))
        assert (ids, reason) == (plain_greedy(target.lm, [prompt], left)[0], "length")
    for length in (64, 70):
        with pytest.raises(ConfigError, match=rf"{length} tokens.*64"):
            row(target, own, prompts_of(96, [length])[0], Limits(8))
    prompt = prompts_of(96, [5])[0]
    assert row(target, own, prompt, Limits(20))[0] == plain_greedy(target.lm, [prompt], 20)[0]


@pytest.mark.parametrize("name", ["gpt2", "mistral"])
def test_learned_positions_and_windows_up_to_the_last_position(name: str) -> None:
    target, prompts = target_of(name, torch.float32, context=32), prompts_of(96, [30, 9])
    rows: list[list[int]] = [[], []]
    for step in decode(target, noisy_drafter(target.lm, 4), prompts, Limits(99)):
        for index, tokens in zip(step.rows, step.tokens, strict=True):
            rows[index] += tokens
    assert rows == [plain_greedy(target.lm, [p], 32 - len(p))[0] for p in prompts]


def test_an_empty_prompt_is_an_error(chain: Target) -> None:
    with pytest.raises(ConfigError, match="prompt 1 is empty"):
        list(decode(chain, NoDrafter(), [[1], []], Limits(3)))


def test_a_state_that_is_not_finite_is_not_decoded_further() -> None:
    target = target_of("llama", torch.float32)
    target.lm.model.layers[1].mlp.down_proj.weight.data[3, 4] = torch.inf
    with pytest.raises(TargetError, match=r"row 0 is not finite.*dtype"):
        list(decode(target, NoDrafter(), [[1, 2, 3]], Limits(4)))
