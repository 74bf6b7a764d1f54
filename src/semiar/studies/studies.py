"""The studies beside the main comparison as one table: what was varied, and what it came to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from semiar.studies.statistics import Row, acceptance_length, figure, speedup

HEAD = (
    "study", "task", "varied", "K", "acceptance length", "draft, ms", "speed-up", "predicted", "held-out length",
    "LM loss", "training, s", "texts equal",
)  # fmt: skip


def study_lines(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """One line per cell, in the order of `HEAD`: studies one after the other, tasks within, points as they were run.

    The held-out length is teacher-forced (accepted drafts and the pass's own token, greedy); the LM loss is the
    target's on held-out answers, where the cell trained its target.
    """
    good = [row for row in rows if "error" not in row and row["study"] != "main"]
    places = {name: place for place, name in enumerate(dict.fromkeys((row["study"], row["task"]) for row in good))}
    for row in sorted(good, key=lambda row: places[row["study"], row["task"]]):
        measured, held_out = row["measured"], row.get("held_out", {})
        predicted, texts = measured["prediction"]["speedup"], measured["texts"]
        varied = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in row["point"].items())
        yield (
            row["study"], row["task"], varied,
            str(measured["num_speculative_tokens"]), str(figure([row], acceptance_length)),
            f"{measured['time']['draft_ms']:.2f}", str(figure([row], speedup)),
            f"{predicted:.2f}" if predicted else "", _number(held_out.get("acceptance_length"), 2),
            _number(held_out.get("lm_loss"), 3), _number(row["train"].get("train_runtime"), 0),
            f"{texts['equal']}/{texts['compared']}",
        )  # fmt: skip


def study_table(rows: Sequence[Row]) -> Table | None:
    """The studies for the terminal; None when none was run."""
    found = list(study_lines(rows))
    if not found:
        return None
    table = Table(title="studies; speed-ups without the prompt, intervals of 95 % over prompts")
    for name in HEAD:
        table.add_column(name, justify="left" if name in HEAD[:3] else "right")
    for line, following in zip(found, [*found[1:], None], strict=True):
        table.add_row(*line, end_section=following is None or following[:2] != line[:2])
    return table


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
