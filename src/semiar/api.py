"""The whole public surface in Python: load a pair, generate, stream, train."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semiar import pair as pairs
from semiar.core.draft import Plan
from semiar.core.sampling import Sampling
from semiar.data.chat import ChatRenderer
from semiar.data.samples import Message
from semiar.decoding import Completion, Limits
from semiar.decoding import complete as complete_batch
from semiar.decoding import stream as stream_one
from semiar.errors import ConfigError
from semiar.targets import LoadSettings
from semiar.training.config import TrainConfig
from semiar.training.run import train as run_training

Prompt = str | Sequence[dict[str, str]] | Sequence[Message]


@dataclass
class Pair(pairs.Pair):
    """A fine-tuned target with its drafter: ``semiar.load("runs/sql")``."""

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, rendered as in training: a text becomes one user turn, a list is a chat."""
        if isinstance(prompt, str):
            turns = [Message("user", prompt)]
        else:
            turns = [m if isinstance(m, Message) else _message(m) for m in prompt]
        return ChatRenderer(self.tokenizer).prompt(turns)

    def limits(self, max_new_tokens: int) -> Limits:
        """When a row ends: this many tokens, or any end-of-turn token of the model or its chat template."""
        return Limits(max_new_tokens, tuple(self.end_ids()))

    def check_count(self, num_speculative_tokens: int | None) -> None:
        """Raise ``ConfigError`` for a K that this pair's drafter cannot draft."""
        self.drafter.resolve_count(num_speculative_tokens)

    def complete(
        self,
        prompts: Sequence[Prompt],
        *,
        max_new_tokens: int = 256,
        sampling: Sampling | None = None,
        seed: int | None = None,
        num_speculative_tokens: int | None = None,
        rule: str = "exact",
        plan: Plan | None = None,
    ) -> list[Completion]:
        """Ids, text, finish reason and acceptance of every prompt, decoded as one batch.

        ``num_speculative_tokens`` 0 decodes plainly; rule ``none`` skips verification and is LOSSY; ``plan`` asks for a
        tree of drafts or for stopping early (its count is not used).
        """
        self.check_count(num_speculative_tokens)
        ids = [self.encode(prompt) for prompt in prompts]
        return complete_batch(
            self.target, self.drafter, self.tokenizer, ids, self.limits(max_new_tokens), sampling,
            seed=seed, num_speculative_tokens=num_speculative_tokens, rule=rule, plan=plan,
        )  # fmt: skip

    def generate(
        self, prompts: Prompt | Sequence[Prompt], *, max_new_tokens: int = 256, temperature: float | None = None,
        top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, seed: int | None = None,
        num_speculative_tokens: int | None = None, plan: Plan | None = None,
    ) -> Any:  # fmt: skip
        """Text for one prompt, or a list of texts for a list of prompts; greedy unless a sampling option is given."""
        one = isinstance(prompts, str) or (bool(prompts) and isinstance(prompts[0], dict | Message))
        batch: Any = [prompts] if one else prompts
        done = self.complete(
            batch, max_new_tokens=max_new_tokens, sampling=Sampling(temperature, top_k, top_p, min_p), seed=seed,
            num_speculative_tokens=num_speculative_tokens, plan=plan,
        )  # fmt: skip
        return done[0].text if one else [completion.text for completion in done]

    def stream(
        self, prompt: Prompt, *, max_new_tokens: int = 256, temperature: float | None = None, top_k: int = 0,
        top_p: float = 1.0, min_p: float = 0.0, seed: int | None = None, num_speculative_tokens: int | None = None,
        plan: Plan | None = None,
    ) -> Iterator[str]:  # fmt: skip
        """Pieces of text as soon as they are certain; joined they are what `generate` returns."""
        self.check_count(num_speculative_tokens)
        return stream_one(
            self.target, self.drafter, self.tokenizer, self.encode(prompt), self.limits(max_new_tokens),
            Sampling(temperature, top_k, top_p, min_p), seed=seed, num_speculative_tokens=num_speculative_tokens,
            plan=plan,
        )  # fmt: skip


def load(
    folder: str | Path, *, dtype: str = "auto", device: str = "auto", merge: bool = True, engine: str = "auto"
) -> Pair:
    """The pair that ``semiar train`` wrote in `folder`; the options are those of `LoadSettings`."""
    return Pair.load(folder, LoadSettings(dtype, device, merge, engine))  # type: ignore[return-value]


def generate(pair: Pair | str | Path, prompts: Prompt | Sequence[Prompt], **options: Any) -> Any:
    """`Pair.generate` for a pair or its folder."""
    return (pair if isinstance(pair, Pair) else load(pair)).generate(prompts, **options)


def stream(pair: Pair | str | Path, prompt: Prompt, **options: Any) -> Iterator[str]:
    """`Pair.stream` for a pair or its folder."""
    return (pair if isinstance(pair, Pair) else load(pair)).stream(prompt, **options)


def train(config: TrainConfig, *, resume: bool = False) -> Pair | None:
    """Run a training and return its pair, loaded afresh for decoding; None when it was interrupted."""
    done = run_training(config, resume=resume)
    return None if done is None else load(config.out, dtype=config.dtype, device=config.device)


def _message(turn: dict[str, str]) -> Message:
    if not {"role", "content"} <= set(turn):
        raise ConfigError(f"a chat turn with the keys {sorted(turn)}", "role and content")
    return Message(turn["role"], turn["content"])
