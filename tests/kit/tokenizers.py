"""A byte-level tokenizer built in memory: 256 byte tokens and a few special ones, no file and no network."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML_BOS = "{{ bos_token }}" + CHATML  # a template that writes BOS itself
BARE = "{% for message in messages %}{{ message['content'] }}{% if message['role'] == 'assistant' %}{{ eos_token }}"
BARE += "{% endif %}{% endfor %}"  # nothing stands between prompt and answer

SPECIALS = {"pad_token": "<|pad|>", "bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}


def byte_tokenizer(
    template: str | None = CHATML, *, adds_bos: bool = False, merges: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """A tokenizer whose id is the byte for ids below 256.

    Then come the two-character tokens in `merges`, `<|endoftext|>` (BOS), `<|pad|>`, `<|im_start|>` and `<|im_end|>`
    (end of sequence).  `adds_bos` puts BOS before every text.
    """
    vocabulary = {character: byte for byte, character in _byte_characters().items()}
    for pair in merges:
        vocabulary[pair] = len(vocabulary)
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[(pair[0], pair[1]) for pair in merges]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    names = ["<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>"]
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    if adds_bos:
        bos = ("<|endoftext|>", backend.token_to_id("<|endoftext|>"))
        backend.post_processor = processors.TemplateProcessing(single=f"{bos[0]} $A", special_tokens=[bos])
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template, **SPECIALS)


def _byte_characters() -> dict[int, str]:
    """The printable character that byte-level BPE writes for each byte (the table of GPT-2)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
