"""Greedy decoding: token ids equal whole uncached passes of the bare model, whatever is drafted (H01, H02, H04)."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from kit.models import (
    ModelDrafter,
    ScriptDrafter,
    TableDrafter,
    chain_table,
    noisy_drafter,
    plain_greedy,
    prompts_of,
    semi_drafter,
    table_model,
    target_of,
    tiny,
)

from semiar.core.sampling import Sampling
from semiar.decoding import Limits, Step, decode
from semiar.drafters import Drafter, NoDrafter
from semiar.errors import ConfigError
from semiar.targets import Target
from semiar.targets.lora import LoraSettings, attach

COUNT = 64
LENGTHS = [1, 2, 3, 40, 5, 17, 8, 1, 30, 4, 12, 25, 2, 9, 33, 6, 20, 14, 3, 38]  # 20 prompts of 1-40 tokens


def run(
    target: Target, drafter: Drafter, prompts: list[list[int]], count: int, **options: Any
) -> tuple[list[list[int]], list[Step]]:
    """Ids of every row and the steps that gave them."""
    rows: list[list[int]] = [[] for _ in prompts]
    steps = list(decode(target, drafter, prompts, Limits(count), **options))
    for step in steps:
        for row, tokens in zip(step.rows, step.tokens, strict=True):
            rows[row] += tokens
    return rows, steps


def rate(steps: list[Step]) -> float:
    """Accepted drafts per drafted token."""
    return sum(sum(s.accepted) for s in steps) / max(1, sum(s.drafted * len(s.rows) for s in steps))


@functools.cache
def history() -> tuple[Target, list[list[int]], list[list[int]]]:
    """A random model in float32, 20 prompts, and their plain continuations."""
    target, prompts = target_of("llama", torch.float32), prompts_of(96, LENGTHS)
    return target, prompts, plain_greedy(target.lm, prompts, COUNT)


@functools.cache
def adapted() -> tuple[Target, list[list[int]], list[list[int]]]:
    """The same with a LoRA adapter that changes what the model says."""
    model: Any = attach(tiny("llama", torch.float32), LoraSettings(r=4))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.normal_(std=0.2)
    prompts = prompts_of(96, LENGTHS)
    return Target(model.eval()), prompts, plain_greedy(model, prompts, COUNT)


def test_plain_decoding_is_the_reference() -> None:
    target, prompts, wanted = history()
    found, steps = run(target, NoDrafter(), prompts, COUNT)
    assert found == wanted and len(steps) == COUNT and all(step.drafted == 0 for step in steps)
    assert len({tuple(row) for row in wanted}) == len(wanted)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_a_noisy_copy_changes_nothing(count: int) -> None:
    target, prompts, wanted = history()
    found, steps = run(target, noisy_drafter(target.lm, count), prompts, COUNT)
    assert found == wanted
    assert 0.1 < rate(steps) < 0.9 and len(steps) < COUNT


def test_a_tree_of_a_noisy_copy_changes_nothing() -> None:
    target, prompts, wanted = history()
    found, steps = run(target, noisy_drafter(target.lm, 3, width=2), prompts, COUNT)
    assert found == wanted
    assert max(step.drafted for step in steps) == 14  # 2 + 4 + 8 nodes
    assert max(max(step.accepted) for step in steps) == 3


@pytest.mark.parametrize(("count", "width"), [(1, 1), (2, 1), (4, 1), (8, 1), (3, 2)])
def test_an_exact_copy_is_always_right(count: int, width: int) -> None:
    target, prompts, wanted = history()
    found, steps = run(target, ModelDrafter(target.lm, count, width=width), prompts, COUNT)
    assert found == wanted
    nodes = 14 if width == 2 else count
    assert all(a == count for step in steps if step.drafted == nodes for a in step.accepted)


@pytest.mark.parametrize(("count", "width"), [(1, 1), (4, 1), (2, 2)])
def test_an_unrelated_model_changes_nothing(count: int, width: int) -> None:
    target, prompts, wanted = history()
    other = ModelDrafter(tiny("llama", torch.float32, seed=9), count, width=width)
    found, steps = run(target, other, prompts, 20)
    assert found == [row[:20] for row in wanted] and rate(steps) < 0.2


@pytest.mark.parametrize(("count", "width"), [(1, 1), (2, 1), (4, 1), (8, 1), (3, 2)])
def test_with_an_adapter_the_reference_is_the_adapted_model(count: int, width: int) -> None:
    target, prompts, wanted = adapted()
    assert wanted != history()[2]
    drafter = noisy_drafter(history()[0].lm, count, width=width)  # of the base model: the adapter moves acceptance only
    assert run(target, drafter, prompts, 32)[0] == [row[:32] for row in wanted]


@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("width", [1, 2])
def test_a_draft_that_is_always_wrong(count: int, width: int) -> None:
    if width == 2:
        count = min(count, 3)
    target = Target(table_model(chain_table(16)))
    drafter = TableDrafter(chain_table(16, step=2, changes={}), count, width=width)
    drafter.laws[torch.arange(16), (torch.arange(16) + 1) % 16] = 0  # nor is the right token its second best
    found, steps = run(target, drafter, [[0]], 12)
    assert found == [list(range(1, 13))] and len(steps) == 12
    assert all(step.accepted == [0] for step in steps) and steps[0].drafted >= count


@pytest.mark.parametrize("name", ["mistral", "phi3", "qwen2_window", "qwen3", "gemma2", "gemma3", "gpt2", "gpt_neox"])
def test_every_architecture_across_its_window(name: str) -> None:
    target, prompts = target_of(name, torch.float32), prompts_of(96, [1, 6, 13])
    wanted = plain_greedy(target.lm, prompts, 24)
    for width in (1, 2):
        assert run(target, noisy_drafter(target.lm, 3, width=width), prompts, 24)[0] == wanted


@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_a_draft_identical_to_the_target_is_accepted_whole_for_500_tokens(heat: float) -> None:
    target = target_of("llama", context=600)
    rng = torch.Generator().manual_seed(1)
    found, steps = run(target, ModelDrafter(target.lm, 4), [[3, 1, 4]], 500, sampling=Sampling(heat), rng=rng)
    assert len(found[0]) == 500 and all(step.drafted == 4 for step in steps[:-1])
    whole = [step.accepted == [4] for step in steps[:-1]]
    assert sum(whole) >= 0.999 * len(whole) if heat == 0 else rate(steps[:-1]) >= 0.999
    assert all(whole[:3]) and all(whole[-3:])  # token 500 is accepted like token 10


@pytest.mark.parametrize("end", [None, "early"])
def test_a_batch_of_unequal_prompts_equals_its_single_runs(end: str | None) -> None:
    target = history()[0]
    prompts = prompts_of(96, [3, 17, 40], seed=4)
    wanted = plain_greedy(target.lm, prompts, 48)
    ends = () if end is None else (wanted[1][6],)
    drafter = noisy_drafter(target.lm, 4)
    together = collect(target, drafter, prompts, Limits(48, ends))
    alone = [collect(target, drafter, [prompt], Limits(48, ends))[0] for prompt in prompts]
    assert together == alone
    for (ids, reason), plain in zip(together, wanted, strict=True):
        stop = next((i + 1 for i, token in enumerate(plain) if token in ends), 48)
        assert ids == plain[:stop] and reason == ("stop" if plain[stop - 1] in ends else "length")
    assert end is None or (together[1][1] == "stop" and len(together[1][0]) <= 7)


def collect(
    target: Target, drafter: Drafter, prompts: list[list[int]], limits: Limits
) -> list[tuple[list[int], str | None]]:
    """Ids and finish reason of each row."""
    rows: list[tuple[list[int], str | None]] = [([], None) for _ in prompts]
    for step in decode(target, drafter, prompts, limits):
        for row, tokens, reason in zip(step.rows, step.tokens, step.finished, strict=True):
            ids, before = rows[row]
            assert before is None, "a finished row goes on"
            rows[row] = (ids + tokens, reason)
    return rows


def test_rows_whose_drafts_have_different_lengths() -> None:
    target, prompts, wanted = history()
    answers = {tuple(p): w for p, w in zip(prompts, wanted, strict=True)}

    def script(tokens: list[int], count: int) -> list[int]:
        prompt = next(p for p in answers if tuple(tokens[: len(p)]) == p)
        done = len(tokens) - len(prompt)
        return answers[prompt][done : done + done % (count + 1)]  # right drafts, 0 to K of them

    found, steps = run(target, ScriptDrafter(script, 4), prompts[3:7], 30)
    assert found == [row[:30] for row in wanted[3:7]]
    assert {a for step in steps for a in step.accepted} >= {0, 1, 2}


def test_rounds_and_accepted_drafts_add_up() -> None:
    """H34: after 3 the draft proposes 0; twelve tokens are three passes and nine accepted drafts."""
    target = Target(table_model(chain_table(8)))
    found, steps = run(target, TableDrafter(chain_table(8, changes={3: 0}), 4), [[0]], 12)
    assert found == [[1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4]]
    assert [step.accepted for step in steps] == [[3], [4], [2]]
    assert [step.drafted for step in steps] == [4, 4, 2]  # the last block is shortened to what can be used
    assert sum(len(step.tokens[0]) for step in steps) == sum(step.accepted[0] for step in steps) + len(steps) == 12
    assert all(step.seconds >= step.draft_seconds + step.verify_seconds > 0 for step in steps)


JOINING = [(kind, most) for kind in ("model", "context", "lstm", "tree") for most in (1, 3, 19)]


@pytest.mark.parametrize(("kind", "most"), [*JOINING, ("eagle", 3), ("skip", 3)])
def test_rows_that_join_as_others_finish(kind: str, most: int) -> None:
    target, prompts, wanted = history()
    drafter = {
        "model": lambda: noisy_drafter(target.lm, 3),
        "tree": lambda: noisy_drafter(target.lm, 2, width=2),
        "context": lambda: semi_drafter(target, small_lm="context"),
        "lstm": lambda: semi_drafter(target, small_lm="lstm"),
        "eagle": lambda: semi_drafter(target, architecture="eagle"),
        "skip": lambda: semi_drafter(target, architecture="skip"),
    }[kind]()
    found, steps = run(target, drafter, prompts, COUNT, max_batch=most)
    assert found == wanted
    assert max(len(step.rows) for step in steps) == most
    first = [next(i for i, step in enumerate(steps) if row in step.rows) for row in range(len(prompts))]
    assert first == sorted(first) and len(set(first)) > 1


def test_no_row_at_a_time_is_refused() -> None:
    target, prompts, _ = history()
    with pytest.raises(ConfigError, match="max_batch 0"):
        run(target, NoDrafter(), prompts, COUNT, max_batch=0)
