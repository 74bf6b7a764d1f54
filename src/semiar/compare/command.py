"""The command line of `semiar compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console
from rich.table import Table

from semiar.compare.claims import judge
from semiar.compare.config import PRESETS, CompareConfig, TaskSettings, preset
from semiar.compare.report import write_report
from semiar.compare.run import read_rows, run_compare
from semiar.compare.statistics import Row
from semiar.compare.studies import study_table
from semiar.compare.table import advice, main_table, prediction_errors, spread


def options(one: ArgumentParser) -> None:
    """What can be said on the line; a recipe says it in YAML."""
    one.add_argument("--config", action="config", help="YAML recipe; options after it override it")
    one.add_argument("--preset", type=str, default="", help=f"{' or '.join(PRESETS)}: sets tasks, drafters, studies")
    one.add_argument("--report_only", type=bool, default=False, nargs="?", const=True, help="tables and report again")
    one.add_class_arguments(CompareConfig, None)


def compare(config: CompareConfig, chosen: Namespace, console: Console) -> int:
    """Run what is missing, then show everything that is there; 1 when a cell failed."""
    if chosen.preset:
        config = preset(chosen.preset, config)
    folder = Path(config.out).expanduser()
    rows = read_rows(folder) if chosen.report_only else run_compare(config, console)
    show(rows, console)
    write_report(rows, folder / "report.html", Path(config.model).name)
    console.print(f"report: {folder / 'report.html'}", soft_wrap=True)
    return 1 if any("error" in row for row in rows) else 0


def show(rows: list[Row], console: Console) -> None:
    """Tables, claims and advice."""
    console.print(main_table(rows))
    if studies := study_table(rows):
        console.print(studies)
    found = Table(title="the paper's claims")
    for name in ("", "claim", "verdict", "figures"):
        found.add_column(name)
    for one in judge(rows):
        found.add_row(one.name, one.claim, one.verdict, one.evidence)
    console.print(found)
    for task, what, told in advice(rows):
        console.print(f"[bold]{task}[/]  {what}: {told}", soft_wrap=True)
    errors = prediction_errors(rows)
    if errors:
        number, usual, size, largest = spread(errors)
        console.print(
            f"predicted against measured speed-up over {number} cells: median {usual:+.1%}, median size {size:.1%}, "
            f"largest {largest:+.1%}"
        )
    for row in rows:
        if "error" in row:
            console.print(f"[red]failed[/] {row['key']}: {row['error']}", soft_wrap=True)


def tasks_of(values: Any) -> list[TaskSettings]:
    """Tasks as the parser leaves them."""
    return [one if isinstance(one, TaskSettings) else TaskSettings(**vars(one)) for one in values]
