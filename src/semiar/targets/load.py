"""Load a causal LM and its tokenizer from a hub id, a local folder or a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from semiar.errors import ConfigError, SourceNotFound, TargetError
from semiar.targets.layers import refuse_unrollable

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


@dataclass(frozen=True)
class LoadSettings:
    """How the target is put into memory."""

    dtype: str = "auto"
    """float32, bfloat16, float16, float64, or auto: bfloat16 unless the machine cannot."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ..., or auto: a GPU when there is one."""
    merge: bool = True
    """Fold a LoRA adapter into the weights for decoding (faster; the merged model is then the reference)."""
    engine: str = "auto"
    """eager: as transformers runs it.  packed: weights laid out for the CPU's kernels, projections of one input joined
    (the output head is kept twice).  compiled: packed, and whole passes of one row as graphs, up to a minute each to
    compile.  native: a kernel of semiar's own for Llama-like models (weights are kept a second time).  auto: native or
    packed for bfloat16 on a CPU, else eager."""
    drafting: str = "auto"
    """The same for the drafter: eager, packed, compiled (its steps as one graph) or native (a kernel, for small_lm
    context; other drafters run packed).  auto: as the engine."""

    def __post_init__(self) -> None:
        known = ("auto", "eager", "packed", "compiled", "native")
        for name in ("engine", "drafting"):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} '{getattr(self, name)}'", f"one of {', '.join(known)}")

    def torch_dtype(self) -> torch.dtype:
        if self.dtype == "auto":
            return torch.bfloat16
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype '{self.dtype}'", f"one of auto, {', '.join(DTYPES)}")
        return DTYPES[self.dtype]

    def torch_device(self) -> torch.device:
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            return torch.device(self.device)
        except RuntimeError as error:
            raise ConfigError(f"device '{self.device}'", "auto, cpu, cuda or cuda:N") from error


def locate(name: str, needed: str = "config.json") -> tuple[str, dict[str, Any]]:
    """What `from_pretrained` wants for this name: the place, and `gguf_file` for a GGUF file."""
    path = Path(name).expanduser()
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise SourceNotFound(f"there is no GGUF file '{name}'", "a path to an existing file")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir() and not (path / needed).is_file():
        raise SourceNotFound(f"the folder '{name}' has no {needed}", "a Hugging Face model folder or a .gguf file")
    if not path.is_dir() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise SourceNotFound(f"there is no model folder '{name}'", "an existing folder, a .gguf file or a hub id")
    return (str(path) if path.is_dir() else name), {}


def load_model(name: str, settings: LoadSettings | None = None) -> PreTrainedModel:
    """The causal LM `name`, in evaluation mode.  Raises ``SourceNotFound`` or ``TargetError``."""
    settings = settings or LoadSettings()
    place, extra = locate(name)
    config = _reading(name, AutoConfig.from_pretrained, place, **extra)
    refuse_unrollable(config)
    if extra:
        extra["quantization_config"] = GgufConfig(dequantize=True)
    model = _reading(name, AutoModelForCausalLM.from_pretrained, place, dtype=settings.torch_dtype(), **extra)
    return model.to(settings.torch_device()).eval()


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer that belongs to the model `name`."""
    place, extra = locate(name, "tokenizer_config.json")
    return _reading(name, AutoTokenizer.from_pretrained, place, **extra)


def _reading(name: str, read: Any, place: str, **extra: Any) -> Any:
    try:
        return read(place, **extra)
    except OSError as error:
        first = str(error).strip().splitlines()[0]
        raise SourceNotFound(
            f"'{name}' could not be loaded: {first}",
            "a hub id that exists (and a network), a local folder or a .gguf file",
        ) from error
    except (ValueError, KeyError) as error:
        raise TargetError(
            f"'{name}' is not a causal language model that transformers can load: {str(error).splitlines()[0]}",
            "a decoder-only Hugging Face model",
        ) from error
