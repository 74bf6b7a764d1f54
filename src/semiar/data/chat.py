"""Chat rendering: the one way from messages to token ids, for training and for generation.

A chat is rendered with the tokenizer's own template and cut into segments at the borders of assistant turns.  Every
segment is encoded alone and the ids are concatenated.  So no token spans the join of prompt and answer, and the
prompt of a training example has exactly the ids that generation starts from.  Decisions:

- Targets are the ids of assistant turns up to and including the end-of-turn token.  What the template writes after
  the last of them cannot matter, so an example ends there.
- A template that writes no end-of-turn token gets the tokenizer's end-of-sequence token after the last answer.
- A tokenizer without template has the plain form: every other turn and a newline, then the answer and the
  end-of-sequence token.
- The ids that a tokenizer puts before every text (BOS) start the sequence once, also when the template writes them.
- Strings inside messages that look like special tokens are encoded as plain characters: they cannot forge a turn.
- Nothing here needs `{% generation %}` markers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from ..errors import DataError, TargetError
from .encoding import Encoder, Masked, control_strings
from .samples import ROLES, Message

Segment = tuple[str, bool]  # (text, is an answer)

PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% else %}{{ '\\n' }}{% endif %}{% endfor %}"
)


@dataclass(frozen=True, slots=True)
class Rendered:
    """One example: its token ids and which of them are to be learned; both have the same length."""

    input_ids: list[int]
    targets: list[bool]


class ChatRenderer:
    """Renders chats and texts for one tokenizer.

    `turns` says which assistant turns of an example are learned: all, or only the last.  Templates that rewrite
    earlier turns (such as those that drop old reasoning) allow only ``last``.  Raises TargetError for a tokenizer
    without end-of-sequence token or with a template that cannot render one question and its answer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, turns: Literal["all", "last"] = "all"):
        if turns not in ("all", "last"):
            raise DataError(f"turns {turns!r}", "'all' or 'last'")
        if tokenizer.eos_token_id is None:
            raise TargetError("the tokenizer has no end-of-sequence token", "one", "set tokenizer.eos_token")
        self.tokenizer, self.turns = tokenizer, turns
        self._template = tokenizer.get_chat_template() if tokenizer.chat_template else PLAIN_TEMPLATE
        self._controls = re.compile("(?:" + "|".join(map(re.escape, control_strings(tokenizer))) + ")+")
        self._end = self._find_end()  # text that ends an answer, "" when the template writes none
        self._encoder = Encoder(tokenizer, self._controls_in(self._end))

    @property
    def end_of_turn_id(self) -> int:
        """The last id of every answer: the template's end-of-turn token, else the tokenizer's end of sequence."""
        return self._encoder.encode(self._end)[-1] if self._end else self.tokenizer.eos_token_id

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Ids that generation starts from: the chat so far and the opening of the assistant's turn.

        Raises DataError when the chat is empty, ends with the assistant, or is refused by the template.
        """
        if not messages or messages[-1].role == "assistant":
            found = "a prompt that ends with an assistant turn" if messages else "a prompt without messages"
            raise DataError(found, "a chat that ends with a user turn")
        masked = Masked(messages, self._encoder.protected)
        return self._join(self._segments(masked.messages, strict=False), masked).input_ids

    def example(self, messages: Sequence[Message]) -> Rendered:
        """Ids and targets of a chat up to its last assistant turn; turns after that one teach nothing.

        Raises DataError when there is no assistant turn to learn, or when the template refuses the chat or does not
        keep a prompt as it was once the answer follows.
        """
        last = max((i for i, message in enumerate(messages) if message.role == "assistant"), default=0)
        if last == 0:
            raise DataError("a chat without an answer", "an assistant turn after at least one other turn")
        masked = Masked(messages[: last + 1], self._encoder.protected)
        history = self._segments(masked.messages[:-1], strict=self.turns == "all")
        if self.turns == "last":
            history = [(text, False) for text, _ in history]
        answer = self._answer(masked.messages, "".join(text for text, _ in history))
        if answer is None:
            raise self._unstable()
        rendered = self._join([*history, (answer, True)], masked)
        end = [] if self._end else [self.tokenizer.eos_token_id]
        return Rendered(rendered.input_ids + end, rendered.targets + [True] * len(end))

    def text_example(self, text: str) -> Rendered:
        """Ids of a text that is used as it is; all are targets but the ids that start every sequence.

        Special tokens written in the text are kept as such; the end-of-sequence token is added if missing.
        """
        start, end = self._encoder.prefix, [self.tokenizer.eos_token_id]
        ids = self._encoder.encode(text, first=True)
        ids = ids[len(start) :] if ids[: len(start)] == start else ids
        ids = ids if ids[-1:] == end else ids + end
        return Rendered(start + ids, [False] * len(start) + [True] * len(ids))

    def _segments(self, turns: Sequence[Message], strict: bool) -> list[Segment]:
        """Text of a prompt, parted at its earlier answers; one segment when the template rewrites those.

        With `strict` such a template raises DataError.
        """
        whole = self._render(turns, opening=True)
        segments: list[Segment] = []
        done = ""
        for index in (i for i, turn in enumerate(turns) if turn.role == "assistant" and i):
            prompt = self._render(turns[:index], opening=True)
            answer = self._answer(turns[: index + 1], prompt)
            if answer is None or not prompt.startswith(done) or not whole.startswith(prompt + answer):
                if strict:
                    raise self._unstable()
                return [(whole, False)]
            segments += [(prompt[len(done) :], False), (answer, True)]
            done = prompt + answer
        return [*segments, (whole[len(done) :], False)]

    def _answer(self, turns: Sequence[Message], prompt: str) -> str | None:
        """Text of the last turn up to its end of turn; None when `prompt` is not what the template puts before it."""
        text = self._render(turns, opening=False)
        if not text.startswith(prompt):
            return None
        answer = text[len(prompt) :]
        if not self._end:
            return answer.rstrip()
        end = answer.rfind(self._end)
        return None if end < 0 else answer[: end + len(self._end)]

    def _join(self, segments: Iterable[Segment], masked: Masked) -> Rendered:
        ids: list[int] = []
        targets: list[bool] = []
        for text, learned in segments:
            for piece, plain in masked.pieces(text):
                ids += self._encoder.encode_plain(piece) if plain else self._encoder.encode(piece, first=not ids)
            targets += [learned] * (len(ids) - len(targets))
        start = self._encoder.prefix
        if ids[: len(start)] != start:
            return Rendered(start + ids, [False] * len(start) + targets)
        return Rendered(ids, targets)

    def _render(self, turns: Sequence[Message], opening: bool) -> str:
        """Text of the turns; with `opening` also what opens the assistant's turn.  Raises DataError if refused."""
        unknown = [turn.role for turn in turns if turn.role not in ROLES]
        if unknown:
            raise DataError(f"unknown role {unknown[0]!r}", "one of " + ", ".join(ROLES))
        chat = [{"role": turn.role, "content": turn.content} for turn in turns]
        try:
            text = self.tokenizer.apply_chat_template(
                chat, chat_template=self._template, tokenize=False, add_generation_prompt=opening
            )
        except TemplateError as error:
            roles = ", ".join(turn.role for turn in turns)
            hint = "leave out or merge the turns that it refuses, such as the system turn, or give another template"
            raise DataError(f"the chat template refuses the turns ({roles}): {error}", "", hint) from error
        return str(text)

    def _find_end(self) -> str:
        """What the template writes to end an answer: the first run of control tokens after the content."""
        try:
            text = self._render([Message("user", "x"), Message("assistant", "zanswerz")], opening=False)
        except DataError as error:
            raise TargetError(error.found, "a template for a user turn and an assistant turn") from error
        match = self._controls.search(text.partition("zanswerz")[2])
        return match.group() if match else ""

    def _controls_in(self, text: str) -> list[str]:
        return [string for string in control_strings(self.tokenizer) if string in text]

    def _unstable(self) -> DataError:
        return DataError(
            "the chat template changes a prompt once its answer follows",
            "a template that only appends",
            "learn the last turn only (turns='last'), or give the tokenizer a template without that",
        )


def end_of_turn_ids(tokenizer: PreTrainedTokenizerBase, generation_config_eos: int | Sequence[int] | None) -> list[int]:
    """All ids that end a turn: of the tokenizer, of the generation config, of the chat template; each once."""
    configured = [generation_config_eos] if isinstance(generation_config_eos, int) else generation_config_eos or []
    found = [tokenizer.eos_token_id, *configured, ChatRenderer(tokenizer).end_of_turn_id]
    return list(dict.fromkeys(token for token in found if token is not None))
