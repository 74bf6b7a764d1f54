"""`semiar attach`: a drafter without training beside a tuned or a plain target, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from kit.cli import refused, train_words
from safetensors.torch import load_file

from semiar.cli import main
from semiar.drafters.designs.semi import SemiDrafter

QUESTION = ["what is 1 plus 1?", "--load.dtype", "float32", "--max_new_tokens", "12"]


def attach(run: Path, out: Path, architecture: str, *more: str) -> list[str]:
    return ["attach", str(run), "--out", str(out), "--drafter.architecture", architecture, *more]


def answer(capsys: pytest.CaptureFixture[str], run: Path) -> str:
    capsys.readouterr()
    assert main(["generate", str(run), *QUESTION]) == 0
    return capsys.readouterr().out


def config_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "drafter/config.json").read_text())
    return found


def test_lookup_and_hybrid_beside_a_tuned_target(
    capsys: pytest.CaptureFixture[str], run: Path, base: Path, data: Path, tmp_path: Path
) -> None:
    wanted = answer(capsys, run)
    options = ["--drafter.min_match", "1", "--drafter.num_speculative_tokens", "3"]
    assert main(attach(run, tmp_path / "lookup", "lookup", *options, "--data", str(data))) == 0
    assert "its drafter lookup that knows 24 answers" in capsys.readouterr().err
    tensors = load_file(tmp_path / "lookup/drafter/model.safetensors")
    assert int((tensors["corpus.tokens"] == -1).sum()) == 24
    assert config_of(tmp_path / "lookup")["settings"]["min_match"] == 1
    name = "adapter_model.safetensors"
    assert (tmp_path / "lookup" / name).read_bytes() == (run / name).read_bytes()
    assert answer(capsys, tmp_path / "lookup") == wanted
    recipe = yaml.safe_load((tmp_path / "lookup/run.yaml").read_text())
    assert recipe["drafter"]["architecture"] == "lookup" and recipe["mode"] == "joint"

    assert main(attach(base, tmp_path / "beside", "lookup", "--adapter", str(run))) == 0
    assert (tmp_path / "beside" / name).read_bytes() == (run / name).read_bytes()
    assert answer(capsys, tmp_path / "beside") == wanted

    assert main(attach(run, tmp_path / "hybrid", "hybrid", *options)) == 0
    saved, trained = (load_file(folder / "drafter/model.safetensors") for folder in (tmp_path / "hybrid", run))
    assert all(torch.equal(saved[f"inner.{key}"], value) for key, value in trained.items())
    assert answer(capsys, tmp_path / "hybrid") == wanted
    assert main(attach(tmp_path / "hybrid", tmp_path / "again", "hybrid", "--data", str(data))) == 0
    again = load_file(tmp_path / "again/drafter/model.safetensors")
    assert {**saved, "corpus.tokens": again["corpus.tokens"]}.keys() == again.keys()
    assert answer(capsys, tmp_path / "again") == wanted


def test_drafters_of_a_plain_model(
    capsys: pytest.CaptureFixture[str], base: Path, data: Path, other: Path, tmp_path: Path
) -> None:
    texts = set()
    small = ["--drafter.model", str(other)]
    for name, more in (
        ("recycling", ["--data", str(data), "--drafter.draft_vocab_size", "12"]),
        ("model", small),
        ("none", []),
    ):
        assert main(attach(base, tmp_path / name, name, *more)) == 0
        texts.add(answer(capsys, tmp_path / name))
        assert not (tmp_path / name / "adapter_config.json").exists()
    assert len(texts) == 1
    assert (
        main(["bench", str(tmp_path / "model"), "--data", str(data), "--data.limit", "1", "--max_new_tokens", "6"]) == 0
    )
    tensors = load_file(tmp_path / "recycling/drafter/model.safetensors")
    assert {"d2t", "first"} == set(tensors) and len(tensors["d2t"]) <= 12


def test_what_is_refused(capsys: pytest.CaptureFixture[str], base: Path, data: Path, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    refused(capsys, attach(base, out, "semi"), "drafter semi has to learn", "use semiar train", lines=0)
    refused(capsys, attach(run, out, "lookup", "--adapter", str(run)), "a pair has its own adapter", lines=0)
    refused(capsys, attach(base, out, "hybrid"), "no trained drafter", lines=0)
    refused(capsys, attach(run, out, "hybrid", "--drafter.inner", '{"small_lm": "gru"}'), "inner", lines=0)
    refused(
        capsys, attach(run, out, "hybrid", "--drafter.lora_r", "3"), "drafter.lora_r", "option of drafter semi", lines=0
    )
    refused(capsys, attach(base, out, "lookup", "--drafter.size", "3"), "drafter.size", lines=0)
    refused(capsys, attach(base, out, "model", "--drafter.model", "./none"), "./none", lines=0)
    words = ["--drafter.architecture", "lookup"]
    for mode in ("joint", "after"):
        expected = (f"drafter lookup has nothing to learn in mode {mode}", "mode lora", "semiar attach")
        whole = ["train", "--model", str(base), "--data", str(data), "--out", str(out), "--mode", mode, *words]
        refused(capsys, whole, *expected, lines=0)
    assert not out.exists()


@pytest.mark.skipif(not hasattr(SemiDrafter, "teacher"), reason="the learner reads heads from the drafter's modules")
def test_a_hybrid_is_trained(capsys: pytest.CaptureFixture[str], base: Path, data: Path, tmp_path: Path) -> None:
    words = list(train_words(base, data, tmp_path / "run"))
    for own in ("--drafter.lora_r", "--drafter.num_heads"):  # the trained drafter's affair
        del words[words.index(own) : words.index(own) + 2]
    inner = json.dumps({"lora_r": 4, "num_heads": 2})
    words += ["--drafter.architecture", "hybrid", "--drafter.min_match", "2", "--drafter.inner", inner]
    assert main(words) == 0
    assert "corpus.tokens" in load_file(tmp_path / "run/drafter/model.safetensors")
    assert answer(capsys, tmp_path / "run")
