"""Cells, rows, resuming, and what happens when one fails."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from semiar.cli import main
from semiar.errors import ConfigError
from semiar.records import code_hash
from semiar.settings import DataSource, Training
from semiar.studies import making
from semiar.studies.config import DRAFTERS, STUDIES, CompareConfig, TaskSettings, preset
from semiar.studies.grid import Cell, cells
from semiar.studies.making import trained_as
from semiar.studies.mixed import earlier, mixed
from semiar.studies.run import ROWS, read_rows
from semiar.studies.table import prediction_errors
from semiar.training.config import LossSettings, TrainConfig
from studies.conftest import recipe


def test_every_cell_has_a_row_and_a_failure_costs_only_its_own(rows: list[dict[str, Any]]) -> None:
    assert len(rows) == len({row["key"] for row in rows}) == 5 + 3 + 2
    failed = [row for row in rows if "error" in row]
    assert [row["drafter"] for row in failed] == ["broken"] and "3 heads" in failed[0]["error"]
    for row in rows:
        if "error" in row:
            continue
        assert row["measured"]["texts"] == {"compared": 2, "equal": 2}
        assert len(row["by_prompt"]) == 2 and all(one["blocks"][0][0] > 0 for one in row["by_prompt"])
        if row["drafter"] in ("semi", "medusa"):
            assert row["train"]["rows"] == 12 and row["train"]["train_runtime"] > 0 and row["parameters"] > 0
            assert row["peak_bytes"] > 1e6 and row["held_out"]["acceptance_length"] >= 1
    assert {row["measured"]["num_speculative_tokens"] for row in rows if row["study"] == "count"} == {1, 2}


def test_what_is_measured_alike_is_measured_once(folder: Path, rows: list[dict[str, Any]]) -> None:
    """The reference at the K of all, on the tuned target, is in three studies; nothing else is shared."""
    same = {row["key"]: row["same_as"] for row in rows if "same_as" in row}
    assert same == dict.fromkeys(
        ("staleness-sums-semi-made_on=tuned-measured_on=tuned-0", "count-sums-semi-count=2-0"), "main-sums-semi-0"
    )
    by_key = {row["key"]: row for row in rows}
    for key, source in same.items():
        assert by_key[key]["measured"] == by_key[source]["measured"]
        assert not (folder / "traces" / f"{key}.jsonl").exists()
    assert len(prediction_errors(rows)) <= len([row for row in rows if "error" not in row]) - len(same)


def test_states_are_computed_once_for_all_drafters(folder: Path) -> None:
    kept = sorted(path.relative_to(folder / "states").as_posix() for path in (folder / "states").rglob("*.bf16"))
    assert len(kept) == 2 and all(name.endswith("states-last.bf16") for name in kept)  # the base and the tuned target


def test_finished_cells_are_not_done_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / ROWS).read_text()
    with (folder / ROWS).open("a") as file:
        file.write('{"key": "broken off')
    capsys.readouterr()
    assert main(["compare", "--config", str(folder.with_suffix(".yaml"))]) == 1
    assert "10 cells, 9 of them done" in capsys.readouterr().out
    after = (folder / ROWS).read_text()
    assert after.startswith(before) and len(read_rows(folder)) == 10


def test_another_budget_is_not_mixed_in(
    folder: Path, base: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder.with_name("other.yaml")
    path.write_text(yaml.safe_dump({**recipe(base, data, folder), "data": {"limit": 8}}, sort_keys=False))
    assert main(["compare", "--config", str(path)]) == 2
    assert "another data" in capsys.readouterr().err


def test_the_page_holds_everything_and_no_address(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert "medusa" in page and "<svg" in page and "3 heads" in page and "C8" in page
    assert not re.search(r"https?://|src=|@import", page)


def test_what_is_trained_alike_is_trained_once() -> None:
    config = CompareConfig("m", "o", tasks=[TaskSettings("sql")], studies=list(STUDIES), seeds=[0])
    shared: dict[str, list[Cell]] = {}
    for cell in cells(config):
        shared.setdefault(trained_as(config, cell).key, []).append(cell)
    reference = [(cell.study, *cell.point.values()) for cell in shared["main-sql-semi-0"]]
    assert set(reference) == {
        ("main",), ("count", 1), ("count", 2), ("count", 3), ("count", 4), ("count", 5),
        ("staleness", "tuned", "tuned"), ("rows", 1000), ("vocabulary", 4096),
        ("ablation", "context", "concat"),
    }  # fmt: skip
    assert {cell.study for cell in shared["main-sql-semi_lstm-0"]} == {"main", "ablation"}
    base = [cell.point["measured_on"] for cell in shared["staleness-sql-semi-made_on=base-0"]]
    assert base == ["base", "tuned"]
    alone = [cell for group in shared.values() if len(group) == 1 for cell in group if cell.study == "rank"]
    assert len(alone) == 9


def test_joint_and_after_serve_the_same_target(
    base: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Same adapter, same rows and steps; the answers are the data's for both."""
    path = tmp_path / "joint.yaml"
    changes = {"drafters": {"semi": {"architecture": "semi", "small_lm": "lstm"}}, "studies": ["joint", "lambda"]}
    path.write_text(yaml.safe_dump(recipe(base, data, tmp_path / "out", **changes), sort_keys=False))
    assert main(["compare", "--config", str(path)]) == 0
    rows = {row["key"]: row for row in read_rows(tmp_path / "out")}
    joint, after = (rows[f"joint-sums-semi-mode={mode}-0"] for mode in ("joint", "after"))
    runs = {}
    for mode in ("joint", "after"):
        folder = tmp_path / "out" / "cells" / f"joint-sums-semi-mode={mode}-0"
        runs[mode] = yaml.safe_load((folder / "run.yaml").read_text())
    assert runs["after"]["adapter"].endswith("joint-sums-semi-mode=joint-0") and not runs["joint"]["adapter"]
    assert runs["after"]["data"] == runs["joint"]["data"] | {"source": str(data)}
    assert [one["blocks"][0][2] for one in joint["by_prompt"]] == [one["blocks"][0][2] for one in after["by_prompt"]]
    capsys.readouterr()
    assert main(["compare", "--config", str(path), "--report_only"]) == 0
    told, page = capsys.readouterr().out, (tmp_path / "out" / "report.html").read_text()
    losses = [f"{row['held_out']['lm_loss']:.3f}" for row in rows.values() if row["study"] == "lambda"]
    assert len(losses) == 5 and all(loss in page for loss in losses)  # the target's metric beside the acceptance
    assert "draft weight 0.9" in page and "studies" in told


def test_the_joint_run_makes_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One adapter per task, not two, unless the draft loss shaped it; what is there is kept, whatever comes next."""
    asked: list[str] = []

    def learn(config: CompareConfig, cell: Cell, folder: Path, adapter: str, console: Console) -> None:
        asked.append(cell.key)
        folder.mkdir(parents=True)
        (folder / "run.yaml").touch()

    def lora(one: TrainConfig, console: Console) -> None:
        asked.append(one.mode)
        Path(one.out).mkdir(parents=True)
        (Path(one.out) / "run.yaml").touch()

    monkeypatch.setattr(making, "_learned", learn)
    monkeypatch.setattr(making, "_finished", lora)
    task, console = TaskSettings("sql"), Console(quiet=True)
    both = CompareConfig("m", str(tmp_path / "a"), tasks=[task], studies=["main", "joint"])
    joint = str(tmp_path / "a" / "cells" / "joint-sql-semi-mode=joint-0")
    assert [making.target_of(one, task, console) for one in (both, replace(both, studies=["main"]))] == [joint, joint]
    assert asked == ["joint-sql-semi-mode=joint-0"]
    assert making.target_of(both, TaskSettings("sql", adapter="mine"), console) == "mine"
    shaped = replace(both, out=str(tmp_path / "b"), loss=LossSettings(detach_hidden=False))
    alone = replace(both, out=str(tmp_path / "c"), studies=["main"])
    for one in (shaped, alone, replace(alone, studies=["main", "joint"])):
        assert making.target_of(one, task, console) == str(Path(one.out) / "targets" / "sql")
    assert asked[1:] == ["lora", "lora"]


def test_a_drafter_of_the_base_model_learns_from_what_that_model_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drafter of the base model that had read the tuned one's answers would be fresh, not stale."""
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(making.Pair, "load", lambda model, load, adapter="": adapter)
    monkeypatch.setattr(
        making, "regenerate", lambda adapter, settings, console: asked.append((adapter, settings.data.source))
    )
    own = tmp_path / "own.jsonl"
    own.touch()
    config = CompareConfig("m", str(tmp_path / "out"))
    made, given = TaskSettings("sql", adapter="lora"), TaskSettings(str(own), adapter="lora", test="sql")
    for _ in range(2):  # the second time all of them are there
        names = [
            Path(making.data_of(config, task, Console(quiet=True), base=base)).name
            for task, base in ((made, False), (made, True), (given, False))
        ]
    assert names == ["sql.jsonl", "sql-base.jsonl", "own.jsonl"]
    assert asked == [("lora", "sql"), ("", "sql")]
    again = CompareConfig("m", str(tmp_path / "again"))
    assert making.data_of(again, given, Console(quiet=True), base=True).endswith("again/data/sql-base.jsonl")
    assert asked[2:] == [("", str(own))]  # the same prompts
    fewer: list[int] = []
    monkeypatch.setattr(making, "regenerate", lambda adapter, settings, console: fewer.append(settings.data.limit))
    few = CompareConfig(
        "m", str(tmp_path / "few"), data=DataSource(limit=50), base_rows=10, training=Training(eval_samples=4)
    )
    for base in (False, True):
        making.data_of(few, made, Console(quiet=True), base=base)
    assert fewer == [54, 14]
    kept = replace(again, regenerate=False)
    assert making.data_of(kept, made, Console(quiet=True), base=True) == "sql" and len(asked) == 3


def test_studies_vary_what_they_say() -> None:
    config = CompareConfig("m", "o", tasks=[TaskSettings("sql")], studies=list(STUDIES), seeds=[0, 1])
    found = cells(config)
    assert len({cell.key for cell in found}) == len(found)
    assert len([c for c in found if c.study == "main"]) == 2 * len(DRAFTERS)
    sizes = [c.settings.draft_vocab_size for c in found if c.study == "vocabulary"]
    assert "full" in sizes and len(set(sizes)) == len(sizes) > 3
    forms = {(c.settings.small_lm, c.settings.fusion) for c in found if c.study == "ablation"}
    assert {("attention", "concat"), ("lstm", "additive"), ("none", "concat")} <= forms
    assert [c.settings.lora_r for c in found if c.study == "rank"] == [4, 16, 64] * 3


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"studies": ["speed"]}, "speed"),
        ({"drafters": {}}, "drafters"),
        ({"drafters": {"one": {"architecture": "semi", "size": 3}}}, "size"),
        ({"drafters": {"one": {"architecture": "semi", "fusion": "sum"}}}, "sum"),
        ({"tasks": [TaskSettings("sql"), TaskSettings("x.jsonl", test="sql")]}, "different names"),
    ],
)
def test_what_cannot_be_compared_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        CompareConfig("m", "o", **changes)


def test_presets_say_what_they_run() -> None:
    config = CompareConfig("m", "o", tasks=[TaskSettings("sql", adapter="runs/sql")])
    paper = preset("paper", config)
    assert [task.name for task in paper.tasks] == ["gsm8k", "sql", "samsum", "chatdoctor"]
    assert paper.tasks[1].adapter == "runs/sql" and set(DRAFTERS) == set(paper.drafters)
    assert len(preset("quick", config).tasks) == 1
    with pytest.raises(ConfigError, match="huge"):
        preset("huge", config)


def test_rows_of_other_code_or_prompts_are_told_apart(rows: list[dict[str, Any]], monkeypatch: Any) -> None:
    good = [row for row in rows if "error" not in row]
    assert {row["code"] for row in rows} == {code_hash()} and all(row["prompts"] for row in good)
    assert not list(mixed(rows)) and not list(earlier(rows))
    changed = [good[0] | {"code": "older"}, good[1] | {"prompts": "others"}, *good[2:]]
    code, prompts = mixed(changed)
    assert "different code: older (1 cells)" in code and "sums: measured on different prompts" in prompts
    monkeypatch.setattr("semiar.studies.mixed.code_hash", lambda: "newer")
    assert f"{len(good)} finished cells were measured by other code" in next(earlier(rows))
