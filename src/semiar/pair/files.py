"""A pair's folder: what lies in it, how it is read, and how it is replaced without ever being half there.

A folder holds a plain PEFT adapter (``adapter_config.json``, ``adapter_model.safetensors``; absent when only the
drafter was trained), ``drafter/``, the tokenizer's files, ``run.yaml`` (what was asked for) and ``metrics.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import yaml

from semiar.errors import PairError, SourceNotFound
from semiar.records import check, stamped
from semiar.settings import DataSource

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
MOVING = "saving.unfinished"  # in a folder whose files are being replaced


def read_run(folder: Path) -> dict[str, Any]:
    """What was asked for when the pair was made.  Raises ``PairError`` for half a folder, or one of a later version."""
    if (folder / MOVING).exists():
        raise PairError(
            f"a save into '{folder}' was broken off half-way",
            "a whole pair",
            f"move the rest over from '{folder.name}.saving' and delete '{MOVING}', or save again",
        )
    if not (folder / "run.yaml").is_file():
        raise SourceNotFound(f"'{folder}' has no run.yaml", "a folder written by semiar train")
    run = yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8"))
    return check(run, f"'{folder}/run.yaml'")


def read_metrics(folder: Path) -> dict[str, Any]:
    """What the training measured; empty when nothing was."""
    path = folder / "metrics.json"
    return check(json.loads(path.read_text(encoding="utf-8")), f"'{path}'") if path.is_file() else {}


def source_of(run: dict[str, Any]) -> DataSource:
    """What a pair was trained on, also in the words of earlier versions."""
    said = run.get("data") or ""
    if isinstance(said, str):
        return DataSource(said, folder=run.get("samples", {}).get("folder") or "")
    return DataSource(said.get("source", ""), folder=said.get("folder", ""))


def write_records(folder: Path, run: dict[str, Any], metrics: dict[str, Any]) -> None:
    """``run.yaml`` and ``metrics.json``."""
    (folder / "run.yaml").write_text(yaml.safe_dump(stamped(run), sort_keys=False), encoding="utf-8")
    (folder / "metrics.json").write_text(json.dumps(stamped(metrics), indent=2) + "\n", encoding="utf-8")


def move_in(fresh: Path, folder: Path) -> None:
    """Move what lies in `fresh` to `folder`; until that is done a mark keeps half of it from being loaded."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / MOVING
    mark.write_text(f"{fresh}\n", encoding="utf-8")
    for name in ADAPTER_FILES:
        if not (fresh / name).exists():
            (folder / name).unlink(missing_ok=True)  # of an earlier pair: it would be loaded with this one
    for item in fresh.iterdir():
        goal = folder / item.name
        if goal.is_dir():
            shutil.rmtree(goal)
        os.replace(item, goal)
    fresh.rmdir()
    mark.unlink()


def fingerprint(tokenizer: Any) -> str:
    """Identity of a tokenizer's vocabulary: which text has which id."""
    words = sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


def adapter_hash(folder: Path) -> str:
    """Identity of the adapter's weights in a folder; empty when there are none."""
    weights = folder / ADAPTER_FILES[1]
    return hashlib.sha256(weights.read_bytes()).hexdigest() if weights.is_file() else ""
