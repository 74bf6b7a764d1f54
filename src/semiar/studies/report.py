"""One self-contained HTML page of a comparison; works without a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from semiar.studies.claims import judge
from semiar.studies.figures import figures
from semiar.studies.mixed import mixed
from semiar.studies.statistics import Row
from semiar.studies.studies import HEAD as STUDY_HEAD
from semiar.studies.studies import study_lines
from semiar.studies.table import HEAD, advice, cells, lines, prediction_errors, spread


def write_report(rows: Sequence[Row], path: Path, model: str) -> None:
    """Write the page: no script, font or picture from elsewhere, all text escaped."""
    places = ChoiceLoader([PackageLoader("semiar", "studies"), PackageLoader("semiar", "measuring")])
    pages = Environment(loader=places, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    found, errors = lines(rows), prediction_errors(rows)
    fastest = {line.task: line for line in reversed(found)}
    path.write_text(
        pages.get_template("report.html.j2").render(
            model=model, head=HEAD, lines=[(line.task, fastest[line.task] is line, cells(line)) for line in found],
            fastest=list(reversed(fastest.values())), figures=figures(rows), findings=judge(rows),
            study_head=STUDY_HEAD, studies=list(study_lines(rows)),
            advice=list(advice(rows)), failed=[row for row in rows if "error" in row],
            dates=sorted(row["date"] for row in rows), mixed=list(mixed(rows)),
            errors=spread(errors) if errors else None,
        ),
        encoding="utf-8",
    )  # fmt: skip
