"""What `semiar compare` does and shows."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from semiar.studies.claims import judge
from semiar.studies.config import CompareConfig, preset
from semiar.studies.mixed import mixed
from semiar.studies.report import write_report
from semiar.studies.run import read_rows, run_compare
from semiar.studies.statistics import Row
from semiar.studies.studies import study_table
from semiar.studies.table import advice, main_table, prediction_errors, spread


def compare(config: CompareConfig, named: str, console: Console, *, report_only: bool = False) -> int:
    """Run what is missing, with the preset of this name if any, then show everything that is there; 1 when a cell
    failed.
    """
    if named:
        config = preset(named, config)
    folder = Path(config.out).expanduser()
    rows = read_rows(folder) if report_only else run_compare(config, console)
    show(rows, console)
    write_report(rows, folder / "report.html", Path(config.model).name)
    console.print(f"report: {folder / 'report.html'}", soft_wrap=True)
    return 1 if any("error" in row for row in rows) else 0


def show(rows: list[Row], console: Console) -> None:
    """Tables, claims and advice."""
    for told in mixed(rows):
        console.print(f"[yellow]{told}[/]", soft_wrap=True)
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
