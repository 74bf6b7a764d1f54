"""The mixin on TRL's SFTTrainer: LoRA and drafter learn in the pass that TRL makes anyway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from kit.models import settings_of
from safetensors.torch import load_file
from torch import Tensor
from transformers import Trainer, TrainingArguments

from semiar.drafters import build_drafter
from semiar.errors import ConfigError
from semiar.settings import Load
from semiar.targets import Target, load_model, load_tokenizer
from semiar.targets.lora import LoraSettings, attach
from semiar.training.config import LossSettings
from semiar.training.learner import DraftLearner
from semiar.training.mixin import DRAFTER_FILE, DraftLossMixin
from semiar.training.states import Examples, StatesCollator

from .conftest import ROWS

trl = pytest.importorskip("trl")


class JointSFT(DraftLossMixin, trl.SFTTrainer):
    """What the mixin's docstring tells users to write."""


def trainer_on(base: Path, out: Path, loss: LossSettings | None = None, **changes: Any) -> JointSFT:
    torch.manual_seed(0)
    tokenizer: Any = load_tokenizer(str(base))
    model = attach(load_model(str(base), Load("float32", "cpu")), LoraSettings(r=4))
    data = Dataset.from_list([{"prompt": f"{q}\n", "completion": a} for q, a in ROWS])
    options = {
        "per_device_train_batch_size": 4, "max_steps": 4, "logging_steps": 1, "save_steps": 2, "learning_rate": 1e-2,
        "use_cpu": True, "bf16": False, "report_to": "none", "max_length": 128, "warmup_steps": 0, "disable_tqdm": True,
    } | changes  # fmt: skip
    args = trl.SFTConfig(output_dir=str(out), **options)
    trainer = JointSFT(model=model, args=args, train_dataset=data, eval_dataset=data.select(range(4)),
                       processing_class=tokenizer)  # fmt: skip
    target = Target(trainer.model)
    settings = settings_of(num_speculative_tokens=3, draft_vocab_size="full", lora_r=4, num_heads=2)
    learner = DraftLearner(build_drafter(settings, target, None), loss or LossSettings(anchors_per_sample=0))
    trainer.attach_drafter(target, learner, learning_rate=1e-2)
    return trainer


def learned(trainer: JointSFT) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in trainer.model.named_parameters() if p.requires_grad}


def test_trl_trains_both_logs_the_parts_and_restores_the_drafter(base: Path, tmp_path: Path) -> None:
    trainer = trainer_on(base, tmp_path)
    before = learned(trainer)
    frozen = {n: p.clone() for n, p in trainer.model.named_parameters() if not p.requires_grad}
    trainer.train()
    after = learned(trainer)
    assert any("draft_learner" in n for n in before) and any("lora_B" in n for n in before)
    assert all(not torch.equal(value, after[n]) for n, value in before.items() if "lora_B" in n)
    moved = [n for n, value in before.items() if "draft_learner" in n and not torch.equal(value, after[n])]
    assert len(moved) > 5
    assert all(torch.equal(p, frozen[n]) for n, p in trainer.model.named_parameters() if n in frozen)
    logs = [entry for entry in trainer.state.log_history if "draft_loss" in entry]
    assert len(logs) == 4
    for entry in logs:
        assert entry["loss"] == pytest.approx((entry["lm_loss"] + entry["draft_loss"]) / 2, abs=2e-3)
        assert "mean_token_accuracy" in entry  # TRL's own metrics are still there
    assert logs[-1]["draft_loss"] < logs[0]["draft_loss"] and logs[-1]["lm_loss"] < logs[0]["lm_loss"]
    assert trainer.evaluate()["eval_loss"] > 0

    checkpoint = tmp_path / "checkpoint-4"
    assert (checkpoint / DRAFTER_FILE).is_file()
    assert not any("draft_learner" in name for name in load_file(checkpoint / "adapter_model.safetensors"))
    fresh = trainer_on(base, tmp_path / "fresh")
    fresh._load_from_checkpoint(str(checkpoint))
    restored = learned(fresh)
    assert restored.keys() == after.keys()
    assert all(torch.equal(value, restored[n]) for n, value in after.items())


def test_a_resumed_trl_run_equals_an_uninterrupted_one(base: Path, tmp_path: Path) -> None:
    whole = trainer_on(base, tmp_path / "whole", lr_scheduler_type="constant")
    whole.train()
    again = trainer_on(base, tmp_path / "again", lr_scheduler_type="constant")
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    first, second = learned(whole), learned(again)
    assert all(torch.allclose(value, second[n], atol=1e-6) for n, value in first.items())


def test_the_draft_loss_reaches_the_adapter_through_trls_own_pass(base: Path, tmp_path: Path) -> None:
    """With the draft loss alone, the adapter learns only if the states come from the pass that is differentiated."""
    for detach in (False, True):
        loss = LossSettings(draft_weight=1.0, detach_hidden=detach, anchors_per_sample=0, terms="ce")
        trainer = trainer_on(base, tmp_path / str(detach), loss, max_steps=1)
        trainer.train()
        ups = [value for name, value in learned(trainer).items() if "lora_B" in name]
        assert any(bool(value.any()) for value in ups) is not detach


def test_a_plain_transformers_trainer_learns_both_too(base: Path, tmp_path: Path) -> None:
    class JointHF(DraftLossMixin, Trainer):
        pass

    torch.manual_seed(0)
    tokenizer: Any = load_tokenizer(str(base))
    target = Target(attach(load_model(str(base), Load("float32", "cpu")), LoraSettings(r=4)))
    ids = [tokenizer(f"{q} {a}")["input_ids"] for q, a in ROWS]
    args = TrainingArguments(
        str(tmp_path), max_steps=3, logging_steps=1, learning_rate=1e-2, use_cpu=True, report_to="none",
        per_device_train_batch_size=4, remove_unused_columns=False, disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    data = Examples([{"input_ids": one, "labels": one} for one in ids])
    trainer: Any = JointHF(model=target.model, args=args, train_dataset=data, data_collator=StatesCollator(0))
    settings = settings_of(num_speculative_tokens=2, draft_vocab_size="full", lora_r=4, num_heads=2)
    trainer.attach_drafter(target, DraftLearner(build_drafter(settings, target, None), LossSettings()), 1e-2)
    before = learned(trainer)
    trainer.train()
    after = learned(trainer)
    assert all(not torch.equal(value, after[n]) for n, value in before.items() if "lora_B" in n)
    assert any(not torch.equal(value, after[n]) for n, value in before.items() if "draft_learner" in n)
    logs = [entry for entry in trainer.state.log_history if "draft_loss" in entry]
    assert len(logs) == 3 and logs[-1]["draft_loss"] < logs[0]["draft_loss"]


@pytest.mark.parametrize("option", [{"packing": True}, {"padding_free": True, "max_length": None}])
def test_rows_that_hold_several_samples_are_refused(base: Path, tmp_path: Path, option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="packing"):
        trainer_on(base, tmp_path, **option)
