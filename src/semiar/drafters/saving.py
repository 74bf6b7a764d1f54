"""A drafter's folder: ``config.json`` and its own weights, borrowed tensors left out."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from semiar.drafters.base import Drafter
from semiar.drafters.registry import build_drafter, design, drafter_settings
from semiar.errors import ConfigError, PairError, SourceNotFound
from semiar.targets.target import Target


def save_drafter(drafter: Drafter, folder: Path, about: dict[str, Any]) -> None:
    """Write ``config.json`` and ``model.safetensors``; borrowed tensors are not saved."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": [type(drafter).__name__], "model_type": "semiar_drafter", **about}
    config |= {"settings": asdict(drafter.settings), "extra": drafter.extra_config()}
    config |= {name: config["settings"].get(name) for name in ("num_speculative_tokens", "draft_vocab_size")}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors = {name: value.detach().to("cpu").contiguous() for name, value in drafter.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def load_drafter(folder: Path, target: Target) -> Drafter:
    """The drafter in `folder`, bound to `target`.  Raises ``PairError`` when they do not belong together."""
    config = read_config(folder)
    settings, extra = saved_settings(config, folder)
    size = target.hidden_size
    if config.get("hidden_size", size) != size:
        found = config["hidden_size"]
        raise PairError(f"the drafter in '{folder}' was made for hidden_size {found}", f"{size}, as the target has")
    try:
        tensors = load_file(folder / "model.safetensors")
    except (FileNotFoundError, SafetensorError) as error:
        raise PairError(
            f"'{folder}/model.safetensors' cannot be read: {error}", "a complete drafter", "copy it again"
        ) from error
    vocab = tensors.get("d2t")
    drafter = build_drafter(settings, target, vocab, extra)
    load_weights(drafter, tensors, str(folder))
    return drafter.bind(target)


def saved_settings(config: dict[str, Any], folder: Path) -> tuple[Any, dict[str, Any]]:
    """The settings of a saved drafter, and what else building it takes; those of earlier versions become today's.

    Raises ``PairError`` for settings that this version does not know.
    """
    given, extra = dict(config["settings"]), dict(config["extra"])
    kind = design(given.get("architecture", ""))
    if "options" in given:  # saved when all designs shared one form
        given = kind.modernised(given, extra)
    try:
        return drafter_settings(given), extra
    except ConfigError as error:
        raise PairError(
            f"'{folder}/config.json' has settings that do not fit: {error}", "settings of this semiar version"
        ) from error


def read_config(folder: Path) -> dict[str, Any]:
    """The ``config.json`` of a saved drafter."""
    try:
        return json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SourceNotFound(f"'{folder}' has no config.json", "a folder written by semiar train") from error
    except json.JSONDecodeError as error:
        raise PairError(f"'{folder}/config.json' is not JSON: {error}", "a complete drafter") from error


def load_weights(drafter: Drafter, tensors: dict[str, Tensor], place: str) -> None:
    """Fill the drafter; every tensor must be there and fit.  Raises ``PairError`` naming what is missing."""
    own = drafter.state_dict()
    missing, unknown = sorted(set(own) - set(tensors)), sorted(set(tensors) - set(own))
    shapes = [name for name in own if name in tensors and own[name].shape != tensors[name].shape]
    problems = (
        [f"missing {n}" for n in missing] + [f"unknown {n}" for n in unknown] + [f"other shape {n}" for n in shapes]
    )
    if problems:
        raise PairError(
            f"the drafter in '{place}' does not fit: {', '.join(problems[:4])}",
            "exactly the tensors that its config.json describes",
            "train it again or restore the file",
        )
    drafter.load_state_dict(tensors)
