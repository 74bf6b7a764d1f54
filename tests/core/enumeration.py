"""Laws small enough to enumerate, whole steps played with the real `accept`, and the test that compares them."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor

from semiar.core.accept import accept
from semiar.core.draft import Draft, Verdict
from semiar.core.sampling import Law, draw

ROWS = 100_000


class World:
    """A target and a drafter over V ids whose laws depend on the whole prefix, up to ``length`` tokens.

    Target laws are multiples of 1/12, draft laws of 1/6, zeros included, so that fractions can be exact.
    """

    def __init__(self, size: int, length: int, seed: int, vocab: list[int] | None = None):
        self.size, self.length = size, length
        self.rng = torch.Generator().manual_seed(seed)
        self.vocab = None if vocab is None else torch.tensor(vocab)
        columns = size if vocab is None else len(vocab)
        self.target = [self._laws(size**depth, size, 12) for depth in range(length)]
        self.guess = [self._laws(size**depth, columns, 6) for depth in range(length)]

    def _laws(self, count: int, columns: int, balls: int) -> Tensor:
        thrown = torch.randint(columns, (count, balls), generator=self.rng)
        return torch.nn.functional.one_hot(thrown, columns).sum(1).double() / balls

    def target_law(self, prefix: tuple[int, ...]) -> list[Fraction]:
        """Exact law (V,) of the target after ``prefix``."""
        return [Fraction(round(12 * p), 12) for p in self.target[len(prefix)][self._code(prefix)].tolist()]

    def guess_law(self, prefix: tuple[int, ...]) -> list[Fraction]:
        """Exact law (V,) of the drafter after ``prefix``, on the whole vocabulary."""
        law = [Fraction(0)] * self.size
        for column, p in enumerate(self.guess[len(prefix)][self._code(prefix)].tolist()):
            law[column if self.vocab is None else int(self.vocab[column])] = Fraction(round(6 * p), 6)
        return law

    def _code(self, prefix: tuple[int, ...]) -> int:
        code = 0
        for token in prefix:
            code = code * self.size + token
        return code

    def exact(self) -> Tensor:
        """Probability of every sequence of ``length`` tokens, by code (V^length,)."""
        law = torch.ones(1, dtype=torch.float64)
        for table in self.target:
            law = (law.unsqueeze(1) * table).flatten()
        return law

    def extend(self, code: Tensor, token: Tensor) -> Tensor:
        """Code of a prefix with one more token; a missing token (-1) counts as 0."""
        return code * self.size + token.clamp(min=0)

    def ids(self, columns: Tensor) -> Tensor:
        """Target ids of columns of the draft law."""
        return columns if self.vocab is None else self.vocab[columns]

    def finish(self, verdict: Verdict) -> Tensor:
        """Codes (B,) of the emitted tokens, continued by plain sampling up to ``length``."""
        code = torch.zeros_like(verdict.counts)
        for depth in range(self.length):
            inside = depth < verdict.tokens.shape[1]
            emitted = verdict.tokens[:, depth] if inside else torch.full_like(code, -1)
            plain = draw(self.target[depth][code], self.rng)
            code = self.extend(code, torch.where(emitted >= 0, emitted, plain))
        return code


def play_chain(
    world: World,
    count: int,
    *,
    block: bool = False,
    pick: Callable[[Tensor], Tensor] | None = None,
    edit: Callable[[Tensor, Tensor], Tensor] | None = None,
    report: bool = True,
    rows: int = ROWS,
) -> tuple[Tensor, Verdict]:
    """Codes of ``rows`` sequences made by one speculative step with a chain of ``count`` tokens, and the verdict.

    ``pick`` chooses columns from a law instead of sampling; ``edit(tokens, probs)`` may change the sampled chain;
    ``report`` says whether the law is handed to `accept`.
    """
    code = torch.zeros(rows, dtype=torch.long)
    laws, guesses, tokens = [world.target[0][code]], [], []
    for depth in range(count):
        guess = world.guess[depth][code]
        token = world.ids(draw(guess, world.rng) if pick is None else pick(guess))
        code = world.extend(code, token)
        guesses.append(guess)
        tokens.append(token)
        laws.append(world.target[depth + 1][code])
    chain, probs = torch.stack(tokens, 1), torch.stack(guesses, 1)
    if edit is not None:
        chain = edit(chain, probs)
    draft = Draft.chain(chain, probs if report else None, world.vocab if report else None)
    verdict = accept(draft, Law(probs=torch.stack(laws, 1)), world.rng, block=block)
    return world.finish(verdict), verdict


def play_tree(
    world: World, parents: list[int], how: str, *, replacement: bool | None = None, rows: int = ROWS
) -> tuple[Tensor, Verdict]:
    """As `play_chain` for a tree of fixed shape; siblings are ``how`` = "iid", "without" replacement or "chosen"."""
    depth_of, codes = {0: 0}, {0: torch.zeros(rows, dtype=torch.long)}
    taken: dict[int, Tensor] = {}
    laws, guesses, tokens = [world.target[0][codes[0]]], [], []
    for slot, parent in enumerate(parents, 1):
        guess = world.guess[depth_of[parent]][codes[parent]]
        left = guess if how == "iid" else guess.masked_fill(taken.get(parent, torch.zeros_like(guess).bool()), 0.0)
        column = left.argmax(-1) if how == "chosen" else draw(left, world.rng)
        token = torch.where(left.sum(-1) > 0, world.ids(column), -1)
        before = taken.get(parent, torch.zeros_like(guess).bool())
        taken[parent] = before.scatter(1, column.unsqueeze(1), True)
        depth_of[slot] = depth_of[parent] + 1
        codes[slot] = world.extend(codes[parent], token)
        laws.append(world.target[depth_of[slot]][codes[slot]])
        guesses.append(guess)
        tokens.append(token)
    probs = None if how == "chosen" else torch.stack(guesses, 1)
    shape = torch.tensor(parents).expand(rows, -1)
    kind = how != "without" if replacement is None else replacement
    draft = Draft(torch.stack(tokens, 1), shape, probs, world.vocab if probs is not None else None, kind)
    verdict = accept(draft, Law(probs=torch.stack(laws, 1)), world.rng)
    return world.finish(verdict), verdict


def misfit(codes: Tensor, exact: Tensor) -> float:
    """Chi-square of observed codes against exact probabilities over its bound at about 3 in a million; < 1 = fits."""
    observed = torch.bincount(codes, minlength=len(exact)).double()
    if bool((observed[exact == 0] > 0).any()):
        return math.inf
    expected = exact * observed.sum()
    rare = expected < 10  # pooled, as chi-square needs
    cells = [(float(o), float(e)) for o, e in zip(observed[~rare], expected[~rare], strict=True)]
    if bool(rare.any()) and float(expected[rare].sum()) >= 10:
        cells.append((float(observed[rare].sum()), float(expected[rare].sum())))
    freedom = max(len(cells) - 1, 1)
    spread = 2 / (9 * freedom)
    bound = freedom * (1 - spread + 4.5 * math.sqrt(spread)) ** 3  # Wilson and Hilferty
    return sum((o - e) ** 2 / e for o, e in cells) / bound
