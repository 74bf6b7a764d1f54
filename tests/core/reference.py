"""The rules once more, in fractions and by enumeration of every draft and every decision: slow, plain and exact.

Each function gives the law of the first ``length`` tokens (continued by plain sampling) and the mean number of accepted
tokens.  They prove that a rule is lossless; `test_accept.py` then compares the real `accept` with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product

from enumeration import World

Law = list[Fraction]
Outcome = tuple[tuple[int, ...], Law, Fraction]  # accepted tokens, law of the next one, probability


def output_law(world: World, outcomes: Iterator[Outcome]) -> tuple[dict[tuple[int, ...], Fraction], Fraction]:
    """Law of the output sequences and mean acceptance."""
    law: dict[tuple[int, ...], Fraction] = {}
    mean = Fraction(0)
    for accepted, correction, weight in outcomes:
        mean += weight * len(accepted)
        for token, p in enumerate(correction):
            _continue(world, (*accepted, token), weight * p, law)
    return law, mean


def _continue(world: World, prefix: tuple[int, ...], weight: Fraction, law: dict[tuple[int, ...], Fraction]) -> None:
    if weight == 0:
        return
    if len(prefix) == world.length:
        law[prefix] = law.get(prefix, Fraction(0)) + weight
        return
    for token, p in enumerate(world.target_law(prefix)):
        _continue(world, (*prefix, token), weight * p, law)


def plain(world: World) -> dict[tuple[int, ...], Fraction]:
    """Law of plain sampling."""
    law: dict[tuple[int, ...], Fraction] = {}
    _continue(world, (), Fraction(1), law)
    return law


def excess(t: Law, d: Law, scale: Fraction = Fraction(1)) -> Law:
    return [max(scale * a - b, Fraction(0)) for a, b in zip(t, d, strict=True)]


def normalised(law: Law) -> Law:
    return [p / sum(law) for p in law]


def drafts(world: World, count: int) -> Iterator[tuple[tuple[int, ...], Fraction]]:
    """Every chain that can be drafted, with its probability."""
    for chain in product(range(world.size), repeat=count):
        weight = Fraction(1)
        for i, token in enumerate(chain):
            weight *= world.guess_law(chain[:i])[token]
        if weight:
            yield chain, weight


def chain_rule(world: World, count: int) -> Iterator[Outcome]:
    """Rejection rule, token by token."""
    for chain, weight in drafts(world, count):
        for i, token in enumerate(chain):
            t, d = world.target_law(chain[:i]), world.guess_law(chain[:i])
            keep = min(Fraction(1), t[token] / d[token])
            if keep < 1:
                yield chain[:i], normalised(excess(t, d)), weight * (1 - keep)
            weight *= keep
            if weight == 0:
                break
        else:
            yield chain, world.target_law(chain), weight


def block_rule(world: World, count: int) -> Iterator[Outcome]:
    """Block verification."""
    for chain, weight in drafts(world, count):
        bars, scales = [Fraction(1)], [Fraction(1)]
        for i, token in enumerate(chain, 1):
            ratio = world.target_law(chain[: i - 1])[token] / world.guess_law(chain[: i - 1])[token]
            scales.append(min(scales[-1] * ratio, Fraction(1)))
            bars.append(scales[-1])
            if i < count:
                total = sum(excess(world.target_law(chain[:i]), world.guess_law(chain[:i]), scales[-1]))
                bars[-1] = total / (total + 1 - scales[-1]) if total + 1 - scales[-1] else Fraction(1)
        for i in range(count, -1, -1):
            t = world.target_law(chain[:i])
            if weight * bars[i]:
                rest = t if i == count else normalised(excess(t, world.guess_law(chain[:i]), scales[i]))
                yield chain[:i], rest, weight * bars[i]
            weight *= 1 - bars[i]


def tree_rule(world: World, widths: list[int], how: str, prefix: tuple[int, ...] = ()) -> Iterator[Outcome]:
    """Siblings in order; ``widths`` is the number of children of every node at each depth."""
    if not widths:
        yield prefix, world.target_law(prefix), Fraction(1)
        return
    yield from _siblings(
        world, widths, how, prefix, world.target_law(prefix), world.guess_law(prefix), widths[0], Fraction(1)
    )


def _siblings(
    world: World, widths: list[int], how: str, prefix: tuple[int, ...], t: Law, d: Law, left: int, weight: Fraction
) -> Iterator[Outcome]:
    if left == 0 or sum(d) == 0:
        yield prefix, t, weight
        return
    best = max(range(world.size), key=lambda token: d[token])
    point = [Fraction(token == best) for token in range(world.size)]
    for token, share in enumerate(point if how == "chosen" else d):
        if share == 0:
            continue
        guess = point if how == "chosen" else d
        keep = min(Fraction(1), t[token] / guess[token])
        if keep:
            for accepted, law, p in tree_rule(world, widths[1:], how, (*prefix, token)):
                yield accepted, law, weight * share * keep * p
        if keep < 1:
            without = [Fraction(0) if i == token else p for i, p in enumerate(d)]
            if how == "without" and sum(without):
                without = normalised(without)
            rest = normalised(excess(t, guess))
            after = d if how == "iid" else without
            yield from _siblings(world, widths, how, prefix, rest, after, left - 1, weight * share * (1 - keep))
