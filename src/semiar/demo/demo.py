"""`semiar demo`: fine-tune a real LLM with its drafter, see it decode faster, read the proof that nothing changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from semiar.demo import sql_set
from semiar.targets.load import smollm2


@dataclass(frozen=True)
class DemoSettings:
    """Size of the demonstration."""

    out: str = "runs/demo"
    """Folder of the pair, its report and its certificate."""
    samples: int = 280
    """Text-to-SQL samples to learn from."""
    refine_epochs: float = 6.0
    """Passes over them that only the drafter makes, on states computed once."""
    prompts: int = 12
    """Test prompts that are decoded both ways."""
    seed: int = 0


def run_demo(settings: DemoSettings, command: Callable[[Sequence[str]], int], console: Console) -> int:
    """Run the verbs a user would type, one after another; ``command`` runs one verb and returns its exit code."""
    begin = time.perf_counter()
    for words in verbs(settings, str(smollm2())):
        console.rule(f"semiar {words[0]}")
        console.print(f"$ semiar {' '.join(words)}", style="bold", highlight=False)
        code = command(words)
        if code:
            return code
        console.print(f"({time.perf_counter() - begin:.0f} s so far)", style="dim")
    console.rule("the same on your own data")
    console.print(
        "semiar train --model HuggingFaceTB/SmolLM2-135M-Instruct --data my.jsonl --out runs/mine\n"
        "semiar bench runs/mine --data my_test.jsonl\n"
        'semiar generate runs/mine "your prompt"',
        highlight=False,
    )
    return 0


def verbs(settings: DemoSettings, base: str) -> list[list[str]]:
    """The command lines of the demonstration, after its data set has been written."""
    out = Path(settings.out)
    data, joint, pair = str(out / "data"), str(out / "joint"), str(out / "pair")
    sql_set.write(out / "data" / "sql", settings.samples + 32, 200, settings.seed)
    train = [
        "train", "--model", base, "--data", "sql", "--data.folder", data, "--training.eval_samples", "32",
        "--training.per_device_train_batch_size", "4", "--training.drafter_learning_rate", "2e-3",
        "--training.seed", str(settings.seed), "--drafter.num_speculative_tokens", "6",
    ]  # fmt: skip
    refine = [
        "--mode", "after", "--adapter", joint, "--init_drafter", joint, "--loss.anchors_per_sample", "32",
        "--training.num_train_epochs", str(settings.refine_epochs), "--training.logging_steps", "100",
    ]  # fmt: skip
    return [
        ["data", "sql", "--data.folder", data, "--model", base, "--data.limit", "100"],
        [*train, "--out", joint, "--training.learning_rate", "5e-4"],
        [*train, "--out", pair, *refine],
        [
            "bench",
            pair,
            "--data.limit",
            str(settings.prompts),
            "--max_new_tokens",
            "80",
            "--base",
            "--num_speculative_tokens",
            "auto",
        ],
        ["verify", pair, "--data.limit", "3", "--max_new_tokens", "32", "--samples", "60"],
    ]
