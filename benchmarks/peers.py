"""semiar against what one would use instead, on the same prompts, interleaved, texts compared.

    python benchmarks/peers.py RUN --data sql --data.folder DATA [--data.limit 20] [--max_new_tokens 96]
        [--peers native hf hf-lookup vllm llama.cpp llama.cpp-q8_0 llama.cpp-q4_0] [--openai NAME=URL ...]
        [--temperature 0] [--environments runs/peers/environments]

RUN is a pair that `semiar train` wrote; its adapter is merged and saved once for the peers (below --work).  Peers:

* ``native`` / ``packed`` / ``compiled`` / ``eager``: semiar with that engine, plain and speculative
* ``hf``: transformers ``generate``, eager; ``hf-compiled``: the same with a static cache and a compiled forward
* ``hf-lookup``: transformers prompt lookup (``prompt_lookup_num_tokens``); ``hf-early-exit``: its self-speculation
  after a quarter of the layers
* ``vllm``: vLLM's CPU build; ``vllm-ngram``: the same with its prompt lookup; ``llama.cpp``: llama-cpp-python on a GGUF
  file of the saved model, in bfloat16; ``llama.cpp-q8_0`` and ``llama.cpp-q4_0``: quantised, faster and another model.
  `servers.py` makes each its own virtual environment below ``--environments`` when first asked for (gigabytes and
  minutes; llama-cpp-python is compiled), starts it, suspends it while others decode, and stops it at the end
* ``--openai NAME=URL``: any other server with the OpenAI completions interface, started on the saved model by hand

Servers get the prompts as token ids and say themselves how many tokens they generated.

Every prompt is decoded by all peers in turn before the next prompt begins.  Printed: tokens per second over all
prompts, the ratio to semiar's own plain path of the first engine, with a bootstrap interval over prompts, and how many
texts are equal to that path's.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from servers import RECIPES, running
from transformers import AutoModelForCausalLM
from ways import Answer, Ids, Way, compiled_way, hf_way, in_turn, semiar_way, server_way

from semiar.core.sampling import Sampling
from semiar.data.chat import ChatRenderer
from semiar.data.tasks.registry import load_any
from semiar.errors import SemiarError
from semiar.pair import Pair
from semiar.settings import DataSource, Load
from semiar.targets import load_tokenizer

ENGINES = ("native", "packed", "compiled", "eager")
LOCAL = (*ENGINES, "hf", "hf-lookup", "hf-early-exit", "hf-compiled")


def merged_model(options: argparse.Namespace) -> Path:
    """The folder of the target with its adapter merged; saved once for each state of the pair."""
    work, run = Path(options.work), Path(options.run).absolute()
    newest = max((file.stat().st_mtime_ns for file in run.glob("*.safetensors")), default=0)
    merged, source, state = work / "merged", work / "merged.txt", f"{run} {newest}\n"
    if not source.is_file() or source.read_text() != state:
        plain = Pair.load(options.run, Load(engine="eager"))
        plain.target.lm.save_pretrained(merged)
        plain.tokenizer.save_pretrained(merged)
        source.write_text(state)
    return merged


def ways_of(options: argparse.Namespace, sampling: Sampling, longest: int) -> tuple[dict[str, Way], Pair]:
    """The peers in this process by name, semiar's plain path of the first engine first."""
    engines = [name for name in options.peers if name in ENGINES] or ["native"]
    most = options.max_new_tokens
    ways: dict[str, Way] = {}
    pairs = {}
    for engine in engines:
        pairs[engine] = Pair.load(options.run, Load(engine=engine))
        ways[f"semiar {engine}, plain"] = semiar_way(pairs[engine], 0, most, sampling)
        ways[f"semiar {engine}, speculative"] = semiar_way(
            pairs[engine], options.num_speculative_tokens, most, sampling
        )
    first: Pair = pairs[engines[0]]
    ends = list(first.limits(1).end_ids)
    if any(name.startswith("hf") for name in options.peers):
        model: Any = AutoModelForCausalLM.from_pretrained(merged_model(options), dtype=torch.bfloat16).eval()
        if "hf" in options.peers:
            ways["transformers"] = hf_way(model, ends, most, sampling)
        if "hf-lookup" in options.peers:
            ways["transformers, prompt lookup"] = hf_way(model, ends, most, sampling, prompt_lookup_num_tokens=10)
        if "hf-early-exit" in options.peers:
            layers = max(1, len(first.target.blocks) // 4)
            ways["transformers, early exit"] = hf_way(model, ends, most, sampling, assistant_early_exit=layers)
        if "hf-compiled" in options.peers and sampling.greedy:
            ways["transformers, compiled"] = compiled_way(model, ends, most, longest)
    return ways, first


def interval(tokens: np.ndarray, seconds: np.ndarray, base: np.ndarray) -> tuple[float, float]:
    """95 % bootstrap interval of the ratio of tokens per second, prompts resampled."""
    picks = np.random.default_rng(0).integers(len(tokens), size=(4000, len(tokens)))
    ratio = tokens[picks].sum(1) / seconds[picks].sum(1) * base[1][picks].sum(1) / base[0][picks].sum(1)
    low, high = np.percentile(ratio, [2.5, 97.5])
    return float(low), float(high)


def measure(ways: dict[str, Way], prompts: list[Ids], tokenizer: Any, console: Console, title: str) -> Table:
    """Every prompt by every peer, in a turning order, as a table."""
    for run in ways.values():  # warm up; twice, so that rare shapes are compiled too
        run(prompts[0])
        run(prompts[-1])
    names = list(ways)
    seconds = {name: np.zeros(len(prompts)) for name in names}
    answers: dict[str, list[Answer]] = {name: [] for name in names}
    for index, prompt in enumerate(track(prompts, "decoding", console=console)):
        for name in names[index % len(names) :] + names[: index % len(names)]:
            begin = perf_counter()
            found = ways[name](prompt)
            seconds[name][index] = perf_counter() - begin
            if not isinstance(found, Answer):
                found = Answer(len(found), tokenizer.decode(found, skip_special_tokens=True))
            answers[name].append(found)
    tokens = {name: np.array([answer.tokens for answer in answers[name]], float) for name in names}
    cut = "\ufffd"  # what stands for half a character at the end
    texts = {name: [answer.text.rstrip(cut) for answer in answers[name]] for name in names}
    base = np.stack([tokens[names[0]], seconds[names[0]]])
    table = Table(title=title)
    for column in ("", "tokens/s", "ms per token", f"against {names[0]}", "texts equal"):
        table.add_column(column, justify="left" if not column else "right")
    for name in names:
        low, high = interval(tokens[name], seconds[name], base)
        speed = tokens[name].sum() / seconds[name].sum()
        ratio = speed * base[1].sum() / base[0].sum()
        equal = sum(one == other for one, other in zip(texts[name], texts[names[0]]))
        table.add_row(
            name, f"{speed:.1f}", f"{1e3 / speed:.1f}", f"{ratio:.2f} ({low:.2f}-{high:.2f})",
            f"{equal} of {len(prompts)}",
        )  # fmt: skip
    return table


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--data", default="sql")
    parser.add_argument("--data.folder", dest="folder", default="")
    parser.add_argument("--data.limit", dest="prompts", type=int, default=20)
    parser.add_argument("--max_new_tokens", type=int, default=96)
    parser.add_argument("--num_speculative_tokens", type=int, default=None)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--peers", nargs="+", default=["native", "hf", "hf-lookup"], choices=[*LOCAL, *RECIPES])
    parser.add_argument("--openai", nargs="*", default=[], metavar="NAME=URL")
    parser.add_argument("--served_model", default="", help="the name of the model on the servers of --openai")
    parser.add_argument("--work", default="runs/peers")
    parser.add_argument("--environments", default="runs/peers/environments", help="folder of the servers' environments")
    return parser.parse_args()


def main() -> None:
    """Parse, decode, print."""
    options = parsed()
    console = Console()
    sampling = Sampling(options.temperature)
    renderer = ChatRenderer(load_tokenizer(options.run))
    records = load_any(DataSource(options.data, "test", options.folder, options.prompts), 0).records
    prompts = [renderer.prompt(record.prompt_messages) for record in records]
    most, longest = options.max_new_tokens, max(map(len, prompts))
    ways, pair = ways_of(options, sampling, longest)
    ends, merged = list(pair.limits(1).end_ids), merged_model(options)
    asked = [name for name in RECIPES if name in options.peers]
    with running(asked, Path(options.environments), merged, longest + most, console) as servers:
        for name, server in servers.items():
            ways[name] = in_turn(server, server_way(server.url, str(merged.absolute()), ends, most, sampling))
        for entry in options.openai:
            name, _, url = entry.partition("=")
            ways[name] = server_way(url, options.served_model or str(merged), ends, most, sampling)
        title = f"{options.data}, {len(prompts)} prompts, T = {options.temperature}, {torch.get_num_threads()} threads"
        table = measure(ways, prompts, pair.tokenizer, console, title)
    console.print(table)


if __name__ == "__main__":
    try:
        main()
    except SemiarError as error:
        sys.exit(str(error))
