"""A small comparison, run once through the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.models import save_base

from semiar.cli import main
from semiar.studies.run import read_rows


def recipe(base: Path, data: Path, out: Path, **changes: Any) -> dict[str, Any]:
    return {
        "model": str(base), "out": str(out), "tasks": [{"data": str(data), "max_new_tokens": 8}],
        "drafters": {
            "semi": {"architecture": "semi", "small_lm": "lstm"},
            "medusa": {"architecture": "medusa"}, "lookup": {"architecture": "lookup"},
            "hybrid": {"architecture": "hybrid"}, "broken": {"architecture": "eagle", "num_heads": 3},
        },
        "studies": ["main", "staleness", "count"], "num_speculative_tokens": 2, "draft_vocab_size": 64,
        "training": {
            "max_steps": 2, "per_device_train_batch_size": 4, "eval_samples": 2, "learning_rate": 1e-3,
        },
        "data": {"limit": 12}, "regenerate": False, "test": {"limit": 2}, **changes,
    }  # fmt: skip


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("model") / "base")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "sums.jsonl"
    rows = [
        {"prompt": f"{a} plus {b}?", "completion": f"{a + b}, that is {a + b}."} for a in range(6) for b in range(4)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def folder(base: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the comparison's results are; one of its drafters cannot be built."""
    out = tmp_path_factory.mktemp("compare") / "out"
    path = out.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(recipe(base, data, out), sort_keys=False))
    assert main(["compare", "--config", str(path)]) == 1
    return out


@pytest.fixture(scope="session")
def rows(folder: Path) -> list[dict[str, Any]]:
    return read_rows(folder)
