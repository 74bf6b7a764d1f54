"""The Python surface: load a pair's folder, generate, stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from kit.models import pair_folder

import semiar
from semiar.data.samples import Message
from semiar.errors import ConfigError, DataError, SourceNotFound
from semiar.settings import Decoding

QUESTIONS = ["How are you?", "What is 2 + 2?", "naïve 😀"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pair_folder(tmp_path_factory.mktemp("api"), small_lm="context")


@pytest.fixture(scope="module")
def pair(folder: Path) -> semiar.Pair:
    return semiar.load(folder, dtype="float32", device="cpu")


def test_the_public_names() -> None:
    assert set(semiar.__all__) >= {"Pair", "generate", "load", "stream", "train", "__version__"}
    assert all(hasattr(semiar, name) for name in semiar.__all__)


def test_a_loaded_pair_can_generate(pair: semiar.Pair) -> None:
    texts = pair.generate(QUESTIONS, max_new_tokens=24)
    assert len(texts) == 3 and all(isinstance(text, str) and text for text in texts)
    assert len(set(texts)) == 3
    assert [pair.generate(question, max_new_tokens=24) for question in QUESTIONS] == texts
    assert pair.generate([], max_new_tokens=24) == []


def test_speculation_changes_nothing(pair: semiar.Pair) -> None:
    texts = pair.generate(QUESTIONS, max_new_tokens=24)
    for count in (0, 1, 4):
        assert pair.generate(QUESTIONS, max_new_tokens=24, num_speculative_tokens=count) == texts


@pytest.mark.parametrize("cap", [1, 7, 20])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 5}, {"top_k": 5, "seed": 1}], ids=str)
def test_the_stream_is_what_generate_returns(pair: semiar.Pair, cap: int, options: dict[str, Any]) -> None:
    for question in QUESTIONS:
        pieces = list(pair.stream(question, max_new_tokens=cap, **options))
        assert "".join(pieces) == pair.generate(question, max_new_tokens=cap, **options)


def test_seeds(pair: semiar.Pair) -> None:
    draws = [pair.generate(QUESTIONS[0], max_new_tokens=24, temperature=1.0, seed=seed) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    free = {pair.generate(QUESTIONS[0], max_new_tokens=24, temperature=1.0) for _ in range(3)}
    assert len(free) > 1


def test_chats_in_every_form(pair: semiar.Pair) -> None:
    text = pair.generate("hello", max_new_tokens=12)
    turn = {"role": "user", "content": "hello"}
    assert pair.generate([turn], max_new_tokens=12) == text
    assert pair.generate([Message("user", "hello")], max_new_tokens=12) == text
    assert pair.generate([[turn], "hello", [Message("user", "hello")]], max_new_tokens=12) == [text] * 3
    system = [{"role": "system", "content": "be brief"}, turn]
    assert pair.generate(system, max_new_tokens=12) != text
    ids = pair.encode("hello")
    assert pair.tokenizer.decode(ids) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("turn", [{}, {"role": "user"}, {"content": "x"}, {"role": "user", "text": "x"}], ids=str)
def test_turns_that_are_none(pair: semiar.Pair, turn: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="role and content"):
        pair.encode([turn])


def test_a_chat_that_ends_with_the_assistant(pair: semiar.Pair) -> None:
    with pytest.raises(DataError, match="assistant"):
        pair.generate([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])


def test_where_answers_end(pair: semiar.Pair) -> None:
    limits = pair.limits(5)
    assert limits.max_new_tokens == 5 and pair.tokenizer.eos_token_id in limits.end_ids


def test_a_completion_says_how_it_came_about(pair: semiar.Pair) -> None:
    asked = Decoding(temperature=0.7, max_new_tokens=16, seed=3, rule="block")
    done, again = (pair.complete(QUESTIONS[:2], asked) for _ in range(2))
    for one, other in zip(done, again, strict=True):
        assert one == other
        assert sum(one.emitted) == len(one.token_ids) <= 16 and one.finish_reason in ("stop", "length")
        assert len(one.accepted) == len(one.drafted) == len(one.emitted)
        assert all(a <= d for a, d in zip(one.accepted, one.drafted, strict=True))


def test_options_that_cannot_be(pair: semiar.Pair) -> None:
    for options in ({"temperature": -1.0}, {"top_p": 1.5}, {"max_new_tokens": -3}, {"min_p": 2.0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            pair.generate("x", **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        pair.generate("x", num_beams=4)  # type: ignore[call-arg]
    assert pair.generate("x", max_new_tokens=0) == ""


def test_prompts_beyond_the_context(pair: semiar.Pair) -> None:
    with pytest.raises(ConfigError, match="context limit of 512"):
        pair.generate("x" * 600)
    assert pair.generate(QUESTIONS[0], max_new_tokens=4)


def test_module_functions_take_a_pair_or_its_folder(pair: semiar.Pair, folder: Path) -> None:
    options = {"max_new_tokens": 6}
    text = semiar.generate(pair, "hello", **options)
    assert text == pair.generate("hello", **options) == "".join(semiar.stream(pair, "hello", **options))
    half = semiar.load(folder).generate("hello", **options)
    assert semiar.generate(str(folder), "hello", **options) == half
    assert "".join(semiar.stream(folder, "hello", **options)) == half


def test_precision_and_merging_are_chosen_at_load(folder: Path) -> None:
    assert semiar.load(folder).target.dtype == torch.bfloat16
    merged, unmerged = (semiar.load(str(folder), dtype="float64", merge=merge) for merge in (True, False))
    assert merged.target.dtype == unmerged.target.dtype == torch.float64
    assert unmerged.generate(QUESTIONS, max_new_tokens=8) == merged.generate(QUESTIONS, max_new_tokens=8)
    with pytest.raises(ConfigError, match="float7"):
        semiar.load(folder, dtype="float7")
    with pytest.raises(SourceNotFound):
        semiar.load(folder / "nowhere")
