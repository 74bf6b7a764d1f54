"""Run plain and speculative decoding side by side and write down what happened; computes no metric.

Both go through the same loop with the same target, prompts and precision; the baseline is the loop with an empty draft.
Runs are interleaved prompt by prompt, the order alternating, so that a machine that slows down slows both.
"""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, TextIO

import torch
import transformers
from rich.console import Console
from rich.progress import track

from semiar.bench.calibrate import calibrate, choose_count
from semiar.core.draft import Plan
from semiar.core.sampling import Sampling
from semiar.data.chat import ChatRenderer
from semiar.data.samples import Record
from semiar.data.tasks.registry import load_any, scorer
from semiar.decoding import Limits, decode
from semiar.decoding.loop import RULES
from semiar.decoding.text import Detokenizer, generator
from semiar.errors import ConfigError
from semiar.pair import Pair
from semiar.targets import Target
from semiar.version import __version__

WARM_UP = 64  # tokens decoded before anything is recorded: enough for every graph to be compiled


@dataclass(frozen=True)
class BenchSettings:
    """What is measured."""

    task: str = ""
    """Task or data source; default: the one the pair was trained on."""
    split: str = "test"
    """Which split of it."""
    folder: str = ""
    """Local folder of the named tasks; default: SEMIAR_DATA, else the hub."""
    prompts: int = 40
    """How many prompts."""
    rounds: int = 1
    """How often each prompt is decoded in each way."""
    max_new_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    num_speculative_tokens: int = 0
    """K; 0 = the one that the measured costs and acceptance recommend."""
    plan: Plan = field(default_factory=Plan)
    """Trees and stopping early; its count is not used."""
    rule: str = "exact"
    """exact, block (block verification), or none (LOSSY: drafts unverified)."""
    seed: int = 0
    profile: bool = False
    """Also record where a step's time goes: draft, target, law, accept, cache, report, Python, detokenisation."""
    base: bool = False
    """Also decode with the base model, to show what the adapter does for the task metric."""

    def __post_init__(self) -> None:
        if min(self.prompts, self.rounds, self.max_new_tokens) < 1:
            raise ConfigError(
                f"prompts {self.prompts}, rounds {self.rounds}, max_new_tokens {self.max_new_tokens}",
                "at least 1 of each",
            )
        if self.rule not in RULES:
            raise ConfigError(f"rule '{self.rule}'", f"one of {', '.join(RULES)}")
        self.sampling()  # refuses what cannot be

    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_k, self.top_p)


def run_bench(pair: Pair, settings: BenchSettings, trace: Path, base: Target | None, console: Console) -> None:
    """Write ``trace.jsonl``: header, machine costs, every generation, task scores."""
    most = pair.drafter.settings.num_speculative_tokens
    if not 0 <= settings.num_speculative_tokens <= most:
        raise ConfigError(
            f"num_speculative_tokens {settings.num_speculative_tokens}",
            f"0 (chosen by measuring) to {most}, the drafter's K",
        )
    source = settings.task or pair.run.get("data", "")
    folder = settings.folder or pair.run.get("samples", {}).get("folder") or None
    records = load_any(source, settings.split, folder, settings.prompts, settings.seed).records
    renderer = ChatRenderer(pair.tokenizer)
    prompts = [renderer.prompt(record.prompt_messages) for record in records]
    limits = Limits(settings.max_new_tokens, tuple(pair.end_ids()))
    machine = calibrate(pair, prompts, limits, settings.sampling(), settings.rule, console)
    chain = settings.plan.tree == "none"  # the costs are those of chains: a tree is as deep as the drafter can
    count = settings.num_speculative_tokens or (choose_count(machine) if chain else most)
    chosen = chain and not settings.num_speculative_tokens
    console.print(f"K = {count}" + (", chosen from the measured costs" if chosen else ""))
    trace.parent.mkdir(parents=True, exist_ok=True)
    with trace.open("w", encoding="utf-8") as file:
        _write(file, header(pair, settings, source, count))
        _write(file, {"kind": "machine", **asdict(machine)})
        runs = []
        for run in _generations(pair, settings, prompts, limits, count, base):
            runs.append(run)
            _write(file, run | {"reference": records[run["prompt"]].answer})
        _scores(file, runs, records, source)


def header(pair: Pair, settings: BenchSettings, source: str, count: int) -> dict[str, Any]:
    """Everything that a reader needs to judge the figures."""
    device = pair.target.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "kind": "header", "semiar": __version__, "torch": torch.__version__, "transformers": transformers.__version__,
        "python": platform.python_version(), "model": Path(pair.base).name, "drafter": asdict(pair.drafter.settings),
        "parameters": sum(p.numel() for p in pair.drafter.parameters()), "task": Path(source).name,
        "engine": pair.target.engine, "dtype": str(pair.target.dtype).removeprefix("torch."),
        "device": f"{device.type} ({name})",
        "threads": torch.get_num_threads(), "batch": 1, "temperature": settings.sampling().effective_temperature,
        "top_k": settings.top_k, "top_p": settings.top_p, "rule": settings.rule,
        "plan": {k: v for k, v in asdict(settings.plan).items() if k != "count"}, "lossless": settings.rule != "none",
        "num_speculative_tokens": count, "max_new_tokens": settings.max_new_tokens, "seed": settings.seed,
        "rounds": settings.rounds, "baseline": "the same loop, target, precision and prompts with an empty draft",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


def _generations(
    pair: Pair, settings: BenchSettings, prompts: Sequence[list[int]], limits: Limits, count: int, base: Target | None
) -> Iterator[dict[str, Any]]:
    ways: list[tuple[str, Target, int]] = [("plain", pair.target, 0), ("speculative", pair.target, count)]
    if base is not None:
        ways.append(("base", base, 0))
    for _, target, k in ways:  # warm up, not recorded
        generation(pair, target, prompts[0], Limits(WARM_UP, limits.end_ids), settings, k)
    total = [(r, i) for r in range(settings.rounds) for i in range(len(prompts))]
    for round_, index in track(total, description="decoding"):
        order = ways if (round_ + index) % 2 == 0 else [ways[1], ways[0], *ways[2:]]
        for mode, target, k in order:
            if mode == "base" and round_:
                continue
            run = generation(pair, target, prompts[index], limits, settings, k, seed=settings.seed + round_)
            yield {"kind": "generation", "mode": mode, "prompt": index, "round": round_, **run}


def generation(
    pair: Pair, target: Target, prompt: list[int], limits: Limits, settings: BenchSettings, count: int, seed: int = 0
) -> dict[str, Any]:
    """Decode one prompt and record every step."""
    ids: list[int] = []
    origins: list[str] = []
    steps: list[dict[str, Any]] = []
    reason = "length"
    rng = generator(target, seed)
    begin = perf_counter()
    first: float | None = None
    loop = decode(
        target, pair.drafter, [prompt], limits, settings.sampling(), rng=rng, num_speculative_tokens=count,
        rule=settings.rule if count else "exact", profile=settings.profile, plan=settings.plan,
    )  # fmt: skip
    for step in loop:
        if first is None:
            first = perf_counter() - begin - step.seconds  # what came before the first step: the prompt
        new, accepted = step.tokens[0], step.accepted[0]
        ids.extend(new)
        origins.extend("drafted" if i < accepted else "target" for i in range(len(new)))
        reason = step.finished[0] or reason
        rest = step.seconds - step.draft_seconds - step.verify_seconds
        steps.append({
            "drafted": step.drafted, "depth": step.depth, "accepted": accepted, "emitted": len(new),
            "draft_ms": round(1e3 * step.draft_seconds, 4), "verify_ms": round(1e3 * step.verify_seconds, 4),
            "overhead_ms": round(1e3 * rest, 4),
        })  # fmt: skip
        if settings.profile:
            steps[-1]["parts_ms"] = {part: round(1e3 * spent, 4) for part, spent in step.parts.items()}
    seconds = perf_counter() - begin
    pieces = Detokenizer(pair.tokenizer)
    texts = [pieces.push([token], final=i + 1 == len(ids)) for i, token in enumerate(ids)]
    return {
        "detokenise_seconds": perf_counter() - begin - seconds,
        "prompt_tokens": len(prompt), "token_ids": ids, "pieces": texts, "origins": origins, "text": "".join(texts),
        "finish_reason": reason, "seconds": seconds, "prefill_seconds": first or 0.0, "steps": steps,
    }  # fmt: skip


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
