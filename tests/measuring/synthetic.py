"""Traces without a model: one by hand for exact numbers (case H34), one long enough to look at."""

from __future__ import annotations

import random
from typing import Any

from semiar.measuring.trace import Trace

QUERY = "SELECT name FROM customers WHERE total > 100 AND city = 'Zürich' ORDER BY age DESC LIMIT 5 ;"
WORDS = ["", *QUERY.split()]


def step(
    drafted: int, accepted: int, emitted: int, ms: tuple[float, float, float] = (2.0, 20.0, 1.0)
) -> dict[str, Any]:
    """One target pass."""
    return {
        "drafted": drafted, "accepted": accepted, "emitted": emitted,
        "draft_ms": ms[0] if drafted else 0.0, "verify_ms": ms[1], "overhead_ms": ms[2],
    }  # fmt: skip


def generation(
    mode: str, prompt: int, ids: list[int], steps: list[dict[str, Any]], seconds: float, round_: int = 0
) -> dict[str, Any]:
    """One run; token i is written as `<i>`."""
    origins = ["drafted" if i < s["accepted"] else "target" for s in steps for i in range(s["emitted"])]
    assert len(origins) == len(ids)
    pieces = [f"<{token}>" for token in ids]
    return {
        "kind": "generation", "mode": mode, "prompt": prompt, "round": round_, "prompt_tokens": 10, "token_ids": ids,
        "pieces": pieces, "origins": origins, "text": "".join(pieces), "reference": "as it should be",
        "finish_reason": "length", "seconds": seconds, "prefill_seconds": 0.01, "steps": steps,
    }  # fmt: skip


def header(count: int, **more: Any) -> dict[str, Any]:
    """A header as `semiar bench` writes it."""
    return {
        "kind": "header", "semiar": "0.1.0", "torch": "2.13.0", "transformers": "5.19.0", "model": "SmolLM2-135M",
        "drafter": {"architecture": "semi", "small_lm": "context", "fusion": "concat"}, "task": "sql",
        "dtype": "bfloat16", "device": "cpu (2 cores)", "threads": 2, "batch": 1, "temperature": 0.0, "rule": "exact",
        "lossless": True, "num_speculative_tokens": count, "max_new_tokens": 64, "rounds": 1, "parameters": 4_200_000,
        "date": "2025-11-30T08:00:00+00:00",
    } | more  # fmt: skip


def case_h34() -> Trace:
    """Target 0 1 ... 7 0 ..., a draft that is wrong only after 3, K = 4, 12 tokens after the prompt [0]."""
    ids = [1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4]
    fast = generation("speculative", 0, ids, [step(4, 3, 4), step(4, 4, 5), step(2, 2, 3)], 0.079)
    plain = generation("plain", 0, ids, [step(0, 0, 1)] * 12, 0.262)
    return Trace(header(4), {}, [plain, fast])


def long_trace(prompts: int = 12, rounds: int = 2, count: int = 5, seed: int = 0) -> Trace:
    """A plausible run: acceptance .85 falling by position, two rounds, odd characters in the texts."""
    rng = random.Random(seed)
    runs: list[dict[str, Any]] = []
    for round_ in range(rounds):
        for prompt in range(prompts):
            ids = [random.Random(prompt * 997 + i).randrange(len(WORDS)) for i in range(24 + 3 * prompt)]
            steps, made = [], 0
            while made < len(ids):
                drafted = max(0, min(count, len(ids) - made - 1))
                hits = [rng.random() < 0.87 - 0.03 * k - 0.012 * prompt for k in range(drafted)]
                accepted = [*hits, False].index(False)
                steps.append(step(drafted, accepted, accepted + 1, (rng.gauss(4, 0.3), rng.gauss(24, 1), 1.2)))
                made += accepted + 1
            seconds = sum(s["draft_ms"] + s["verify_ms"] + s["overhead_ms"] for s in steps) / 1e3 + 0.03
            fast = generation("speculative", prompt, ids, steps, seconds, round_)
            one = [step(0, 0, 1, (0.0, rng.gauss(20, 1), 0.9)) for _ in ids]
            plain = generation("plain", prompt, ids, one, sum(s["verify_ms"] + 0.9 for s in one) / 1e3 + 0.03, round_)
            for run in (fast, plain):
                run["pieces"] = [" " + WORDS[token] if WORDS[token] else "\n" for token in ids]
                run["text"] = "".join(run["pieces"])
            fast["pieces"][2] = " <script>alert(1)</script>"
            runs += [plain, fast]
    machine = {
        "kind": "machine", "verify_ms": {str(n): 20.9 + 0.75 * (n - 1) for n in range(1, count + 2)},
        "draft_ms": [0.3 + 0.75 * k for k in range(1, count + 1)], "overhead_ms": 0.3,
    }  # fmt: skip
    scores = {"base": {"exact_match": 0.02}, "plain": {"exact_match": 0.61}, "speculative": {"exact_match": 0.61}}
    return Trace(header(count, rounds=rounds), machine, runs, scores)
