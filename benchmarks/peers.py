"""semiar against what one would use instead, on the same prompts, interleaved, greedy, texts compared.

    python benchmarks/peers.py RUN --task sql --folder DATA [--prompts 20] [--max_new_tokens 96]
        [--peers packed eager hf hf-lookup hf-compiled] [--openai NAME=URL ...] [--temperature 0]

RUN is a pair that `semiar train` wrote; its adapter is merged and saved once for the peers (below --work).  Peers:

* ``packed`` / ``compiled`` / ``eager``: semiar with that engine, plain and speculative
* ``hf``: transformers ``generate``, eager; ``hf-compiled``: the same with a static cache and a compiled forward
* ``hf-lookup``: transformers prompt lookup (``prompt_lookup_num_tokens``); ``hf-early-exit``: its self-speculation
  after a quarter of the layers
* ``--openai NAME=URL``: a server with the OpenAI completions interface, for instance vLLM or llama.cpp started on the
  saved model by hand; tokens are counted by our tokenizer from the text that it sends back

Every prompt is decoded by all peers in turn before the next prompt begins.  Printed: tokens per second over all
prompts, the ratio to semiar's own plain path of the first engine, with a bootstrap interval over prompts, and how many
texts are equal to that path's.
"""

from __future__ import annotations

import argparse
import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import AutoModelForCausalLM, StaticCache

from semiar import api
from semiar.core.sampling import Sampling
from semiar.data.tasks.registry import load_any
from semiar.decoding import decode
from semiar.decoding.text import generator
from semiar.targets import LoadSettings

Ids = list[int]
Way = Callable[[Ids], Ids]


def semiar_way(pair: api.Pair, count: int | None, most: int, sampling: Sampling) -> Way:
    """semiar's loop with this K; None = the drafter's own."""

    def run(prompt: Ids) -> Ids:
        found: Ids = []
        rng = generator(pair.target, 0)
        limits = pair.limits(most)
        for step in decode(
            pair.target, pair.drafter, [prompt], limits, sampling, rng=rng, num_speculative_tokens=count
        ):
            found += step.tokens[0]
        return found

    return run


def hf_way(model: Any, ends: Ids, most: int, sampling: Sampling, **options: Any) -> Way:
    """transformers' generate."""
    extra = {"do_sample": False} if sampling.greedy else {"do_sample": True, "temperature": sampling.temperature}
    extra |= {} if sampling.greedy else {"top_k": 0, "top_p": 1.0}

    def run(prompt: Ids) -> Ids:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=most, eos_token_id=ends, pad_token_id=ends[0],
                **extra, **options,
            )  # fmt: skip
        return out[0, len(prompt) :].tolist()

    return run


def compiled_way(model: Any, ends: Ids, most: int, length: int) -> Way:
    """transformers with a static cache and a compiled forward for one token; greedy."""
    step = torch.compile(model.forward, dynamic=False)

    def run(prompt: Ids) -> Ids:
        cache = StaticCache(config=model.config, max_cache_len=length + most)
        found: Ids = []
        with torch.inference_mode():
            out = model(torch.tensor([prompt]), past_key_values=cache, cache_position=torch.arange(len(prompt)))
            while True:
                found.append(int(out.logits[0, -1].argmax()))
                if found[-1] in ends or len(found) == most:
                    return found
                place = torch.tensor([len(prompt) + len(found) - 1])
                out = step(torch.tensor([found[-1:]]), past_key_values=cache, cache_position=place)

    return run


def server_way(url: str, model: str, tokenizer: Any, ends: Ids, most: int, sampling: Sampling) -> Way:
    """A server with the OpenAI completions interface."""

    def run(prompt: Ids) -> Ids:
        body = {"model": model, "prompt": prompt, "max_tokens": most, "temperature": sampling.effective_temperature}
        request = urllib.request.Request(
            f"{url.rstrip('/')}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as reply:
            choice = json.load(reply)["choices"][0]
        ids: Ids = tokenizer(choice["text"], add_special_tokens=False)["input_ids"]
        return ids + ends[:1] if choice["finish_reason"] == "stop" else ids

    return run


def ways_of(options: argparse.Namespace, sampling: Sampling, longest: int) -> tuple[dict[str, Way], api.Pair]:
    """All peers by name, semiar's plain path of the first engine first."""
    engines = [name for name in options.peers if name in ("packed", "compiled", "eager")] or ["packed"]
    ways: dict[str, Way] = {}
    pairs = {}
    for engine in engines:
        pairs[engine] = api.Pair.load(options.run, LoadSettings(engine=engine))
        ways[f"semiar {engine}, plain"] = semiar_way(pairs[engine], 0, options.max_new_tokens, sampling)
        ways[f"semiar {engine}, speculative"] = semiar_way(
            pairs[engine], options.num_speculative_tokens, options.max_new_tokens, sampling
        )
    first: api.Pair = pairs[engines[0]]
    ends, most = list(first.limits(1).end_ids), options.max_new_tokens
    merged = Path(options.work) / "merged"
    if not (merged / "config.json").is_file():
        plain = api.Pair.load(options.run, LoadSettings(engine="eager"))
        plain.target.lm.save_pretrained(merged)
        plain.tokenizer.save_pretrained(merged)
    if any(name.startswith("hf") for name in options.peers):
        model: Any = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.bfloat16).eval()
        if "hf" in options.peers:
            ways["transformers"] = hf_way(model, ends, most, sampling)
        if "hf-lookup" in options.peers:
            ways["transformers, prompt lookup"] = hf_way(model, ends, most, sampling, prompt_lookup_num_tokens=10)
        if "hf-early-exit" in options.peers:
            layers = max(1, len(first.target.blocks) // 4)
            ways["transformers, early exit"] = hf_way(model, ends, most, sampling, assistant_early_exit=layers)
        if "hf-compiled" in options.peers and sampling.greedy:
            ways["transformers, compiled"] = compiled_way(model, ends, most, longest)
    for server in options.openai:
        name, _, url = server.partition("=")
        ways[name] = server_way(url, options.served_model or str(merged), first.tokenizer, ends, most, sampling)
    return ways, first


def interval(tokens: np.ndarray, seconds: np.ndarray, base: np.ndarray) -> tuple[float, float]:
    """95 % bootstrap interval of the ratio of tokens per second, prompts resampled."""
    picks = np.random.default_rng(0).integers(len(tokens), size=(4000, len(tokens)))
    ratio = tokens[picks].sum(1) / seconds[picks].sum(1) * base[1][picks].sum(1) / base[0][picks].sum(1)
    low, high = np.percentile(ratio, [2.5, 97.5])
    return float(low), float(high)


def main() -> None:
    """Parse, decode, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--task", default="sql")
    parser.add_argument("--folder", default="")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--max_new_tokens", type=int, default=96)
    parser.add_argument("--num_speculative_tokens", type=int, default=None)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--peers", nargs="+", default=["packed", "hf", "hf-lookup"])
    parser.add_argument("--openai", nargs="*", default=[], metavar="NAME=URL")
    parser.add_argument("--served_model", default="", help="the servers' name of the model")
    parser.add_argument("--work", default="runs/peers")
    options = parser.parse_args()
    console = Console()
    sampling = Sampling(options.temperature)
    encoder = api.Pair.load(options.run, LoadSettings(engine="eager"))
    records = load_any(options.task, "test", options.folder or None, options.prompts, 0).records
    prompts = [encoder.encode(record.prompt_messages) for record in records]
    del encoder
    ways, _ = ways_of(options, sampling, max(map(len, prompts)))
    for run in ways.values():  # warm up; twice, so that rare shapes are compiled too
        run(prompts[0])
        run(prompts[-1])
    tokens = {name: np.zeros(len(prompts)) for name in ways}
    seconds = {name: np.zeros(len(prompts)) for name in ways}
    equal = dict.fromkeys(ways, 0)
    names = list(ways)
    for index, prompt in enumerate(track(prompts, "decoding", console=console)):
        texts = {}
        for name in names[index % len(names) :] + names[: index % len(names)]:
            begin = perf_counter()
            texts[name] = ways[name](prompt)
            seconds[name][index] = perf_counter() - begin
            tokens[name][index] = len(texts[name])
        for name in ways:
            equal[name] += texts[name] == texts[names[0]]
    base = np.stack([tokens[names[0]], seconds[names[0]]])
    table = Table(
        title=f"{options.task}, {len(prompts)} prompts, T = {options.temperature}, {torch.get_num_threads()} threads"
    )
    for column in ("", "tokens/s", "ms per token", f"against {names[0]}", "texts equal"):
        table.add_column(column, justify="left" if not column else "right")
    for name in names:
        low, high = interval(tokens[name], seconds[name], base)
        speed = tokens[name].sum() / seconds[name].sum()
        ratio = speed * base[1].sum() / base[0].sum()
        table.add_row(
            name, f"{speed:.1f}", f"{1e3 / speed:.1f}", f"{ratio:.2f} ({low:.2f}-{high:.2f})",
            f"{equal[name]} of {len(prompts)}",
        )  # fmt: skip
    console.print(table)


if __name__ == "__main__":
    main()
