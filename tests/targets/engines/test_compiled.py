"""The compiled engine: the same model to rounding, one graph for all lengths, and a way on when it fails."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kit.drafters import TableDrafter, noisy_drafter
from kit.laws import FOREIGN, FOUR, place_misfits, step_misfit
from kit.models import plain_greedy, prompts_of, semi_drafter, table_model, tiny
from kit.texts import texts

from semiar.core.sampling import Sampling
from semiar.drafters import NoDrafter
from semiar.targets import Target
from semiar.targets.engines.prepare import prepare

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "qwen2"])
def test_greedy_output_is_the_plain_model_s_at_every_length(name: str) -> None:
    """Plain and speculative, prompts short and long, past the sliding window, and the end of the model's context."""
    model = tiny(name, torch.float32)
    drafter = noisy_drafter(model, 4)
    target = Target(tiny(name, torch.float32))
    prepare(target, "compiled", (1, 5))
    for length, count in ((1, 30), (3, 40), (60, 20), (130, 30)):
        prompt = prompts_of(96, [length])
        wanted = plain_greedy(model, prompt, count)
        assert texts(target, NoDrafter(), prompt, count) == wanted
        assert texts(target, drafter, prompt, count) == wanted
    assert target.compiled is not None and not target.compiled.broken
    assert len(target.compiled.graphs) == 2  # whatever the length
    batch = prompts_of(96, [5, 17])  # more rows than there are graphs for: eagerly
    assert texts(target, drafter, batch, 20) == plain_greedy(model, batch, 20)
    assert len(target.compiled.graphs) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"small_lm": "context"}, {"small_lm": "lstm"}, {"small_lm": "rnn"}, {"small_lm": "none"},
        {"small_lm": "gru", "fusion": "additive"},
    ],
)  # fmt: skip
def test_a_compiled_drafter_drafts_the_same(options: dict[str, str]) -> None:
    target = Target(tiny("llama", torch.float32))
    found: list[list[list[int]]] = []
    for engine in ("eager", "compiled"):
        drafter: Any = semi_drafter(target, torch.arange(0, 96, 2), **options)
        if engine == "compiled":
            drafter.prepare(engine)
        propose, drafts = drafter.propose, []

        def note(*arguments: Any, propose: Any = propose, drafts: Any = drafts) -> Any:
            drafts.append(propose(*arguments))
            return drafts[-1]

        drafter.propose = note
        for length in (12, 70):  # the second text is longer than any before
            prompt = prompts_of(96, [length])
            assert texts(target, drafter, prompt, 60) == plain_greedy(target.lm, prompt, 60)
        found.append([draft.tokens[0].tolist() for draft in drafts])
    assert len(drafter._ready[0].graphs) == 1 and not drafter._ready[0].broken
    assert found[0] == found[1] and len({tuple(draft) for draft in found[0]}) > 20


def test_sampled_tokens_follow_the_target_s_law() -> None:
    target = Target(table_model(FOUR).float())
    prepare(target, "compiled", (1, 4))
    rng = torch.Generator().manual_seed(5)
    found = torch.tensor(
        [texts(target, TableDrafter(FOREIGN, 3), [[2, 0]], 4, sampling=Sampling(1.0), rng=rng)[0] for _ in range(2500)]
    )
    assert max(place_misfits(found, FOUR)) < 25  # chi-square with 3 degrees: chance 2e-5


def test_tokens_of_a_compiled_drafter_follow_the_target_s_law() -> None:
    target = Target(table_model(FOUR).float())
    drafter: Any = semi_drafter(target, torch.tensor([0, 1, 3]), small_lm="context", num_heads=1)
    drafter.prepare("compiled")
    misfit = step_misfit(target, drafter, FOUR, [2, 3, 0])
    assert len(drafter._ready[0].graphs) == 1
    assert misfit < 45  # chi-square, 12 degrees of freedom: chance 1e-5


def test_a_compiler_that_fails_is_named_once_and_decoding_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no compiler found")

    model = tiny("llama", torch.float32)
    target = Target(tiny("llama", torch.float32))
    prepare(target, "compiled", (1, 5))
    monkeypatch.setattr(torch, "compile", fail)
    prompt = prompts_of(96, [9])
    with pytest.warns(UserWarning, match="no compiler found") as seen:
        assert texts(target, noisy_drafter(model, 4), prompt, 20) == plain_greedy(model, prompt, 20)
    assert len([w for w in seen if "compil" in str(w.message)]) == 1
