"""Run plain and speculative decoding side by side and write down what happened; computes no metric.

Both go through the same loop with the same target, prompts and precision; the baseline is the loop with an empty draft.
Runs are interleaved prompt by prompt, the order alternating, so that a machine that slows down slows both.
"""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, TextIO

import torch
import transformers
from rich.console import Console
from rich.progress import track

from semiar.data.samples import Record
from semiar.data.tasks.registry import load_any, scorer
from semiar.decoding import Limits, decode
from semiar.decoding.calibrate import calibrate, choose_count
from semiar.decoding.text import Detokenizer, generator
from semiar.errors import ConfigError
from semiar.pair import Pair
from semiar.records import stamped
from semiar.settings import AUTO, DataSource, Decoding, Load, at_least
from semiar.targets import Target
from semiar.version import __version__

PROMPTS = 40  # that are decoded unless said otherwise
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
    with trace.open("w", encoding="utf-8") as file:
        _write(file, stamped(header(pair, settings, data.source, count)))
        _write(file, {"kind": "machine", **asdict(machine)})
        runs = []
        for run in _generations(pair, settings, prompts, limits, count, base):
            runs.append(run)
            _write(file, run | {"reference": records[run["prompt"]].answer})
        _scores(file, runs, records, data.source)


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
            run = generation(
                pair, target, prompts[index], limits, settings, k, seed=(settings.decoding.seed or 0) + round_
            )
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
        target, pair.drafter, [prompt], limits, settings.decoding.sampling, rng=rng, num_speculative_tokens=count,
        rule=settings.decoding.rule if count else "exact", profile=settings.profile, plan=settings.decoding.plan,
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
