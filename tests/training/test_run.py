"""Whole runs on a tiny model: what learns, what stays, what a checkpoint restores."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.models import settings_of
from safetensors.torch import load_file
from torch import Tensor
from transformers import TrainerCallback

import semiar
from semiar.errors import ConfigError, DataError, PairError, TrainingError
from semiar.settings import DataSource, Decoding, Load, Training
from semiar.targets.load import load_model
from semiar.training import run
from semiar.training.config import LossSettings, TrainConfig
from semiar.training.run import WORK, train
from semiar.training.trainers import COMPLETE, complete_checkpoints

from .conftest import with_optim


def weights(folder: str) -> dict[str, Tensor]:
    """Everything that a saved pair has learned."""
    adapter = Path(folder) / "adapter_model.safetensors"
    found = load_file(adapter) if adapter.is_file() else {}
    return found | {f"drafter.{n}": t for n, t in load_file(Path(folder) / "drafter/model.safetensors").items()}


@pytest.mark.parametrize("small_lm", ["context", "lstm", "none"])
def test_joint_run_trains_adapter_and_drafter_and_leaves_the_base_alone(
    config: TrainConfig, base: Path, small_lm: str
) -> None:
    config = replace(config, drafter=replace(config.drafter, small_lm=small_lm))
    before = {n: p.clone() for n, p in load_model(str(base)).state_dict().items()}
    pair = train(with_optim(config, gradient_checkpointing=True, max_steps=5))
    assert pair is not None
    saved = weights(config.out)
    ups = [n for n in saved if "lora_B" in n]
    assert len(ups) == 2 * 7 and all(saved[n].abs().max() > 0 for n in ups)  # every linear layer's B has moved
    for name, value in pair.target.lm.state_dict().items():
        if "base_layer" in name:
            assert torch.equal(value.to(torch.bfloat16), before[name.replace(".base_layer", "")]), name
    assert {"lm_loss", "draft_loss"} <= set(pair.metrics["log"][0])
    assert "acceptance_length" in pair.metrics["held_out"]
    extra = json.loads((Path(config.out) / "drafter/config.json").read_text())["extra"]
    curves: Any = semiar.load(config.out, dtype="float32").drafter
    assert curves.calibration.rates == extra["calibration"]["rates"] and len(curves.calibration.rates) == 3
    assert not (Path(config.out) / WORK).exists()


def test_a_sequence_learned_by_heart_is_drafted_at_every_depth(base: Path, tmp_path: Path) -> None:
    """H27: 32 distinct tokens, trained until the loss vanishes; every draft is accepted, in the first round too."""
    text = "".join(chr(c) for c in range(ord("A"), ord("A") + 32))
    path = tmp_path / "one.jsonl"
    path.write_text((json.dumps({"prompt": "go", "completion": text}) + "\n") * 8, encoding="utf-8")
    config = TrainConfig(
        model=str(base), data=DataSource(str(path)), out=str(tmp_path / "run"), load=Load("float32"),
        drafter=settings_of(num_speculative_tokens=4, draft_vocab_size="full", lora_r=16, num_heads=2),
        loss=LossSettings(terms="ce", anchors_per_sample=0, detach_hidden=True), training=Training(eval_samples=0),
    )  # fmt: skip
    config = with_optim(
        config, max_steps=150, bf16=False, learning_rate=2e-2, drafter_learning_rate=5e-3, lr_scheduler_type="cosine",
        logging_steps=10, load_best_model_at_end=False, per_device_train_batch_size=4,
    )  # fmt: skip
    assert train(config) is not None
    pair = semiar.load(config.out, dtype="float32")
    done = pair.complete(["go"], Decoding(max_new_tokens=40))[0]
    assert done.text == text
    assert done.accepted[:-1] == done.drafted[:-1] and set(done.drafted[:-1]) == {4}
    assert sum(done.emitted) == 33


@pytest.mark.parametrize("mode", ["joint", "after", "lora"])
def test_resuming_reproduces_an_uninterrupted_run(config: TrainConfig, tmp_path: Path, mode: str) -> None:
    """H29: 6 steps equal 3 steps, a break, and 3 more: same losses, same weights."""
    config = with_optim(
        replace(config, mode=mode), max_steps=6, save_steps=3, eval_steps=3, lr_scheduler_type="constant"
    )
    whole = train(replace(config, out=str(tmp_path / "whole")))
    broken = replace(config, out=str(tmp_path / "broken"))

    class Stop(Exception):
        pass

    import semiar.training.run as run

    original = run.Interruptible.on_step_end

    def stop(self: object, args: object, state: object, control: object, **rest: object) -> None:
        if state.global_step == 4:  # one step after the checkpoint: the work of that step is lost
            raise Stop

    run.Interruptible.on_step_end = stop  # type: ignore[method-assign,assignment]
    try:
        with pytest.raises(Stop):
            train(broken)
    finally:
        run.Interruptible.on_step_end = original  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="--resume"):
        train(broken)
    again = train(broken, resume=True)
    assert whole is not None and again is not None
    for one, other in ((whole, again),):
        losses = [[e["loss"] for e in p.metrics["log"] if "loss" in e] for p in (one, other)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    first, second = weights(str(tmp_path / "whole")), weights(str(tmp_path / "broken"))
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def test_a_folder_of_another_run_is_refused(config: TrainConfig) -> None:
    work = Path(config.out) / WORK
    work.mkdir(parents=True)
    (work / "run.json").write_text('{"key": "something else"}')
    with pytest.raises(TrainingError, match="other data, template or settings"):
        train(config, resume=True)


def test_half_written_checkpoints_are_removed(tmp_path: Path) -> None:
    for step, whole in ((2, True), (10, True), (12, False)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "drafter.safetensors").write_bytes(b"x")
        if whole:
            (folder / COMPLETE).write_text("{}")
    assert [p.name for p in complete_checkpoints(tmp_path)] == ["checkpoint-2", "checkpoint-10"]
    assert not (tmp_path / "checkpoint-12").exists()


@pytest.mark.parametrize("mode", ["joint", "after", "lora"])
def test_accumulation_does_not_change_the_run(config: TrainConfig, tmp_path: Path, mode: str) -> None:
    """Four samples at once or in four passes of one: the same weights."""
    results = []
    for name, batch, passes in (("once", 4, 1), ("parts", 1, 4)):
        one = with_optim(config, per_device_train_batch_size=batch, gradient_accumulation_steps=passes, max_steps=3)
        one = replace(one, mode=mode, out=str(tmp_path / name), load=Load("float32", config.load.device))
        assert train(one) is not None
        results.append(weights(one.out))
    for name in results[0]:
        assert torch.allclose(results[0][name], results[1][name], atol=2e-5), name


def test_states_from_the_file_equal_states_computed_on_the_way(config: TrainConfig, tmp_path: Path) -> None:
    results = []
    for name, cached in (("cached", True), ("online", False)):
        one = replace(config, mode="after", cache_states=cached, out=str(tmp_path / name))
        pair = train(one)
        assert pair is not None
        results.append([e["draft_loss"] for e in pair.metrics["log"] if "loss" in e])
    assert results[0] == pytest.approx(results[1], rel=2e-2)  # the file is bfloat16


def test_drafters_on_one_target_share_its_states(config: TrainConfig, tmp_path: Path) -> None:
    shared = tmp_path / "states"
    one = replace(config, mode="after", states_folder=str(shared), out=str(tmp_path / "one"))
    assert train(one) is not None
    last = shared / "states-last.bf16"
    written = last.stat().st_mtime_ns
    features = replace(config.drafter, layers="low_mid_high")
    assert train(replace(one, drafter=features, out=str(tmp_path / "two"))) is not None
    assert last.stat().st_mtime_ns == written  # only the layers that were missing have been computed
    assert len(list(shared.glob("states-*.bf16"))) > 2


def test_the_drafter_goes_on_from_another_run(config: TrainConfig, tmp_path: Path) -> None:
    first = replace(config, mode="after", out=str(tmp_path / "first"))
    assert train(first) is not None
    second = replace(config, mode="after", out=str(tmp_path / "second"), init_drafter=first.out)
    pair = train(with_optim(second, max_steps=1, drafter_learning_rate=0.0))
    assert pair is not None
    for name, value in weights(first.out).items():
        assert torch.equal(value, weights(second.out)[name]), name
    other = replace(second, out=str(tmp_path / "third"), drafter=replace(config.drafter, small_lm="lstm"))
    with pytest.raises(PairError, match="small_lm"):
        train(other)


def test_it_goes_on_from_a_drafter_of_before_there_was_induction(config: TrainConfig, tmp_path: Path) -> None:
    without = replace(config.drafter, small_lm="context", induction=False)
    first = replace(config, mode="after", out=str(tmp_path / "first"), drafter=without)
    assert train(with_optim(first, max_steps=1)) is not None
    file = tmp_path / "first/drafter/config.json"
    saved = json.loads(file.read_text())
    saved["settings"]["options"] = {}
    assert saved["settings"].pop("induction") is False
    file.write_text(json.dumps(saved))
    usual = replace(without, induction=True)
    second = replace(config, mode="after", out=str(tmp_path / "second"), init_drafter=first.out, drafter=usual)
    pair = train(with_optim(second, max_steps=1))
    assert pair is not None and pair.drafter.lm.before is None  # type: ignore[union-attr]
    assert semiar.load(second.out, dtype="float32").drafter.lm.before is None  # type: ignore[union-attr]


def test_an_existing_adapter_stays_as_it_is_in_mode_after(config: TrainConfig, tmp_path: Path) -> None:
    assert train(replace(config, mode="lora", out=str(tmp_path / "lora"))) is not None
    after = replace(config, mode="after", adapter=str(tmp_path / "lora"), out=str(tmp_path / "after"))
    assert train(after) is not None
    kept = load_file(tmp_path / "after" / "adapter_model.safetensors")
    for name, value in load_file(tmp_path / "lora" / "adapter_model.safetensors").items():
        assert torch.equal(value, kept[name])
    assert (
        semiar.load(after.out, dtype="float32").complete(["what is 1 plus 2?"], Decoding(max_new_tokens=8))[0].token_ids
    )


def test_adapters_are_quiet_at_inference(config: TrainConfig) -> None:
    """H28: dropout 0.5 while training; texts straight after training and after a reload are equal."""
    config = replace(config, lora=replace(config.lora, lora_dropout=0.5))
    pair = train(with_optim(config, max_steps=3))
    assert pair is not None
    fresh = semiar.load(config.out, dtype="float32", merge=False)
    live = semiar.Pair(pair.target, pair.drafter, pair.tokenizer, pair.base)
    texts = [p.complete(["what is 1 plus 1?"], Decoding(max_new_tokens=24))[0].token_ids for p in (live, live, fresh)]
    assert texts[0] == texts[1] == texts[2]


def test_a_loss_that_is_not_finite_stops_the_run_with_its_step(config: TrainConfig) -> None:
    with pytest.raises(TrainingError, match=r"step [2-4]"):
        train(with_optim(config, learning_rate=1e30, max_grad_norm=1e9, warmup_steps=0, max_steps=8))


def test_best_checkpoint_is_the_one_with_the_highest_acceptance(config: TrainConfig) -> None:
    config = with_optim(
        config, max_steps=6, eval_steps=2, save_steps=2, load_best_model_at_end=True, save_total_limit=3,
        drafter_learning_rate=5e-3,
    )  # fmt: skip
    pair = train(config)
    assert pair is not None
    measured = [e["eval_acceptance_length"] for e in pair.metrics["log"] if "eval_acceptance_length" in e]
    assert pair.metrics["held_out"]["acceptance_length"] == pytest.approx(max(measured), abs=1e-4)


def test_checkpoints_are_written_as_often_as_asked(config: TrainConfig) -> None:
    seen: list[str] = []

    class Watch(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            seen.append(f"{state.global_step}")

    make = run.make_trainer

    def watched(*arguments: Any) -> Any:
        trainer = make(*arguments)
        trainer.add_callback(Watch())
        return trainer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "make_trainer", watched)
        train(with_optim(config, max_steps=6, eval_steps=0, save_steps=3, load_best_model_at_end=True))
    assert seen == ["3", "6"]


def test_without_targets_nothing_starts(config: TrainConfig, tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text('{"prompt": "a", "completion": ""}\n', encoding="utf-8")
    with pytest.raises(DataError):
        train(replace(config, data=str(path)))


def test_a_dry_run_spends_nothing(config: TrainConfig) -> None:
    assert train(config, dry_run=True) is None
    assert not Path(config.out).exists()
