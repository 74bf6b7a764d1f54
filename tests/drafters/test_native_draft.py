"""The kernel that drafts: the same tokens and laws as the drafter's own steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kit.laws import FOUR, step_misfit
from kit.models import plain_greedy, prompts_of, semi_drafter, table_model, target_of, tiny
from kit.recording import Proposal, record, teacher_forced

from semiar.core.sampling import Sampling
from semiar.drafters.native import NativeDraft, why_not
from semiar.targets import Target, kernels
from semiar.targets.packed import can_pack

pytestmark = pytest.mark.skipif(not kernels.compiler(), reason="this machine has no C++ compiler")
CASES: list[dict[str, Any]] = [
    {"vocab": 40},
    {"vocab": None, "layers": "low_mid_high"},
    {"vocab": 33, "lora_r": 0, "num_speculative_tokens": 7},
]


def made(target: Target, case: dict[str, Any], engine: str = "native") -> Any:
    options = {"small_lm": "context", **case}
    size = options.pop("vocab")
    vocab = (
        None if size is None else torch.randperm(96, generator=torch.Generator().manual_seed(2))[:size].sort().values
    )
    drafter = semi_drafter(target, vocab, **options)
    if engine == "native":
        drafter.prepare("native")
        assert isinstance(drafter._ready[0], NativeDraft)
    return drafter


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_greedy_drafts_are_those_of_the_drafter_s_own_steps(case: dict[str, Any], threads: int) -> None:
    target = target_of("llama", torch.float32)
    found: list[list[Proposal]] = []
    torch.set_num_threads(threads)
    for engine in ("eager", "native"):
        proposals: list[Proposal] = []
        for prompt in prompts_of(96, [2, 9, 70]):  # the longest is more than the kernel reads at once
            rows, seen = record(target, made(target, case, engine), [prompt], 40)
            assert rows == plain_greedy(target.lm, [prompt], 40)
            proposals += seen
        found.append(proposals)
    torch.set_num_threads(1)
    assert [(p.text, p.tokens) for p in found[0]] == [(p.text, p.tokens) for p in found[1]]
    assert len({tuple(p.tokens) for p in found[0]}) > 20


@pytest.mark.parametrize("case", CASES, ids=str)
def test_laws_are_those_of_training(case: dict[str, Any]) -> None:
    target = target_of("llama", torch.float32)
    drafter = made(target, case)
    _, proposals = record(target, drafter, prompts_of(96, [14]), 30, Sampling(0.7))
    assert len(proposals) > 5
    for proposal in proposals:
        wanted = teacher_forced(target, drafter, proposal, Sampling(0.7))
        torch.testing.assert_close(proposal.probs, wanted, rtol=0, atol=5e-4)


def test_sampled_tokens_follow_the_target_s_law() -> None:
    target = Target(table_model(FOUR).float())
    drafter: Any = semi_drafter(target, torch.tensor([0, 1, 3]), small_lm="context", num_heads=1)
    drafter.prepare("native")
    assert step_misfit(target, drafter, FOUR, [2, 3, 0]) < 45  # chi-square, 12 degrees of freedom: chance 1e-5


def test_filtered_laws_and_batches_are_left_to_the_ordinary_steps() -> None:
    target = target_of("llama", torch.float32)
    for sampling, lengths in ((Sampling(1.0, top_k=3), [5]), (Sampling(), [5, 9])):
        drafter = made(target, CASES[0])
        _, proposals = record(target, drafter, prompts_of(96, lengths), 12, sampling)
        assert proposals


@pytest.mark.parametrize(
    "options",
    [{"small_lm": "lstm"}, {"small_lm": "context", "num_layers": 2}, {"small_lm": "context", "fusion": "additive"}],
)
def test_other_shapes_draft_by_their_own_steps(options: dict[str, Any]) -> None:
    target = Target(tiny("llama", torch.float32))
    drafter: Any = semi_drafter(target, None, **options)
    assert why_not(drafter)
    drafter.prepare("native")
    assert not drafter._ready


def test_a_temperature_next_to_nothing_still_has_a_law() -> None:
    target = target_of("llama", torch.float32)
    _, proposals = record(target, made(target, CASES[0]), prompts_of(96, [5]), 8, Sampling(1e-46))
    assert proposals and all(torch.allclose(one.probs.sum(-1), torch.ones(1)) for one in proposals)  # type: ignore[union-attr]


@pytest.mark.skipif(not can_pack(torch.device("cpu"), torch.bfloat16), reason="this CPU has no bfloat16 kernels")
def test_laws_in_bfloat16_are_those_of_training_up_to_its_rounding() -> None:
    target = target_of("llama", torch.bfloat16)
    drafter = made(target, CASES[1])
    _, proposals = record(target, drafter, prompts_of(96, [14]), 30, Sampling(1.0))
    gaps = [
        float((one.probs - teacher_forced(target, drafter, one, Sampling(1.0))).abs().max())
        for one in proposals  # type: ignore[operator]
    ]
    assert len(gaps) > 5 and max(gaps) < 0.15


def test_scaled_logits_are_left_to_the_ordinary_steps() -> None:
    drafter: Any = semi_drafter(Target(tiny("granite", torch.float32)), None, small_lm="context")
    assert "scales or caps" in why_not(drafter)
