"""Rows of a batch that look up what followed the same tokens before, in their own text or in training answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from semiar.drafters.base import Context, State
from semiar.drafters.matching import MATCHERS, Matcher
from semiar.drafters.settings import DrafterSettings
from semiar.errors import ConfigError
from semiar.settings import at_least, one_of

BORDER = -1  # stands between answers; no text holds it, so no match goes across


@dataclass(frozen=True)
class FindingSettings(DrafterSettings):
    """What counts as a match, and where it is looked for."""

    matcher: str = "automaton"
    """automaton, or ngram: a table of all runs of min_match to max_match tokens."""
    min_match: int = 2
    """Shortest match that is drafted from."""
    max_match: int = 32
    """Longer matches count as this long."""
    corpus_tokens: int = 50_000
    """Training answers that are searched too, in tokens (about 1 kB of memory each); 0 = none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, matcher=tuple(MATCHERS))
        at_least(self, corpus_tokens=0)
        if not 1 <= self.min_match <= self.max_match:
            raise ConfigError(f"min_match {self.min_match}, max_match {self.max_match}", "1 <= min <= max")

    def matcher_of(self, text: Sequence[int] = ()) -> Matcher:
        """A matcher that has read this text."""
        found = MATCHERS[self.matcher](self.min_match, self.max_match)
        for token in text:
            found.push(token)
        return found


class Corpus(nn.Module):
    """Training answers, saved with the drafter, and their matcher, made when it is first asked for."""

    def __init__(self, size: int):
        super().__init__()
        self.register_buffer("tokens", torch.zeros(size, dtype=torch.int32) if size else None)
        self._matcher: Matcher | None = None
        self.register_load_state_dict_post_hook(_forget)

    @property
    def size(self) -> int:
        return 0 if self.tokens is None else len(self.tokens)

    def read(self, answers: Sequence[Sequence[int]], most: int) -> None:
        """Take whole answers, in order, as long as they fit into ``most`` tokens."""
        tokens: list[int] = []
        for answer in answers:
            if len(tokens) + len(answer) + 1 > most:
                break
            tokens += [*answer, BORDER]
        self.tokens = torch.tensor(tokens, dtype=torch.int32) if tokens else None
        self._matcher = None

    def matcher(self, settings: FindingSettings) -> Matcher | None:
        """The matcher of the answers, None without any; always asked for with the same settings."""
        if self._matcher is None and self.tokens is not None:
            self._matcher = settings.matcher_of(self.tokens.tolist())
        return self._matcher


def _forget(corpus: nn.Module, _keys: Any) -> None:
    assert isinstance(corpus, Corpus)
    corpus._matcher = None


class Finder:
    """One row's text, searched; it only ever holds committed tokens, so it never goes back."""

    def __init__(self, settings: FindingSettings, corpus: Matcher | None):
        self.own, self.corpus = settings.matcher_of(), corpus

    def extend(self, tokens: Sequence[int]) -> None:
        """Tokens that were committed since the last time."""
        for token in tokens:
            self.own.push(token)

    def propose(self, count: int) -> list[int]:
        """At most ``count`` tokens that followed the longest match; the row's own text goes before the answers."""
        length, start = self.own.match
        if self.corpus is not None:
            other, place = self.corpus.find(self.own.text[-self.corpus.most :])
            if other > length:
                return _until_border(self.corpus.text[place : place + count])
        if not length:
            return []
        draft: list[int] = []
        for index in range(start, start + count):  # a match that overlaps the end goes on in what it drafts
            beyond = index - len(self.own.text)
            draft.append(draft[beyond] if beyond >= 0 else self.own.text[index])
        return draft


def _until_border(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(BORDER)] if BORDER in tokens else tokens


class Finders(State):
    """The finders of a batch's rows."""

    def __init__(self, rows: list[Finder]):
        super().__init__()
        self.rows = rows

    def select(self, rows: Tensor) -> None:
        self.rows = [self.rows[row] for row in rows.tolist()]

    def join(self, other: State) -> None:
        assert isinstance(other, Finders)
        self.rows = self.rows + other.rows

    def follow(self, context: Context) -> None:
        """Hand every row the tokens that it has not seen; the work is proportional to these."""
        known = [len(row.own.text) for row in self.rows]
        fresh = [length - k for length, k in zip(context.lengths.tolist(), known, strict=True)]
        steps = torch.arange(max(fresh), device=context.tokens.device)
        places = torch.tensor(known, device=steps.device)[:, None] + steps
        tokens = context.tokens.gather(1, places.clamp(max=context.tokens.shape[1] - 1)).tolist()
        for row, new, count in zip(self.rows, tokens, fresh, strict=True):
            row.extend(new[:count])

    def propose(self, count: int) -> list[list[int]]:
        """A chain for each row; empty where nothing matches."""
        return [row.propose(count) for row in self.rows]


def fill(chains: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """The chains (B, N) of unequal length, filled up with -1."""
    width = max(map(len, chains))
    rows = [[*chain, *[-1] * (width - len(chain))] for chain in chains]
    return torch.tensor(rows, dtype=torch.long, device=device).view(len(chains), width)
