"""The compiled engine: the same model to rounding, one graph for all lengths, and a way on when it fails."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kit.models import TableDrafter, noisy_drafter, plain_greedy, prompts_of, table_model, tiny

from semiar.core.sampling import Sampling, distribution
from semiar.decoding import Limits, decode
from semiar.drafters import Drafter, NoDrafter
from semiar.targets import Target
from semiar.targets.engine import prepare

pytestmark = pytest.mark.slow


def texts(target: Target, drafter: Drafter, prompts: list[list[int]], count: int, **options: Any) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in prompts]
    for step in decode(target, drafter, prompts, Limits(count), **options):
        for row, tokens in zip(step.rows, step.tokens, strict=True):
            rows[row] += tokens
    return rows


@pytest.mark.parametrize("name", ["llama", "gemma3"])
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


FOUR = [[0.9, 0.1, -0.4, 0.3], [-0.6, 1.1, 0.2, 0.0], [0.5, 0.5, -1.0, 0.8], [1.3, -0.7, 0.1, 0.2]]
OTHER = [[-0.2, 0.9, 0.6, -1.0], [1.0, 0.0, -0.5, 0.7], [-1.2, 0.3, 1.4, 0.0], [0.0, 0.8, -0.3, 1.1]]


def test_sampled_tokens_follow_the_target_s_law() -> None:
    target = Target(table_model(FOUR).float())
    prepare(target, "compiled", (1, 4))
    laws = distribution(torch.tensor(FOUR, dtype=torch.float64)[None], Sampling(1.0)).probs
    assert laws is not None
    rng = torch.Generator().manual_seed(5)
    found = torch.tensor(
        [texts(target, TableDrafter(OTHER, 3), [[2, 0]], 4, sampling=Sampling(1.0), rng=rng)[0] for _ in range(2500)]
    )
    law = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    for position in range(4):
        law = law @ laws[0]
        seen = torch.bincount(found[:, position], minlength=4).double()
        expected = law * len(found)
        assert float(((seen - expected) ** 2 / expected).sum()) < 25  # chi-square with 3 degrees: chance 2e-5


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
