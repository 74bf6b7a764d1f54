"""How often the target keeps a drafted token, as a rising function of the drafter's own probability of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

EDGES = [round(1 / (1 + 2.0**-power), 4) for power in range(-6, 10)]  # finer where drafters are sure
WORD = 4.0  # trials that a bin's own probability counts as, so that an empty bin is the drafter's word


@dataclass(frozen=True, slots=True)
class Calibration:
    """Acceptance by position and own probability, given that all earlier positions were accepted."""

    edges: list[float]  # between the bins of own probability, rising
    rates: list[list[float]]  # (K, bins), rising in each position

    def __call__(self, own: Tensor, step: int) -> Tensor:
        """Acceptance to expect of tokens at position ``step`` (from 0) with these own probabilities, of any shape."""
        edges = torch.tensor(self.edges, dtype=own.dtype, device=own.device)
        rates = torch.tensor(self.rates[min(step, len(self.rates) - 1)], dtype=own.dtype, device=own.device)
        return rates[torch.bucketize(own, edges, right=True)]


def count_by_bin(own: Tensor, counted: Tensor) -> Tensor:
    """How many of (..., K) are ``counted`` (0 or 1), by position and bin of own probability: (K, bins)."""
    bins = torch.bucketize(own, torch.tensor(EDGES, dtype=own.dtype, device=own.device), right=True)
    return (F.one_hot(bins, len(EDGES) + 1) * counted[..., None]).flatten(0, -3).sum(0)


def calibrate(hits: Tensor, trials: Tensor) -> Calibration:
    """The map that hits and trials (K, bins) show: their rate, made rising by pooling neighbours that fall."""
    ends = torch.tensor([0.0, *EDGES, 1.0])
    words = (ends[1:] + ends[:-1]) / 2
    rates = [
        _rising(((hit + WORD * words) / (trial + WORD)).tolist(), (trial + WORD).tolist())
        for hit, trial in zip(hits.cpu(), trials.cpu(), strict=True)
    ]
    return Calibration(EDGES, rates)


def _rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The rising sequence nearest in weighted squares (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []  # value, weight, members
    for value, weight in zip(values, weights, strict=True):
        pool = (value, weight, 1)
        while pools and pools[-1][0] > pool[0]:
            before = pools.pop()
            mass = before[1] + pool[1]
            pool = ((before[0] * before[1] + pool[0] * pool[1]) / mass, mass, before[2] + pool[2])
        pools.append(pool)
    return [round(value, 4) for value, _, members in pools for _ in range(members)]
