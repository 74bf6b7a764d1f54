"""The printed mask, lengths and skips (H24: a way to print the mask)."""

import io

import pytest
from kit.tokenizers import byte_tokenizer
from rich.console import Console

from semiar.data.batches import prepare
from semiar.data.chat import ChatRenderer
from semiar.data.preview import mask_text, preview
from semiar.data.samples import Message, Record, Records, Skipped


def record(question, answer, place):
    return Record((Message("user", question), Message("assistant", answer)), None, place)


@pytest.fixture
def renderer():
    return ChatRenderer(byte_tokenizer())


def test_mask_is_exactly_the_targets(renderer):
    example = prepare([record("hi [bold]", "größe", "f:1")], renderer, 200).examples[0]
    text = mask_text(example, renderer.tokenizer)
    green = "".join(text.plain[span.start : span.end] for span in text.spans if "green" in str(span.style))
    assert text.plain == "<|im_start|>user\nhi [bold]<|im_end|>\n<|im_start|>assistant\ngröße<|im_end|>"
    assert green == "größe<|im_end|>"
    assert mask_text(example, renderer.tokenizer, marked=True).plain.endswith("assistant\n\u27e6größe<|im_end|>\u27e7")


def test_preview_shows_samples_lengths_and_skips(renderer):
    good = [record(f"question {i}", "answer", f"f:{i}") for i in range(5)]
    records = Records(
        [*good, record("q" * 300, "a", "f:9")], [Skipped("f:7", "no answer"), Skipped("f:8", "no answer")]
    )
    stream = io.StringIO()
    prepared = preview(records, renderer, 200, Console(file=stream, width=100))
    shown = stream.getvalue()
    assert len(prepared.examples) == 5
    assert [f"question {i}" in shown for i in range(5)] == [True, True, True, False, False]
    assert "\u27e6answer<|im_end|>\u27e7" in shown
    assert "5 samples, 0 of them cut at 200 tokens; 3 skipped" in shown
    assert "2 skipped: no answer (f:7, f:8)" in shown
    assert "1 skipped: the prompt alone fills max_length (200) (f:9)" in shown
    assert "median" in shown and "whole sample" in shown
