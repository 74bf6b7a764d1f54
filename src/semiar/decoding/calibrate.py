"""Costs of this machine: a target pass of n tokens, a draft of k tokens, and the loop around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Protocol

import torch
from rich.console import Console

from semiar.core.draft import Plan
from semiar.core.sampling import Sampling
from semiar.core.theory import acceptance_by_position, best_count
from semiar.decoding.loop import Limits, decode
from semiar.decoding.text import generator
from semiar.drafters.base import Context, Drafter
from semiar.targets import Target
from semiar.targets.engines.packed import weight_bytes

REPEATS = 15
MIB = 2**20


class Decodable(Protocol):
    """A pair, as far as costs are concerned."""

    target: Target
    drafter: Drafter


@dataclass(slots=True)
class Machine:
    """Milliseconds, medians of interleaved repeats, and acceptance on a few prompts."""

    verify_ms: dict[str, float] = field(default_factory=dict)  # step around a target pass of n tokens, by n
    draft_ms: list[float] = field(default_factory=list)  # drafting 1, 2, ..., K tokens
    overhead_ms: float = 0.0  # what a speculative step costs beyond that
    conditional_acceptance: list[float] = field(default_factory=list)
    context: int = 0  # tokens in the cache while measuring
    weight_bytes: int = 0  # target and drafter, as they lie in memory
    cache_bytes_per_token: float = 0.0  # keys and values of one position of one row
    plain_overhead_ms: float = 0.0  # the part of a plain step that is not its pass; contained in verify_ms


def calibrate(
    pair: Decodable,
    prompts: Sequence[list[int]],
    limits: Limits,
    sampling: Sampling,
    rule: str,
    console: Console,
    rows: int = 1,
    known: Machine | None = None,
) -> Machine:
    """Measure on the pair's own prompts, ``rows`` of them decoded together; takes a few seconds.

    Acceptance and overheads, which are measured row by row, are taken from ``known`` when given.
    """
    console.print("measuring this machine ...")
    most = pair.drafter.settings.num_speculative_tokens if pair.drafter.drafts else 0
    machine = Machine()
    typical = sorted(prompts, key=len)[len(prompts) // 2]
    machine.context = len(typical)
    _passes(pair, typical, most, sampling, machine, rows)
    most_cached = rows * (max(map(len, prompts)) + limits.max_new_tokens) * machine.cache_bytes_per_token
    console.print(
        f"memory: weights {machine.weight_bytes / MIB:.0f} MiB, keys and values "
        f"{machine.cache_bytes_per_token / 1024:.0f} KiB a token, at most {most_cached / MIB:.0f} MiB here"
    )
    if known is None:
        _rounds(pair, prompts[:8], limits, sampling, rule, most, machine)
    else:
        machine.plain_overhead_ms, machine.overhead_ms = known.plain_overhead_ms, known.overhead_ms
        machine.conditional_acceptance = known.conditional_acceptance
    machine.verify_ms = {n: cost + machine.plain_overhead_ms for n, cost in machine.verify_ms.items()}
    return machine


def choose_count(machine: Machine) -> int:
    """K with the highest predicted speed; 0 = speculation does not pay here."""
    verify = list(machine.verify_ms.values())
    most = len(machine.draft_ms)
    return best_count(machine.conditional_acceptance, verify, machine.draft_ms or 0.0, machine.overhead_ms, most)


def choose_counts(
    pair: Decodable,
    prompts: Sequence[list[int]],
    limits: Limits,
    sampling: Sampling,
    sizes: Sequence[int],
    console: Console,
) -> dict[int, int]:
    """K by the number of rows in work, for `decode`: what `choose_count` says at each of these batch sizes."""
    one = calibrate(pair, prompts, limits, sampling, "exact", console)
    counts = {1: choose_count(one)}
    for rows in sorted({*sizes} - {1}):
        counts[rows] = choose_count(calibrate(pair, prompts, limits, sampling, "exact", console, rows, one))
    return counts


@torch.inference_mode()
def _passes(pair: Decodable, prompt: list[int], most: int, sampling: Sampling, machine: Machine, rows: int) -> None:
    target, drafter = pair.target, pair.drafter
    tokens = torch.tensor([prompt] * rows, device=target.device)
    cache = target.start(rows, len(prompt) + most + 2)
    count = torch.tensor([len(prompt) - 1] * rows, device=target.device)
    hidden = target.prefill(tokens[:, :-1], count, cache, drafter.layers)
    context = Context(tokens, count + 1, hidden, count)
    state = drafter.start(rows, len(prompt) + most + 2, target.device)
    rng = generator(target, 0)
    machine.weight_bytes = (
        weight_bytes(target.lm) + weight_bytes(drafter) + (target.native.bytes if target.native else 0)
    )
    machine.cache_bytes_per_token = cache.bytes() / (rows * cache.capacity)
    if most:
        drafter.propose(context, state, Plan(count=1), sampling, rng)

    def after_step(n: int) -> Context:
        """As after a whole step of n drafts: that many states are new."""
        new = min(n + 1, hidden.shape[1])
        return Context(tokens, count + 1, hidden[:, -new:], torch.full_like(count, new))

    nothing = torch.full((rows, most + 1), -1, device=target.device)

    def verify(n: int) -> Callable[[], None]:
        def run() -> None:
            target(tokens[:, -1:].expand(rows, n), cache, layers=drafter.layers)
            cache.keep(nothing[:, :n], chain=True)

        return run

    def draft(n: int) -> Callable[[], None]:
        known = after_step(n)
        return lambda: (drafter.propose(known, state, Plan(count=n), sampling, rng), None)[1]

    pairs = [(verify(n + 1), draft(n)) for n in range(1, most + 1)]  # a pass flushes the drafter from the caches
    times = interleaved([verify(1), *(one for pair in pairs for one in pair)])
    machine.verify_ms = {str(n + 1): times[0 if n == 0 else 2 * n - 1] for n in range(most + 1)}
    machine.draft_ms = times[2::2]


def interleaved(functions: Sequence[Callable[[], None]]) -> list[float]:
    """Median milliseconds of each function, run in turn."""
    times: list[list[float]] = [[] for _ in functions]
    for repeat in range(REPEATS + 2):
        for function, seen in zip(functions, times, strict=True):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            begin = perf_counter()
            function()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if repeat > 1:
                seen.append(1e3 * (perf_counter() - begin))
    return [median(seen) for seen in times]


def _rounds(
    pair: Decodable,
    prompts: Sequence[list[int]],
    limits: Limits,
    sampling: Sampling,
    rule: str,
    most: int,
    machine: Machine,
) -> None:
    """Acceptance and loop overhead from decoding a few prompts both ways."""
    rests: dict[int, list[float]] = {0: [], most: []}
    texts: list[list[tuple[int, int]]] = []
    for prompt in prompts:
        for count in (0, most):
            texts.append([])
            for step in decode(
                pair.target, pair.drafter, [prompt], limits, sampling, rng=generator(pair.target, 0),
                num_speculative_tokens=count, rule=rule if count else "exact",
            ):  # fmt: skip
                rests[count].append(1e3 * (step.seconds - step.draft_seconds - step.verify_seconds))
                emitted = len(step.tokens[0])
                texts[-1].append((min(step.drafted, emitted), min(step.accepted[0], emitted)))
    machine.plain_overhead_ms = median(rests[0])
    machine.overhead_ms = max(0.0, median(rests[most]) - machine.plain_overhead_ms)
    machine.conditional_acceptance = acceptance_by_position(texts[1::2], most)  # every second one is speculative
