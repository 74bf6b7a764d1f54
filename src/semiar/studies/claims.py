"""The paper's claims C1 to C8, each judged by the rows of a comparison: reproduced, not reproduced, or undecided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from semiar.studies.statistics import Interval, Row, acceptance_length, accepted, difference, figure, speedup

YES, NO, OPEN = "reproduced", "not reproduced", "undecided"
EQUAL = 0.1  # "about equal": tokens per pass within so much of each other
STALE = 0.3  # accepted drafts lost by a drafter of the base model


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim, the verdict, and the figures that it rests on."""

    name: str
    claim: str
    verdict: str
    evidence: str


def judge(rows: Sequence[Row]) -> list[Finding]:
    """All claims; ``rows`` are those of ``compare.jsonl`` (failed ones are left out)."""
    rows = [row for row in rows if "error" not in row]
    return [check(rows) for check in (_c1, _c2, _c3, _c4, _c5, _c6, _c7, _c8)]


def above(found: Interval, bound: float = 0.0) -> str:
    """Whether a figure is above a bound, as far as its interval can tell."""
    return YES if found.low > bound else NO if found.high < bound else OPEN if found.low == found.low else ""


def together(verdicts: Sequence[str]) -> str:
    """A claim with several parts: one that fails fails it, one that is open leaves it open."""
    known = [verdict for verdict in verdicts if verdict]
    if not known or len(known) < len(verdicts):
        return NO if NO in known else OPEN
    return NO if NO in known else OPEN if OPEN in known else YES


def main(rows: Sequence[Row], **facts: Any) -> list[Row]:
    """Rows of the main study whose drafters have these facts; of several drafters those of the first."""
    found = [
        row for row in rows
        if row["study"] == "main" and not row["facts"]["searches"] and facts.items() <= row["facts"].items()
    ]  # fmt: skip
    return [row for row in found if row["drafter"] == found[0]["drafter"]]


def paper(rows: Sequence[Row]) -> list[Row]:
    """The paper's own form (h_t and an LSTM over the drafted tokens), or another semi-autoregressive one."""
    semi = {"semi_autoregressive": True}
    return main(rows, **semi, distant="LAST_STATE", form="lstm") or main(rows, **semi)


def blind_heads(rows: Sequence[Row]) -> list[Row]:
    """Heads that read the target's last state and no drafted token: Medusa's."""
    return main(rows, learns=True, distant="LAST_STATE", recent="NOTHING")


def _c1(rows: Sequence[Row]) -> Finding:
    semi, early, augmented = paper(rows), main(rows, distant="RECOMPUTED"), main(rows, distant="BOTH")
    over_skip = difference(semi, early, acceptance_length)
    highest = difference(augmented, semi, acceptance_length)
    slower = difference(semi, augmented, speedup)
    return Finding(
        "C1", "semi-AR accepts more than SkipLayer; SkipLayer + h_p accepts most, but is too slow to win",
        together([above(over_skip), above(highest), above(slower)]),
        f"tokens per pass: semi-AR - SkipLayer {over_skip}, SkipLayer + h_p - semi-AR {highest}; "
        f"speed-up: semi-AR - (SkipLayer + h_p) {slower}",
    )  # fmt: skip


def _c2(rows: Sequence[Row]) -> Finding:
    found = difference(
        paper(rows), main(rows, distant="LAST_STATE", recent="RECURRENT"), acceptance_length, relative=True
    )
    inside = found.low > -EQUAL and found.high < EQUAL
    outside = found.low > EQUAL or found.high < -EQUAL
    verdict = YES if inside else NO if outside else OPEN
    return Finding(
        "C2", "semi-AR and ReDrafter are about equal", verdict,
        f"tokens per pass, semi-AR / ReDrafter - 1: {found}; about equal is taken as within {EQUAL:.0%}",
    )  # fmt: skip


def markovianity(rows: Sequence[Row], task: str) -> Interval:
    """What reading the drafted tokens gains over heads that do not, on a task, relative, in tokens per pass."""
    here = [row for row in rows if row["task"] == task]
    return difference(paper(here), blind_heads(here), acceptance_length, relative=True)


def _c3(rows: Sequence[Row]) -> Finding:
    sql, chats = markovianity(rows, "sql"), markovianity(rows, "samsum")
    verdict = YES if chats.low > sql.high else NO if chats.high < sql.low else OPEN
    return Finding(
        "C3", "the gain over Medusa is small on text-to-SQL and large on dialogue summaries", verdict,
        f"tokens per pass, semi-AR / Medusa - 1: sql {sql}, samsum {chats}",
    )  # fmt: skip


def _c4(rows: Sequence[Row]) -> Finding:
    here = [row for row in paper(rows) if row["task"] == "gsm8k"]
    found = figure(here, speedup)
    counts = sorted({row["measured"]["num_speculative_tokens"] for row in here})
    right = bool(counts) and set(counts) <= {3, 4}
    verdict = OPEN if not here else YES if right and found.low <= 2.6 <= found.high else NO
    return Finding(
        "C4", "GSM8K decodes about 2.6 times as fast with a chain of K = 3 or 4", verdict,
        f"speed-up without the prompt {found} at K = {', '.join(map(str, counts)) or 'none measured'}",
    )  # fmt: skip


def _c5(rows: Sequence[Row]) -> Finding:
    study = [row for row in rows if row["study"] == "joint"]
    joint, after = ([row for row in study if row["point"]["mode"] == mode] for mode in ("joint", "after"))
    found = difference(joint, after, acceptance_length)
    return Finding("C5", "joint training beats training after", together([above(found)]), f"tokens per pass: {found}")


def staleness(rows: Sequence[Row]) -> Interval:
    """Share of its accepted drafts that a base model's drafter keeps once the target is tuned, minus 1."""
    study = [row for row in rows if row["study"] == "staleness" and row["point"]["made_on"] == "base"]
    before, after = ([row for row in study if row["point"]["measured_on"] == on] for on in ("base", "tuned"))
    return difference(after, before, accepted, relative=True)


def _c6(rows: Sequence[Row]) -> Finding:
    found = staleness(rows)
    verdict = YES if found.high < -STALE else NO if found.low > -STALE else OPEN
    return Finding(
        "C6", "a drafter of the base model loses 30 % or more of its acceptance after fine-tuning", verdict,
        f"accepted drafts per pass after / before - 1: {found}",
    )  # fmt: skip


def _c7(rows: Sequence[Row]) -> Finding:
    return Finding("C7", "gains shrink as the target grows", OPEN, "one target in this comparison; it takes two")


def _c8(rows: Sequence[Row]) -> Finding:
    study = [row for row in rows if row["study"] == "ablation" and row["point"].get("fusion") == "concat"]
    attention, lstm = ([row for row in study if row["facts"]["form"] == form] for form in ("attention", "lstm"))
    found = difference(attention, lstm, acceptance_length, relative=True)
    slower = [
        a["measured"]["time"]["draft_ms"] / b["measured"]["time"]["draft_ms"] - 1
        for a in attention for b in lstm if a["task"] == b["task"]
    ]  # fmt: skip
    latency = sum(slower) / len(slower) if slower else float("nan")
    more = (YES if latency > found.value else NO) if slower else ""
    return Finding(
        "C8", "one attention layer raises acceptance a little, and latency more", together([above(found), more]),
        f"attention against lstm, - 1: tokens per pass {found}, drafting time "
        + (f"{latency:.2f}" if slower else "not measured"),
    )  # fmt: skip
