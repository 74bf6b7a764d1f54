"""Tiny base models, a data set and a pair trained on it, all through the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from kit.cli import train_words
from kit.models import save_base
from kit.tokenizers import byte_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from semiar.cli import main


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("model") / "base")


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another architecture size with the same tokenizer."""
    folder, tokenizer = tmp_path_factory.mktemp("model") / "other", byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer) + 4, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=512, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "sums.jsonl"
    rows = [{"prompt": f"what is {a} plus {b}?", "completion": f"{a + b}."} for a in range(6) for b in range(4)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def run(base: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair that `semiar train` wrote."""
    out = tmp_path_factory.mktemp("runs") / "joint"
    assert main(train_words(base, data, out)) == 0
    return out


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """The pair's folder, to be damaged."""
    return Path(shutil.copytree(run, tmp_path / "copy"))
