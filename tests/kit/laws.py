"""Known laws of short texts, drawn through the real loop, and how far from them a sample may be.

Table pairs make the exact law of the first tokens known.  Each position's distance to its law must be below 0.02 (a
correct sampler of 20,000 rows stays below 0.017), and the joint law of neighbouring tokens is tested too.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from core.enumeration import misfit
from torch import Tensor
from torch.nn import functional as F

from kit.models import table_model
from kit.texts import texts
from semiar.core.sampling import Sampling, distribution
from semiar.decoding import Limits, decode
from semiar.drafters import Drafter
from semiar.targets import Target

ROWS = 20_000
THREE = [[1.0, 0.2, -0.5], [0.0, 1.5, 0.3], [-1.0, 0.4, 0.6]]  # logits of the target after each token
OTHER = [[-0.5, 0.8, 0.4], [1.2, -0.3, 0.5], [0.9, 0.1, -0.8]]  # and of the draft
FOUR = [[0.9, 0.1, -0.4, 0.3], [-0.6, 1.1, 0.2, 0.0], [0.5, 0.5, -1.0, 0.8], [1.3, -0.7, 0.1, 0.2]]
FOREIGN = [[-0.2, 0.9, 0.6, -1.0], [1.0, 0.0, -0.5, 0.7], [-1.2, 0.3, 1.4, 0.0], [0.0, 0.8, -0.3, 1.1]]


def laws_of(table: list[list[float]], sampling: Sampling) -> Tensor:
    """Next-token law (V, V) that the settings make of the table."""
    return distribution(torch.tensor(table, dtype=torch.float64)[None], sampling).probs[0]


def sample(
    table: list[list[float]],
    drafter: Drafter,
    count: int,
    sampling: Sampling,
    *,
    prompt: list[int] | None = None,
    rows: int = ROWS,
    seed: int = 0,
    layers: int = 1,
    **options: Any,
) -> Tensor:
    """Emitted tokens (rows, count) of that many equal prompts."""
    texts: list[list[int]] = [[] for _ in range(rows)]
    rng = torch.Generator().manual_seed(seed)
    target = Target(table_model(table, layers=layers))
    prompts = [prompt or [0]] * rows
    for step in decode(target, drafter, prompts, Limits(count), sampling, rng=rng, **options):
        for row, tokens in zip(step.rows, step.tokens, strict=True):
            texts[row] += tokens
    return torch.tensor(texts)  # all rows have the same length, or this fails


def distances(found: Tensor, laws: Tensor, start: int = 0) -> list[float]:
    """Total variation between each position's frequencies and its exact law."""
    law = torch.zeros(len(laws), dtype=torch.float64)
    law[start] = 1
    gaps = []
    for position in range(found.shape[1]):
        law = law @ laws
        seen = torch.bincount(found[:, position], minlength=len(laws)) / len(found)
        gaps.append(float((seen - law).abs().sum() / 2))
    return gaps


def joint_chance(found: Tensor, laws: Tensor, start: int = 0) -> float:
    """Chance that a correct sampler is further from the joint law of three neighbouring tokens (G-test)."""
    size = len(laws)
    joint = torch.einsum("a,ab,bc->abc", laws[start], laws, laws).flatten()
    seen = torch.bincount((found[:, 0] * size + found[:, 1]) * size + found[:, 2], minlength=size**3).double()
    assert bool((seen[joint == 0] == 0).all()), "an impossible text"
    seen, expected = seen[joint > 0], joint[joint > 0] * len(found)
    statistic = 2 * (seen * (seen / expected).clamp(min=1e-300).log()).sum()
    return float(torch.special.gammaincc(torch.tensor((len(seen) - 1) / 2).double(), statistic / 2))


def check(found: Tensor, laws: Tensor, start: int = 0) -> None:
    assert max(distances(found, laws, start)) < 0.02
    assert joint_chance(found, laws, start) > 1e-4


def check_texts(found: Tensor, laws: Tensor, start: int = 0) -> None:
    """Whole texts against the enumeration of all of them (chi-square), and the G-test; for any number of rows."""
    assert joint_chance(found, laws, start) > 1e-4
    exact = laws[start]
    for _ in range(found.shape[1] - 1):
        exact = (exact.view(-1, len(laws))[..., None] * laws).flatten()
    codes = found[:, 0]
    for position in range(1, found.shape[1]):
        codes = codes * len(laws) + found[:, position]
    assert misfit(codes, exact) < 1


def place_misfits(found: Tensor, table: list[list[float]]) -> list[float]:
    """Chi-square (V - 1 degrees) of the ids at every place of texts (n, L) that begin after token 0, at T = 1."""
    steps, law, misfits = laws_of(table, Sampling(1.0)), F.one_hot(torch.tensor(0), len(table)).double(), []
    for column in found.T:
        law = law @ steps
        expected = law * len(found)
        seen = torch.bincount(column, minlength=len(table)).double()
        misfits.append(float(((seen - expected) ** 2 / expected).sum()))
    return misfits


def step_misfit(target: Target, drafter: Drafter, table: list[list[float]], prompt: list[int]) -> float:
    """Chi-square (V * (V - 1) degrees) of which token follows which in 60 long texts, one row at a time, at T = 1."""
    seen, rng = torch.zeros(len(table), len(table), dtype=torch.float64), torch.Generator().manual_seed(6)
    for _ in range(60):
        for row in texts(target, drafter, [prompt], 60, sampling=Sampling(1.0), rng=rng):
            for before, after in itertools.pairwise(row):
                seen[before, after] += 1
    expected = seen.sum(1, keepdim=True) * laws_of(table, Sampling(1.0))
    return float(((seen - expected) ** 2 / expected).sum())
