"""Padding-free passes: the same states, losses and gradients as right-padded ones, or padded ones with the reason."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kit.models import WINDOW, prompts_of, semi_drafter, target_of, tiny
from rich.console import Console
from torch import Tensor

from semiar.data.batches import IGNORE
from semiar.targets import Target
from semiar.targets.engines.prepare import leave_flat_passes, use_flat_passes
from semiar.targets.lora import LoraSettings, attach
from semiar.targets.target import LAST
from semiar.training.config import LossSettings, TrainConfig
from semiar.training.estimate import typical
from semiar.training.learner import DraftLearner
from semiar.training.lm_loss import answer_loss
from semiar.training.run import train
from semiar.training.states import StatesCollator, cache_states

from .conftest import with_optim

WHOLE: dict[str, dict[str, Any]] = {
    "llama": {}, "qwen2": {}, "qwen3": {}, "gpt2": {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0},
    "gpt_neox": {}, "granite": {}, "cohere": {}, "mistral": {"sliding_window": None}, "phi3": {"sliding_window": None},
    "qwen2_window": {"sliding_window": 16}, "gemma3": {"sliding_window": 16},
    "gemma2": {"sliding_window": 16, "attn_logit_softcapping": None},
}  # fmt: skip
LENGTHS = (5, 16, 9, 2, 13)
LAYERS = (0, LAST)
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def batch_of(lengths: tuple[int, ...] = LENGTHS) -> dict[str, Tensor]:
    """Random samples whose first third is the prompt."""
    examples = [
        {"input_ids": ids, "labels": [IGNORE] * (len(ids) // 3) + ids[len(ids) // 3 :]}
        for ids in prompts_of(96, lengths)
    ]
    return StatesCollator(0, lengths=True)(examples)


def adapted(
    name: str, changes: dict[str, Any], *, checkpointing: bool = False, **drafter: Any
) -> tuple[Target, DraftLearner]:
    """A tiny float64 target with a LoRA adapter away from zero, and a learner on it."""
    torch.manual_seed(1)
    model: Any = attach(tiny(name, **changes), LoraSettings(r=2))
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "lora_" in key:
                value.data = torch.randn_like(value, dtype=torch.float64) * 0.1
    if checkpointing:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    target = Target(model)
    model.train()
    learner = DraftLearner(semi_drafter(target, **drafter), LossSettings(detach_hidden=False, anchors_per_sample=3))
    return target, learner.train()


def learn(target: Target, learner: DraftLearner, batch: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Both losses and the gradients of everything that learns, as the joint trainer gets them."""
    layers = learner.drafter.layers
    target.watch(layers)
    target.run(batch["input_ids"], batch.get("lengths"))
    loss = answer_loss(target, target.peek(LAST), batch["labels"])
    torch.manual_seed(2)  # the anchors
    draft = learner(target.read(layers), batch["input_ids"], batch["labels"])
    learns = [p for p in [*target.model.parameters(), *learner.parameters()] if p.requires_grad]
    return torch.stack([loss, draft]).detach(), list(torch.autograd.grad(loss + draft, learns))


def assert_same(target: Target, learner: DraftLearner, batch: dict[str, Tensor]) -> None:
    """Losses and gradients with and without padding agree; the flat pass is one row without pads."""
    padded = learn(target, learner, batch)
    assert use_flat_passes(target, int(batch["lengths"].max())) == ""
    shapes: list[tuple[int, ...]] = []
    hook = target.decoder.register_forward_pre_hook(
        lambda _module, _args, named: shapes.append(tuple(named["input_ids"].shape)), with_kwargs=True
    )
    flat = learn(target, learner, batch)
    hook.remove()
    assert shapes == [(1, int(batch["lengths"].sum()))]
    torch.testing.assert_close(flat[0], padded[0], rtol=1e-9, atol=0)
    assert len(flat[1]) > 20 and all(bool(gradient.any()) for gradient in flat[1][:6])
    for one, other in zip(flat[1], padded[1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9 * float(other.abs().max()))
    leave_flat_passes(target)
    again = learn(target, learner, batch)
    assert torch.equal(again[0], padded[0]) and all(map(torch.equal, again[1], padded[1]))


@pytest.mark.parametrize("name", WHOLE)
def test_losses_and_gradients_are_those_of_the_padded_pass(name: str) -> None:
    assert_same(*adapted(name, WHOLE[name], layers="low_mid_high"), batch_of())


@pytest.mark.parametrize("small_lm", ["context", "lstm", "attention", "none"])
def test_every_drafter_learns_the_same(small_lm: str) -> None:
    assert_same(*adapted("llama", {}, small_lm=small_lm), batch_of())


def test_checkpointed_layers_find_the_samples_again() -> None:
    assert_same(*adapted("llama", {}, checkpointing=True), batch_of())


@pytest.mark.parametrize("name", WHOLE)
def test_states_are_those_of_the_padded_pass_and_pads_are_zero(name: str) -> None:
    target, batch = target_of(name, **WHOLE[name]), batch_of()
    with torch.inference_mode():
        padded = target(batch["input_ids"], layers=LAYERS, logits=False).hidden
        assert use_flat_passes(target, 16) == ""
        flat = target.states(batch["input_ids"], batch["lengths"], LAYERS)
    real = torch.arange(16) < batch["lengths"][:, None]
    torch.testing.assert_close(flat[real], padded[real], **CLOSE)
    assert not flat[~real].any()


def test_a_batch_without_pads_or_with_a_longer_sample_is_run_as_it_is() -> None:
    target = target_of("llama")
    assert use_flat_passes(target, 9) == ""
    for lengths in ((7, 7), (5, 12)):
        batch = batch_of(lengths)
        flat, padded = (target.states(batch["input_ids"], known, (LAST,)) for known in (batch["lengths"], None))
        assert torch.equal(flat, padded)


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("mistral", {}, f"window of {WINDOW} tokens is shorter than the longest sample, 16"),
        ("phi3", {}, "sliding window"),
        ("qwen2_window", {}, "sliding window"),
        ("gemma3", {}, "sliding window"),
        ("gemma2", {"sliding_window": 64}, "scores are capped"),
        ("llama", {"attn_implementation": "eager"}, "attention is 'eager', not 'sdpa'"),
    ],
)
def test_what_would_be_another_function_keeps_its_padding(name: str, changes: dict[str, Any], reason: str) -> None:
    target, batch = target_of(name, **changes), batch_of()
    assert reason in use_flat_passes(target, 16)
    assert target.flat_limit == 0 and target.lm.config._attn_implementation != "semiar_flat"
    flat, padded = (target.states(batch["input_ids"], known, (LAST,)) for known in (batch["lengths"], None))
    assert torch.equal(flat, padded)


def test_a_model_whose_samples_see_each_other_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of("llama")
    run = target.decoder.forward
    monkeypatch.setattr(target.decoder, "forward", lambda **named: run(**named | {"position_ids": None}))
    assert use_flat_passes(target, 16) == ""  # rotary positions are relative: where the row starts does not matter
    leave_flat_passes(target)
    monkeypatch.setattr(target.decoder, "forward", lambda **named: run(**named | {"attention_mask": None}))
    monkeypatch.setattr("semiar.targets.engines.flat.Flat.inputs", lambda self, tokens, kinds: {
        "input_ids": tokens.flatten()[self.places][None], "position_ids": torch.arange(9)[None],
    })  # fmt: skip
    assert "samples in one row give other logits" in use_flat_passes(target, 16)
    assert target.flat_limit == 0


def test_cached_states_are_the_same(tmp_path: Path) -> None:
    target = target_of("llama")
    examples: Any = [{"input_ids": ids} for ids in prompts_of(96, LENGTHS)]
    padded = cache_states(target, examples, LAYERS, tmp_path / "padded", "key")
    assert use_flat_passes(target, 16) == ""
    flat = cache_states(target, examples, LAYERS, tmp_path / "flat", "key")
    for one, other in zip(flat, padded, strict=True):
        torch.testing.assert_close(one, other, rtol=0.01, atol=0.01)  # stored in bfloat16


def printed(config: TrainConfig) -> str:
    console = Console(file=StringIO(), width=400)
    train(config, dry_run=True, console=console)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_summary_says_which_passes_are_made(config: TrainConfig) -> None:
    assert "; padding-free passes" in printed(config)
    assert "; padded passes\n" in printed(with_optim(config, padding_free=False))


def test_the_estimate_times_a_batch_that_costs_the_mean(config: TrainConfig) -> None:
    sizes = [10, 10, 19, 1, 12, 12, 14, 12]
    data = [{"input_ids": [0] * size} for size in sizes]
    trainer = SimpleNamespace(
        train_dataset=data, _get_train_sampler=lambda: range(8), target=SimpleNamespace(flat_limit=0)
    )
    config = with_optim(config, per_device_train_batch_size=2)
    chosen = {}
    for limit in (0, 19):
        trainer.target.flat_limit = limit
        chosen[limit] = [len(example["input_ids"]) for example in typical(trainer, config)]
    assert chosen == {0: [14, 12], 19: [12, 12]}  # 20, 38, 24, 28 run of 20, 20, 24, 26 real tokens


@pytest.mark.parametrize("mode", ["joint", "after", "lora"])
def test_whole_runs_are_the_same(config: TrainConfig, tmp_path: Path, mode: str) -> None:
    logs = []
    for padding_free in (True, False):
        one = replace(config, mode=mode, cache_states=False, out=str(tmp_path / str(padding_free)))
        pair = train(with_optim(one, padding_free=padding_free))
        assert pair is not None and pair.target.flat_limit == 0
        assert pair.target.lm.config._attn_implementation == "sdpa"
        logs.append([entry["loss"] for entry in pair.metrics["log"] if "loss" in entry])
        logs.append(list(pair.metrics["held_out"].values()))
    assert logs[0] == pytest.approx(logs[2], rel=1e-4) and len(logs[0]) == 4
    assert logs[1] == pytest.approx(logs[3], rel=1e-3)
