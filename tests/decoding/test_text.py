"""Text in pieces: no half characters, and joined it is the whole text (H17)."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.drafters import TableDrafter, noisy_drafter
from kit.models import chain_table, prompts_of, table_model, target_of
from kit.tokenizers import byte_tokenizer

from semiar.core.sampling import Sampling
from semiar.decoding import Limits, complete, stream
from semiar.decoding.text import REPLACEMENT, Detokenizer, generator
from semiar.drafters import NoDrafter
from semiar.targets import Target

TEXT = "naïve 😀 한글 👩‍👧 ď"
TOKENIZER = byte_tokenizer()


class OneTokenPerByte:
    """Token i is the i-th byte of a fixed text, so that a chain of tokens writes that text."""

    def __init__(self, text: str):
        self.data = text.encode()

    def decode(self, ids: list[int], **options: Any) -> str:
        return bytes(self.data[i - 1] for i in ids).decode("utf-8", "replace")


@pytest.fixture(scope="module")
def writer() -> tuple[Target, Any, list[list[float]]]:
    """A model that writes TEXT byte by byte after token 0."""
    table = chain_table(len(TEXT.encode()) + 1)
    return Target(table_model(table)), OneTokenPerByte(TEXT), table


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_characters_split_over_tokens_come_whole(writer: Any, count: int) -> None:
    target, tokenizer, table = writer
    limits = Limits(len(TEXT.encode()))
    pieces = list(stream(target, TableDrafter(table, count), tokenizer, [0], limits))
    assert "".join(pieces) == TEXT and all(pieces) and REPLACEMENT not in "".join(pieces)
    assert len(pieces) > 1
    done = complete(target, TableDrafter(table, count), tokenizer, [[0]], limits)[0]
    assert done.text == TEXT and done.finish_reason == "length"


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_text_cut_anywhere_is_the_same_both_ways(writer: Any, count: int) -> None:
    target, tokenizer, table = writer
    drafter = TableDrafter(table, count) if count else NoDrafter()
    for cap in range(1, len(TEXT.encode())):
        limits = Limits(cap)
        pieces = list(stream(target, drafter, tokenizer, [0], limits))
        whole = complete(target, drafter, tokenizer, [[0]], limits)[0].text
        assert "".join(pieces) == whole
        assert TEXT.startswith(whole.rstrip(REPLACEMENT)) and not any(REPLACEMENT in piece for piece in pieces[:-1])


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=30), st.randoms(use_true_random=False))
def test_any_text_in_any_pieces(text: str, rng: random.Random) -> None:
    ids = list(text.encode())  # the id of a byte is the byte
    pieces, parts = Detokenizer(TOKENIZER), []
    while ids:
        size = rng.randint(1, 5)
        parts.append(pieces.push(ids[:size], final=len(ids) <= size))
        ids = ids[size:]
    assert "".join(parts) == text
    assert text.count(REPLACEMENT) == sum(part.count(REPLACEMENT) for part in parts)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 259), max_size=24), st.randoms(use_true_random=False))
def test_any_tokens_in_any_pieces(ids: list[int], rng: random.Random) -> None:
    """Also bytes that are no text, and special tokens, which are not shown."""
    whole = Detokenizer(TOKENIZER).push(ids, final=True)
    pieces, parts, rest = Detokenizer(TOKENIZER), [], list(ids)
    while rest:
        size = rng.randint(1, 4)
        parts.append(pieces.push(rest[:size], final=len(rest) <= size))
        rest = rest[size:]
    assert "".join(parts) == whole == TOKENIZER.decode(ids, skip_special_tokens=True)


def test_the_end_of_turn_token_is_among_the_ids_but_not_in_the_text() -> None:
    end = TOKENIZER.eos_token_id
    table = chain_table(end + 1)
    table[ord("c")] = [10.0 if i == end else 0.0 for i in range(end + 1)]  # a, b, c, end
    target, drafter = Target(table_model(table)), TableDrafter(table, 4)
    done = complete(target, drafter, TOKENIZER, [[ord("`")]], Limits(9, (end,)))[0]
    assert (done.token_ids, done.text, done.finish_reason) == ([*b"abc", end], "abc", "stop")
    assert "".join(stream(target, drafter, TOKENIZER, [ord("`")], Limits(9, (end,)))) == "abc"


@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_joined_pieces_are_the_completion(heat: float) -> None:
    target = target_of("llama", torch.float32, vocab=len(TOKENIZER))
    for count in (1, 4, 8):
        drafter = noisy_drafter(target.lm, count)
        for cap in (1, 2, 5, 20):
            prompt = prompts_of(256, [6], seed=cap)[0]
            options: Any = {"sampling": Sampling(heat), "seed": cap}
            whole = complete(target, drafter, TOKENIZER, [prompt], Limits(cap), **options)[0]
            assert "".join(stream(target, drafter, TOKENIZER, prompt, Limits(cap), **options)) == whole.text
            assert len(whole.token_ids) == cap == sum(whole.emitted)


def test_a_completion_counts_its_passes() -> None:
    table = chain_table(8, changes={3: 0})
    target = Target(table_model(chain_table(8)))
    done = complete(target, TableDrafter(table, 4), OneTokenPerByte("abcdefgh"), [[0]], Limits(12))
    assert done[0].accepted == [3, 4, 2] and done[0].drafted == [4, 4, 2] and done[0].emitted == [4, 5, 3]
    assert done[0].tokens_per_pass == 4
    assert done[0].token_ids == [1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4]
    assert complete(target, NoDrafter(), OneTokenPerByte("a"), [[0]], Limits(0))[0].tokens_per_pass == 0


def test_unseeded_generators_differ() -> None:
    target = Target(table_model(chain_table(4)))
    assert generator(target, 3).initial_seed() == 3
    assert generator(target, None).initial_seed() != generator(target, None).initial_seed()
