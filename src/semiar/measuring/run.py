"""Run plain and speculative decoding side by side and write down what happened; computes no metric.

Both go through the same loop with the same target, prompts and precision; the baseline is the loop with an empty draft.
Their steps are taken in turn, so that a machine that slows down slows both; where the figures cannot be, the machine
was disturbed all the same, and everything is measured again.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import torch
import transformers
from rich.console import Console
from rich.progress import track

from semiar.data.samples import Record
from semiar.data.tasks.registry import load_any, scorer
from semiar.decoding import Limits
from semiar.decoding.calibrate import calibrate, choose_count
from semiar.errors import ConfigError
from semiar.measuring.metrics import disturbance
from semiar.measuring.recording import Recording, side_by_side
from semiar.measuring.trace import pairs_of
from semiar.pair import Pair
from semiar.records import stamped
from semiar.settings import AUTO, DataSource, Decoding, Load, at_least
from semiar.targets import Target
from semiar.version import __version__

PROMPTS = 40  # that are decoded unless said otherwise
ATTEMPTS = 3  # at figures that can be
WARM_UP = 64  # tokens decoded before anything is recorded: enough for every graph to be compiled


@dataclass(frozen=True)
class BenchSettings:
    """What is measured."""

    data: DataSource = field(default_factory=DataSource)
    """The prompts; limit left out: 40."""
    rounds: int = 1
    """How often each prompt is decoded in each way."""
    profile: bool = False
    """Also record where a step's time goes: draft, target, law, accept, cache, report, Python, detokenisation."""
    base: bool = False
    """Also decode with the base model, to show what the adapter does for the task metric."""
    out: str = ""
    """Folder of trace, metrics and report; left out: RUN/bench."""
    load: Load = field(default_factory=Load)
    decoding: Decoding = field(default_factory=Decoding)

    def __post_init__(self) -> None:
        at_least(self, rounds=1)
        object.__setattr__(self, "data", DataSource.of(self.data).filled(split="test", limit=PROMPTS))
        object.__setattr__(self, "decoding", self.decoding.filled(seed=0))
        if not self.decoding.longest:
            raise ConfigError("max_new_tokens 0", "1 or more")


def run_bench(pair: Pair, settings: BenchSettings, trace: Path, base: Target | None, console: Console) -> None:
    """Write ``trace.jsonl``: header, machine costs, every generation, task scores."""
    asked, data = settings.decoding, settings.data.filled(pair.source)
    most = pair.drafter.settings.num_speculative_tokens
    if asked.num_speculative_tokens != AUTO:
        pair.count(asked, [])  # refuses what the drafter cannot do, before anything is loaded
    records = load_any(data, asked.seed).records
    prompts = [pair.encode(record.prompt_messages) for record in records]
    limits = pair.limits(asked.longest)
    machine = calibrate(pair, prompts, limits, asked.sampling, asked.rule, console)
    count: Any
    count, how = pair.count(replace(asked, num_speculative_tokens=None), []), "the pair's own"
    if asked.num_speculative_tokens == AUTO and asked.tree == "none":
        count, how = choose_count(machine), "chosen from the measured costs"
    elif asked.num_speculative_tokens == AUTO:  # the costs are those of chains: a tree is as deep as the drafter can
        count, how = most, "the drafter's depth"
    elif asked.num_speculative_tokens is not None:
        count, how = asked.num_speculative_tokens, "as asked"
    console.print(f"K = {count}, {how}")
    trace.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, ATTEMPTS + 1):
        runs = []
        with trace.open("w", encoding="utf-8") as file:
            about = header(pair, settings, data.source, count) | {"attempt": attempt, "prompts": fingerprint(prompts)}
            _write(file, stamped(about))
            _write(file, {"kind": "machine", **asdict(machine)})
            for run in _generations(pair, settings, prompts, limits, count, base):
                runs.append(run)
                _write(file, run | {"reference": records[run["prompt"]].answer})
            _scores(file, runs, records, data.source)
        found = disturbance(pairs_of(runs))
        if not found:
            return
        again = "; measuring again" if attempt < ATTEMPTS else "; no figure of it is to be believed"
        console.print(f"[yellow]disturbed: {found}{again}[/]", soft_wrap=True)


def fingerprint(prompts: Sequence[Sequence[int]]) -> str:
    """Identity of the prompts that are measured on."""
    return hashlib.sha256(json.dumps([list(one) for one in prompts]).encode()).hexdigest()[:16]


def header(pair: Pair, settings: BenchSettings, source: str, count: int) -> dict[str, Any]:
    """Everything that a reader needs to judge the figures."""
    device = pair.target.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "kind": "header", "semiar": __version__, "torch": torch.__version__, "transformers": transformers.__version__,
        "python": platform.python_version(), "model": Path(pair.base).name, "drafter": asdict(pair.drafter.settings),
        "drafter_name": pair.drafter.label,
        "parameters": sum(p.numel() for p in pair.drafter.parameters()), "task": Path(source).name,
        "engine": pair.target.engine, "dtype": str(pair.target.dtype).removeprefix("torch."),
        "device": f"{device.type} ({name})",
        "threads": torch.get_num_threads(), "batch": 1, "temperature": settings.decoding.sampling.effective_temperature,
        "top_k": settings.decoding.top_k, "top_p": settings.decoding.top_p,
        "min_p": settings.decoding.min_p, "rule": settings.decoding.rule,
        "plan": {k: v for k, v in asdict(settings.decoding.plan).items() if k != "count"},
        "lossless": settings.decoding.lossless,
        "num_speculative_tokens": count, "max_new_tokens": settings.decoding.longest, "seed": settings.decoding.seed,
        "rounds": settings.rounds, "baseline": "the same loop, target, precision and prompts with an empty draft",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


def _generations(
    pair: Pair, settings: BenchSettings, prompts: Sequence[list[int]], limits: Limits, count: int, base: Target | None
) -> Iterator[dict[str, Any]]:
    asked, target = settings.decoding, pair.target

    def start(target: Target, prompt: list[int], limits: Limits, k: int, round_: int = 0) -> Recording:
        seed = (asked.seed or 0) + round_
        return Recording(pair, target, prompt, limits, asked, k, seed=seed, profile=settings.profile)

    for one, k in ((target, 0), (target, count), *(() if base is None else ((base, 0),))):  # warm up, not recorded
        start(one, prompts[0], Limits(WARM_UP, limits.end_ids), k).whole()
    total = [(r, i) for r in range(settings.rounds) for i in range(len(prompts))]
    for round_, index in track(total, description="decoding"):
        prompt = prompts[index]
        plain, fast = (start(target, prompt, limits, k, round_) for k in (0, count))
        first = (round_ + index) % 2 == 0
        side_by_side(plain, fast, plain_first=first)
        runs = {"plain": plain, "speculative": fast} if first else {"speculative": fast, "plain": plain}
        if base is not None and not round_:
            runs["base"] = start(base, prompt, limits, 0).whole()
        for mode, run in runs.items():
            yield {"kind": "generation", "mode": mode, "prompt": index, "round": round_, **run.record()}


def _scores(file: TextIO, runs: Sequence[dict[str, Any]], records: Sequence[Record], source: str) -> None:
    score, _ = scorer(source)
    for mode in ("plain", "speculative", "base"):
        chosen = [run for run in runs if run["mode"] == mode and run["round"] == 0]
        if chosen:
            metrics = score([r["text"] for r in chosen], [records[r["prompt"]].answer for r in chosen])
            _write(file, {"kind": "score", "mode": mode, "metrics": metrics})


def _write(file: TextIO, record: dict[str, Any]) -> None:
    file.write(json.dumps(record, ensure_ascii=False) + "\n")
    file.flush()
