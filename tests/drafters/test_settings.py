"""What can be asked of a drafter, and what cannot."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kit.models import draft_settings, semi_drafter, settings_of, shake, target_of

from semiar.drafters import build_drafter
from semiar.drafters.head_drafter import resolve_layers
from semiar.drafters.layers.heads import choose_vocab
from semiar.errors import ConfigError, SourceNotFound
from semiar.targets import Target
from semiar.targets.target import LAST


@pytest.fixture(scope="module")
def target() -> Target:
    return target_of("llama")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architecture": "oracle"}, "oracle"),
        ({"tied": True}, "option 'tied'"),
        ({"small_lm": "transformer"}, "transformer"),
        ({"architecture": "medusa", "small_lm": "lstm"}, "option 'small_lm' with drafter medusa.*of semi"),
        ({"architecture": "medusa", "heads": "many"}, "heads 'many'"),
        ({"architecture": "medusa", "blocks": 0}, "blocks 0"),
        ({"architecture": "hydra", "skip": "none"}, "skip 'none'"),
        ({"architecture": "recurrent", "first": 1}, "option first 1"),
        ({"architecture": "mlp", "cell": "gru"}, "cell 'gru'"),
        ({"architecture": "eagle", "version": 2}, "version 2"),
        ({"architecture": "eagle", "feature_weight": -1.0}, "feature_weight -1"),
        ({"architecture": "eagle", "inner_size": -1}, "inner_size -1"),
        ({"architecture": "eagle", "version": 1, "layers": "low_mid_high"}, "low_mid_high with EAGLE"),
        ({"architecture": "eagle", "num_heads": 32}, "32 heads"),
        ({"architecture": "eagle", "num_layers": 2}, "option 'num_layers' with drafter eagle.*semi, parallel"),
        ({"architecture": "parallel", "num_heads": 3}, "3 heads"),
        ({"architecture": "parallel", "fusion": "additive"}, "option 'fusion' with drafter parallel"),
        ({"architecture": "skip", "exit_layer": -1}, "exit_layer -1"),
        ({"architecture": "skip", "exit_layer": 3}, "after 3 layers; expected 1 to 2"),
        ({"architecture": "skip", "layers": "low_mid_high"}, "option 'layers' with drafter skip"),
        ({"fusion": "sum"}, "sum"),
        ({"fusion": "sum", "small_lm": "lstm"}, "sum"),
        ({"fusion": "sum", "small_lm": "none"}, "sum"),
        ({"layers": "all"}, "all"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens"),
        ({"draft_vocab_size": "most"}, "most"),
        ({"draft_vocab_size": 0}, "draft_vocab_size"),
        ({"num_heads": 3}, "3 heads"),
        ({"num_heads": 3, "small_lm": "attention"}, "3 heads"),
        ({"num_heads": 32, "small_lm": "context"}, "32 heads"),
        ({"num_layers": 0}, "num_layers"),
        ({"lora_r": -1}, "lora_r"),
        ({"fusion": "additive", "bias_rank": 0}, "bias_rank"),
        ({"small_lm": "hf"}, "small_lm_model"),
        ({"small_lm": "context", "fusion": "initial_state"}, "initial_state"),
        ({"small_lm": "hf", "fusion": "both"}, "both"),
        ({"small_lm": "none", "fusion": "additive"}, "additive"),
        ({"small_lm": "none", "layers": "low_mid_high"}, "low_mid_high"),
        ({"small_lm": "lstm", "fusion": "additive", "layers": "low_mid_high"}, "low_mid_high"),
    ],
    ids=str,
)
def test_settings_that_cannot_be(changes: dict[str, Any], named: str, target: Target) -> None:
    with pytest.raises(ConfigError, match=named):
        build_drafter(draft_settings(**changes), target, None)


@pytest.mark.parametrize("small_lm", ["context", "lstm", "gru", "rnn", "fixed_attention", "attention", "none"])
@pytest.mark.parametrize("fusion", ["concat", "initial_state", "both", "additive"])
def test_everything_that_learns_is_used(small_lm: str, fusion: str, target: Target) -> None:
    """A weight without gradient would stop training in several processes (H30)."""
    try:
        settings = draft_settings(small_lm=small_lm, fusion=fusion)
    except ConfigError:
        return  # refused: see above
    drafter = shake(build_drafter(settings, target, None).to(target.dtype))
    hidden, tokens = torch.randn(2, 12, 1, target.hidden_size).double(), torch.randint(0, 90, (2, 12))
    states = list(drafter.unroll(hidden, tokens, torch.tensor([[2, 4], [1, 3]])))
    sum(drafter.head(state, 0).square().sum() for state in states).backward()  # type: ignore[union-attr]
    assert not [name for name, value in drafter.named_parameters() if value.grad is None]


def test_a_small_lm_that_is_not_there(target: Target) -> None:
    with pytest.raises(SourceNotFound, match="nowhere"):
        build_drafter(draft_settings(small_lm="hf", small_lm_model="./nowhere"), target, None)


def test_heads_by_default(target: Target) -> None:
    wide = target_of("llama", torch.float32, hidden_size=128)
    odd = target_of("llama", torch.float32, hidden_size=200, head_dim=50)
    for size, heads in ((target, 1), (wide, 2), (odd, 2)):
        for kind in ("context", "attention", "fixed_attention"):
            drafter: Any = build_drafter(settings_of(small_lm=kind), size, None)
            assert getattr(drafter.lm, "heads") == heads  # noqa: B009


@pytest.mark.parametrize(
    ("depth", "wanted"), [(1, (0, LAST)), (2, (0, 1, LAST)), (3, (0, 1, 2, LAST)), (8, (2, 4, 5, LAST))]
)
def test_low_mid_high(depth: int, wanted: tuple[int, ...]) -> None:
    target = target_of("llama", torch.float32, num_hidden_layers=depth)
    assert resolve_layers("low_mid_high", target) == wanted
    assert resolve_layers("last", target) == (LAST,)
    drafter = semi_drafter(target, layers="low_mid_high", small_lm="lstm")
    assert drafter.layers == wanted


@pytest.mark.parametrize("name", ["llama", "gemma2", "granite", "cohere"])
@pytest.mark.parametrize(
    "changes",
    [
        {"small_lm": "context"},
        {"small_lm": "lstm", "fusion": "initial_state", "layers": "low_mid_high"},
        {"small_lm": "gru", "fusion": "additive"},
        {"small_lm": "none"},
        {"small_lm": "lstm", "lora_r": 0},
        {"architecture": "medusa", "heads": "own"},
        {"architecture": "hydra"},
        {"architecture": "hydra", "heads": "own", "skip": "linear"},
        {"architecture": "recurrent"},
        {"architecture": "recurrent", "heads": "own"},
        {"architecture": "mlp"},
        {"architecture": "mlp", "cell": "lstm", "tied": False},
        {"architecture": "eagle", "version": 1},
        {"architecture": "parallel"},
        {"architecture": "skip", "with_h_p": True},
    ],
    ids=str,
)
@torch.no_grad()
def test_a_fresh_drafter_says_what_the_target_s_head_says(name: str, changes: dict[str, Any]) -> None:
    """Every fusion and the head's update start at zero, scale and soft cap of the target included."""
    target, vocab = target_of(name), torch.tensor([3, 8, 40, 77])
    drafter = build_drafter(draft_settings(**changes), target, vocab).double().eval().bind(target)
    tokens = torch.randint(0, 96, (2, 12))
    hidden = target(tokens, layers=drafter.layers).hidden
    anchors = torch.tensor([[0, 4, 6], [2, 3, 5]])
    rows = torch.arange(2)[:, None]
    wanted = target.head(hidden[rows, anchors, -1])[..., vocab]
    states = list(drafter.unroll(hidden, tokens, anchors))
    assert len(states) == 4
    for state in states:
        torch.testing.assert_close(drafter.head(state, 0), wanted, rtol=0, atol=1e-5)


def test_the_head_fused_for_decoding_is_the_one_that_learns(target: Target) -> None:
    drafter: Any = semi_drafter(target, torch.arange(0, 90, 4))
    state = torch.randn(5, 32, dtype=torch.float64)
    learning = drafter.head(state, 0)
    with torch.no_grad():
        torch.testing.assert_close(drafter.head(state, 0), learning, rtol=0, atol=1e-5)
        assert drafter.draft_head.fused() is drafter.draft_head.fused()  # computed once
        drafter.draft_head.up.weight.add_(1.0)
        drafter.train()
        drafter.eval()
    learning = drafter.head(state, 0)
    with torch.no_grad():
        torch.testing.assert_close(drafter.head(state, 0), learning, rtol=0, atol=1e-5)


def test_the_teacher_is_the_target_on_the_draft_vocabulary() -> None:
    target = target_of("gemma2")
    vocab = torch.tensor([1, 5, 90])
    drafter: Any = semi_drafter(target, vocab)
    hidden = target(torch.randint(0, 96, (1, 6))).hidden[:, :, -1]
    torch.testing.assert_close(drafter.draft_head.teacher(hidden), target.head(hidden)[..., vocab], rtol=0, atol=1e-12)


def test_choosing_the_draft_vocabulary() -> None:
    counts = torch.tensor([5.0, 0.0, 9.0, 1.0, 0.0, 7.0])
    assert choose_vocab(counts, 2, []).tolist() == [2, 5]
    assert choose_vocab(counts, 3, [4]).tolist() == [2, 4, 5]  # an end-of-turn id that was never seen
    assert choose_vocab(counts, 5, [1]).tolist() == [0, 1, 2, 3, 5]
    assert choose_vocab(counts, 5, []).tolist() == [0, 2, 3, 5]  # what never occurs is not taken
    assert choose_vocab(counts, "full", [1]) is None and choose_vocab(counts, 6, [1]) is None
    assert counts.tolist() == [5, 0, 9, 1, 0, 7]


def test_only_what_is_its_own_is_learned_and_saved(target: Target) -> None:
    drafter = semi_drafter(target, torch.arange(10))
    assert drafter.trainable and all(value.requires_grad for value in drafter.parameters())
    total = sum(value.numel() for value in drafter.state_dict().values())
    assert total == sum(value.numel() for value in drafter.parameters()) + 10  # and the id map
