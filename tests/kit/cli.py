"""Words for the command line, and what a refusal looks like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semiar.cli.main import main, parser
from semiar.cli.words import normalised

SMALL = [
    "--load.dtype", "float32", "--lora.r", "4", "--drafter.num_speculative_tokens", "3",
    "--drafter.draft_vocab_size", "64", "--drafter.lora_r", "4", "--drafter.num_heads", "2",
    "--training.per_device_train_batch_size", "4", "--training.max_steps", "4", "--training.no_bf16",
    "--training.logging_steps", "2", "--training.eval_steps", "2", "--training.eval_samples", "4",
    "--training.learning_rate", "1e-3",
]  # fmt: skip


def train_words(base: Path, data: Path, out: Path, *more: str) -> list[str]:
    return ["train", "--model", str(base), "--data", str(data), "--out", str(out), *SMALL, *more]


def parsed(words: list[str]) -> Any:
    """What the parser makes of a command line, without running it: the options of its verb."""
    top = parser(words)
    return top.parse_args(normalised(words, words[0], top.switches_of(words[0])))[words[0]]


def refused(capsys: pytest.CaptureFixture[str], words: list[str], *expected: str, lines: int = 1) -> str:
    """Exit code 2 and a last line on stderr that holds all of ``expected``."""
    capsys.readouterr()
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    assert not lines or err.count("\n") == lines, err
    last = err.strip().splitlines()[-1]
    assert last.startswith("semiar: ")
    for part in expected:
        assert part in last, last
    return last
