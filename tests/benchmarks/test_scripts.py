"""The scripts behind the figures run on a tiny pair, and what they print adds up."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
from kit.chats import asked
from kit.models import pair_folder

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pair_folder(tmp_path_factory.mktemp("bench_pair"))


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asked(tmp_path_factory.mktemp("asked") / "asked.jsonl", 4)


def printed(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> str:
    monkeypatch.syspath_prepend(SCRIPTS)
    monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
    monkeypatch.setenv("COLUMNS", "160")
    runpy.run_path(str(SCRIPTS / name), run_name="__main__")
    return capsys.readouterr().out


def test_peers_write_the_same_text(
    run: Path, task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = printed(
        "peers.py", monkeypatch, capsys, run, "--data", task, "--data.limit", 2, "--max_new_tokens", 12,
        "--work", tmp_path, "--peers", "eager", "hf", "hf-lookup", "hf-early-exit",
    )  # fmt: skip
    assert len(re.findall(r"2 of 2", out)) >= 4  # bfloat16: a near tie may cost one of the five
    for name in ("semiar eager, plain", "semiar eager, speculative", "transformers, prompt lookup", "early exit"):
        assert name in out
    assert (tmp_path / "merged" / "config.json").is_file()


def test_training_speed_measures_padded_passes_too(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = printed(
        "training_speed.py", monkeypatch, capsys, "--model", run.parent / "base", "--steps", 1, "--kinds", "lora",
        "joint", "--padded", "--memory", 0, "--data", asked(tmp_path / "asked.jsonl", 24),
    )  # fmt: skip
    kinds = re.findall(r"^(\w+(?:, padded)?) +[\d.]+ s a step", out, re.MULTILINE)
    assert kinds == ["lora", "lora, padded", "joint", "joint, padded"]
    assert "of the padded batches are pads" in out
    for ratio in ("joint / lora: ", "lora, padded / lora: ", "joint, padded / joint: "):
        assert ratio in out


def test_scaling_prints_a_row_for_each_size(
    run: Path, task: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = printed(
        "scaling.py", monkeypatch, capsys, run, "--data", task, "--data.limit", 4, "--max_new_tokens", 10,
        "--batches", 1, 3, "--lengths", 32, 64, 100_000,
    )  # fmt: skip
    assert "throughput, 4 prompts" in out and "beyond the model's context" in out
    assert len(re.findall(r"│\s+(32|64)\s+│\s+[\d.]+\s+│\s+[\d.]+\s+│\s+[\d.]+\s+│", out)) == 2
    assert len(re.findall(r"│\s+(1|3)\s+│\s+[\d.]+\s+│\s+\d\s+│", out)) == 2
