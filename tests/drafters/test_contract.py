"""One contract for every kind of drafter: lossless, able to learn, the same when loaded, batched or teacher-forced."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.drafters import CASES
from kit.models import draft_settings, plain_greedy, prompts_of, semi_drafter, shake, target_of, tiny
from kit.recording import Proposal, record, teacher_forced

from semiar.core.draft import Plan
from semiar.core.sampling import Sampling
from semiar.drafters import Drafter, build_drafter, load_drafter
from semiar.drafters.saving import save_drafter
from semiar.targets import Target
from semiar.targets.lora import LoraSettings, attach
from semiar.training.config import LossSettings
from semiar.training.learner import DraftLearner

SAMPLED = Sampling(1.0)
PROMPTS = prompts_of(96, [1, 6, 14])
COUNT = 14


def each_of(cases: list[dict[str, Any]]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=lambda case: "-".join(map(str, case.values())))


every_case = each_of(CASES)


@functools.cache
def target_in(dtype: torch.dtype) -> Target:
    return target_of("llama", dtype)


@pytest.fixture(scope="session")
def tiny_lm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A saved causal LM, smaller than the target, with the target's ids."""
    folder = tmp_path_factory.mktemp("small_lm")
    tiny("llama", torch.float32, seed=5, hidden_size=16, num_hidden_layers=1, num_attention_heads=2).save_pretrained(
        folder
    )
    return str(folder)


@pytest.fixture
def make(tiny_lm: str) -> Any:
    """A drafter of a case, with random weights."""

    def build(case: dict[str, Any], dtype: torch.dtype = torch.float64) -> Drafter:
        options = dict(case)
        size = options.pop("vocab", None)
        vocab = None if size is None else torch.randperm(96, generator=torch.Generator().manual_seed(2))[:size]
        if options.get("small_lm") == "hf":
            options["small_lm_model"] = tiny_lm
        return semi_drafter(target_in(dtype), None if vocab is None else vocab.sort().values, **options)

    return build


def same(one: list[Proposal], other: list[Proposal]) -> None:
    assert len(one) == len(other) > 0
    for left, right in zip(one, other, strict=True):
        assert (left.text, left.tokens) == (right.text, right.tokens)
        assert (left.probs is None and right.probs is None) or torch.equal(left.probs, right.probs)


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_greedy_output_is_the_target_s(case: dict[str, Any], dtype: torch.dtype, make: Any) -> None:
    target = target_in(dtype)
    rows, proposals = record(target, make(case, dtype), PROMPTS, COUNT)
    assert rows == reference(dtype)
    assert len(proposals) > 3


@functools.cache
def reference(dtype: torch.dtype) -> list[list[int]]:
    return plain_greedy(target_in(dtype).lm, PROMPTS, COUNT)


@every_case
def test_drafts_follow_the_law_of_training_in_every_round(case: dict[str, Any], make: Any) -> None:
    """Step by step, over ragged rows that leave at different times: the memory kept over rounds is that of one pass."""
    target, drafter = target_in(torch.float64), make(case)
    _, proposals = record(target, drafter, PROMPTS, COUNT, SAMPLED)
    assert len({len(proposal.text) for proposal in proposals}) > 8
    for proposal in proposals:
        wanted = teacher_forced(target, drafter, proposal, SAMPLED)
        torch.testing.assert_close(proposal.probs, wanted, rtol=0, atol=2e-5)


@every_case
def test_greedy_drafts_are_the_best_tokens_of_training(case: dict[str, Any], make: Any) -> None:
    target, drafter = target_in(torch.float64), make(case)
    for proposal in record(target, drafter, PROMPTS[1:], 8)[1]:
        best = teacher_forced(target, drafter, proposal, SAMPLED).argmax(-1)
        assert (best if drafter.vocab is None else drafter.vocab[best]).tolist() == proposal.tokens


@every_case
def test_trees_are_lossless_and_follow_the_law_of_training(case: dict[str, Any], make: Any) -> None:
    """Greedy output is the target's; the law after every node is that of training for its own path."""
    target, drafter = target_in(torch.float64), make(case)
    for tree in ("best", "beam"):
        rows, proposals = record(target, drafter, PROMPTS, COUNT, plan=Plan(tree=tree, nodes=7, branch=3))
        assert rows == reference(torch.float64)
        assert {len(proposal.tokens) for proposal in proposals} >= {7}
    proposals = record(target, drafter, PROMPTS, COUNT, SAMPLED, plan=Plan(tree="sampled", nodes=7, branch=3))[1]
    for proposal in proposals[-7:-4]:
        assert len(proposal.paths()) > 2
        for way in proposal.paths():
            slots = torch.tensor(way) - 1
            chain = Proposal(proposal.text, [proposal.tokens[slot - 1] for slot in way], None, [])
            wanted = teacher_forced(target, drafter, chain, SAMPLED)
            torch.testing.assert_close(proposal.probs[slots], wanted, rtol=0, atol=2e-5)


@every_case
def test_a_loaded_drafter_is_the_saved_one(case: dict[str, Any], make: Any, tmp_path: Path) -> None:
    target, drafter = target_in(torch.float64), make(case)
    save_drafter(drafter, tmp_path, {"hidden_size": target.hidden_size})
    loaded = load_drafter(tmp_path, target).to(torch.float64).eval().bind(target)
    assert loaded.settings == drafter.settings and loaded.layers == drafter.layers
    for name, value in drafter.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], value, rtol=1e-6, atol=1e-6)
    again = [record(target, one, PROMPTS, 8, SAMPLED)[1] for one in (drafter, loaded)]
    for left, right in zip(*again, strict=True):
        assert left.tokens == right.tokens
        torch.testing.assert_close(left.probs, right.probs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mixed", [True, False], ids=["autocast", "plain"])
@each_of([case for case in CASES if "architecture" in case])
def test_a_bfloat16_target_with_an_adapter(case: dict[str, Any], mixed: bool) -> None:
    """One joint step reaches the adapter and every weight of the drafter; then it drafts in bfloat16."""
    target = Target(attach(tiny("llama", torch.bfloat16), LoraSettings(r=4)))
    options = {name: value for name, value in case.items() if name != "vocab"}
    drafter = shake(build_drafter(draft_settings(**options), target, torch.arange(0, 96, 2)))
    tokens = torch.tensor(prompts_of(96, [10] * 2))
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        hidden = target(tokens, layers=drafter.layers).hidden
        loss = DraftLearner(drafter, LossSettings(anchors_per_sample=0))(hidden, tokens, tokens)
    loss.backward()
    assert all(value.grad is not None and value.grad.any() for value in drafter.parameters())
    assert any(v.grad is not None and v.grad.any() for name, v in target.lm.named_parameters() if "lora_B" in name)
    drafter.to(torch.bfloat16).eval().bind(target)
    for plan in (Plan(), Plan(tree="best", nodes=6, branch=2)):
        rows, proposals = record(target, drafter, PROMPTS[1:], 8, plan=plan)
        assert [len(row) for row in rows] == [8, 8] and proposals


@every_case
def test_a_batch_drafts_like_its_rows(case: dict[str, Any], make: Any) -> None:
    target, drafter = target_in(torch.float64), make(case)
    prompts = PROMPTS[1:]
    together = {tuple(p.text): p.tokens for p in record(target, drafter, prompts, COUNT)[1]}
    for prompt in prompts:
        for proposal in record(target, drafter, [prompt], COUNT)[1]:
            other = together[tuple(proposal.text)]
            width = min(len(other), len(proposal.tokens))  # the last block may be shorter
            assert width and proposal.tokens[:width] == other[:width]


@every_case
def test_drafts_stay_in_the_draft_vocabulary(case: dict[str, Any], make: Any) -> None:
    target, drafter = target_in(torch.float64), make(case)
    allowed = set(range(96)) if drafter.vocab is None else set(drafter.vocab.tolist())
    assert len(allowed) == case.get("vocab", 96)
    for heat in (0.0, 1.0):
        drafted = {t for p in record(target, drafter, PROMPTS, COUNT, Sampling(heat))[1] for t in p.tokens}
        assert drafted <= allowed and len(drafted) > 3


@every_case
def test_learning_lowers_the_loss_and_is_seen_in_the_next_draft(case: dict[str, Any], make: Any) -> None:
    target, drafter = target_in(torch.float64), make(case)
    record(target, drafter, PROMPTS[1:], 4)  # fills whatever decoding keeps
    tokens = torch.tensor(prompts_of(96, [16] * 4, seed=3))
    labels = tokens.clone()
    labels[:, :4] = -100
    hidden = target(tokens, layers=drafter.layers).hidden.detach()
    learner = DraftLearner(drafter, LossSettings(terms="0.5*ce + 0.5*kl", anchors_per_sample=0)).train()
    optimizer = torch.optim.Adam(learner.parameters(), lr=3e-3)
    losses = []
    for _ in range(5):
        loss = learner(hidden, tokens, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.97 * losses[0]
    idle = {name for name, value in drafter.named_parameters() if value.grad is None or not value.grad.any()}
    parallel = case.get("small_lm") == "none" or case.get("fusion") == "additive"  # reads h_t itself, not its features
    assert all(parallel and name.startswith("features.") for name in idle)
    learner.eval()
    for proposal in record(target, drafter, PROMPTS[1:], 6, SAMPLED)[1]:
        wanted = teacher_forced(target, drafter, proposal, SAMPLED)
        torch.testing.assert_close(proposal.probs, wanted, rtol=0, atol=2e-5)
