"""The kernel that drafts: the same tokens and laws as the drafter's own steps."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest
import torch
from kit.drafters import CASES
from kit.laws import FOUR, step_misfit
from kit.models import plain_greedy, prompts_of, semi_drafter, table_model, target_of
from kit.recording import Proposal, record, teacher_forced

from semiar.core.sampling import Sampling
from semiar.drafters.engines.native import NativeDraft
from semiar.drafters.memory import Fresh
from semiar.targets import Target
from semiar.targets.engines import kernels
from semiar.targets.engines.packed import can_pack, weight_bytes

pytestmark = pytest.mark.skipif(not kernels.compiler(), reason="this machine has no C++ compiler")
OWN = ("hf", "parallel", "skip")  # these run other models, or all drafts in one pass
WRITTEN = [case for case in CASES if not set(OWN) & {case.get("small_lm"), case.get("architecture")}]
KINDS: list[dict[str, Any]] = [
    *WRITTEN,
    {"vocab": 33, "lora_r": 0, "num_speculative_tokens": 7},
    {"architecture": "eagle", "num_speculative_tokens": 7, "inner_size": 50},
]


def each_of(cases: list[dict[str, Any]]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=lambda case: "-".join(map(str, case.values())))


def made(target: Target, case: dict[str, Any], engine: str = "native") -> Any:
    options = {"small_lm": "context", **case}
    if "architecture" in case:
        del options["small_lm"]
    size = options.pop("vocab", None)
    vocab = (
        None if size is None else torch.randperm(96, generator=torch.Generator().manual_seed(2))[:size].sort().values
    )
    drafter = semi_drafter(target, vocab, **options)
    if engine == "native":
        drafter.prepare("native")
        assert isinstance(drafter._ready[0], NativeDraft)
    return drafter


FEW = [KINDS[0], KINDS[1], KINDS[-1]]


@pytest.mark.parametrize(
    ("case", "threads"), [*((case, 1) for case in KINDS), *((case, 3) for case in FEW)],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else str(value),
)  # fmt: skip
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
    assert [(p.text, p.tokens) for p in found[0]] == [(p.text, p.tokens) for p in found[1]]
    assert len({tuple(p.tokens) for p in found[0]}) > 20


@each_of(KINDS)
def test_laws_are_those_of_training(case: dict[str, Any]) -> None:
    target = target_of("llama", torch.float32)
    drafter = made(target, case)
    _, proposals = record(target, drafter, prompts_of(96, [14]), 30, Sampling(0.7))
    assert len(proposals) > 5
    for proposal in proposals:
        wanted = teacher_forced(target, drafter, proposal, Sampling(0.7))
        torch.testing.assert_close(proposal.probs, wanted, rtol=0, atol=5e-4)


@pytest.mark.parametrize(
    "case",
    [
        {"small_lm": "context", "num_heads": 1},
        {"small_lm": "lstm"},
        {"architecture": "hydra"},
        {"architecture": "recurrent"},
        {"architecture": "mlp", "cell": "lstm"},
        {"architecture": "eagle", "num_heads": 1},
    ],
    ids=lambda case: "-".join(map(str, case.values())),
)
def test_sampled_tokens_follow_the_target_s_law(case: dict[str, Any]) -> None:
    target = Target(table_model(FOUR).float())
    drafter: Any = semi_drafter(target, torch.tensor([0, 1, 3]), **case)
    drafter.prepare("native")
    assert drafter._ready
    assert step_misfit(target, drafter, FOUR, [2, 3, 0]) < 45  # chi-square, 12 degrees of freedom: chance 1e-5


class Asked:
    """Stands before the kernel: how many rows it was asked for, and for which of them it drafted."""

    def __init__(self, drafter: Any):
        self.native: NativeDraft = drafter._ready[0]
        self.rows: list[int] = []
        self.drafted: list[int] = []
        self.call, self.native.call = self.native.call, self._run
        drafter._ready = [self]

    def __call__(self, fresh: Fresh, *rest: Any) -> Any:
        self.rows.append(len(fresh.lengths))
        return self.native(fresh, *rest)

    def _run(self, *arguments: Any) -> None:
        self.drafted.append(self.rows[-1])
        self.call(*arguments)


@pytest.mark.parametrize("case", [KINDS[0], {"architecture": "medusa"}], ids=str)
@pytest.mark.parametrize("cut", [{"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.3}], ids=str)
def test_filtered_laws_are_left_to_the_ordinary_steps(cut: dict[str, Any], case: dict[str, Any]) -> None:
    target = target_of("llama", torch.float32)
    for sampling in (Sampling(0.9), Sampling(0.9, **cut)):  # the first shows that the kernel would draft
        drafter = made(target, case)
        asked = Asked(drafter)
        _, proposals = record(target, drafter, prompts_of(96, [5]), 16, sampling)
        assert asked.drafted == (asked.rows if sampling == Sampling(0.9) else []) and len(proposals) > 3
        whole = 0
        for proposal in proposals:
            wanted = teacher_forced(target, drafter, proposal, sampling)
            torch.testing.assert_close(proposal.probs, wanted, rtol=0, atol=5e-4)
            whole += int((wanted == 0).sum() == 0)
        assert (whole == len(proposals)) == (sampling == Sampling(0.9))  # the filter does cut


@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(0.7)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("case", [KINDS[0], {"architecture": "medusa"}], ids=str)
def test_batches_are_left_to_the_ordinary_steps(case: dict[str, Any], sampling: Sampling) -> None:
    target = target_of("llama", torch.float32)
    drafter = made(target, case)
    asked = Asked(drafter)
    rows, proposals = record(target, drafter, prompts_of(96, [5, 9]), 12, sampling)
    assert asked.rows.count(2) > 1 and 2 not in asked.drafted  # a row that is left over may be drafted by the kernel
    if sampling.greedy:
        assert rows == plain_greedy(target.lm, prompts_of(96, [5, 9]), 12)
    assert len(proposals) > 3
    for proposal in proposals:
        wanted = teacher_forced(target, drafter, proposal, Sampling(0.7))
        if sampling.greedy:
            assert proposal.probs is None and drafter.vocab is None
            assert proposal.tokens == wanted.argmax(-1).tolist()
        else:
            torch.testing.assert_close(proposal.probs, wanted, rtol=0, atol=5e-4)


@pytest.mark.parametrize("case", [{"architecture": name} for name in OWN[1:]], ids=str)
def test_other_kinds_draft_by_their_own_steps(case: dict[str, Any]) -> None:
    target = target_of("llama", torch.float32)
    drafter: Any = semi_drafter(target, None, **case)
    drafter.prepare("native")
    assert not getattr(drafter, "_ready", ())
    rows, _ = record(target, drafter, prompts_of(96, [5]), 8)
    assert rows == plain_greedy(target.lm, prompts_of(96, [5]), 8)


@pytest.mark.parametrize("kind", ["granite", "gemma2"])  # scaled logits, capped logits
@pytest.mark.parametrize("case", [KINDS[0], {"architecture": "medusa"}], ids=str)
def test_what_the_target_does_to_its_logits_is_done(kind: str, case: dict[str, Any]) -> None:
    target = target_of(kind, torch.float32)
    drafter = made(target, case)
    _, proposals = record(target, drafter, prompts_of(96, [9]), 12, Sampling(1.0))
    assert proposals
    for proposal in proposals:
        wanted = teacher_forced(target, drafter, proposal, Sampling(1.0))
        torch.testing.assert_close(proposal.probs, wanted, rtol=0, atol=5e-4)


@pytest.mark.parametrize("before", ["packed", "native", "bound"])
def test_a_drafter_may_be_prepared_twice(before: str) -> None:
    target = target_of("llama", torch.float32)
    drafter = made(target, KINDS[0])
    drafter.bind(target) if before == "bound" else drafter.prepare(before)
    with torch.inference_mode():
        drafter.prepare("native")
    assert isinstance(drafter._ready[0], NativeDraft)


def test_preparing_draws_no_random_numbers() -> None:
    drafter = semi_drafter(target_of("llama", torch.float32), None, small_lm="context")
    before = torch.get_rng_state()
    drafter.prepare("native")
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("case", [{"small_lm": "context"}, {"architecture": "medusa"}], ids=str)
def test_a_law_of_its_own_is_found_out_however_flat(case: dict[str, Any]) -> None:
    """What the check at the start compares is relative: 2,000 nearly equal probabilities hide nothing."""
    target = target_of("llama", torch.bfloat16, vocab=2048)
    drafter: Any = semi_drafter(target, None, **case)
    with torch.no_grad():
        native = NativeDraft(drafter)
        assert native.gap() < 0.1
        head = drafter.head
        drafter.head = lambda state, step: head(-state, step)
        assert native.gap() > 0.5


def test_a_temperature_next_to_nothing_still_has_a_law() -> None:
    target = target_of("llama", torch.float32)
    _, proposals = record(target, made(target, KINDS[0]), prompts_of(96, [5]), 8, Sampling(1e-46))
    assert proposals and all(torch.allclose(one.probs.sum(-1), torch.ones(1)) for one in proposals)  # type: ignore[union-attr]


@pytest.mark.skipif(not can_pack(torch.device("cpu"), torch.bfloat16), reason="this CPU has no bfloat16 kernels")
@each_of(KINDS)
def test_laws_in_bfloat16_are_those_of_training_up_to_its_rounding(case: dict[str, Any]) -> None:
    target, found = target_of("llama", torch.bfloat16), {}
    for engine in ("eager", "native"):
        drafter = made(target, case, engine)
        _, proposals = record(target, drafter, prompts_of(96, [14]), 30, Sampling(1.0))
        wanted = [teacher_forced(target, drafter, one, Sampling(1.0)) for one in proposals]
        pairs = zip(proposals, wanted, strict=True)
        found[engine] = [float((one.probs - law).abs().max()) for one, law in pairs]  # type: ignore[operator]
    assert len(found["native"]) > 5 and median(found["native"]) < 0.03
    assert max(found["native"]) < 0.03 + 1.5 * max(found["eager"])  # feedback makes some drafts' rounding grow


@pytest.mark.parametrize("outer", [False, True])
def test_the_kernel_s_copies_count_as_memory(outer: bool) -> None:
    """What `prepare` copied is in the figure that `bench` reports, as long as it is held."""
    target = target_of("llama", torch.float32)
    drafter = made(target, {"architecture": "hybrid"} if outer else {}, "eager")
    chain = drafter.inner if outer else drafter
    before = weight_bytes(drafter)
    linear = sum(part.weight.nbytes for part in chain.modules() if isinstance(part, torch.nn.Linear))
    drafter.prepare("native")
    assert weight_bytes(drafter) >= before + linear + sum(one.nbytes for one in chain._ready[0].copies) > before
    drafter.train()
    assert not chain.copies()
