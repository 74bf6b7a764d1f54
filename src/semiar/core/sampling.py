"""From logits to the law of the next token: the only place, for the target and for every drafter.

Greedy decoding is the same law at temperature 0, a point mass; it is kept as one id per slot and never spread over
the vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from semiar.errors import ConfigError

BLOCK = 64  # logits whose maximum is found at once
WIDE = 256 * BLOCK  # rows from here on are worth more than one kernel; draft vocabularies are not
COLDEST = 1e-37  # smaller temperatures are not normal float32 numbers; no logits can tell them from this one


@dataclass(frozen=True)
class Sampling:
    """How the next token is picked; filters apply in the order of Hugging Face: temperature, top-k, top-p, min-p."""

    temperature: float | None = None
    """0 = greedy; left out = greedy, or 1.0 as soon as a filter below is given."""
    top_k: int = 0
    """Keep only the k most likely tokens (ties with the last one stay); 0 = off."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens (with ties) whose probabilities reach this sum; 1.0 = off."""
    min_p: float = 0.0
    """Drop tokens less likely than this fraction of the most likely one; 0.0 = off."""

    def __post_init__(self) -> None:
        heat = self.temperature
        if heat is not None and not (heat >= 0 and math.isfinite(heat)):
            raise ConfigError(f"temperature = {heat}", "a finite number >= 0", "use 0 for greedy decoding")
        if not isinstance(self.top_k, int) or self.top_k < 0:
            raise ConfigError(f"top_k = {self.top_k}", "a whole number >= 0", "use 0 to switch the filter off")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p = {self.top_p}", "0 < top_p <= 1", "use 1.0 to switch the filter off")
        if not 0 <= self.min_p <= 1:
            raise ConfigError(f"min_p = {self.min_p}", "0 <= min_p <= 1", "use 0.0 to switch the filter off")

    @property
    def effective_temperature(self) -> float:
        """The temperature that is used when the option was left out or not."""
        if self.temperature is not None:
            return self.temperature
        filtered = self.top_k > 0 or self.top_p < 1 or self.min_p > 0
        return 1.0 if filtered else 0.0

    @property
    def greedy(self) -> bool:
        """Whether every law is a point mass, so that no randomness is needed."""
        return self.effective_temperature == 0


@dataclass(frozen=True, slots=True)
class Law:
    """Law of the next token at n slots of each row; exactly one of the two fields is set."""

    probs: Tensor | None = None  # (B, n, V) float32 or float64
    tokens: Tensor | None = None  # (B, n) point mass on this id

    @property
    def dense(self) -> Tensor:
        """``probs``, where the caller knows that this is no point mass."""
        assert self.probs is not None, "a point mass is not spread over the vocabulary: read `tokens`"
        return self.probs

    def at(self, ids: Tensor) -> Tensor:
        """Probability, float64, of ``ids`` (B, n') at the first n' slots; an id of -1 is looked up as 0."""
        count = ids.shape[1]
        if self.tokens is not None:
            return (self.tokens[:, :count] == ids).double()
        picked = self.dense[:, :count].gather(-1, ids.clamp(min=0).unsqueeze(-1))
        return picked.squeeze(-1).double()

    def row(self, slots: Tensor) -> Tensor:
        """The dense law, float64 (B, V), at one slot of each row, ``slots`` (B,); not for point masses."""
        index = slots.view(-1, 1, 1).expand(-1, 1, self.dense.shape[-1])
        return self.dense.gather(1, index).squeeze(1).double()


def distribution(logits: Tensor, sampling: Sampling) -> Law:
    """Law that ``sampling`` makes of ``logits`` (B, n, V); -inf gets probability 0; greedy ties go to the lowest id."""
    if sampling.greedy:
        return Law(tokens=argmax(logits))
    if logits.dtype != torch.float64:
        logits = logits.float()
    scores = logits - logits.amax(-1, keepdim=True)  # first, so that no temperature can overflow
    scores = scores / max(sampling.effective_temperature, COLDEST)
    if 0 < sampling.top_k < scores.shape[-1]:
        scores = _top_k(scores, sampling.top_k)
    if sampling.top_p < 1:
        scores = _top_p(scores, sampling.top_p)
    if sampling.min_p > 0:
        scores = scores.masked_fill(scores < math.log(sampling.min_p), -math.inf)  # the best score is 0
    return Law(probs=scores.softmax(-1))


def argmax(logits: Tensor) -> Tensor:
    """``logits.argmax(-1)``, the lowest id among equals, in steps that a CPU can vectorise: blocks, then one block.

    Over 49,152 bfloat16 logits `torch.argmax` takes about as long as a twentieth of a small target's pass.
    """
    size = logits.shape[-1]
    if size < WIDE or logits.device.type != "cpu":
        return logits.argmax(-1)
    whole = size - size % BLOCK
    blocks = logits[..., :whole].unflatten(-1, (-1, BLOCK))
    tops = blocks.amax(-1)
    place = tops.argmax(-1, keepdim=True)
    inside = blocks.gather(-2, place[..., None].expand(*place.shape, BLOCK)).squeeze(-2).argmax(-1, keepdim=True)
    best = place * BLOCK + inside
    if whole < size:
        rest, last = logits[..., whole:].max(-1, keepdim=True)
        best = torch.where(rest > tops.gather(-1, place), last + whole, best)
    return best.squeeze(-1)


def uniform(shape: tuple[int, ...], rng: torch.Generator | None, device: torch.device) -> Tensor:
    """Float64 numbers in [0, 1); drawn on the generator's own device, so that a seed means the same everywhere."""
    if rng is None:
        raise ConfigError("sampling without a random generator", "a torch.Generator", "pass rng, or temperature 0")
    return torch.rand(shape, generator=rng, device=rng.device, dtype=torch.float64).to(device)


def draw(probs: Tensor, rng: torch.Generator | None) -> Tensor:
    """Draw one id per law of ``probs`` (..., V), which need not sum to 1; never an id of probability 0.

    One uniform per law and the inverse of its cumulative sum, in float64.  `torch.multinomial` would need V random
    numbers, and its float32 race can be won by an id that is far too rare.
    """
    return pick(probs, uniform(tuple(probs.shape[:-1]), rng, probs.device))


def pick(probs: Tensor, coins: Tensor) -> Tensor:
    """The draw of `draw` for given uniform numbers, ``coins`` (...)."""
    sums = probs.double().cumsum(-1)
    goal = coins.unsqueeze(-1) * sums[..., -1:]
    index = torch.searchsorted(sums, goal, right=True).clamp_(max=probs.shape[-1] - 1)
    possible = probs.gather(-1, index) > 0  # a parallel sum may round upwards at an id of probability 0
    return torch.where(possible, index, probs.argmax(-1, keepdim=True)).squeeze(-1)


def _top_k(scores: Tensor, count: int) -> Tensor:
    least = scores.topk(count, dim=-1).values[..., -1:]
    return scores.masked_fill(scores < least, -math.inf)


def _top_p(scores: Tensor, mass: float) -> Tensor:
    probs = scores.softmax(-1)
    best = _top_until(probs, mass)
    before = best.cumsum(-1) - best  # (B, n, m) what the likelier ones sum to
    least = best.masked_fill(before >= mass, math.inf).amin(-1, keepdim=True)
    return scores.masked_fill(probs < least, -math.inf)


def _top_until(probs: Tensor, mass: float) -> Tensor:
    """The m largest probabilities (B, n, m), enough to reach ``mass``: a full sort costs as much as a small target."""
    count = 256
    while count < probs.shape[-1]:
        best = probs.topk(count, dim=-1).values
        if bool((best.sum(-1) >= mass).all()):
            return best
        count *= 8
    return probs.sort(dim=-1, descending=True).values
