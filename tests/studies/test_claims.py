"""Verdicts on the paper's claims from rows whose figures are known; intervals from prompts that agree or do not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from semiar.drafters import drafter_settings, facts_of
from semiar.studies.claims import NO, OPEN, YES, judge
from semiar.studies.figures import figures, pareto
from semiar.studies.statistics import acceptance_length, difference, figure, speedup
from semiar.studies.table import advice, lines, prediction_errors


def facts(architecture: str, **settings: Any) -> dict[str, Any]:
    return facts_of(drafter_settings({"architecture": architecture, **settings})).record()


FACTS = {
    "semi": facts("semi"), "semi lstm": facts("semi", small_lm="lstm"), "medusa": facts("medusa"),
    "hydra": facts("hydra"), "redrafter": facts("recurrent"), "eagle": facts("eagle"), "skip": facts("skip"),
    "skip + h_p": facts("skip", with_h_p=True), "lookup": facts("lookup"), "hybrid": facts("hybrid"),
    "attention": facts("semi", small_lm="attention"), "lstm": facts("semi", small_lm="lstm"),
}  # fmt: skip
PLAIN, VERIFY = 9.0, 10.0  # ms of a plain step and of a verifying pass


def row(
    drafter: str, task: str, tau: float, draft: float = 1.0, *, study: str = "main", count: int = 5, noise: float = 0.0,
    **point: Any,
) -> dict[str, Any]:  # fmt: skip
    """A finished cell: ten prompts of 20 passes each, whose acceptance is off by ``noise`` up and down in turn."""
    prompts = []
    for index in range(10):
        accepted = 20 * (tau - 1) * (1 + (noise if index % 2 else -noise))
        tokens = 20 + accepted
        seconds = 20 * (VERIFY + draft) / 1e3
        prompts.append({"blocks": [[20, accepted, tokens, tokens * PLAIN / 1e3, tokens, seconds]]})
    speed = tau * PLAIN / (VERIFY + draft)
    return {
        "key": f"{study}-{task}-{drafter}-{point}", "study": study, "task": task, "drafter": drafter, "seed": 0,
        "point": point, "by_prompt": prompts, "parameters": 10, "train": {"train_runtime": 1.0}, "peak_bytes": 1 << 30,
        "settings": {}, "facts": FACTS.get(drafter) or FACTS.get(drafter.split()[0], FACTS["semi"]),
        "date": "2026-01-01", "machine": {
            "verify_ms": {str(n): PLAIN + n / 5 for n in range(1, 7)}, "draft_ms": [draft] * 5, "overhead_ms": 0.1
        },
        "measured": {
            "num_speculative_tokens": count, "disturbed": "", "time": {"draft_ms": draft},
            "texts": {"equal": 10, "compared": 10},
            "acceptance": {"conditional_acceptance_rate": [0.5] * count},
            "speed": {"speedup": speed, "speedup_without_prefill": speed, "tokens_per_second": 100.0},
            "prediction": {"speedup": speed * 1.1, "best_num_speculative_tokens": 1, "by_count": [1.0, 1.2]},
        },
    }  # fmt: skip


def verdicts(*rows: dict[str, Any]) -> dict[str, str]:
    return {one.name: one.verdict for one in judge(rows)}


def test_nothing_measured_decides_nothing() -> None:
    assert set(verdicts().values()) == {OPEN}


def test_early_exits() -> None:
    rows = [row("semi lstm", "sql", 3.0), row("skip", "sql", 2.0, 9.0), row("skip + h_p", "sql", 3.5, 9.0)]
    assert verdicts(*rows)["C1"] == YES
    assert verdicts(rows[0], rows[1], row("skip + h_p", "sql", 3.5, 0.5))["C1"] == NO  # it would win
    assert verdicts(rows[0], row("skip", "sql", 3.4, 9.0), rows[2])["C1"] == NO
    assert verdicts(*rows[:2])["C1"] == OPEN


def test_about_equal_means_within_a_tenth() -> None:
    for other, noise, verdict in ((2.9, 0.0, YES), (2.0, 0.0, NO), (2.7, 0.3, OPEN)):
        assert verdicts(row("semi lstm", "sql", 3.0), row("redrafter", "sql", other, noise=noise))["C2"] == verdict


def test_how_markovian_a_task_is() -> None:
    sql = [row("semi lstm", "sql", 3.1), row("medusa", "sql", 3.0)]
    chats = [row("semi lstm", "samsum", 3.0), row("medusa", "samsum", 2.0)]
    assert verdicts(*sql, *chats)["C3"] == YES
    swapped = [{**one, "task": {"sql": "samsum", "samsum": "sql"}[one["task"]]} for one in (*sql, *chats)]
    assert verdicts(*swapped)["C3"] == NO
    told = {task: text for task, what, text in advice([*sql, *chats]) if "Markovianity" in what}
    assert "medusa is enough" in told["sql"] and "recent tokens matter" in told["samsum"]
    copier = row("semi", "sql", 5.0)
    (more,) = [text for _, what, text in advice([*sql, copier]) if "Markovianity" in what]
    assert "semi beats medusa" in more and "enough" not in more


def test_who_leads() -> None:
    rows = [
        row("semi lstm", "sql", 3.0), row("semi", "sql", 3.3), row("medusa", "sql", 2.0), row("skip", "sql", 3.6, 9.0),
        row("eagle", "sql", 2.2), row("lookup", "sql", 3.5, 0.1),
    ]  # fmt: skip
    told = {what: text for task, what, text in advice(rows)}
    assert told["fastest"].startswith("lookup, 3.12 (3.12 to 3.12)")
    margin = next(text for what, text in told.items() if "best semi-autoregressive" in what)
    assert margin == "semi over eagle: 0.50 (0.50 to 0.50)"
    told = {what: text for task, what, text in advice([*rows, row("hybrid", "sql", 4.0)])}
    assert told["fastest"].startswith("hybrid") and any(text.startswith("hybrid over eagle") for text in told.values())


def test_speed_on_gsm8k() -> None:
    assert verdicts(row("semi lstm", "gsm8k", 3.18, noise=0.1, count=4))["C4"] == YES
    assert verdicts(row("semi lstm", "gsm8k", 3.18, noise=0.1, count=5))["C4"] == NO
    assert verdicts(row("semi lstm", "gsm8k", 2.0, count=4))["C4"] == NO


@pytest.mark.parametrize(("joint", "verdict"), [(3.0, YES), (2.0, NO)])
def test_joint_training(joint: float, verdict: str) -> None:
    rows = [row("semi", "sql", tau, study="joint", mode=mode) for mode, tau in (("joint", joint), ("after", 2.5))]
    assert verdicts(*rows)["C5"] == verdict


@pytest.mark.parametrize(
    ("tuned", "verdict", "told"), [(2.2, YES, "retrain"), (2.6, NO, "refresh"), (2.95, NO, "keep")]
)
def test_a_drafter_of_the_base_model_after_tuning(tuned: float, verdict: str, told: str) -> None:
    about = {"study": "staleness", "made_on": "base"}
    rows = [
        row("semi", "sql", 3.0, measured_on="base", **about),
        row("semi", "sql", tuned, measured_on="tuned", **about),
    ]
    assert verdicts(*rows)["C6"] == verdict
    assert told in next(text for _, what, text in advice(rows) if "base model" in what)


def test_an_attention_layer() -> None:
    about = {"study": "ablation", "fusion": "concat"}
    lstm = row("lstm", "sql", 2.0, 1.0, **about)
    assert verdicts(lstm, row("attention", "sql", 2.1, 1.5, **about))["C8"] == YES
    assert verdicts(lstm, row("attention", "sql", 2.5, 1.1, **about))["C8"] == NO
    assert verdicts(lstm, row("attention", "sql", 1.9, 1.5, **about))["C8"] == NO


def test_intervals_are_paired() -> None:
    """Two drafters that both do badly on the same prompts differ for certain, though neither figure is certain."""
    first, second = row("a", "sql", 3.0, noise=0.5), row("b", "sql", 2.8, noise=0.5)
    apart = difference([first], [second], acceptance_length)
    assert apart.low > 0 and apart.value == pytest.approx(0.2)
    alone = figure([first], acceptance_length)
    assert alone.value == pytest.approx(3.0) and alone.high - alone.low > 0.5
    assert figure([first], speedup).value == pytest.approx(3.0 * PLAIN / (VERIFY + 1))
    assert math.isnan(difference([first], [row("b", "gsm8k", 2.0)], acceptance_length).value)


def test_the_front_and_the_order_of_the_table() -> None:
    rows = [row("a", "sql", 3.0, 2.0), row("b", "sql", 2.0, 1.0), row("c", "sql", 1.9, 3.0), row("d", "sql", 4.0, 30.0)]
    found = lines(rows)
    assert [line.drafter for line in found] == ["a", "b", "c", "d"]  # by speed
    assert [line.drafter for line in pareto(found)] == ["b", "a", "d"]
    assert prediction_errors(rows) == pytest.approx([0.1] * 4)
    assert len(figures(rows)) == 3
