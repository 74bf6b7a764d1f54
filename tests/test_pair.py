"""The artefact: a folder that holds a whole pair, loads as it was saved, and says what is wrong with it (H31, H32)."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import yaml
from kit.models import draft_settings, pair_folder, pair_of, plain_greedy, prompts_of, save_base
from kit.recording import record
from kit.tokenizers import byte_tokenizer
from peft import PeftModel
from safetensors.torch import load_file, save_file

from semiar.drafters import NoDrafter, build_drafter
from semiar.errors import PairError, SourceNotFound
from semiar.pair import Pair
from semiar.pair.files import fingerprint
from semiar.settings import Load

MERGED = Load("float32", "cpu")
UNMERGED = Load("float32", "cpu", merge=False)
PROMPTS = prompts_of(250, [5, 11])


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pair_folder(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(original, tmp_path / "pair"))


def answers(pair: Pair) -> tuple[list[list[int]], list[list[int]]]:
    """Greedy ids after two prompts, and everything that was drafted on the way."""
    rows, proposals = record(pair.target, pair.drafter, PROMPTS, 20)
    return rows, [proposal.tokens for proposal in proposals]


def test_the_folder_holds_what_it_says(original: Path) -> None:
    names = {path.name for path in original.iterdir()}
    assert names >= {"adapter_config.json", "adapter_model.safetensors", "drafter", "run.yaml", "metrics.json"}
    assert names >= {"tokenizer.json", "tokenizer_config.json"} and not {"model.safetensors"} & names
    config = json.loads((original / "drafter" / "config.json").read_text())
    assert config["base_model_name_or_path"] == str(original.parent / "base")
    assert config["base_model_archs"] == ["LlamaForCausalLM"] and config["adapted"] is True
    assert yaml.safe_load((original / "run.yaml").read_text())["mode"] == "joint"
    assert not (original.parent / "pair.saving").exists()


def test_a_loaded_pair_answers_and_drafts_like_the_one_that_was_saved(original: Path) -> None:
    before = answers(pair_of(original.parent / "base"))
    loaded = Pair.load(original, UNMERGED)
    assert answers(loaded) == before
    assert loaded.base == str(original.parent / "base") and loaded.metrics == {"held_out": {}}
    assert not loaded.target.model.training and not loaded.drafter.training
    assert answers(loaded) == before  # LoRA dropout of 0.5 is quiet


@pytest.mark.parametrize("kind", ["context", "none"])
def test_other_kinds_of_drafter(kind: str, tmp_path: Path) -> None:
    folder = pair_folder(tmp_path, small_lm=kind)
    assert answers(Pair.load(folder, UNMERGED)) == answers(pair_of(tmp_path / "base", small_lm=kind))


def test_merged_and_unmerged_give_the_same_ids(original: Path) -> None:
    merged, unmerged = Pair.load(original, MERGED), Pair.load(original, UNMERGED)
    assert not isinstance(merged.target.model, PeftModel) and isinstance(unmerged.target.model, PeftModel)
    ids = [answers(pair)[0] for pair in (merged, unmerged)]
    assert ids[0] == ids[1] == plain_greedy(unmerged.target.model, PROMPTS, 20)
    base = transformers.AutoModelForCausalLM.from_pretrained(original.parent / "base", dtype=torch.float32)
    assert ids[0] != plain_greedy(base, PROMPTS, 20)


def test_the_adapter_loads_with_peft_alone(original: Path) -> None:
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(original.parent / "base", dtype=torch.float32)
    alone = PeftModel.from_pretrained(model, str(original)).eval()
    ids = torch.tensor(PROMPTS[1:])
    with torch.inference_mode():
        expected = Pair.load(original, UNMERGED).target(ids).logits
        torch.testing.assert_close(alone(input_ids=ids).logits, expected)


@pytest.mark.parametrize("settings", [MERGED, UNMERGED], ids=["merged", "unmerged"])
def test_a_loaded_pair_can_be_saved_again(original: Path, tmp_path: Path, settings: Load) -> None:
    Pair.load(original, settings).save(tmp_path / "again")
    assert answers(Pair.load(tmp_path / "again", UNMERGED)) == answers(Pair.load(original, UNMERGED))
    first, second = (load_file(place / "adapter_model.safetensors") for place in (original, tmp_path / "again"))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_saved_in_its_own_place(folder: Path) -> None:
    pair = Pair.load(folder, MERGED)
    before = answers(pair)
    pair.run["note"] = "again"
    pair.save(folder)
    again = Pair.load(folder, MERGED)
    assert answers(again) == before and again.run["note"] == "again"


def test_a_trainable_pair(original: Path) -> None:
    pair = Pair.load(original, Load("float32", "cpu"), trainable=True)
    learning = [name for name, value in pair.target.named_parameters() if value.requires_grad]
    assert learning and all("lora_" in name for name in learning)


def test_a_pair_without_an_adapter(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base")
    plain = Pair.load(str(base), MERGED)
    assert isinstance(plain.drafter, NoDrafter)
    plain.save(tmp_path / "pair")
    assert not (tmp_path / "pair" / "adapter_config.json").exists()
    loaded = Pair.load(tmp_path / "pair", MERGED)
    assert answers(loaded)[0] == plain_greedy(plain.target.lm, PROMPTS, 20)


def test_an_adapter_of_an_earlier_pair_does_not_stay(folder: Path, original: Path) -> None:
    plain = Pair.load(str(original.parent / "base"), MERGED)
    plain.save(folder)
    assert answers(Pair.load(folder, MERGED))[0] == plain_greedy(plain.target.lm, PROMPTS, 20)


def test_work_in_progress_beside_the_pair_stays(folder: Path, original: Path) -> None:
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "run.json").write_text("{}")
    Pair.load(original, MERGED).save(folder)
    assert (folder / "checkpoints" / "run.json").is_file()


def test_the_folder_of_the_shell(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair.load(original, MERGED)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    pair.save(".")
    assert answers(Pair.load(".", MERGED)) == answers(pair)


class Broken(Exception):
    pass


def test_a_save_that_breaks_off_leaves_the_old_pair(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair.load(folder, UNMERGED)
    before = answers(pair)
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with torch.no_grad():
        for value in pair.drafter.parameters():
            value.zero_()
    with monkeypatch.context() as patch:

        def fail(*_: Any) -> None:
            raise Broken

        patch.setattr(pair.tokenizer, "save_pretrained", fail)
        with pytest.raises(Broken):
            pair.save(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files
    assert answers(Pair.load(folder, UNMERGED)) == before
    pair.save(folder)  # what the broken save left is in nobody's way
    assert answers(Pair.load(folder, UNMERGED)) != before
    assert not folder.with_name("pair.saving").exists()


def test_half_of_a_pair_is_not_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair.load(folder, UNMERGED)
    before = answers(pair)
    moved: list[str] = []
    replace = os.replace

    def killed(source: Path, goal: Path) -> None:
        if len(moved) == 2:
            raise Broken
        moved.append(goal.name)
        replace(source, goal)

    with monkeypatch.context() as patch:
        patch.setattr("semiar.pair.files.os.replace", killed)
        with pytest.raises(Broken):
            pair.save(folder)
    with pytest.raises(PairError, match=r"broken off.*pair\.saving"):
        Pair.load(folder, UNMERGED)
    pair.save(folder)
    assert answers(Pair.load(folder, UNMERGED)) == before


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match="nowhere"):
        Pair.load(tmp_path / "nowhere", MERGED)
    with pytest.raises(SourceNotFound, match=r"run\.yaml"):
        Pair.load(tmp_path, MERGED)


def test_a_missing_adapter_is_not_the_base_model(folder: Path) -> None:
    (folder / "adapter_config.json").unlink()
    with pytest.raises(PairError, match="adapter_config"):
        Pair.load(folder, MERGED)


def test_missing_adapter_weights(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(PairError, match="adapter"):
        Pair.load(folder, MERGED)


def test_renamed_adapter_keys(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    save_file({name.replace("lora_A", "lora_X"): value for name, value in load_file(path).items()}, path)
    with pytest.raises(PairError, match="lora_A"):
        Pair.load(folder, MERGED)


def test_a_missing_drafter_is_not_plain_decoding(folder: Path) -> None:
    path = folder / "drafter" / "model.safetensors"
    whole = load_file(path)
    save_file({name: value for name, value in whole.items() if name != "fuse.wide.weight"}, path)
    with pytest.raises(PairError, match=r"missing fuse\.wide\.weight"):
        Pair.load(folder, MERGED)
    shutil.rmtree(folder / "drafter")
    with pytest.raises(SourceNotFound, match="drafter"):
        Pair.load(folder, MERGED)


def test_another_tokenizer(folder: Path) -> None:
    byte_tokenizer(merges=("ab",)).save_pretrained(folder)
    with pytest.raises(PairError, match="tokenizer"):
        Pair.load(folder, MERGED)


def test_a_missing_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises((PairError, SourceNotFound, ValueError)):
        Pair.load(folder, MERGED)


def test_another_chat_template_is_the_same_tokenizer() -> None:
    assert fingerprint(byte_tokenizer()) == fingerprint(byte_tokenizer(None))
    assert fingerprint(byte_tokenizer()) != fingerprint(byte_tokenizer(merges=("ab",)))


def test_a_base_model_with_too_few_rows(folder: Path, original: Path) -> None:
    tokenizer = byte_tokenizer(merges=("ab", "cd", "ef", "gh", "ij"))  # 265 tokens, the head has 264 rows
    tokenizer.save_pretrained(folder)
    config = folder / "drafter" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"tokenizer_sha256": fingerprint(tokenizer)}))
    with pytest.raises(PairError, match=r"265 tokens.*264 rows"):
        Pair.load(folder, MERGED)


def test_a_base_model_that_has_gone(folder: Path) -> None:
    config = folder / "drafter" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": "/gone/model"}))
    with pytest.raises(SourceNotFound, match="/gone/model"):
        Pair.load(folder, MERGED)


def test_a_drafter_may_cover_the_whole_vocabulary(original: Path, tmp_path: Path) -> None:
    pair = pair_of(original.parent / "base")
    pair.drafter = build_drafter(draft_settings(small_lm="lstm"), pair.target, None).eval()
    pair.save(tmp_path / "pair")
    assert Pair.load(tmp_path / "pair", UNMERGED).drafter.vocab is None
    assert answers(Pair.load(tmp_path / "pair", UNMERGED)) == answers(pair)
