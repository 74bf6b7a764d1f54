"""How speed and memory grow with the batch and with the length of the text.

    python benchmarks/scaling.py RUN --data sql --data.folder DATA [--batches 1 2 4 8 16]
        [--lengths 128 512 1024 2048 4096]
        [--data.limit 32] [--max_new_tokens 64] [--load.engine auto]

First table: tokens per second at each batch size, plain and with the K that the speed model picks from costs measured
at the numbers of rows in work (0 = speculation does not pay); rows join as others finish, and K follows their number.
Second table: milliseconds of a pass of one and of K + 1 tokens behind so many tokens of context, beside the time that
reading the weights from memory takes (the floor of a pass), and the memory of the keys and values.
"""

from __future__ import annotations

import argparse
import resource
from statistics import median
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from semiar.core.sampling import Sampling
from semiar.data.tasks.registry import load_any
from semiar.decoding import decode
from semiar.decoding.calibrate import choose_counts
from semiar.pair import Pair
from semiar.settings import DataSource, Load
from semiar.targets import Target
from semiar.targets.engines.packed import Packed, weight_bytes


def throughput(pair: Pair, prompts: list[list[int]], count: Any, rows: int, most: int) -> float:
    """Tokens per second, prompts included."""
    begin, tokens = perf_counter(), 0
    for step in decode(
        pair.target, pair.drafter, prompts, pair.limits(most), num_speculative_tokens=count, max_batch=rows
    ):
        tokens += sum(map(len, step.tokens))
    return tokens / (perf_counter() - begin)


def batches(pair: Pair, prompts: list[list[int]], sizes: list[int], most: int, rounds: int) -> Table:
    """The first table."""
    table = Table(title=f"throughput, {len(prompts)} prompts, medians of {rounds} interleaved rounds")
    for column in ("batch", "plain tokens/s", "K chosen", "speculative tokens/s", "ratio"):
        table.add_column(column, justify="right")
    counts = choose_counts(pair, prompts, pair.limits(most), Sampling(), sizes, Console(quiet=True))
    for rows in sizes:
        plain, fast = [], []
        for _ in range(rounds):
            plain.append(throughput(pair, prompts, 0, rows, most))
            fast.append(throughput(pair, prompts, counts, rows, most))
        one, two = median(plain), median(fast)
        table.add_row(str(rows), f"{one:.1f}", str(counts[rows]), f"{two:.1f}", f"{two / one:.2f}")
    return table


def bytes_of_a_pass(target: Target) -> int:
    """What every pass has to read: all weights but the input embedding, unless the output head is the same matrix."""
    if target.native is not None:
        return target.native.bytes
    head, embedding = target.lm.get_output_embeddings(), target.embedding
    shared = not isinstance(head, Packed) and head.weight is embedding
    return weight_bytes(target.lm) - (0 if shared else embedding.numel() * embedding.element_size())


@torch.inference_mode()
def lengths(pair: Pair, sizes: list[int]) -> Table:
    """The second table."""
    target, count = pair.target, pair.drafter.settings.num_speculative_tokens + 1
    weights = torch.zeros(bytes_of_a_pass(target) // 4, device=target.device)
    table = Table(title=f"one pass behind a long context, medians of 15; {weights.numel() / 2**18:.0f} MiB of weights")
    for column in (
        "context", "weights read, ms", "1 token, ms", f"{count} tokens, ms", "prefill, s", "cache, MiB",
        "peak memory, MiB",
    ):  # fmt: skip
        table.add_column(column, justify="right")
    for size in sizes:
        if size + count > target.max_length:
            table.add_row(str(size), "beyond the model's context", *[""] * 5)
            continue
        cache = target.start(1, size + count)
        ids = torch.arange(size, device=target.device)[None] % 1000 + 5
        begin = perf_counter()
        target.prefill(ids, torch.tensor([size], device=target.device), cache, (-1,))
        filled = perf_counter() - begin

        def run(n: int, ids: torch.Tensor = ids, cache: Any = cache) -> None:
            target(ids[:, :n], cache)
            cache.keep(torch.full((1, n), -1, device=target.device), chain=True)

        times: list[list[float]] = [[], [], []]
        for _ in range(18):
            for seen, work in zip(
                times, (weights.sum, lambda run=run: run(1), lambda run=run: run(count)), strict=True
            ):
                begin = perf_counter()
                work()
                seen.append(1e3 * (perf_counter() - begin))
        floor, one, many = (median(seen[3:]) for seen in times)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        table.add_row(
            str(size), f"{floor:.1f}", f"{one:.1f}", f"{many:.1f}", f"{filled:.2f}", f"{cache.bytes() / 2**20:.0f}",
            f"{peak:.0f}",
        )  # fmt: skip
    return table


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--data", default="sql")
    parser.add_argument("--data.folder", dest="folder", default="")
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 2, 4, 8, 16])
    parser.add_argument("--lengths", type=int, nargs="*", default=[128, 512, 1024, 2048, 4096])
    parser.add_argument("--data.limit", dest="prompts", type=int, default=32)
    parser.add_argument("--max_new_tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--load.engine", dest="engine", default="auto")
    options = parser.parse_args()
    console = Console()
    pair = Pair.load(options.run, Load(engine=options.engine))
    pair.target.expect(pair.drafter.settings.num_speculative_tokens + 1)
    records = load_any(DataSource(options.data, "test", options.folder, options.prompts), 0).records
    prompts = [pair.encode(record.prompt_messages) for record in records]
    console.print(f"engine {pair.target.engine}, {torch.get_num_threads()} threads, {pair.target.dtype}")
    if options.lengths:
        console.print(lengths(pair, options.lengths))
    if options.batches:
        console.print(batches(pair, prompts, options.batches, options.max_new_tokens, options.rounds))


if __name__ == "__main__":
    main()
