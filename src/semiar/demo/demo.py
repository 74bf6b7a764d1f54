"""`semiar demo`: fine-tune a real LLM with its drafter, see it decode faster, read the proof that nothing changed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from semiar.demo import sql_set
from semiar.targets.load import smollm2


@dataclass(frozen=True)
class DemoSettings:
    """Size of the demonstration."""

    out: str = "runs/demo"
    """Folder of the pair, its report and its certificate."""
    samples: int = 192
    """Text-to-SQL samples to learn from."""
    refine_epochs: float = 5.0
    """Passes over them that only the drafter makes, on states computed once."""
    prompts: int = 12
    """Test prompts that are decoded both ways."""
    seed: int = 0


def run_demo(settings: DemoSettings, command: Callable[[Sequence[str]], int], console: Console) -> int:
    """Run the verbs a user would type, one after another; ``command`` runs one verb and returns its exit code."""
    begin = time.perf_counter()
    for words in verbs(settings, str(smollm2())):
        console.rule(f"semiar {words[0]}")
        console.print(f"$ semiar {' '.join(words)}", style="bold", highlight=False, markup=False)
        code = command(words)
        if code:
            return code
        console.print(f"({time.perf_counter() - begin:.0f} s so far)", style="dim")
    console.print(shown(Path(settings.out) / "pair", time.perf_counter() - begin))
    console.print(next_steps(), highlight=False)
    return 0


def verbs(settings: DemoSettings, base: str) -> list[list[str]]:
    """The command lines of the demonstration, after its data set has been written."""
    out = Path(settings.out)
    data, joint, pair = str(out / "data"), str(out / "joint"), str(out / "pair")
    sql_set.write(out / "data" / "sql", settings.samples + HELD_OUT, 200, settings.seed)
    train = [
        "train", "--model", base, "--data", "sql", "--data.folder", data, "--training.eval_samples", str(HELD_OUT),
        "--training.per_device_train_batch_size", "4", "--training.drafter_learning_rate", "2e-3",
        "--training.seed", str(settings.seed), "--drafter.num_speculative_tokens", "7",
    ]  # fmt: skip
    refine = [
        "--mode", "after", "--adapter", joint, "--init_drafter", joint, "--loss.anchors_per_sample", "32",
        "--training.num_train_epochs", str(settings.refine_epochs), "--training.logging_steps", "100",
    ]  # fmt: skip
    measured = ["--max_new_tokens", "104", "--base", "--num_speculative_tokens", "auto"]
    return [
        ["data", "sql", "--data.folder", data, "--model", base, "--data.limit", "100"],
        [*train, "--out", joint, "--training.learning_rate", "1e-3"],
        [*train, "--out", pair, *refine],
        ["bench", pair, "--data.limit", str(settings.prompts), *measured],
        ["verify", pair, "--data.limit", "3", "--max_new_tokens", "32", "--samples", "60"],
    ]


HELD_OUT = 16  # training samples that acceptance is measured on


def shown(pair: Path, seconds: float) -> Panel:
    """In plain words, what the run has shown, from the files that it wrote."""
    found = json.loads((pair / "bench" / "metrics.json").read_text(encoding="utf-8"))
    proof = json.loads((pair / "certificate.json").read_text(encoding="utf-8"))
    scores, speed, texts = found["scores"], found["speed"], found["texts"]
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold cyan", no_wrap=True, justify="right")
    table.add_column()
    rows = (
        (
            "The model learned the task",
            f"{scores['base']['sql_match']:.0%} of {found['prompts']} queries on schemas it had never seen were right "
            f"before the fine-tune, {scores['plain']['sql_match']:.0%} after it",
        ),
        (
            f"It answers {speed['speedup']:.1f} times as fast",
            f"{speed['tokens_per_second_plain']:.0f} → {speed['tokens_per_second']:.0f} tokens a second with the "
            f"drafter, prompt included; {speed['speedup_without_prefill']:.1f} times without the prompt",
        ),
        (
            "Because it guesses well",
            f"{found['acceptance']['tokens_per_pass']:.1f} tokens per pass of the model instead of 1; "
            f"the drafter guesses {found['num_speculative_tokens']} ahead",
        ),
        (
            "And the text is the same",
            f"{texts['equal']} of {texts['compared']} texts equal those of plain decoding, token by token",
        ),
        (
            "Certificate " + ("passed" if proof["passed"] else "NOT passed"),
            f"{proof['greedy_tokens']} greedy tokens compared in {proof['dtype']}, {len(proof['differences'])} "
            f"differences; the law of {proof['sampled_texts']} sampled texts tested",
        ),
        ("All of it took", f"{seconds // 60:.0f} min {seconds % 60:.0f} s"),
        ("Look at", f"{escape(str(pair / 'bench' / 'report.html'))} and {escape(str(pair / 'certificate.json'))}"),
    )
    for row in rows:
        table.add_row(*row)
    return Panel(table, title="what was shown", border_style="green", padding=(1, 2))


def next_steps() -> Panel:
    """What to type for a task of one's own."""
    text = (
        "One sample a line in train.jsonl, others like them in test.jsonl:\n\n"
        '  {"prompt": "your question", "completion": "the answer to learn"}\n\n'
        "  semiar train --model smollm2 --data train.jsonl --out runs/mine\n"
        "  semiar bench runs/mine --data test.jsonl --base\n"
        "  semiar verify runs/mine --data test.jsonl\n"
        '  semiar generate runs/mine "your question"'
    )
    return Panel(escape(text), title="the same on your own data", border_style="cyan", padding=(1, 2))
