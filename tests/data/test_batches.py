"""Examples of bounded length (H24, H25) and their batches."""

import pytest
import torch
from kit.tokenizers import byte_tokenizer

from semiar.data.batches import IGNORE, Collator, answers_of, fingerprint, prepare
from semiar.data.chat import ChatRenderer
from semiar.data.samples import Message, Record
from semiar.errors import DataError


@pytest.fixture(scope="module")
def renderer():
    return ChatRenderer(byte_tokenizer(None))  # question, newline, answer, end of sequence


def record(question, answer, place="f:1"):
    return Record((Message("user", question), Message("assistant", answer)), None, place)


def test_labels_are_the_targets(renderer):
    end = renderer.tokenizer.eos_token_id
    prepared = prepare([record("ab", "cd")], renderer, 100)
    assert prepared.examples == [{"input_ids": [*b"ab\ncd", end], "labels": [IGNORE, IGNORE, IGNORE, *b"cd", end]}]
    assert (prepared.tokens, prepared.target_tokens, prepared.truncated, prepared.skipped) == (6, 3, 0, [])


def test_h25_long_and_empty_samples(renderer):
    records = [
        record("q" * 30, "a", "f:1"),  # the prompt alone is too long
        record("q", "a" * 30, "f:2"),  # cut
        record("q", "", "f:3"),
        record("q", "a" * 50_000, "f:4"),
        record("q" * 50_000, "a", "f:5"),
        record("q" * 17, "a", "f:6"),  # fits, but for the end of the sequence
        record("q" * 18, "a", "f:7"),  # one target left
        record("q", "fits", "f:8"),
        record("q" * 19, "a", "f:9"),  # the prompt fills it to the last place
    ]
    prepared = prepare(records, renderer, 20)
    assert [item.place for item in prepared.skipped] == ["f:1", "f:3", "f:5", "f:9"]
    full = "the prompt alone fills max_length (20)"
    assert [item.reason for item in prepared.skipped] == [full, "empty answer", full, full]
    lengths = [len(example["input_ids"]) for example in prepared.examples]
    assert lengths == [20, 20, 20, 20, 7]
    assert prepared.truncated == 3
    assert prepared.tokens == sum(lengths)
    assert prepared.target_tokens == 18 + 18 + 2 + 1 + 5
    assert all(len(example["labels"]) == len(example["input_ids"]) for example in prepared.examples)


def test_h24_no_target_at_all_stops_the_run(renderer):
    with pytest.raises(DataError, match=r"no target token in 2 samples; the first, f:1: the prompt alone"):
        prepare([record("q" * 30, "a"), record("q", "")], renderer, 20)
    with pytest.raises(DataError, match="no target token in 0 samples"):
        prepare([], renderer, 20)
    with pytest.raises(DataError, match="max_length 1"):
        prepare([record("q", "a")], renderer, 1)


def test_texts_and_places_of_refused_chats(renderer):
    prepared = prepare([Record(None, "abc", "f:1")], renderer, 3)
    assert prepared.examples == [{"input_ids": [*b"abc"], "labels": [*b"abc"]}]
    assert (prepared.target_tokens, prepared.truncated) == (2, 1)
    with pytest.raises(DataError, match="f:9: unknown role"):
        bad = Record((Message("user", "a"), Message("wizard", "b"), Message("assistant", "c")), None, "f:9")
        prepare([bad], renderer, 20)


def test_collator_pads_on_the_right_without_a_mask():
    batch = Collator(7)([{"input_ids": [1, 2, 3], "labels": [IGNORE, 2, 3]}, {"input_ids": [4], "labels": [4]}])
    assert set(batch) == {"input_ids", "labels"}
    assert torch.equal(batch["input_ids"], torch.tensor([[1, 2, 3], [4, 7, 7]]))
    assert torch.equal(batch["labels"], torch.tensor([[IGNORE, 2, 3], [4, IGNORE, IGNORE]]))
    assert batch["labels"].dtype == torch.long


def test_collator_tells_the_lengths_when_asked():
    batch = Collator(7, lengths=True)([{"input_ids": [1, 7], "labels": [IGNORE, 7]}, {"input_ids": [4], "labels": [4]}])
    assert batch["lengths"].tolist() == [2, 1]  # a token equal to the pad is still one


def test_fingerprint_sees_order_borders_and_labels():
    one, two = {"input_ids": [1, 2], "labels": [1, 2]}, {"input_ids": [3], "labels": [3]}
    sets = [[one, two], [two, one], [one], [{**one, "labels": [IGNORE, 2]}, two], []]
    sets.append([{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}])
    assert len({fingerprint(examples) for examples in sets}) == len(sets)
    assert fingerprint([one]).startswith("d722d5bb9f0c1add")  # the same in every process


def test_answers_are_the_unbroken_runs_of_what_is_learned() -> None:
    labels = [[-100, 4, 5, -100, -100, 6], [7], [-100, -100], [-100, 8]]
    assert answers_of([{"input_ids": row, "labels": row} for row in labels]) == [[4, 5], [6], [7], [8]]
