"""A drafter's folder: damage and mismatches are named at load (H31); padded vocabularies fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.models import plain_greedy, prompts_of, semi_drafter, target_of, tiny
from kit.recording import record
from safetensors.torch import load_file, save_file
from torch import Tensor

from semiar.core.sampling import Sampling
from semiar.decoding import Limits, decode
from semiar.drafters import NoDrafter, load_drafter
from semiar.drafters.saving import save_drafter
from semiar.errors import ConfigError, PairError, SourceNotFound
from semiar.targets import Target

WEIGHTS, CONFIG = "model.safetensors", "config.json"


@pytest.fixture(scope="module")
def target() -> Target:
    return target_of("llama", torch.float32)


@pytest.fixture
def saved(target: Target, tmp_path: Path) -> Path:
    drafter = semi_drafter(target, torch.arange(0, 96, 3), small_lm="lstm")
    save_drafter(drafter, tmp_path, {"hidden_size": target.hidden_size})
    return tmp_path


def edit_weights(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS)


def edit_config(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    config = json.loads((folder / CONFIG).read_text())
    change(config)
    (folder / CONFIG).write_text(json.dumps(config))


def test_the_folder_says_what_it_is(saved: Path, target: Target) -> None:
    config = json.loads((saved / CONFIG).read_text())
    assert config["architectures"] == ["SemiDrafter"] and config["model_type"] == "semiar_drafter"
    assert config["num_speculative_tokens"] == 4 and config["hidden_size"] == 32
    tensors = load_file(saved / WEIGHTS)
    assert tensors["d2t"].tolist() == list(range(0, 96, 3))
    assert not any(
        value.shape == target.embedding.shape for value in tensors.values()
    )  # borrowed rows stay the target's


@pytest.mark.parametrize("name", ["lm.cell.weight_hh", "draft_head.up.weight", "fuse.narrow.bias"])
def test_a_missing_tensor_is_named(saved: Path, target: Target, name: str) -> None:
    edit_weights(saved, lambda w: {n: v for n, v in w.items() if n != name})
    with pytest.raises(PairError, match=f"missing {name}"):
        load_drafter(saved, target)


def test_a_missing_id_map_is_noticed(saved: Path, target: Target) -> None:
    edit_weights(saved, lambda w: {n: v for n, v in w.items() if n != "d2t"})
    with pytest.raises(PairError, match=r"draft_head\.up\.weight"):
        load_drafter(saved, target)


def test_a_renamed_tensor_is_named_twice(saved: Path, target: Target) -> None:
    edit_weights(saved, lambda w: {n.replace("lm.cell", "lm.core"): v for n, v in w.items()})
    with pytest.raises(PairError, match=r"missing lm\.cell") as error:
        load_drafter(saved, target)
    edit_weights(
        saved, lambda w: {n.replace("lm.core.", "lm.cell."): v for n, v in w.items()} | {"spare": torch.ones(2)}
    )
    with pytest.raises(PairError, match="unknown spare"):
        load_drafter(saved, target)
    assert isinstance(error.value, ValueError)


def test_a_tensor_of_another_shape_is_named(saved: Path, target: Target) -> None:
    edit_weights(saved, lambda w: w | {"fuse.narrow.bias": torch.zeros(33)})
    with pytest.raises(PairError, match=r"other shape fuse\.narrow\.bias"):
        load_drafter(saved, target)


def test_a_target_of_another_size(saved: Path) -> None:
    with pytest.raises(PairError, match=r"hidden_size 32.*64"):
        load_drafter(saved, target_of("llama", torch.float32, hidden_size=64))


def test_a_target_with_too_few_tokens(saved: Path) -> None:
    with pytest.raises(PairError, match="93"):
        load_drafter(saved, target_of("llama", torch.float32, vocab=64))


def test_files_that_are_not_there_or_broken(saved: Path, target: Target) -> None:
    whole = (saved / WEIGHTS).read_bytes()
    (saved / WEIGHTS).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PairError, match="cannot be read"):
        load_drafter(saved, target)
    (saved / WEIGHTS).unlink()
    with pytest.raises(PairError, match=WEIGHTS):
        load_drafter(saved, target)
    (saved / CONFIG).write_text("{")
    with pytest.raises(PairError, match="not JSON"):
        load_drafter(saved, target)
    (saved / CONFIG).unlink()
    with pytest.raises(SourceNotFound, match=CONFIG):
        load_drafter(saved, target)


def test_settings_of_another_version(saved: Path, target: Target) -> None:
    edit_config(saved, lambda c: c["settings"].update(warp_factor=9))
    with pytest.raises(PairError, match="warp_factor"):
        load_drafter(saved, target)


def test_an_unknown_architecture(saved: Path, target: Target) -> None:
    edit_config(saved, lambda c: c["settings"].update(architecture="oracle"))
    with pytest.raises(ConfigError, match="oracle"):
        load_drafter(saved, target)


def test_no_drafter_is_a_drafter_too(target: Target, tmp_path: Path) -> None:
    save_drafter(NoDrafter(), tmp_path, {})
    loaded = load_drafter(tmp_path, target)
    assert isinstance(loaded, NoDrafter) and not loaded.trainable
    assert next(decode(target, loaded, [[1, 2]], Limits(3))).drafted == 0


@pytest.mark.parametrize(("rows", "own_rows"), [(104, 128), (128, 104)])
def test_vocabularies_padded_differently_work(rows: int, own_rows: int, tmp_path: Path) -> None:
    """100 ids in both; the target has 104 rows and the small LM 128, or the other way round."""
    model: Any = tiny("llama", torch.float32, vocab=rows)
    with torch.no_grad():
        model.lm_head.weight[100:] = 0  # padding rows of a trained model never win
    target = Target(model)
    tiny("llama", torch.float32, vocab=own_rows, num_hidden_layers=1).save_pretrained(tmp_path / "lm")
    drafter = semi_drafter(target, small_lm="hf", small_lm_model=str(tmp_path / "lm"))
    with torch.no_grad():
        drafter.draft_head.up.weight[100:] *= 100  # a drafter that does guess padding
    drafter.bind(target)
    prompts = prompts_of(100, [5, 9, 14])
    found, proposals = record(target, drafter, prompts, 24)
    assert found == plain_greedy(model, prompts, 24)
    assert max(token for row in found for token in row) < 100
    assert any(token >= 100 for p in proposals for token in p.tokens), "no padding drafted: the test tests nothing"
    sampled = record(target, drafter, prompts * 8, 24, Sampling(0.3))[0]
    assert max(token for row in sampled for token in row) < 100


def test_a_small_lm_with_other_tokens_is_refused_in_training(tmp_path: Path) -> None:
    target = target_of("llama", torch.float32)
    tiny("llama", torch.float32, vocab=50, num_hidden_layers=1).save_pretrained(tmp_path / "lm")
    drafter = semi_drafter(target, small_lm="hf", small_lm_model=str(tmp_path / "lm")).train()
    tokens = torch.arange(60, 72)[None]
    with pytest.raises(ConfigError, match="50 tokens"):
        list(drafter.unroll(target(tokens).hidden.detach(), tokens, torch.tensor([[2]])))


def test_a_context_drafter_saved_before_there_was_induction_has_none(target: Target, tmp_path: Path) -> None:
    for name, options in (("old", {"induction": False}), ("new", {})):
        drafter = semi_drafter(target, None, small_lm="context", **options)
        save_drafter(drafter, tmp_path / name, {"hidden_size": target.hidden_size})

    def as_it_was(config: dict[str, Any]) -> None:
        config["settings"]["options"] = {}
        assert config["settings"].pop("induction") is False

    edit_config(tmp_path / "old", as_it_was)
    old, new = (load_drafter(tmp_path / name, target) for name in ("old", "new"))
    assert old.lm.before is None and new.lm.before is not None  # type: ignore[union-attr]


def test_induction_is_for_context_alone(target: Target) -> None:
    with pytest.raises(ConfigError, match="induction false with small_lm lstm"):
        semi_drafter(target, None, small_lm="lstm", induction=False)
