"""`semiar regenerate`: the target's own answers, one file that a killed run can go on with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from kit.drafters import ScriptDrafter
from kit.models import chain_table, table_model
from kit.tokenizers import byte_tokenizer
from rich.console import Console

import semiar.regenerate as module
from semiar.data.batches import prepare
from semiar.data.chat import ChatRenderer
from semiar.data.records import load_records
from semiar.decoding.text import Completion
from semiar.errors import ConfigError, DataError
from semiar.pair import Pair
from semiar.regenerate import RegenerateSettings, regenerate
from semiar.settings import DataSource, Decoding
from semiar.targets import Target

SIZE = 264


def saying(text: str, context: int = 256) -> Pair:
    """A target that answers everything with ``text``, whose letters differ, and its end of turn."""
    tokenizer = byte_tokenizer()
    ids = [ord("\n"), *text.encode(), tokenizer.eos_token_id]
    following = dict(pairwise(ids))
    model = table_model(chain_table(SIZE, changes=following), context=context)
    return Pair(Target(model), ScriptDrafter(lambda row, k: [following.get(row[-1], 0)], 3), tokenizer, "table")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "asked.jsonl"
    rows = [
        {"messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "x" * (i % 5 + 1)},
            {"role": "assistant", "content": f"old {i}"},
        ]} for i in range(7)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def settings(data: Path, **changes: Any) -> RegenerateSettings:
    asked = {field.name for field in fields(Decoding)} & set(changes)
    decoding = Decoding(**{"max_new_tokens": 8} | {name: changes.pop(name) for name in asked})
    source = DataSource(changes.pop("data", str(data)), limit=changes.pop("limit", None))
    options = {"data": source, "out": str(data.with_name("own.jsonl")), "max_batch": 3, "decoding": decoding}
    return RegenerateSettings(**(options | changes))


def quiet() -> Console:
    return Console(quiet=True)


def lines(path: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def test_answers_are_the_targets_and_the_rest_of_the_chat_is_kept(data: Path) -> None:
    chosen = settings(data)
    assert regenerate(saying("hi"), chosen, quiet()) == 7
    rows = lines(chosen.out)
    assert sorted(row["place"] for row in rows) == [f"asked.jsonl:{i + 1}" for i in range(7)]
    for row in rows:
        assert [m["role"] for m in row["messages"]] == ["system", "user", "assistant"]
        assert row["messages"][0]["content"] == "Be brief."
        assert row["messages"][-1]["content"] == "hi" and row["finish_reason"] == "stop"


def test_a_killed_run_goes_on_without_losing_or_repeating_a_sample(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, pair = settings(data), saying("hi")
    answers, asked = module._answers, []

    def killed(pair: Pair, prompts: list[list[int]], *rest: Any) -> Iterator[tuple[int, Completion]]:
        asked.append(len(prompts))
        for number, found in enumerate(answers(pair, prompts, *rest)):
            if len(asked) == 1 and number == 3:
                raise KeyboardInterrupt
            yield found

    monkeypatch.setattr(module, "_answers", killed)
    with pytest.raises(KeyboardInterrupt):
        regenerate(pair, chosen, quiet())
    first = Path(chosen.out).read_text(encoding="utf-8")
    assert first.count("\n") == 3
    Path(chosen.out).write_text(first + '{"messages": [{"role"', encoding="utf-8")  # killed while writing
    console = Console(record=True, width=120)
    assert regenerate(pair, chosen, console) == 7
    assert "3 samples are there already; 4 to go" in console.export_text()
    assert Path(chosen.out).read_text(encoding="utf-8").startswith(first)
    assert len({row["place"] for row in lines(chosen.out)}) == len(lines(chosen.out)) == 7
    assert regenerate(pair, chosen, quiet()) == 7 and asked == [7, 4, 0]  # nothing left to do


def test_a_file_begun_by_another_target_or_otherwise_is_not_continued(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, pair = settings(data), saying("hi")
    regenerate(pair, chosen, quiet())
    for change in ({"temperature": 0.5}, {"max_new_tokens": 9}, {"seed": 1}):
        with pytest.raises(DataError, match="another target or with other settings"):
            regenerate(pair, settings(data, **change), quiet())
    assert regenerate(pair, settings(data, max_batch=5), quiet()) == 7
    monkeypatch.setattr(pair, "base", "another")
    with pytest.raises(DataError, match="another target"):
        regenerate(pair, chosen, quiet())


def test_answers_without_an_end_are_not_learned_unless_asked_for(data: Path) -> None:
    pair = saying("abcdefghijkl")
    for keep, answer in ((False, ""), (True, "abcdefgh")):
        chosen = settings(data, out=str(data.with_name(f"{keep}.jsonl")), keep_unfinished=keep)
        console = Console(record=True, width=120)
        assert regenerate(pair, chosen, console) == 7
        assert "7 answers hit max_new_tokens 8" in console.export_text()
        assert {row["messages"][-1]["content"] for row in lines(chosen.out)} == {answer}
    with pytest.raises(DataError, match="no usable sample"):
        load_records(str(data.with_name("False.jsonl")))


def test_the_output_is_training_data(data: Path) -> None:
    pair, chosen = saying("hi"), settings(data)
    regenerate(pair, chosen, quiet())
    ready = prepare(load_records(chosen.out).records, ChatRenderer(pair.tokenizer), 128)
    assert len(ready.examples) == 7 and not ready.skipped
    for example in ready.examples:
        assert [i for i in example["labels"] if i >= 0] == [*b"hi", pair.tokenizer.eos_token_id]


def test_prompts_beyond_the_context_are_left_out_and_said_so(data: Path) -> None:
    console = Console(record=True, width=120)
    long = json.dumps({"prompt": "y" * 300, "completion": "z"})
    data.write_text(data.read_text() + long + "\n")
    assert regenerate(saying("hi"), settings(data), console) == 7
    assert "skipped 1 prompts longer" in console.export_text()


def test_sampled_answers_depend_on_the_seed_only(data: Path) -> None:
    model = table_model([[0.0] * 97 + [2.0] * 10 + [0.0] * (SIZE - 107) for _ in range(SIZE)])
    pair = Pair(Target(model), ScriptDrafter(lambda row, k: [97] * k, 3), byte_tokenizer(), "table")
    texts = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        chosen = settings(data, out=str(data.with_name(name)), temperature=1.0, seed=seed, keep_unfinished=True)
        regenerate(pair, chosen, quiet())
        texts.append({row["place"]: row["messages"][-1]["content"] for row in lines(chosen.out)})
    assert texts[0] == texts[1] and texts[0] != texts[2]
    assert len(set(texts[0].values())) == 7  # batches do not repeat each other's random numbers


def test_what_cannot_be_regenerated_is_refused(data: Path) -> None:
    pair = saying("hi")
    with pytest.raises(DataError, match=r"asked.jsonl, line 1 is not from semiar regenerate"):
        regenerate(pair, settings(data, out=str(data)), quiet())
    assert len(lines(data)) == 7
    texts = data.with_name("texts.jsonl")
    texts.write_text('{"text": "just a text"}\n')
    with pytest.raises(ConfigError, match="plain texts"):
        regenerate(pair, settings(texts), quiet())
    with pytest.raises(ConfigError, match="max_batch 0"):
        settings(data, max_batch=0)
