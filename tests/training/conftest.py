"""A tiny model and a tiny data set on disk, so that whole runs can be tried."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kit.models import settings_of
from kit.tokenizers import byte_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from semiar.settings import DataSource, Load, Training
from semiar.targets.lora import LoraSettings
from semiar.training.config import LossSettings, TrainConfig

ROWS = [(f"what is {a} plus {b}?", f"{a} plus {b} is {a + b}.") for a in range(6) for b in range(4)]


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Llama with a byte tokenizer, as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("base") / "tiny-llama"
    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer) + 4, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=256, initializer_range=0.3,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
        )
    )  # fmt: skip
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two dozen question-answer pairs as JSON lines."""
    path = tmp_path_factory.mktemp("data") / "sums.jsonl"
    path.write_text("".join(json.dumps({"prompt": q, "completion": a}) + "\n" for q, a in ROWS), encoding="utf-8")
    return path


@pytest.fixture
def config(base: Path, data: Path, tmp_path: Path) -> TrainConfig:
    """A joint run of a few steps in float32."""
    return TrainConfig(
        model=str(base), data=DataSource(str(data)), out=str(tmp_path / "run"), load=Load("float32", "cpu"),
        lora=LoraSettings(r=4),
        drafter=settings_of(num_speculative_tokens=3, draft_vocab_size=64, lora_r=4, num_heads=2),
        loss=LossSettings(anchors_per_sample=0),
        training=Training(
            per_device_train_batch_size=4, max_steps=4, bf16=False, logging_steps=1, save_steps=2, eval_steps=2,
            learning_rate=1e-3, load_best_model_at_end=False, eval_samples=4,
        ),
    )  # fmt: skip


def with_optim(config: TrainConfig, **changes: object) -> TrainConfig:
    """The same run with other schedule options."""
    return replace(config, training=replace(config.training, **changes))  # type: ignore[arg-type]
