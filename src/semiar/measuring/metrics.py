"""From a trace to numbers; pure, so that an old trace can be judged again without a model.

Speed-ups are ratios of totals over the same prompts, never means of ratios.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from semiar.core.counting import mean_acceptance_length, tokens_per_pass
from semiar.core.theory import acceptance_by_position, predict_answers
from semiar.errors import DataError
from semiar.measuring.blocks import blocks_of
from semiar.measuring.findings import Acceptance, Metrics, Prediction, Speed, Texts, Time
from semiar.measuring.resample import middle, resampled
from semiar.measuring.trace import Record, Trace, costs_of, passes_of, read_trace

__all__ = ["Acceptance", "Metrics", "Prediction", "Speed", "Texts", "Time", "Trace", "read_trace", "summarise"]

Pair = tuple[Record, Record]  # plain and speculative run of one prompt and round


def summarise(trace: Trace) -> Metrics:
    """Every number of the report; DataError if no prompt was decoded both ways."""
    pairs = trace.pairs()
    if not any(fast["token_ids"] and plain["token_ids"] for plain, fast in pairs):
        raise DataError("no prompt was decoded both ways", "plain and speculative generations", "let the bench finish")
    fast = [pair[1] for pair in pairs]
    count = int(trace.header["num_speculative_tokens"])
    acceptance = _acceptance(fast, count)
    return Metrics(
        num_speculative_tokens=count,
        prompts=len({run["prompt"] for run in fast}),
        rounds=len({run["round"] for run in fast}),
        acceptance=acceptance,
        speed=_speed(pairs),
        time=_time([pair[0] for pair in pairs], fast),
        prediction=_prediction(trace, chances(fast, count), count, fast),
        disturbed=disturbance(pairs),
        texts=Texts(len(pairs), sum(a["token_ids"] == b["token_ids"] for a, b in pairs)),
        scores=trace.scores,
    )


def _acceptance(runs: list[Record], count: int) -> Acceptance:
    passes = passes_of(runs)
    accepted, drafted = sum(p.accepted for p in passes), sum(p.drafted for p in passes)
    tokens = sum(len(run["token_ids"]) for run in runs)
    positions = range(1, count + 1)
    hits = [sum(p.accepted >= k for p in passes) for k in positions]
    asked = [sum(p.depth >= k for p in passes) for k in positions]
    reached = [sum(p.depth >= k and p.accepted >= k - 1 for p in passes) for k in positions]
    whole = [p for p in passes if p.depth == count and not p.cut]
    return Acceptance(
        target_passes=len(passes),
        tokens=tokens,
        mean_acceptance_length=mean_acceptance_length(accepted, len(passes)),
        accepted_drafts_mean=accepted / len(passes),
        tokens_per_pass=tokens_per_pass(tokens, len(passes)),
        acceptance_rate=accepted / drafted if drafted else None,
        per_position_acceptance_rate=_rates(hits, asked),
        per_position_counts=asked,
        conditional_acceptance_rate=_rates(hits, reached),
        conditional_counts=reached,
        accepted_histogram=[sum(p.accepted == a for p in whole) for a in range(count + 1)],
    )


def chances(runs: list[Record], count: int) -> list[float]:
    """What predictions go by; see `acceptance_by_position`."""
    return acceptance_by_position(([(p.depth, p.accepted) for p in passes_of([run])] for run in runs), count)


def _rates(hits: list[int], of: list[int]) -> list[float | None]:
    return [h / n if n else None for h, n in zip(hits, of, strict=True)]


def _speed(pairs: list[Pair]) -> Speed:
    prompts = sorted({pair[0]["prompt"] for pair in pairs})
    groups = [[pair for pair in pairs if pair[0]["prompt"] == prompt] for prompt in prompts]
    rounds = {pair[0]["round"] for pair in pairs}
    by_round = [[pair for pair in pairs if pair[0]["round"] == number] for number in rounds]
    return Speed(
        tokens_per_second_plain=_tokens_per_second(pairs, 0),
        tokens_per_second=_tokens_per_second(pairs, 1),
        speedup=_ratio(pairs),
        speedup_interval=_interval(groups),
        speedup_median_of_rounds=median(_ratio(group) for group in by_round),
        speedup_without_prefill=_ratio(pairs, prefill=False),
        speedup_without_prefill_interval=_interval(groups, prefill=False),
        by_prompt=[
            {"prompt": prompt, "tokens": len(group[0][1]["token_ids"]), "speedup": _ratio(group)}
            for prompt, group in zip(prompts, groups, strict=True)
        ],
    )


def _totals(pairs: Iterable[Pair], way: int, prefill: bool = True) -> tuple[int, float]:
    """Tokens and seconds of one way: 0 = plain, 1 = speculative."""
    runs = [pair[way] for pair in pairs]
    seconds = sum(run["seconds"] - (0 if prefill else run["prefill_seconds"]) for run in runs)
    return sum(len(run["token_ids"]) for run in runs), seconds


def _tokens_per_second(pairs: list[Pair], way: int, prefill: bool = True) -> float:
    tokens, seconds = _totals(pairs, way, prefill)
    return tokens / seconds


def _ratio(pairs: list[Pair], prefill: bool = True) -> float:
    return _tokens_per_second(pairs, 1, prefill) / _tokens_per_second(pairs, 0, prefill)


def _interval(groups: list[list[Pair]], prefill: bool = True) -> tuple[float, float] | None:
    """Bootstrap of the ratio of totals over prompts and stretches of time; None with a single prompt."""
    if len(groups) < 2:
        return None
    _, _, tokens, seconds, fast_tokens, fast_seconds, before, fast_before = resampled(list(map(blocks_of, groups))).T
    if prefill:
        seconds, fast_seconds = seconds + before, fast_seconds + fast_before
    return middle(fast_tokens / fast_seconds * seconds / tokens)


def disturbance(pairs: list[Pair]) -> str:
    """What shows that the machine was disturbed; empty when nothing does.

    A speculative step does all that a plain one does, so a speed-up without the prompt cannot exceed the plain passes
    that a speculative one stands for.
    """
    passes = [sum(len(pair[way]["steps"]) for pair in pairs) for way in (0, 1)]
    drafted = any(step["drafted"] for _, fast in pairs for step in fast["steps"])
    tokens = [_totals(pairs, way)[0] for way in (0, 1)]
    if not drafted or not all(tokens):
        return ""
    most = (passes[0] / tokens[0]) / (passes[1] / tokens[1])
    found = _ratio(pairs, prefill=False)
    return f"a speed-up of {found:.2f} where a pass yields {most:.2f} tokens" if found > most else ""


def _time(plain: list[Record], fast: list[Record]) -> Time:
    steps = [step for run in fast for step in run["steps"] if step["drafted"]]
    whole = [step["draft_ms"] + step["verify_ms"] + step["overhead_ms"] for run in plain for step in run["steps"]]
    return Time(
        draft_ms=median(step["draft_ms"] for step in steps) if steps else 0.0,
        verify_ms=median(step["verify_ms"] for step in steps) if steps else 0.0,
        overhead_ms=median(step["overhead_ms"] for step in steps) if steps else 0.0,
        plain_step_ms=median(whole),
        per_token={"plain": _per_token(plain), "speculative": _per_token(fast)},
        profile={mode: found for mode, runs in (("plain", plain), ("speculative", fast)) if (found := _profile(runs))},
    )


def _profile(runs: list[Record]) -> dict[str, float]:
    """Mean milliseconds per target pass by part; python is what no part accounts for."""
    steps = [step for run in runs for step in run["steps"]]
    if not steps or "parts_ms" not in steps[0]:
        return {}
    parts = {part: sum(step["parts_ms"][part] for step in steps) for part in steps[0]["parts_ms"]}
    total = 1e3 * sum(run["seconds"] - run["prefill_seconds"] for run in runs)
    parts["python"] = max(0.0, total - sum(parts.values()))
    parts["detokenise"] = 1e3 * sum(run["detokenise_seconds"] for run in runs)
    return {part: milliseconds / len(steps) for part, milliseconds in parts.items()}


def _per_token(runs: list[Record]) -> dict[str, float]:
    """Milliseconds per emitted token, by part; overhead is all that is in no other part."""
    steps = [step for run in runs for step in run["steps"]]
    total = 1e3 * sum(run["seconds"] for run in runs)
    prefill = 1e3 * sum(run["prefill_seconds"] for run in runs)
    draft, verify = (sum(step[part] for step in steps) for part in ("draft_ms", "verify_ms"))
    parts = {"prefill": prefill, "draft": draft, "verify": verify, "overhead": max(0, total - prefill - draft - verify)}
    tokens = sum(len(run["token_ids"]) for run in runs)
    return {part: milliseconds / tokens for part, milliseconds in parts.items()}


def _prediction(trace: Trace, betas: list[float], count: int, runs: list[Record]) -> Prediction:
    machine, plan = trace.machine, trace.header.get("plan", {})
    if not machine.get("verify_ms") or plan.get("tree", "none") != "none" or plan.get("stop_below"):  # costs of chains
        return Prediction(None, [], None)
    costs = costs_of(machine)
    most = min(len(betas), len(machine.get("draft_ms", [])), len(costs.verify) - 1)
    lengths = [len(run["token_ids"]) for run in runs]
    curve = [predict_answers(betas, costs, k, lengths).speedup for k in range(most + 1)]
    best = max(range(most + 1), key=curve.__getitem__)
    return Prediction(curve[count] if count <= most else None, curve, best)
