"""Text from a pair: prompts in, whole answers or pieces of them out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from semiar.data.chat import ChatRenderer, end_of_turn_ids
from semiar.data.samples import Message
from semiar.decoding import Completion, Limits, complete, stream
from semiar.decoding.calibrate import choose_counts
from semiar.drafters import Drafter
from semiar.errors import ConfigError
from semiar.settings import AUTO, Decoding
from semiar.targets import Target

Prompt = str | Sequence[Mapping[str, str]] | Sequence[Message]


class Speaker:
    """What a target, a drafter and a tokenizer say together; options are those of `Decoding`."""

    target: Target
    drafter: Drafter
    tokenizer: Any

    def end_ids(self) -> list[int]:
        """Ids that end a turn, of the model or of its chat template."""
        return end_of_turn_ids(self.tokenizer, self.target.lm.generation_config.eos_token_id)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, rendered as in training: a text becomes one user turn, a list is a chat."""
        if isinstance(prompt, str):
            turns = [Message("user", prompt)]
        else:
            turns = [turn if isinstance(turn, Message) else _message(turn) for turn in prompt]
        return ChatRenderer(self.tokenizer).prompt(turns)

    def limits(self, max_new_tokens: int) -> Limits:
        """When a row ends: this many tokens, or any end-of-turn token of the model or its chat template."""
        return Limits(max_new_tokens, tuple(self.end_ids()))

    def count(self, decoding: Decoding, prompts: Sequence[list[int]], rows: int = 1) -> int | dict[int, int]:
        """K for these settings: as given, the pair's own, or with auto what measuring on these prompts recommends, by
        the rows in work where several are.  Raises ``ConfigError`` for a K that the drafter cannot draft.
        """
        if decoding.num_speculative_tokens != AUTO:
            assert not isinstance(decoding.num_speculative_tokens, str)
            return self.drafter.resolve_count(decoding.num_speculative_tokens)
        if not self.drafter.drafts:
            return 0
        limits, sizes = self.limits(decoding.longest), {1, rows}
        found = choose_counts(self, prompts, limits, decoding.sampling, sorted(sizes), Console(quiet=True))
        return found if rows > 1 else found[1]

    def complete(
        self, prompts: Sequence[Prompt], decoding: Decoding | None = None, *, max_batch: int | None = None
    ) -> list[Completion]:
        """Ids, text, finish reason and acceptance of every prompt; ``max_batch`` of them are in work at once (None =
        all).  Rule ``none`` skips verification and is LOSSY.
        """
        decoding = (decoding or Decoding()).filled()
        ids = [self.encode(prompt) for prompt in prompts]
        rows = min(max_batch or len(ids), len(ids))
        return complete(
            self.target, self.drafter, self.tokenizer, ids, self.limits(decoding.longest), decoding.sampling,
            seed=decoding.seed, num_speculative_tokens=self.count(decoding, ids, rows), rule=decoding.rule,
            plan=decoding.plan, max_batch=max_batch,
        )  # fmt: skip

    def generate(
        self, prompts: Prompt | Sequence[Prompt], *, max_batch: int | None = None,
        max_new_tokens: int = 256, temperature: float | None = None,
        top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, num_speculative_tokens: int | str | None = None,
        tree: str = "none", nodes: int = 16, branch: int = 4, stop_below: float = 0.0, rule: str = "exact",
        seed: int | None = None,
    ) -> Any:  # fmt: skip
        """Text for one prompt, or a list of texts for a list of prompts; greedy unless a sampling option is given."""
        one = isinstance(prompts, str) or (bool(prompts) and isinstance(prompts[0], Mapping | Message))
        batch: Any = [prompts] if one else prompts
        decoding = Decoding(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, tree=tree, nodes=nodes, branch=branch,
            stop_below=stop_below, num_speculative_tokens=num_speculative_tokens, rule=rule,
            max_new_tokens=max_new_tokens, seed=seed,
        )  # fmt: skip
        done = self.complete(batch, decoding, max_batch=max_batch)
        return done[0].text if one else [completion.text for completion in done]

    def stream(
        self, prompt: Prompt, *, max_new_tokens: int = 256, temperature: float | None = None,
        top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, num_speculative_tokens: int | str | None = None,
        tree: str = "none", nodes: int = 16, branch: int = 4, stop_below: float = 0.0, rule: str = "exact",
        seed: int | None = None,
    ) -> Iterator[str]:  # fmt: skip
        """Pieces of text as soon as they are certain; joined they are what `generate` returns."""
        decoding = Decoding(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, tree=tree, nodes=nodes, branch=branch,
            stop_below=stop_below, num_speculative_tokens=num_speculative_tokens, rule=rule,
            max_new_tokens=max_new_tokens, seed=seed,
        )  # fmt: skip
        return self.pieces(prompt, decoding)

    def pieces(self, prompt: Prompt, decoding: Decoding) -> Iterator[str]:
        """`stream` with its options in one."""
        decoding = decoding.filled()
        ids = self.encode(prompt)
        count = self.count(decoding, [ids])
        return stream(
            self.target, self.drafter, self.tokenizer, ids, self.limits(decoding.longest), decoding.sampling,
            seed=decoding.seed, num_speculative_tokens=count, rule=decoding.rule, plan=decoding.plan,
        )  # fmt: skip


def _message(turn: Mapping[str, str]) -> Message:
    if not {"role", "content"} <= set(turn):
        raise ConfigError(f"a chat turn with the keys {sorted(turn)}", "role and content")
    return Message(turn["role"], turn["content"])
