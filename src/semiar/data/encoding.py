"""Text to ids, piece by piece: what `chat` needs from a tokenizer and tokenizers do not offer directly."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence

from transformers import PreTrainedTokenizerBase

from .samples import Message

_ANCHORS = ("\n", ":", "a")


class Encoder:
    """Encodes parts of a text so that their concatenation is the whole, without ids that were not asked for."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, protect: Sequence[str] = ()):
        self._tokenizer = tokenizer
        self.prefix = self._find_prefix()  # ids the tokenizer puts before every text, such as BOS
        self.protected = _longest_first({*special_strings(tokenizer), *protect})  # strings that must not be forged
        self._protected_ids = {tokenizer.convert_tokens_to_ids(string) for string in self.protected}
        self._adds_space = self._raw("\nx") != self._raw("\n") + self._raw("x")

    def encode(self, text: str, *, first: bool = False) -> list[int]:
        """Ids of `text`, special tokens read as such; `first` when nothing stands before it in the sequence."""
        return self._continue(text) if self._adds_space and not first else self._raw(text)

    def encode_plain(self, text: str) -> list[int]:
        """Ids of `text` as plain characters, whatever special token it spells."""
        ids = self._raw(text, plain=True)
        if self._protected_ids.isdisjoint(ids):
            return ids
        # Added tokens that are not marked special are matched even so: break the word that they are found by.
        return [token for character in text for token in self._continue(character)]

    def _continue(self, text: str) -> list[int]:
        """Ids of a text that follows another one, from tokenizers that put a space before each text."""
        for anchor in _ANCHORS:
            head, ids = self._raw(anchor), self._raw(anchor + text)
            if ids[: len(head)] == head:
                return ids[len(head) :]
        return self._raw(text)  # every anchor merges with the text, so the space is harmless at worst

    def _raw(self, text: str, plain: bool = False) -> list[int]:
        options = {"add_special_tokens": False, "split_special_tokens": plain, "verbose": False}
        return self._tokenizer.encode(text, **options) if text else []

    def _find_prefix(self) -> list[int]:
        bare = self._tokenizer.encode("x", add_special_tokens=False)
        full = self._tokenizer.encode("x", add_special_tokens=True)
        starts = [i for i in range(len(full)) if full[i : i + len(bare)] == bare]
        return full[: starts[0]] if starts else []


class Masked:
    """Messages whose special-looking strings stand masked by unguessable words while a template renders them."""

    def __init__(self, messages: Sequence[Message], protected: Sequence[str]):
        self._word = "z" + secrets.token_hex(8)
        self._strings: list[str] = []
        self._pattern = re.compile("|".join(map(re.escape, protected))) if protected else None
        self.messages = [Message(message.role, self._mask(message.content)) for message in messages]

    def pieces(self, text: str) -> Iterator[tuple[str, bool]]:
        """Parts of a rendered text in order, and whether a part is to be taken as plain characters."""
        for index, part in enumerate(re.split(self._word + r"(\d+)z", text)):
            if index % 2:
                yield self._strings[int(part)], True
            elif part:
                yield part, False

    def _mask(self, content: str) -> str:
        return self._pattern.sub(self._replace, content) if self._pattern else content

    def _replace(self, match: re.Match[str]) -> str:
        self._strings.append(match.group())
        return f"{self._word}{len(self._strings) - 1}z"


def special_strings(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Text of every special token."""
    added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    return [*{*added, *tokenizer.all_special_tokens}]


def control_strings(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Text of every added token that is not white space, longest first; templates mark turns with these."""
    added = {token.content for token in tokenizer.added_tokens_decoder.values()} | {*tokenizer.all_special_tokens}
    return _longest_first({text for text in added if text.strip()})


def _longest_first(strings: set[str]) -> tuple[str, ...]:
    return tuple(sorted(strings, key=lambda text: (-len(text), text)))
