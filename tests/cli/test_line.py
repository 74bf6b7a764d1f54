"""The command line as a user meets it: recipes, help, and the whole line once."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from kit.cli import parsed, train_words
from rich.console import Console
from safetensors.torch import load_file

from semiar.cli.main import VERBS, main
from semiar.decoding import batch
from semiar.demo import demo
from semiar.pair import places

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
COMPARISONS = [path for path in RECIPES if path.stem.startswith("compare")]


@pytest.mark.parametrize("recipe", [r for r in RECIPES if r not in COMPARISONS], ids=lambda path: path.stem)
def test_recipes_are_whole_command_lines(capsys: pytest.CaptureFixture[str], recipe: Path) -> None:
    assert main(["train", "--config", str(recipe), "--training.seed", "7", "--print_config"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    asked = yaml.safe_load(recipe.read_text())
    assert shown["training"]["seed"] == 7 and shown["mode"] == asked["mode"]
    for section, values in asked.items():
        values = {"source": values} if section == "data" and isinstance(values, str) else values
        assert shown[section] == (shown[section] | values if isinstance(values, dict) else values)


@pytest.mark.parametrize("recipe", COMPARISONS, ids=lambda path: path.stem)
def test_recipes_of_comparisons_are_whole_command_lines(capsys: pytest.CaptureFixture[str], recipe: Path) -> None:
    assert main(["compare", "--config", str(recipe), "--data.limit", "7", "--print_config"]) == 0
    shown, asked = yaml.safe_load(capsys.readouterr().out), yaml.safe_load(recipe.read_text())
    assert shown["training"] == shown["training"] | asked["training"]
    assert shown["data"] == shown["data"] | asked.get("data", {}) | {"limit": 7}
    assert shown["drafters"] == asked["drafters"] and len(shown["tasks"]) == len(asked["tasks"])
    for task, wanted in zip(shown["tasks"], asked["tasks"], strict=True):
        assert task == task | wanted


def test_the_printed_configuration_is_a_recipe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["train", "--model", "m", "--data", "d", "--out", "o", "--lora.target_modules", "[q_proj,v_proj]"]
    assert main([*words, "--print_config"]) == 0
    printed = capsys.readouterr().out
    (tmp_path / "recipe.yaml").write_text(printed)
    assert main(["train", "--config", str(tmp_path / "recipe.yaml"), "--print_config"]) == 0
    assert capsys.readouterr().out == printed
    assert yaml.safe_load(printed)["lora"]["target_modules"] == ["q_proj", "v_proj"]


def test_a_dry_run_spends_nothing(capsys: pytest.CaptureFixture[str], base: Path, data: Path, tmp_path: Path) -> None:
    assert main(train_words(base, data, tmp_path / "deep" / "run", "--dry-run")) == 0
    out, err = capsys.readouterr()
    assert out == "" and "4 steps" in err and "memory about" in err and "disk about" in err
    assert list(tmp_path.iterdir()) == []


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("semiar ")
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in VERBS)
    for verb in VERBS:
        assert main([verb, "--help"]) == 0
        assert "usage: semiar" in capsys.readouterr().out


FP32 = ["--load.dtype", "float32"]


def test_train_writes_a_whole_pair(run: Path, tmp_path: Path) -> None:
    """Its run.yaml is a recipe, too."""
    assert {p.name for p in run.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors", "drafter",
                                               "run.yaml", "metrics.json", "tokenizer.json"}  # fmt: skip
    assert main(["train", "--config", str(run / "run.yaml"), "--out", str(tmp_path / "again"), "--dry-run"]) == 0


def test_generate_writes_the_target_s_text_however_it_is_drafted(
    capsys: pytest.CaptureFixture[str], run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["generate", str(run), "what is 1 plus 1?", *FP32, "--max_new_tokens", "12"]
    assert main(words) == 0
    text, err = capsys.readouterr()
    assert text.endswith("\n") and err == ""
    tree, stop = ["--tree", "best", "--nodes", "6"], ["--stop_below", "0.5"]
    for extra in (["--num_speculative_tokens", "0"], ["--rule", "block"], tree, stop):
        assert main([*words, *extra]) == 0
        assert capsys.readouterr().out == text  # greedy: whatever is drafted, the text is the target's
    monkeypatch.setattr("sys.stdin", io.StringIO("what is 1 plus 1?"))
    assert main(["generate", str(run), "-", *words[3:]]) == 0
    assert capsys.readouterr().out == text
    assert main([*words, "--temperature", "1", "--seed", "1"]) == 0


def test_generate_says_when_it_is_lossy(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    assert main(["generate", str(run), "x", *FP32, "--max_new_tokens", "4", "--rule", "none"]) == 0
    assert "LOSSY" in capsys.readouterr().err


def test_bench_shows_what_it_measured_and_report_draws_it_again(capsys: pytest.CaptureFixture[str], copy: Path) -> None:
    assert main(["bench", str(copy), *FP32, "--data.limit", "2", "--max_new_tokens", "10", "--base"]) == 0
    shown = capsys.readouterr().out
    assert "speed-up" in shown and "mean acceptance length" in shown and "base / plain / speculative" in shown
    assert json.loads((copy / "bench/metrics.json").read_text())["texts"] == {"compared": 2, "equal": 2}
    report = copy / "bench/report.html"
    page = report.read_text()
    report.unlink()
    assert main(["report", str(copy / "bench")]) == 0
    assert report.read_text() == page and str(report) in capsys.readouterr().out


def test_verify_writes_a_certificate(capsys: pytest.CaptureFixture[str], copy: Path) -> None:
    assert main(["verify", str(copy), "--data.limit", "2", "--max_new_tokens", "10", "--samples", "60"]) == 0
    assert "lossless" in capsys.readouterr().out
    found = json.loads((copy / "certificate.json").read_text())
    assert found["passed"] and found["dtype"] == "float32" and found["greedy_tokens"] > 0


def test_regenerate_and_train_after_on_the_target_s_own_answers(
    capsys: pytest.CaptureFixture[str], base: Path, data: Path, run: Path, tmp_path: Path
) -> None:
    own, adapted = tmp_path / "own.jsonl", tmp_path / "adapted.jsonl"
    words = ["--data", str(data), "--data.limit", "12", "--max_new_tokens", "8", "--keep_unfinished"]
    assert main(["regenerate", str(run), "--out", str(own), *words]) == 0
    assert f"12 samples in {own}" in capsys.readouterr().out
    assert main(["regenerate", str(base), "--adapter", str(run), "--out", str(adapted), *words]) == 0
    assert adapted.read_text() == own.read_text()  # the same target, as a model and an adapter
    more = ["--mode", "after", "--adapter", str(run), "--init_drafter", str(run)]
    assert main(train_words(base, own, tmp_path / "after", *more)) == 0
    assert "saved the pair in" in capsys.readouterr().err
    kept, first = (load_file(folder / "adapter_model.safetensors") for folder in (tmp_path / "after", run))
    assert all(torch.equal(kept[name], first[name]) for name in first)


def test_verify_fails_when_drafts_are_believed(
    capsys: pytest.CaptureFixture[str], copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def believe(draft: Any, law: Any, rng: Any, *, block: bool = False) -> Any:
        return batch._unverified(draft, law, rng)

    monkeypatch.setattr(batch, "accept", believe)
    assert main(["verify", str(copy), "--data.limit", "2", "--max_new_tokens", "10", "--samples", "40"]) == 1
    shown = capsys.readouterr().out
    assert "NOT lossless" in shown and str(copy / "certificate.json") in shown
    found = json.loads((copy / "certificate.json").read_text())
    assert not found["passed"] and found["differences"]


def test_findings_about_a_pair_on_the_hub_stay_here(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(places, "snapshot_download", lambda name: str(run))
    monkeypatch.setattr(places, "has_file", lambda name, file: (run / file).is_file())
    for _ in range(2):  # a folder here must not be taken for the pair the second time
        assert main(["bench", "you/pair", "--data.limit", "1", "--max_new_tokens", "4"]) == 0
        words = ["verify", "you/pair", "--data.limit", "1", "--max_new_tokens", "4", "--samples", "20"]
        assert main(words) == 0
    assert (tmp_path / "you--pair/certificate.json").is_file()
    assert (tmp_path / "you--pair/bench/report.html").is_file()


def test_data_shows_samples_and_their_lengths(capsys: pytest.CaptureFixture[str], base: Path, data: Path) -> None:
    assert main(["data", str(data), "--model", str(base), "--data.limit", "4"]) == 0
    shown = capsys.readouterr().out
    assert "what is 0 plus 0?" in shown and "4 samples" in shown and "longest" in shown


def test_an_interrupt_is_code_130(
    capsys: pytest.CaptureFixture[str], run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("semiar.cli.bench.run_bench", interrupted)
    assert main(["bench", str(run)]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_the_demo_uses_options_that_exist_and_stops_at_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "smollm2", lambda: tmp_path / "model")
    seen = []

    def command(words: Any) -> int:
        seen.append(words[0])
        parsed(words)
        return int(words[0] == "verify")

    settings = demo.DemoSettings(out=str(tmp_path / "demo"), samples=20)
    assert demo.run_demo(settings, command, Console(quiet=True)) == 1
    assert seen[:2] == ["data", "train"] and seen[-2:] == ["bench", "verify"]
