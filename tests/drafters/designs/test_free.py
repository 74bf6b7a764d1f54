"""One contract for the drafters that learn nothing, and for the hybrid around one that does."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.laws import FOREIGN, FOUR, check_texts, laws_of, sample
from kit.models import (
    noisy_copy,
    plain_greedy,
    prompts_of,
    semi_drafter,
    settings_of,
    shake,
    table_model,
    target_of,
    tiny,
)
from kit.recording import Proposal, record

from semiar.core.draft import Plan
from semiar.core.sampling import Sampling
from semiar.decoding import Limits, decode
from semiar.drafters import Drafter, build_drafter, load_drafter
from semiar.drafters.saving import save_drafter
from semiar.errors import ConfigError
from semiar.targets import Target
from semiar.targets.lora import LoraSettings, attach

CASES: dict[str, dict[str, Any]] = {
    "lookup": {"architecture": "lookup"},
    "lookup-ngram": {"architecture": "lookup", "matcher": "ngram", "min_match": 1, "max_match": 4},
    "lookup-corpus": {"architecture": "lookup", "min_match": 1, "answers": True},
    "recycling": {"architecture": "recycling"},
    "recycling-reduced": {"architecture": "recycling", "candidates": 3, "vocab": 40, "answers": True},
    "recycling-tree": {"architecture": "recycling", "plan": Plan(tree="best", nodes=7, branch=3)},
    "model": {"architecture": "model"},
    "model-reduced": {"architecture": "model", "vocab": 40},
    "model-stops": {"architecture": "model", "plan": Plan(stop_below=0.4)},
    "hybrid": {"architecture": "hybrid", "min_match": 1},
    "hybrid-reduced": {"architecture": "hybrid", "min_match": 2, "vocab": 40, "answers": True},
    "hybrid-lstm": {"architecture": "hybrid", "min_match": 1, "inner": {"small_lm": "lstm"}},
}
PROMPTS = [*prompts_of(96, [1, 6]), prompts_of(96, [7])[0] * 2]
COUNT = 14
every_case = pytest.mark.parametrize("name", CASES)


@functools.cache
def target_in(dtype: torch.dtype) -> Target:
    return target_of("llama", dtype)


@functools.cache
def wanted(dtype: torch.dtype) -> list[list[int]]:
    return plain_greedy(target_in(dtype).lm, PROMPTS, COUNT)


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that often drafts what the target of these tests writes."""
    folder = tmp_path_factory.mktemp("small_model")
    noisy_copy(tiny("llama", torch.float32), 0.03).save_pretrained(folder)  # type: ignore[operator]
    return str(folder)


def build(case: dict[str, Any], target: Target, model: str, answers: list[list[int]], size: int = 96) -> Drafter:
    """A drafter of a case, its weights random."""
    options = {name: value for name, value in case.items() if name not in ("plan", "answers", "vocab")}
    if case["architecture"] == "model":
        options["model"] = model
    if case["architecture"] == "hybrid":
        options["inner"] = {"lora_r": 4, "num_heads": 1, **options.get("inner", {})}
    settings = settings_of(**options, num_speculative_tokens=4)
    vocab = None
    if "vocab" in case:
        vocab = torch.randperm(size, generator=torch.Generator().manual_seed(2))[: case["vocab"]].sort().values
    with torch.random.fork_rng():
        torch.manual_seed(7)
        drafter = shake(build_drafter(settings, target, vocab))
    assert isinstance(drafter, Drafter)
    if case.get("answers"):
        drafter.read_answers(answers)
    return drafter.to(target.dtype).eval().bind(target)


@pytest.fixture
def make(small_model: str) -> Any:
    def made(name: str, dtype: torch.dtype = torch.float64, target: Target | None = None) -> Drafter:
        return build(CASES[name], target or target_in(dtype), small_model, [row[:9] for row in wanted(torch.float32)])

    return made


def run(target: Target, drafter: Drafter, name: str, prompts: Any = PROMPTS, **options: Any) -> tuple[Any, int]:
    """Greedy ids of every row, and how many drafts were right."""
    rows: list[list[int]] = [[] for _ in prompts]
    right = 0
    for step in decode(target, drafter, prompts, Limits(COUNT), plan=CASES[name].get("plan"), **options):
        right += sum(step.accepted)
        for row, tokens in zip(step.rows, step.tokens, strict=True):
            rows[row] += tokens
    return rows, right


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_greedy_output_is_the_target_s(name: str, dtype: torch.dtype, make: Any) -> None:
    found, right = run(target_in(dtype), make(name, dtype), name)
    assert found == wanted(dtype)
    assert right or not (name.startswith("model") or "answers" in CASES[name])


@every_case
def test_rows_that_join_later_and_a_resting_drafter_change_nothing(name: str, make: Any) -> None:
    target = target_in(torch.float64)
    assert run(target, make(name), name, max_batch=2)[0] == wanted(torch.float64)
    assert run(target, make(name), name, num_speculative_tokens={1: 3, 3: 0})[0] == wanted(torch.float64)


@every_case
def test_bfloat16_and_an_adapter(name: str, make: Any) -> None:
    target = target_in(torch.bfloat16)
    assert [len(row) for row in run(target, make(name, target=target), name)[0]] == [COUNT] * 3
    torch.manual_seed(3)
    adapted = attach(tiny("llama", torch.float32), LoraSettings(r=4))
    with torch.no_grad():
        for weight, value in adapted.named_parameters():
            if "lora_B" in weight:
                value.normal_(std=0.1)
    target = Target(adapted.eval())
    assert run(target, make(name, target=target), name)[0] == plain_greedy(adapted, PROMPTS, COUNT)


def by_text(proposals: list[Proposal]) -> dict[tuple[int, ...], list[int]]:
    """What was drafted after each text, without what only fills it up."""
    return {tuple(p.text): [t for t in p.tokens if t >= 0] for p in proposals}


@every_case
def test_a_batch_drafts_like_its_rows(name: str, make: Any) -> None:
    target, drafter = target_in(torch.float64), make(name)
    together = by_text(record(target, drafter, PROMPTS[1:], COUNT)[1])
    for prompt in PROMPTS[1:]:
        for text, tokens in by_text(record(target, drafter, [prompt], COUNT)[1]).items():
            width = min(len(tokens), len(together[text]))  # the last block may be shorter
            assert tokens[:width] == together[text][:width] and (width or not tokens)


@every_case
def test_a_loaded_drafter_is_the_saved_one(name: str, make: Any, tmp_path: Path) -> None:
    target, drafter = target_in(torch.float64), make(name)
    save_drafter(drafter, tmp_path, {"hidden_size": target.hidden_size})
    loaded = load_drafter(tmp_path, target).to(torch.float64).eval().bind(target)
    assert loaded.settings == drafter.settings and loaded.trainable == (CASES[name]["architecture"] == "hybrid")
    assert loaded.extra_config() == drafter.extra_config()
    for key, value in drafter.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[key], value, rtol=1e-6, atol=1e-6)
    again = [record(target, one, PROMPTS, 8)[1] for one in (drafter, loaded)]
    assert by_text(again[0]) == by_text(again[1])


RULES = [(name, "exact") for name in CASES] + [(name, "block") for name in ("model", "model-stops", "hybrid")]


@pytest.mark.parametrize(("name", "rule"), RULES)
def test_the_law_is_the_target_s(name: str, rule: str, tmp_path: Path) -> None:
    """Whole texts of four tokens, against the enumeration of all of them; the prompt ends as it began."""
    case, plan = CASES[name], CASES[name].get("plan")
    table_model(FOREIGN).save_pretrained(tmp_path)  # type: ignore[operator]
    if "vocab" in case:
        case = {**case, "vocab": 3}
    drafter = build(case, Target(table_model(FOUR)), str(tmp_path), [[2, 0, 1, 3], [0, 3]], size=4)
    found = sample(FOUR, drafter, 4, Sampling(1.0), prompt=[1, 0, 2, 3, 1, 0], rows=6000, rule=rule, plan=plan)
    check_texts(found, laws_of(FOUR, Sampling(1.0)))


def test_the_drafter_inside_a_hybrid_is_the_trained_one(make: Any) -> None:
    target = target_in(torch.float64)
    plain = semi_drafter(target, lora_r=4, num_heads=1)
    hybrid: Any = build({"architecture": "hybrid", "min_match": 30}, target, "", [])
    hybrid.inner.load_state_dict(plain.state_dict())
    ours, theirs = (by_text(record(target, one, PROMPTS, COUNT)[1]) for one in (hybrid.bind(target), plain))
    assert ours == theirs


@pytest.mark.parametrize("architecture", ["lookup", "recycling", "model"])
def test_settings_that_it_does_not_use_are_refused(architecture: str) -> None:
    with pytest.raises(ConfigError, match=f"option 'lora_r' with drafter {architecture}"):
        build_drafter(settings_of(architecture, lora_r=8), target_in(torch.float64), None)
