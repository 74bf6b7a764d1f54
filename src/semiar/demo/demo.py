"""`semiar demo`: fine-tune a real LLM with its drafter, see it decode faster, read the proof that nothing changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from semiar.demo import sql_set
from semiar.demo.model import smollm2


@dataclass(frozen=True)
class DemoSettings:
    """Size of the demonstration."""

    out: str = "runs/demo"
    """Folder of the pair, its report and its certificate."""
    samples: int = 900
    """Text-to-SQL samples to learn from."""
    epochs: float = 2.0
    """Passes over them."""
    prompts: int = 24
    """Test prompts that are decoded both ways."""
    seed: int = 0


def run_demo(settings: DemoSettings, command: Callable[[Sequence[str]], int], console: Console) -> int:
    """Run the verbs a user would type, one after another; ``command`` runs one verb and returns its exit code."""
    begin = time.perf_counter()
    base = smollm2()
    data = Path(settings.out) / "data"
    sql_set.write(data / "sql", settings.samples + 32, 200, settings.seed)
    run = str(Path(settings.out) / "pair")
    verbs = [
        ["data", "sql", "--folder", str(data), "--model", str(base), "--limit", "100"],
        [
            "train", "--model", str(base), "--data", "sql", "--samples.folder", str(data), "--out", run,
            "--samples.eval_samples", "32", "--optim.num_train_epochs", str(settings.epochs),
            "--optim.learning_rate", "5e-4", "--optim.drafter_learning_rate", "2e-3",
            "--optim.seed", str(settings.seed),
        ],
        ["bench", run, "--prompts", str(settings.prompts), "--max_new_tokens", "96", "--base", "true"],
        ["verify", run, "--prompts", "6", "--max_new_tokens", "48", "--samples", "240"],
    ]  # fmt: skip
    for words in verbs:
        console.rule(f"semiar {words[0]}")
        console.print(f"$ semiar {' '.join(words)}", style="bold", highlight=False)
        code = command(words)
        if code:
            return code
        console.print(f"({time.perf_counter() - begin:.0f} s so far)", style="dim")
    console.rule("the same on your own data")
    console.print(
        "semiar train --model HuggingFaceTB/SmolLM2-135M-Instruct --data my.jsonl --out runs/mine\n"
        "semiar bench runs/mine\n"
        'semiar generate runs/mine "your prompt"',
        highlight=False,
    )
    return 0
