"""The last screen of the demonstration."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from semiar.demo import demo


def test_the_last_screen_says_what_the_files_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "smollm2", lambda: tmp_path / "model")
    metrics = {
        "num_speculative_tokens": 6,
        "prompts": 8,
        "acceptance": {"tokens_per_pass": 4.25},
        "speed": {
            "speedup": 2.61, "speedup_without_prefill": 3.14,
            "tokens_per_second_plain": 100, "tokens_per_second": 261.4,
        },
        "texts": {"compared": 8, "equal": 7},
        "scores": {"base": {"sql_match": 0.0}, "plain": {"sql_match": 0.625}, "speculative": {"sql_match": 0.5}},
    }  # fmt: skip
    proof = {"passed": False, "greedy_tokens": 288, "dtype": "float32", "differences": [{}], "sampled_texts": 60}
    seen: list[str] = []

    def command(words: Any) -> int:
        seen.append(words[0])
        pair = tmp_path / "[red]demo" / "pair"
        if words[0] == "bench":
            (pair / "bench").mkdir(parents=True)
            (pair / "bench" / "metrics.json").write_text(json.dumps(metrics))
        if words[0] == "verify":
            (pair / "certificate.json").write_text(json.dumps(proof))
        return 0

    console = Console(record=True, width=200, file=io.StringIO())
    assert demo.run_demo(demo.DemoSettings(out=str(tmp_path / "[red]demo"), samples=20), command, console) == 0
    assert seen == ["data", "train", "train", "bench", "verify"]
    said = " ".join(console.export_text().split())
    for figure in (
        "0% of 8", "62% after", "2.6 times", "3.1 times", "100 → 261", "4.2 tokens per pass", "7 of 8 texts",
        "NOT passed", "288 greedy tokens", "1 differences", "60 sampled", "0 min 0 s", "[red]demo",
    ):  # fmt: skip
        assert figure in said, figure
    for words in ('{"prompt": ', "semiar train --model", "semiar bench", "semiar verify", "semiar generate"):
        assert words in said
