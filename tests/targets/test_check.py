"""The self-test of a loaded target: it passes on every architecture, and it does find what it is there to find."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from kit.models import NAMES, chain_table, table_model, tiny
from torch import Tensor

from semiar.errors import TargetError
from semiar.targets import Cache, Target
from semiar.targets.check import check_target
from semiar.targets.layers import decoder_layers, refuse_unrollable, windows
from semiar.targets.lora import LoraSettings, attach
from semiar.targets.target import Output


@pytest.mark.parametrize("name", NAMES)
def test_every_architecture_passes_in_float64(name: str) -> None:
    check_target(Target(tiny(name)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_passes_in_other_precisions(name: str, dtype: torch.dtype) -> None:
    check_target(Target(tiny(name, dtype)))


def test_passes_with_an_adapter_and_on_table_models() -> None:
    check_target(Target(attach(tiny("llama"), LoraSettings(r=2))))
    check_target(Target(table_model(chain_table(6))))


def test_dropout_of_an_adapter_that_learns_does_not_disturb_it() -> None:
    model: Any = attach(tiny("llama"), LoraSettings(r=2, lora_dropout=0.5)).train()
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.add_("lora_B" in name)
    check_target(Target(model))
    assert all(module.training for module in model.modules())


class OtherState(Target):
    """Hands out the state before the final norm."""

    def read(self, layers: Any) -> Tensor:
        self._seen[-1] = self._seen[-1] * 1.1
        return super().read(layers)


class NoTree(Target):
    """Takes a tree for a chain."""

    def forward(self, tokens: Tensor, cache: Any = None, **options: Any) -> Output:
        return super().forward(tokens, cache, **(options | {"depths": None, "mask": None}))


class Leaky(Target):
    """Has a state that no rollback reaches: the sum of everything it ever read."""

    total = 0.0

    def forward(self, tokens: Tensor, cache: Any = None, **options: Any) -> Output:
        out = super().forward(tokens, cache, **options)
        if cache is None or cache.width == 0:
            self.total = 0.0
        self.total += 0.01 * float(tokens.sum()) if tokens.shape[1] == 4 else 0.0
        extra = self.total if cache is not None and tokens.shape[1] == 1 else 0.0
        return Output(
            None if out.logits is None else out.logits + torch.arange(out.logits.shape[-1]) * extra, out.hidden
        )


class NoRollback(Target):
    """Its cache keeps rejected tokens."""

    def start(self, batch: int, capacity: int = 512) -> Cache:
        cache = super().start(batch, capacity)
        keep = cache.keep
        cache.keep = lambda path, chain=False: keep(torch.arange(cache.place.slots.shape[1])[None], chain=True)  # type: ignore[method-assign]
        return cache


@pytest.mark.parametrize(
    ("broken", "what"),
    [(OtherState, "output head"), (NoTree, "tree"), (Leaky, "rolling back"), (NoRollback, "rolling back")],
)
def test_broken_targets_are_found(broken: type[Target], what: str) -> None:
    check_target(Target(tiny("llama")))
    with pytest.raises(TargetError, match=what) as error:
        check_target(broken(tiny("llama")))
    assert "llama" in str(error.value)


def test_a_model_that_cannot_run_a_tree_at_all_is_a_target_error() -> None:
    config = transformers.BloomConfig(
        vocab_size=64, hidden_size=32, n_layer=1, n_head=4
    )  # position bias from a 2-d mask
    with pytest.raises(TargetError, match="bloom"):
        check_target(Target(transformers.BloomForCausalLM(config).eval()))


RECURRENT = (
    "Mamba",
    "Mamba2",
    "Jamba",
    "Bamba",
    "FalconH1",
    "Zamba2",
    "GraniteMoeHybrid",
    "Qwen3Next",
    "RecurrentGemma",
)


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_and_hybrid_models_are_refused_with_the_reason(name: str) -> None:
    config = getattr(transformers, f"{name}Config")()
    with pytest.raises(TargetError, match="recurrent or linear-attention") as error:
        refuse_unrollable(config)
    assert config.model_type in str(error.value) and "rejected draft" in str(error.value)


def test_a_recurrent_model_is_refused_as_a_target() -> None:
    config = transformers.MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, state_size=4)
    with pytest.raises(TargetError, match="mamba"):
        Target(transformers.MambaForCausalLM(config))


def test_encoder_decoders_and_odd_layers_are_refused() -> None:
    with pytest.raises(TargetError, match="encoder-decoder"):
        refuse_unrollable(transformers.T5Config())
    with pytest.raises(TargetError, match="chunked_attention"):
        windows(transformers.Llama4TextConfig())
    with pytest.raises(TargetError, match="list of layers"):
        decoder_layers(torch.nn.Linear(2, 2))


def test_attention_models_are_not_refused() -> None:
    for name in ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma2", "GPT2", "GPTNeoX", "Phi3"):
        refuse_unrollable(getattr(transformers, f"{name}Config")())


def test_windows_of_the_kinds_of_layers() -> None:
    assert windows(tiny("llama").config) == {"": None}
    assert windows(tiny("mistral").config) == {"": 8}
    assert windows(tiny("qwen2").config) == {"": None}
    assert windows(tiny("qwen2_window").config) == {"full_attention": None, "sliding_attention": 8}
    assert windows(tiny("gemma3").config) == {"full_attention": None, "sliding_attention": 8}
