"""`semiar verify` passes on a right pair and fails on planted bugs."""

from __future__ import annotations

import copy
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from kit.drafters import ModelDrafter, noisy_drafter
from kit.models import tiny
from kit.tokenizers import byte_tokenizer
from rich.console import Console
from torch import Tensor

from semiar.core import accept as accept_module
from semiar.core.draft import Draft
from semiar.core.sampling import Law, Sampling, distribution
from semiar.decoding import batch
from semiar.errors import ConfigError
from semiar.measuring.verify import Certificate, VerifySettings, check_greedy, uniformity, verify
from semiar.pair import Pair
from semiar.settings import DataSource, Decoding
from semiar.targets import Target
from semiar.targets.cache import Cache

QUICK = VerifySettings(DataSource(limit=3), samples=600, decoding=Decoding(max_new_tokens=24))


def pair_with(noise: float = 0.15, dtype: torch.dtype = torch.float32, spread: float = 1.0) -> Pair:
    """A tiny pair; ``spread`` above 1 flattens the target's law, so that unlikely tokens get drawn."""
    tokenizer = byte_tokenizer()
    model: Any = tiny("llama", dtype, vocab=len(tokenizer) + 4, context=128)
    with torch.no_grad():
        model.lm_head.weight.div_(spread)
    return Pair(Target(model), noisy_drafter(model, 3, noise=noise), tokenizer, "tiny")


def prompts(count: int = 3) -> list[list[int]]:
    rng = torch.Generator().manual_seed(2)
    return [torch.randint(0, 256, (4 + 5 * i,), generator=rng).tolist() for i in range(count)]


def certificate(pair: Pair, settings: VerifySettings = QUICK) -> Certificate:
    return verify(pair, prompts(settings.data.limit or 0), (), settings, Console(quiet=True))


@pytest.mark.parametrize("rule", ["exact", "block"])
def test_a_right_pair_passes(rule: str) -> None:
    found = certificate(pair_with(), replace(QUICK, decoding=replace(QUICK.decoding, rule=rule)))
    assert found.passed and not found.differences
    assert found.greedy_tokens == 3 * 3 * 24 and found.greedy_prompts == 3  # K = 1, K = 3, one ragged batch
    assert found.greedy_accepted_drafts > 20 and found.dtype == "float32"
    assert found.sampled_texts == 600 and found.sampled_tokens == 600 * 6
    modes = [test["mode"] for test in found.sampling]
    assert modes.count("plain") == modes.count("speculative") == 6
    assert asdict(found)["versions"]["torch"] == torch.__version__


def test_dropping_unlikely_tokens_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def trimmed(logits: Tensor, sampling: Sampling) -> Law:
        return distribution(logits, sampling if sampling.greedy else replace(sampling, min_p=0.02))

    monkeypatch.setattr(batch, "distribution", trimmed)
    found = certificate(pair_with(spread=2.0))
    assert not found.passed and not found.differences  # greedy decoding cannot see it


def test_a_wrong_residual_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_of_it(law: Tensor, draft: Draft, node: Tensor) -> Tensor:
        return law

    monkeypatch.setattr(accept_module, "leftover", all_of_it)
    found = certificate(pair_with(noise=0.5, spread=2.0), replace(QUICK, samples=2400))
    assert not found.passed and not found.differences


def test_a_cache_that_is_off_by_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = Cache.keep

    def off(self: Cache, path: Tensor, *, chain: bool = False) -> None:
        keep(self, torch.where(path > 1, path - 1, path) if path.shape[1] == 4 else path)

    monkeypatch.setattr(Cache, "keep", off)
    found = certificate(pair_with(noise=0.02))
    assert not found.passed and found.differences
    assert {"prompt", "way", "position", "plain", "speculative", "gap"} <= set(found.differences[0])


def test_taking_every_draft_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def believe(draft: Draft, law: Law, rng: torch.Generator | None, *, block: bool = False) -> Any:
        return batch._unverified(draft, law, rng)

    monkeypatch.setattr(batch, "accept", believe)
    found = certificate(pair_with(), replace(QUICK, samples=60))
    assert not found.passed and found.differences


class Shifted(ModelDrafter):
    """Says that it sampled from another law than it did."""

    def propose(self, *args: Any) -> Draft:
        draft = super().propose(*args)
        return draft if draft.probs is None else replace(draft, probs=(draft.probs * 4).softmax(-1))


def test_a_drafter_that_lies_about_its_law_is_found() -> None:
    pair = pair_with(noise=0.3, spread=2.0)
    model = copy.deepcopy(pair.drafter.own.lm)  # type: ignore[union-attr]
    pair.drafter = Shifted(model, 3)
    found = certificate(pair)
    assert not found.passed and not found.differences


def test_near_ties_are_listed_and_do_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tokens with the same head row tie everywhere; whichever is taken, the other's text is not a difference."""
    pair = pair_with()
    head = pair.target.lm.lm_head.weight
    about = Certificate()
    with torch.no_grad():
        for token in range(0, 260, 2):  # pairs of twins, a hair apart
            head[token + 1] = head[token]
    original, calls = batch.distribution, []

    def either(logits: Tensor, sampling: Sampling) -> Law:
        calls.append(logits.shape[1])
        law = original(logits, sampling)
        assert law.tokens is not None
        return Law(tokens=law.tokens + (logits.shape[1] > 1) * (law.tokens % 2 == 0))  # the twin in wide passes

    monkeypatch.setattr(batch, "distribution", either)
    check_greedy(pair, prompts(1), (), QUICK, about)
    assert about.ties and not about.differences and max(t["gap"] for t in about.ties) < 1e-4


def test_uniform_ranks_pass_and_others_do_not() -> None:
    even = torch.rand(5000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert uniformity(even)["p_value"] > 0.001
    assert uniformity(even * 0.97)["p_value"] < 1e-6
    assert uniformity(even**1.2)["p_value"] < 1e-6


@pytest.mark.parametrize(
    "wrong",
    [{"max_new_tokens": 0}, {"temperature": 0.0}, {"rule": "none"}, {"num_speculative_tokens": 0},
     {"num_speculative_tokens": "auto"}],
    ids=str,
)  # fmt: skip
def test_settings_that_prove_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        VerifySettings(decoding=Decoding(**wrong))


def test_no_samples_and_no_prompts_prove_nothing() -> None:
    with pytest.raises(ConfigError, match="samples 0"):
        VerifySettings(samples=0)
    with pytest.raises(ConfigError, match="limit 0"):
        VerifySettings(DataSource(limit=0))
