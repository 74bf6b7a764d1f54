"""A saved Llama model written as GGUF computes the same when it is read back."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from gguf import GGUFReader
from kit.models import save_base
from transformers import AutoModelForCausalLM

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def gguf_model(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("gguf_model")


def test_a_model_read_back_gives_the_same_logits(gguf_model: ModuleType, tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", dtype=torch.bfloat16)
    gguf_model.write(base, tmp_path / "base.gguf")
    written: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    read: Any = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="base.gguf", dtype=torch.float32)
    ids = torch.arange(40)[None]
    with torch.inference_mode():
        torch.testing.assert_close(read(ids).logits, written(ids).logits)


@pytest.mark.parametrize(("kind", "most"), [("q8_0", 0.06), ("q4_0", 0.5)])
def test_a_quantised_model_is_near_the_model(gguf_model: ModuleType, tmp_path: Path, kind: str, most: float) -> None:
    base = save_base(tmp_path / "base", dtype=torch.bfloat16)
    gguf_model.write(base, tmp_path / "base.gguf", kind)
    kinds = {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(tmp_path / "base.gguf").tensors}
    assert kinds["blk.0.attn_q.weight"] == kind.upper() and kinds["token_embd.weight"] == "Q8_0"
    assert kinds["blk.0.ffn_down.weight"] == "BF16"  # 48 inputs: no whole blocks
    written: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    read: Any = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="base.gguf", dtype=torch.float32)
    ids = torch.arange(40)[None]
    with torch.inference_mode():
        wanted, found = written(ids).logits, read(ids).logits
    assert 0 < float((found - wanted).norm() / wanted.norm()) < most


def test_the_tokenizer_goes_along(gguf_model: ModuleType, tmp_path: Path) -> None:
    base = save_base(tmp_path / "base")
    config = json.loads((base / "config.json").read_text()) | {"eos_token_id": [259, 256]}
    (base / "config.json").write_text(json.dumps(config))
    gguf_model.write(base, tmp_path / "base.gguf")
    fields = GGUFReader(tmp_path / "base.gguf").fields
    pieces = fields["tokenizer.ggml.tokens"].contents()
    assert pieces[97] == "a" and "<|im_end|>" in pieces
    assert len(pieces) == config["vocab_size"]
    assert pieces[fields["tokenizer.ggml.eos_token_id"].contents()] == "<|im_end|>"


def test_another_architecture_is_refused(gguf_model: ModuleType, tmp_path: Path) -> None:
    base = save_base(tmp_path / "base")
    config = json.loads((base / "config.json").read_text()) | {"model_type": "qwen2"}
    (base / "config.json").write_text(json.dumps(config))
    with pytest.raises(RuntimeError, match=r"model type 'qwen2'.*'llama'"):
        gguf_model.write(base, tmp_path / "base.gguf")
    assert not (tmp_path / "base.gguf").exists()
