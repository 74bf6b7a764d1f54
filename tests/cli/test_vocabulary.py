"""One vocabulary: every option arrives where it is read, messages name options that exist, old names are told."""

from __future__ import annotations

import ast
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from kit.cli import parsed, refused

from semiar.cli import advise, attach, bench, compare, demo, import_, regenerate, train, verify
from semiar.cli.data import PreviewSettings
from semiar.cli.generate import GenerateSettings
from semiar.cli.main import VERBS, parser
from semiar.cli.options import off, settings_of
from semiar.cli.words import OLD
from semiar.drafters import REGISTRY
from semiar.settings import DataSource, Decoding, Load

SOURCE = Path(__file__).parents[2] / "src" / "semiar"
KINDS: dict[str, tuple[type[Any], list[str]]] = {  # a verb's settings, and the words that it cannot do without
    "train": (train.TrainConfig, ["--model", "m", "--data", "d", "--out", "o"]),
    "generate": (GenerateSettings, ["run", "hi"]),
    "bench": (bench.BenchSettings, ["run"]),
    "verify": (verify.VerifySettings, ["run"]),
    "attach": (attach.AttachSettings, ["run", "--out", "o", "--drafter.architecture", "lookup"]),
    "regenerate": (regenerate.RegenerateSettings, ["run", "--data", "d", "--out", "o"]),
    "data": (PreviewSettings, ["--data", "d", "--model", "m"]),
    "advise": (advise.AdviseSettings, ["target", "--data", "d"]),
    "compare": (compare.CompareConfig, ["--model", "m", "--out", "o"]),
    "import": (import_.ImportSettings, ["x.pt", "--architecture", "medusa", "--model", "m", "--out", "o"]),
    "demo": (demo.DemoSettings, []),
}
NEEDS = {  # what another option takes beside it
    "nodes": ["--tree", "best"], "branch": ["--tree", "best"], "stop_below": [], "small_lm_model": [],
}  # fmt: skip
SPECIAL: dict[str, str] = {  # values where one cannot be made up from the type and the default
    "mode": "after", "rule": "block", "tree": "best", "load.dtype": "float64", "load.engine": "packed",
    "load.drafting": "eager", "load.device": "cpu", "loss.terms": "ce", "drafter.layers": "low_mid_high",
    "drafter.small_lm": "lstm", "drafter.fusion": "additive", "drafter.draft_vocab_size": "77",
    "drafter.matcher": "ngram", "draft_vocab_size": "77", "num_speculative_tokens": "3", "architecture": "hydra",
    "tasks": "[{data: sql}]", "drafters": "{semi: {architecture: semi, num_layers: 2}}", "studies": "[count]",
    "seeds": "[3]", "lora.target_modules": "[q_proj]", "lora.modules_to_save": "[embed]", "data.limit": "3",
    "test.limit": "3", "max_new_tokens": "7", "temperature": "0.5", "seed": "5", "drafter.max_match": "40",
}  # fmt: skip
ELSEWHERE = {"drafter.architecture", "verify.rule"}


def options_of(verb: str) -> list[str]:
    """The verb's options that are settings."""
    words = [verb, *KINDS[verb][1]]
    top = parser(words)
    names = [name for action in top.verbs[verb]._actions for name in action.option_strings if name.startswith("--")]
    groups = {name.rpartition(".")[0] for name in names}
    names = [name for name in names if not name.endswith(("+", ".help"))]  # the parser's own
    own = {"--help", "--config", "--print_config", "--resume", "--dry_run", "--preset", "--report_only"}
    return [name[2:] for name in names if name not in own and name not in groups]


def other(name: str, value: Any, hint: Any) -> list[str]:
    """Words that give an option another value than the one it has."""
    if isinstance(value, bool):
        return [f"--{off(name)}" if value else f"--{name}"]
    if name in SPECIAL:
        return [f"--{name}", SPECIAL[name]]
    if isinstance(value, int):
        return [f"--{name}", str(value + 1)]
    if isinstance(value, float):
        return [f"--{name}", str(0.5 * value or 0.25)]
    return [f"--{name}", "something"]


def built(verb: str, words: list[str]) -> Any:
    return settings_of(KINDS[verb][0], parsed([verb, *KINDS[verb][1], *words]))


CASES = [(verb, name) for verb in KINDS for name in options_of(verb)]


@pytest.mark.parametrize(("verb", "name"), CASES, ids=lambda value: str(value))
def test_every_option_changes_what_the_verb_receives(verb: str, name: str) -> None:
    """An option without effect (`bench --top_k` decoded greedily in silence) is a fault whatever the verb."""
    if name in ELSEWHERE or (verb == "import" and name == "architecture"):
        return
    options = parsed([verb, *KINDS[verb][1]])
    value = options
    for part in name.split("."):
        value = value[part]
    words = [*NEEDS.get(name, []), *other(name, value, None)]
    if name == "drafter.fusion":
        words += ["--drafter.small_lm", "lstm"]
    if f"--{name.split('.')[0]}" in KINDS[verb][1] and name in ("data.source", "model", "out"):
        return  # it is among the words that every case gives
    if verb == "compare" and name in ("data.source", "test.source", "max_new_tokens", "seed"):
        with pytest.raises(ValueError, match=r"tasks|seeds"):
            built(verb, words)
        return
    if verb == "advise" and name == "seed":
        with pytest.raises(ValueError, match="seed"):
            built(verb, words)
        return
    before = built(verb, NEEDS.get(name, []) + (["--drafter.small_lm", "lstm"] if name == "drafter.fusion" else []))
    assert built(verb, words) != before


def test_the_same_word_means_the_same_everywhere() -> None:
    """A field of a shared group exists once; a verb's own settings never have a field of the same name."""
    shared = {field.name for kind in (DataSource, Load, Decoding) for field in fields(kind)}
    for verb, (kind, _) in KINDS.items():
        own = {name for name, hint in get_type_hints(kind).items() if not is_dataclass(hint)}
        if verb not in ("import", "demo"):  # they decode and read nothing
            assert not own & (shared - {"source", "folder"}), (verb, own & shared)


def mentioned(text: str) -> set[str]:
    """Options that a text names."""
    return set(re.findall(r"(?<![\w-])--([a-z][\w.-]*\w)", text))


def known_options() -> set[str]:
    """All that any verb takes, its design being any."""
    found: set[str] = set()
    for verb in VERBS:
        for design in REGISTRY if verb in ("train", "attach") else [""]:
            words = [verb, *(["--drafter.architecture", design] if design else [])]
            top = parser(words)
            found |= {name[2:] for action in top.verbs[verb]._actions for name in action.option_strings}
            found |= {off(name) for name in top.switches_of(verb)}
    return found | {"debug", "version", "help", "flag", "no_flag", "no-deps", "nproc_per_node"}


def texts_of(path: Path) -> str:
    """All strings of a module, docstrings among them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return "\n".join(
        one.value for one in ast.walk(tree) if isinstance(one, ast.Constant) and isinstance(one.value, str)
    )


def test_no_message_names_an_option_that_does_not_exist() -> None:
    known = known_options()
    for path in SOURCE.rglob("*.py"):
        if path.name != "words.py":
            unknown = mentioned(texts_of(path)) - known
            assert not unknown, f"{path.name} names {sorted(unknown)}"


@pytest.mark.parametrize("old", [name for name in OLD if not name.endswith(".")])
def test_an_old_name_is_told_its_new_one(capsys: pytest.CaptureFixture[str], old: str, tmp_path: Path) -> None:
    new = OLD[old]
    refused(capsys, ["train", "--model", "m", f"--{old}", "3"], f"--{old}", f"--{new}")
    recipe = tmp_path / "old.yaml"
    group, _, name = old.rpartition(".")
    recipe.write_text(f"model: m\n{group}:\n  {name}: 3\n" if group else f"{name}: 3\n")
    refused(capsys, ["train", "--config", str(recipe)], old, new)


def test_old_groups_are_told_their_new_ones(capsys: pytest.CaptureFixture[str]) -> None:
    for old, new in (("optim.max_steps", "training.max_steps"), ("plan.tree", "tree"), ("samples.limit", "data.limit"),
                     ("drafter.options.blocks", "drafter.blocks")):  # fmt: skip
        refused(capsys, ["train", "--model", "m", f"--{old}", "3"], f"--{old}", f"--{new}")
    refused(capsys, ["bench", "run", "--prompts", "3"], "--prompts", "--data.limit")
    refused(capsys, ["bench", "run", "--profile", "true"], "--profile true", "expected --profile")
    refused(capsys, ["bench", "run", "--load.merge", "false"], "--load.merge false", "expected --load.no_merge")


def test_dashes_are_underscores_and_a_switch_needs_no_value() -> None:
    one = parsed(["bench", "run", "--max-new-tokens", "5", "--profile", "--load.no-merge", "--data=sql"])
    assert (one.max_new_tokens, one.profile, one.load.merge, one.data.source) == (5, True, False, "sql")
    assert parsed(["bench", "run", "--no_profile"]).profile is False


def test_an_option_of_another_design_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--model", "m", "--data", "d", "--out", "o", "--drafter.architecture", "medusa"]
    refused(capsys, [*words, "--drafter.small_lm", "lstm"], "small_lm is an option of drafter semi")
    refused(capsys, [*words[:-1], "oracle"], "drafter architecture 'oracle'", "medusa")
    own = parsed([*words, "--drafter.blocks", "3"]).drafter
    assert own.blocks == 3 and "small_lm" not in own


def test_a_sampling_option_with_temperature_0_is_refused_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("generate", "bench", "verify", "regenerate", "advise", "compare"):
        words = [verb, *KINDS[verb][1], "--temperature", "0", "--top_k", "50"]
        refused(capsys, words, "top_k with temperature 0")
    with pytest.raises(ValueError, match="nodes 8 without a tree"):
        Decoding(nodes=8)


def test_no_room_but_that_of_the_designs_spells_their_names() -> None:
    """A design is one file and one line: whatever else names one would have to be changed for a new one.

    ``none`` and ``model`` are words of other meanings, too; recipes, presets and docs may name what they like.
    """
    names = set(REGISTRY) - {"none", "model"}
    allowed = {("layers.py", "recurrent"), ("layers.py", "hybrid"), ("native.py", "mlp")}  # parts of a target
    for path in SOURCE.rglob("*.py"):
        if path.parent.name == "designs":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        spelled = {
            one.value for one in ast.walk(tree) if isinstance(one, ast.Constant) and one.value in names
        } - {name for file, name in allowed if file == path.name}  # fmt: skip
        assert not spelled, f"{path.relative_to(SOURCE)} spells {sorted(spelled)}"
