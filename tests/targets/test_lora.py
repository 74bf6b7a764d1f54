"""Adapters: attached, saved, loaded and merged, and loud when they do not fit (H31, H32)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from kit.models import plain_greedy, prompts_of, tiny
from peft import PeftModel
from safetensors.torch import load_file, save_file

from semiar.errors import ConfigError, PairError, SourceNotFound
from semiar.targets import Target
from semiar.targets.lora import LoraSettings, attach, is_adapted, load_adapter, merged

WEIGHTS = "adapter_model.safetensors"


def adapted(seed: int = 0, **settings: Any) -> Any:
    """A float32 model with an adapter that changes what it says."""
    torch.manual_seed(seed)
    model = attach(tiny("llama", torch.float32), LoraSettings(r=4, **settings))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.normal_(std=0.1)
    return model.eval()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapter")
    adapted().save_pretrained(folder)
    return folder


@torch.inference_mode()
def logits(model: Any) -> torch.Tensor:
    return model(input_ids=torch.arange(20)[None]).logits


def copy_of(saved: Path, folder: Path, change: Any) -> Path:
    """The saved adapter with its tensors changed."""
    save_file(change(load_file(saved / WEIGHTS)), folder / WEIGHTS, metadata={"format": "pt"})
    (folder / "adapter_config.json").write_text((saved / "adapter_config.json").read_text())
    return folder


def test_only_the_adapter_learns() -> None:
    model = attach(tiny("llama"), LoraSettings(r=2))
    learning = {name for name, value in model.named_parameters() if value.requires_grad}
    assert learning and all("lora_" in name for name in learning)
    assert not any("lm_head" in name or "embed" in name for name in learning)
    assert is_adapted(model) and not is_adapted(tiny("llama"))


def test_a_fresh_adapter_changes_nothing_and_a_trained_one_does() -> None:
    base = tiny("llama", torch.float32)
    before = logits(base)
    torch.testing.assert_close(logits(attach(base, LoraSettings(r=2))), before)
    assert not torch.allclose(logits(adapted()), before, atol=0.1)


def test_modules_that_do_not_exist() -> None:
    with pytest.raises(ConfigError, match="LoRA does not fit"):
        attach(tiny("llama"), LoraSettings(target_modules=["no_such_layer"]))


def test_an_adapter_comes_back_as_it_was(saved: Path) -> None:
    model = load_adapter(tiny("llama", torch.float32), saved)
    assert torch.equal(logits(model), logits(adapted()))
    assert not model.training and not any(value.requires_grad for value in model.parameters())


def test_a_trainable_adapter_learns_on(saved: Path) -> None:
    model = load_adapter(tiny("llama", torch.float32), saved, trainable=True)
    learning = [name for name, value in model.named_parameters() if value.requires_grad]
    assert model.training and learning and all("lora_" in name for name in learning)


def test_no_adapter_there(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match="adapter_config"):
        load_adapter(tiny("llama"), tmp_path)


def test_no_weights_there(saved: Path, tmp_path: Path) -> None:
    copy_of(saved, tmp_path, lambda weights: weights)
    (tmp_path / WEIGHTS).unlink()
    with pytest.raises(PairError):
        load_adapter(tiny("llama", torch.float32), tmp_path)


def test_renamed_keys_are_named(saved: Path, tmp_path: Path) -> None:
    copy_of(saved, tmp_path, lambda w: {name.replace("q_proj", "query"): value for name, value in w.items()})
    with pytest.raises(PairError, match=r"missing .*q_proj"):
        load_adapter(tiny("llama", torch.float32), tmp_path)


def test_a_missing_key_is_named(saved: Path, tmp_path: Path) -> None:
    gone = sorted(load_file(saved / WEIGHTS))[5]
    copy_of(saved, tmp_path, lambda w: {name: value for name, value in w.items() if name != gone})
    with pytest.raises(PairError, match="missing") as error:
        load_adapter(tiny("llama", torch.float32), tmp_path)
    assert gone.split(".layers.")[1].removesuffix(".weight") in str(error.value)


def test_a_key_too_many_is_named(saved: Path, tmp_path: Path) -> None:
    extra = "base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight"
    copy_of(saved, tmp_path, lambda w: w | {extra: torch.zeros(4, 32)})
    with pytest.raises(PairError, match=r"unknown .*layers\.7"):
        load_adapter(tiny("llama", torch.float32), tmp_path)


def test_an_adapter_of_another_size(saved: Path) -> None:
    with pytest.raises(PairError, match="another model"):
        load_adapter(tiny("llama", torch.float32, hidden_size=64), saved)


def test_an_adapter_of_another_architecture(saved: Path) -> None:
    with pytest.raises(PairError, match="does not fit"):
        load_adapter(tiny("gpt2", torch.float32), saved)


def test_merged_says_the_same(saved: Path) -> None:
    prompts = prompts_of(96, [3, 9, 14])
    plain = load_adapter(tiny("llama", torch.float32), saved)
    folded = merged(load_adapter(tiny("llama", torch.float32), saved))
    assert not isinstance(folded, PeftModel) and not any("lora" in name for name, _ in folded.named_parameters())
    assert plain_greedy(folded, prompts, 24) == plain_greedy(plain, prompts, 24)
    assert plain_greedy(plain, prompts, 24) != plain_greedy(tiny("llama", torch.float32), prompts, 24)


def test_merged_twice_is_merged_once() -> None:
    once = merged(adapted())
    weights = {name: value.clone() for name, value in once.state_dict().items()}
    twice = merged(once)
    assert twice is once
    assert all(torch.equal(value, weights[name]) for name, value in twice.state_dict().items())


def test_a_hundred_merges_and_unmerges_leave_the_base_alone() -> None:
    model = adapted()
    base = [(module, module.weight.clone()) for name, module in model.named_modules() if name.endswith("base_layer")]
    assert base
    for _ in range(100):
        model.merge_adapter()
        model.unmerge_adapter()
    for module, before in base:
        torch.testing.assert_close(module.weight, before, rtol=0, atol=1e-4)  # PEFT subtracts: exact up to rounding


def test_saving_and_merging_do_not_change_the_base_weights(tmp_path: Path) -> None:
    model = adapted()
    before = {name: value.clone() for name, value in model.state_dict().items() if "lora_" not in name}
    model.save_pretrained(tmp_path)
    logits(model)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


def test_dropout_is_quiet_in_evaluation(tmp_path: Path) -> None:
    adapted(lora_dropout=0.5).save_pretrained(tmp_path)
    model = load_adapter(tiny("llama", torch.float32), tmp_path)
    assert torch.equal(logits(model), logits(model))
    assert torch.equal(logits(model), logits(adapted(lora_dropout=0.5)))


def test_a_target_sees_through_the_adapter() -> None:
    model = adapted()
    target = Target(model)
    ids = torch.arange(9)[None]
    with torch.inference_mode():
        assert torch.equal(target(ids).logits, model(input_ids=ids).logits)
    assert target.lm is model.get_base_model()
