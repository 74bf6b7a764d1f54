"""`semiar advise` through the command line: candidates on a tiny model, then the costs of other machines."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from kit.cli import parsed, refused
from kit.models import chain_table, table_model
from kit.tokenizers import byte_tokenizer
from rich.console import Console

from semiar.advising import material as module
from semiar.advising.advice import Advice
from semiar.advising.advise import target_of
from semiar.advising.budget import CALIBRATING, LEAST, SAVING, STARTING, STATES, TRAININGS, Budget, Costs
from semiar.advising.choice import Heads, choose
from semiar.advising.settings import AdviseSettings
from semiar.cli import main
from semiar.drafters import NoDrafter
from semiar.errors import DataError, TrainingError
from semiar.pair import Pair
from semiar.settings import DataSource, Decoding
from semiar.studies.run import ROWS, read_rows
from semiar.studies.statistics import Interval
from semiar.targets import Target


def words(target: Path, data: Path, out: Path, *more: str) -> list[str]:
    few = ["--prompts", "3", "--minutes", "0.5", "--max_new_tokens", "8", "--no_regenerate"]
    return ["advise", str(target), "--data", str(data), "--out", str(out), *few, *more]


@pytest.fixture(scope="module")
def advised(base: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("advise") / "work"
    assert main(words(base, data, out)) == 0
    return out


def again(
    advised: Path, copy: Path, base: Path, data: Path, capsys: pytest.CaptureFixture[str],
    betas: list[float], dearer: float, speed: float, fastest: str = "semi",
) -> tuple[dict[str, Any], list[str]]:  # fmt: skip
    """The advice where the candidates had these acceptances and this speed-up; a pass costs so many ms a token more."""
    shutil.copytree(advised, copy)
    rows = read_rows(copy)
    for row in rows:
        better = 1.0 if row["drafter"] == fastest else 0.9
        most = row["settings"]["num_speculative_tokens"]
        row["machine"] |= {
            "conditional_acceptance": (betas + [0.0] * most)[:most], "draft_ms": [0.5 * k for k in range(1, most + 1)],
            "verify_ms": {str(n + 1): 10 + dearer * n for n in range(most + 1)}, "overhead_ms": 0.1,
        }  # fmt: skip
        row["measured"]["num_speculative_tokens"] = 3 if speed > 1 else 0
        row["measured"]["disturbed"] = ""
        for number, one in enumerate(row["by_prompt"]):
            one["blocks"] = [[50, 50, 100, 1.0, 100, 1 / (speed * better + 0.02 * number)]]
    (copy / ROWS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    capsys.readouterr()
    assert main(words(base, data, copy)) == 0
    out = capsys.readouterr().out
    assert "3 cells, 3 of them done" in out
    found: dict[str, Any] = json.loads((copy / "advice.json").read_text())
    return found, out.strip().splitlines()


def test_candidates_are_measured_on_prompts_that_none_learned_from(advised: Path, data: Path) -> None:
    rows = read_rows(advised)
    assert [row["drafter"] for row in rows] == ["semi", "medusa", "lookup"] and not any("error" in row for row in rows)
    assert all(len(row["by_prompt"]) == 3 for row in rows)
    learned, held = ((advised / place / "sums.jsonl").read_text().splitlines() for place in ("rows", "prompts"))
    assert len(learned) == 21 and len(held) == 3 and not set(learned) & set(held)
    found = json.loads((advised / "advice.json").read_text())
    assert {one["drafter"] for one in found["candidates"]} == {"semi", "medusa", "lookup"}
    half, whole = found["lengths"]
    assert half["steps"] == max(1, whole["steps"] // 2) and min(half["tokens_per_pass"], whole["tokens_per_pass"]) >= 1
    assert found["draft_vocabularies"]["coverage"] == {"full": 1.0}


def test_it_says_what_to_run_where_it_pays(
    advised: Path, base: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, said = again(advised, tmp_path / "work", base, data, capsys, [0.8, 0.7, 0.7], 0.5, 1.9)
    assert found["verdict"] == "pays" and found["best"]["drafter"] == "semi" and found["best"]["count"] == 3
    assert found["best"]["speedup"]["value"] == pytest.approx(1.92, abs=0.02)
    assert any(line.startswith("It will pay: use semi with K = 3") for line in said)
    assert any("Teacher-forced on held-out answers, semi came to" in line for line in said)
    assert said[-1] == found["command"] and 3 <= len(found["lines"]) <= 6
    chosen = parsed(shlex.split(said[-1])[1:])
    assert (chosen.model, chosen.data.source, chosen.mode, chosen.adapter) == (str(base), str(data), "after", "")
    assert chosen.drafter.num_speculative_tokens == 3 and chosen.drafter.draft_vocab_size == "full"


def test_it_says_what_a_trained_drafter_would_need_where_a_lookup_is_best(
    advised: Path, base: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, said = again(advised, tmp_path / "work", base, data, capsys, [0.8, 0.7, 0.7], 0.5, 2.0, "lookup")
    assert found["verdict"] == "pays" and found["best"]["draft_vocab_size"] == ""
    assert any(line.startswith("semi would be faster than lookup from an acceptance of about") for line in said)
    assert said[-1].startswith(f"semiar attach {base} --out runs/sums --drafter.architecture lookup")


@pytest.mark.parametrize(
    ("betas", "dearer", "why"),
    [
        ([0.6], 12.0, "Even if every draft were accepted it would come to 0.8"),
        ([0.03], 0.5, "It would take an acceptance of about"),
    ],
    ids=["wide passes are dear", "nothing is accepted"],
)
def test_it_says_that_it_will_not_pay_and_what_would_change_that(
    advised: Path, base: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    betas: list[float], dearer: float, why: str,
) -> None:  # fmt: skip
    found, said = again(advised, tmp_path / "work", base, data, capsys, betas, dearer, 1.0)
    assert {one["verdict"] for one in found["candidates"]} == {"does not pay"}
    assert any(line.startswith("It will not pay as it is") for line in said)
    assert any(line.startswith(why) for line in said)


USED = (0.3, 0.9)  # those of 4096
HEADS = Heads({"2048": 0.2, "4096": 0.3, "full": 2.0}, {"2048": 0.88, "4096": 0.9, "full": 1.0}, USED)


@pytest.mark.parametrize(
    ("heads", "size"),
    [
        (HEADS, "2048"),
        (Heads({"2048": 0.2, "4096": 0.3, "full": 2.0}, {"2048": 0.5, "4096": 0.9, "full": 1.0}, USED), "4096"),
        (Heads({"2048": 0.2, "4096": 0.3, "full": 0.31}, {"2048": 0.5, "4096": 0.9, "full": 1.0}, USED), "full"),
    ],
)
def test_the_vocabulary_is_chosen_from_coverage_and_the_heads_cost(heads: Heads, size: str) -> None:
    row: dict[str, Any] = {
        "drafter": "semi", "facts": {"head": True}, "measured": {"num_speculative_tokens": 2, "disturbed": ""},
        "machine": {
            "verify_ms": {"1": 10.0, "2": 10.5, "3": 11.0, "10": 99.0}, "draft_ms": [1.0, 2.0], "overhead_ms": 0.0,
            "conditional_acceptance": [0.6, 0.55],
        },
        "by_prompt": [
            {"blocks": [[5, 4, 9, 1.5, 9, 1.0 + 0.01 * n]]}
            for n in range(4)
        ],
    }  # fmt: skip
    found = choose(row, heads)
    assert found.draft_vocab_size == size and found.count in (1, 2)
    measured = found.speedup.value == pytest.approx(6 / 4.06)
    assert measured is (size == "4096") and found.speedup.low < found.speedup.value < found.speedup.high


def saying(text: str) -> Pair:
    """A target that answers everything with ``text``, whose letters differ, and its end of turn."""
    tokenizer = byte_tokenizer()
    following = dict(pairwise([ord("\n"), *text.encode(), tokenizer.eos_token_id]))
    model = table_model(chain_table(len(tokenizer) + 4, changes=following))
    return Pair(Target(model), NoDrafter(), tokenizer, "table")


def test_the_target_answers_as_many_prompts_as_there_is_time_for(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST", 4)
    pair, quiet = saying("new"), Console(quiet=True)
    for minutes, rows in ((1000.0, 20), (1e-9, 4)):
        asked, out = (
            AdviseSettings("m", DataSource("d"), minutes=minutes, decoding=Decoding(max_new_tokens=8)),
            tmp_path / f"{rows}.jsonl",
        )
        assert (
            module.own_answers(asked, pair, data, out, 20, Budget(minutes), quiet)
            == rows
            == len(out.read_text().splitlines())
        )
        before = out.read_text()
        assert (
            module.own_answers(replace(asked, minutes=500), pair, data, out, 20, Budget(500), quiet) == rows
        )  # as it was begun
        assert before == out.read_text()
    with pytest.raises(DataError, match="4 of the target's own 4 answers did not end within 2 tokens"):
        module.own_answers(
            replace(asked, decoding=Decoding(max_new_tokens=1)),
            pair,
            data,
            tmp_path / "cut.jsonl",
            20,
            Budget(1e-9),
            quiet,
        )


def test_the_commands_regenerate_first_where_the_candidates_learned_from_own_answers(advised: Path) -> None:
    rows = read_rows(advised)
    choices = [choose(row, HEADS) for row in rows]
    data = DataSource("sql", folder="my data")
    asked = asdict(AdviseSettings("lora", data, model="base", decoding=Decoding(max_new_tokens=64)))
    for name in ("medusa", "lookup"):
        chosen = [
            replace(one, disturbed="", speedup=Interval(9, 9, 9) if one.drafter == name else one.speedup)
            for one in choices
        ]
        command = Advice(asked, "base", "lora", chosen, HEADS, None, rows).command()
        parts = [shlex.split(part)[1:] for part in command.split(" && ")]
        found = [parsed(part) for part in parts]
        if name == "lookup":
            assert [part[0] for part in parts] == ["attach"] and found[0].adapter == "lora"
            continue
        first, then = found
        assert (first.run, first.adapter, first.data.source, first.data.folder, first.max_new_tokens) == (
            "base", "lora", "sql", "my data", 128,
        )  # fmt: skip
        assert then.data.source == first.out and then.adapter == "lora" and then.drafter.architecture == "medusa"


def test_work_is_not_mixed_and_targets_are_what_they_are(
    advised: Path, base: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, words(base, data, advised, "--prompts", "4"), "another prompts", "--out")
    refused(capsys, words(base, data, tmp_path / "x", "--model", "other"), "--model", "PEFT adapter")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    assert target_of(AdviseSettings(str(adapter), DataSource("d"))) == (str(base), str(adapter))
    assert target_of(AdviseSettings(str(adapter), DataSource("d"), model="other")) == ("other", str(adapter))
    pair = advised / "cells" / "main-sums-medusa-0"
    assert target_of(AdviseSettings(str(pair), DataSource("d"))) == (str(base), "none")


def test_what_cannot_be_is_never_advised_on(
    advised: Path, base: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lookup that yields 1.3 tokens a pass was measured 1.9 times as fast while the machine was disturbed."""
    rows = read_rows(advised)
    choices = [choose(row | {"measured": row["measured"] | {"disturbed": ""}}, HEADS) for row in rows]
    fast = [replace(one, speedup=Interval(2, 2, 2), tokens_per_pass=3.0, disturbed="") for one in choices]
    fast[-1] = replace(fast[-1], speedup=Interval(9, 9, 9), disturbed="a speed-up of 9.00 where ...")
    asked = asdict(AdviseSettings("m", DataSource(str(data))))
    made = Advice(asked, "m", "", fast, HEADS, None, rows)
    assert made.best.drafter != "lookup" and fast[-1].verdict == "disturbed"
    assert any("lookup is left out: its measurement was disturbed" in line for line in made.lines())
    alone = Advice(asked, "m", "", fast[-1:], HEADS, None, rows)
    with pytest.raises(TrainingError, match="no measurement can be believed"):
        _ = alone.best
    row = rows[0] | {"by_prompt": [{"blocks": [[5, 1, 9, 9.0, 9, 1.0]]}] * 3}
    assert "a speed-up of" in choose(row | {"measured": row["measured"] | {"disturbed": ""}}, HEADS).disturbed


def test_the_minutes_are_shared_out_by_what_was_measured() -> None:
    budget, costs = Budget(6), Costs(loading=3.0, step=0.01, prompt=1.0)
    seconds = budget.training(costs, 3, 6, 12_000)
    measuring = 3 * (3 + SAVING + CALIBRATING * 0.01 + 24)
    around = TRAININGS * (3 + STARTING) + 12_000 / STATES + 3
    assert TRAININGS * seconds + measuring + around == pytest.approx(360, abs=0.5)
    assert Budget(0.1).training(costs, 3, 6, 12_000) == LEAST
