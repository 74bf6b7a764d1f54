"""What the command line refuses: one line on standard error, exit code 2, no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit.cli import refused, train_words
from kit.tokenizers import byte_tokenizer
from safetensors.torch import load_file, save_file

from semiar.cli import main
from semiar.errors import SemiarError

WRONG: dict[str, tuple[str, list[str]]] = {
    "unknown verb": ("frobnicate", ["'frobnicate'", "'verify'"]),
    "unknown option": ("train --nonsense 3", ["--nonsense", "semiar train --help"]),
    "missing options": ("train --model x", ["required: out", "semiar train --help"]),
    "no number": ("train --model x --data y --out z --training.max_steps many", ["training.max_steps", "many"]),
    "no truth": ("train --model x --data y --out z --training.bf16 maybe", ["maybe"]),
    "unknown mode": ("train --model x --data y --out z --mode both", ["mode 'both'", "joint, after or lora"]),
    "unknown loss": ("train --model x --data y --out z --loss.terms mse", ["loss term 'mse'", "tv"]),
    "no batch": ("train --model x --data y --out z --training.per_device_train_batch_size 0",
                 ["per_device_train_batch_size 0", "1 or more"]),
    "no epoch": ("train --model x --data y --out z --training.num_train_epochs 0", ["num_train_epochs 0"]),
    "one of the GPUs": ("train --model x --data y --out z --load.device cuda:1", ["CUDA_VISIBLE_DEVICES"]),
    "no prompts": ("bench x --data.limit 0", ["limit 0"]),
    "cold": ("bench x --temperature -1", ["temperature"]),
    "lossy proof": ("verify x --rule none", ["rule 'none'", "exact or block"]),
    "no prompt": ("generate x", ["required: prompt"]),
    "wrong filter": ("generate x --top_p 3 hi", ["top_p = 3"]),
    "H09: several answers": ("generate x hi --n 4", ["--n"]),
    "H10: a penalty": ("generate x hi --repetition_penalty 1.5", ["--repetition_penalty"]),
    "H11: a bias": ("generate x hi --logit_bias 5:-100", ["--logit_bias"]),
    "H14: a stop string": ("generate x hi --stop ha", ["--stop"]),
    "no folder": ("generate ./none hi", ["no model folder './none'"]),
    "no trace": ("report ./none", ["trace.jsonl", "run the bench first"]),
    "no source": ("data gsm9k --model x", ["'gsm9k'", "gsm8k"]),
    "no file": ("data none.jsonl --model x", ["'none.jsonl'"]),
    "no model": ("train --model ./none --data y --out z", ["no model folder './none'"]),
}  # fmt: skip


@pytest.mark.parametrize("name", list(WRONG))
def test_a_wrong_option_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str], name: str) -> None:
    words, expected = WRONG[name]
    refused(capsys, words.split(), *expected)


def test_recipes_with_unknown_keys_or_broken_yaml_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: x\ndata: y\nout: z\nloss:\n  termz: ce\n")
    refused(capsys, ["train", "--config", str(recipe)], "loss.termz")
    recipe.write_text("model: x\ndata: y\nout: z\nlearning_rate: 1\n")
    refused(capsys, ["train", "--config", str(recipe)], "learning_rate")
    recipe.write_text("model: [x\n")
    refused(capsys, ["train", "--config", str(recipe)], "parsing config")
    refused(capsys, ["train", "--config", str(tmp_path / "none.yaml")], "none.yaml")


def test_options_that_the_trainer_refuses_are_one_line_too(
    capsys: pytest.CaptureFixture[str], base: Path, data: Path, tmp_path: Path
) -> None:
    for words, expected in ((["--training.lr_scheduler_type", "foo"], "SchedulerType"),
                            (["--training.report_to", "nobody"], "nobody"), (["--lora.r", "-3"], "-3")):  # fmt: skip
        refused(capsys, train_words(base, data, tmp_path / "run", *words), expected, lines=0)
    (tmp_path / "file").write_text("")
    refused(capsys, train_words(base, data, tmp_path / "file" / "run"), "file", lines=0)


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    with pytest.raises(SemiarError):
        main(["--debug", "generate", str(tmp_path / "none"), "hi"])


def test_broken_data_is_named_with_file_and_line(
    capsys: pytest.CaptureFixture[str], base: Path, tmp_path: Path
) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text('{"prompt": "a", "completion": "b"}\n\n{"prompt": "a", "comple\n')
    for words in (train_words(base, path, tmp_path / "run"), ["data", str(path), "--model", str(base)]):
        refused(capsys, words, "broken.jsonl:3", "broken JSON", "repair or delete the line")
    path.write_text('{"question": "a", "reply": "b"}\n{"prompt": "", "completion": "b"}\n')
    refused(capsys, train_words(base, path, tmp_path / "run"), "no usable sample among 2", "broken.jsonl:1: no answer")
    path.write_text('{"alpha": 1}\n')
    refused(capsys, train_words(base, path, tmp_path / "run"), "broken.jsonl:1: unknown fields (`alpha`)")
    refused(capsys, train_words(base, tmp_path / "none.jsonl", tmp_path / "run"), "none.jsonl")
    assert not (tmp_path / "run").exists()


def test_samples_without_an_answer_are_left_out_and_counted(
    capsys: pytest.CaptureFixture[str], base: Path, data: Path, tmp_path: Path
) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text(data.read_text() + '{"prompt": "and this?", "completion": ""}\n')
    assert main(train_words(base, path, tmp_path / "run", "--dry-run")) == 0
    err = capsys.readouterr().err
    assert "skipped 1 samples: no answer" in err and "22 samples to learn from, 2 held out" in err


def test_an_adapter_or_drafter_of_another_base_is_refused(
    capsys: pytest.CaptureFixture[str], run: Path, copy: Path, other: Path, data: Path, tmp_path: Path
) -> None:
    words = train_words(other, data, tmp_path / "x", "--adapter", str(run), "--mode", "after")
    refused(capsys, words, "adapter", "another model", lines=0)
    config = json.loads((copy / "drafter/config.json").read_text())
    (copy / "drafter/config.json").write_text(json.dumps(config | {"base_model_name_or_path": str(other)}))
    refused(capsys, ["generate", str(copy), "hi"], "adapter", "another model")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (copy / name).unlink()
    refused(capsys, ["generate", str(copy), "hi"], "no adapter_config.json")
    (copy / "drafter/config.json").write_text(
        json.dumps(config | {"base_model_name_or_path": str(other), "adapted": False})
    )
    refused(capsys, ["generate", str(copy), "hi"], "made for hidden_size 32", "16")


def test_damaged_pairs_are_refused(capsys: pytest.CaptureFixture[str], copy: Path, base: Path) -> None:
    adapter, drafter = copy / "adapter_model.safetensors", copy / "drafter/model.safetensors"
    whole, config = load_file(adapter), (copy / "drafter/config.json").read_text()
    missing = sorted(whole)[0]
    save_file({k: v for k, v in whole.items() if k != missing}, adapter)
    refused(capsys, ["generate", str(copy), "hi"], "missing", missing.rsplit(".", 2)[1])
    save_file({k.replace("lora_A", "lora_X"): v for k, v in whole.items()}, adapter)
    refused(capsys, ["generate", str(copy), "hi"], "adapter", "does not fit")
    save_file(whole, adapter)

    weights = load_file(drafter)
    lost = next(name for name in sorted(weights) if name != "d2t")
    save_file({k: v for k, v in weights.items() if k != lost}, drafter)
    refused(capsys, ["bench", str(copy)], f"missing {lost}")
    save_file(weights, drafter)

    settings = json.loads(config)
    settings["settings"]["num_speculative_tokens"] = 7
    (copy / "drafter/config.json").write_text(json.dumps(settings))
    refused(capsys, ["verify", str(copy)], "drafter", "other shape")
    (copy / "drafter/config.json").write_text(config[:40])
    refused(capsys, ["generate", str(copy), "hi"], "config.json' is not JSON")
    (copy / "drafter/config.json").write_text(config)

    byte_tokenizer(merges=["ab"]).save_pretrained(copy)
    refused(capsys, ["generate", str(copy), "hi"], "tokenizer", "not the one")
    (copy / "run.yaml").unlink()
    refused(capsys, ["verify", str(copy)], "no run.yaml")
    refused(capsys, ["bench", str(base)], "has no drafter")


def test_a_count_that_was_not_trained_is_refused(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    for words in (["generate", str(run), "hi"], ["bench", str(run)]):
        for count, expected in (("-1", "0 or more"), ("4", "0 to 3"), ("many", "auto")):
            told = (f"num_speculative_tokens {count}", expected)
            refused(capsys, [*words, "--num_speculative_tokens", count], *told)


def test_a_warm_start_from_nowhere_is_refused(
    capsys: pytest.CaptureFixture[str], base: Path, data: Path, tmp_path: Path
) -> None:
    for option in ("--adapter", "--init_drafter"):
        words = train_words(base, data, tmp_path / "run", option, str(tmp_path / "none"))
        refused(capsys, words, "none", lines=0)
