"""Laws from logits, and drawing from them."""

from __future__ import annotations

import math

import pytest
import torch
from enumeration import misfit
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from semiar.core import sampling as sampling_module
from semiar.core.sampling import BLOCK, WIDE, Law, Sampling, argmax, distribution, draw, uniform
from semiar.errors import ConfigError


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("options", "heat"),
    [
        ({}, 0.0),
        ({"top_k": 2}, 1.0),
        ({"top_p": 0.9}, 1.0),
        ({"min_p": 0.1}, 1.0),
        ({"temperature": 0.0, "top_k": 2}, 0.0),
    ],
)
def test_temperature_left_out(options, heat):
    assert Sampling(**options).effective_temperature == heat
    assert Sampling(**options).greedy == (heat == 0)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -0.1}, {"temperature": math.nan}, {"temperature": math.inf}, {"top_k": -1}, {"top_k": 1.5},
        {"top_p": 0.0}, {"top_p": 1.1}, {"min_p": -0.1}, {"min_p": 1.5},
    ],
)  # fmt: skip
def test_bad_options_are_named(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        Sampling(**options)


@pytest.mark.parametrize(
    "options", [(0.7, 0, 1.0, 0.0), (1.0, 5, 1.0, 0.0), (1.3, 0, 0.8, 0.0), (1.0, 0, 1.0, 0.2), (0.9, 20, 0.9, 0.05)]
)
def test_same_law_as_hugging_face(options):
    logits = torch.randn(3, 4, 50, generator=rng()) * 3
    heat, top_k, top_p, min_p = options
    expected = TemperatureLogitsWarper(heat)(None, logits.flatten(0, 1))
    expected = TopKLogitsWarper(top_k)(None, expected) if top_k else expected
    expected = TopPLogitsWarper(top_p)(None, expected) if top_p < 1 else expected
    expected = MinPLogitsWarper(min_p)(None, expected) if min_p else expected
    found = distribution(logits, Sampling(*options)).probs
    assert torch.allclose(found.flatten(0, 1), expected.softmax(-1), atol=1e-6)
    assert torch.equal(found.flatten(0, 1) == 0, expected.softmax(-1) == 0)


@pytest.mark.parametrize("heat", [1e-6, 1e-38, 1e-45, 5e-324, 1.0])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_extremes_give_laws(heat, kind):
    rows = [[2.0, 0.0, -1.0], [3e38, -3e38, 0.0], [-math.inf, 0.5, -math.inf], [-1e30, -1e30 * 1.1, -math.inf]]
    law = distribution(torch.tensor([rows], dtype=kind), Sampling(heat)).probs
    assert law.dtype == kind
    assert bool(law.isfinite().all()) and torch.allclose(law.sum(-1), torch.ones(1, 4, dtype=kind))
    if heat < 1:
        assert law.argmax(-1).tolist() == [[0, 0, 1, 0]] and float(law.amax(-1).min()) == 1


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(WIDE - 2, WIDE + 2 * BLOCK), rows=st.integers(1, 3), levels=st.integers(1, 40),
    seed=st.integers(0, 1 << 20), kind=st.sampled_from([torch.bfloat16, torch.float32, torch.float64]),
)  # fmt: skip
def test_argmax_of_wide_rows_takes_the_lowest_id_among_equals(size, rows, levels, seed, kind):
    logits = torch.randint(levels, (2, rows, size), generator=rng(seed)).to(kind)
    logits[0, 0] = -math.inf
    logits[1, 0, -1] = levels * 2.0  # the best one in the part that fills no block
    best = logits.amax(-1, keepdim=True)
    lowest = torch.where(logits == best, torch.arange(size), size).amin(-1)
    assert torch.equal(argmax(logits), lowest)
    assert torch.equal(argmax(logits[:, :1]), lowest[:, :1])


def test_half_precision_is_widened():
    assert distribution(torch.zeros(1, 1, 3, dtype=torch.bfloat16), Sampling(1.0)).probs.dtype == torch.float32


def test_top_k_beyond_the_vocabulary_and_smallest_filters():
    logits = torch.tensor([[[1.0, 2.0, 0.0]]])
    assert torch.allclose(distribution(logits, Sampling(1.0, top_k=10)).probs, logits.softmax(-1))
    for tight in (Sampling(1.0, top_k=1), Sampling(1.0, top_p=1e-9), Sampling(1.0, min_p=1.0)):
        assert distribution(logits, tight).probs.tolist() == [[[0.0, 1.0, 0.0]]]


def test_min_p_of_case_h11():
    law = distribution(torch.tensor([[[0.6, 0.3, 0.1]]]).log(), Sampling(min_p=0.4)).probs
    assert torch.allclose(law, torch.tensor([[[2 / 3, 1 / 3, 0.0]]]))


def test_greedy_takes_the_lowest_id_at_ties():
    law = distribution(torch.tensor([[[1.0, 3.0, 3.0], [-math.inf, -math.inf, 0.0]]]), Sampling())
    assert law.probs is None and law.tokens.tolist() == [[1, 2]]


def test_law_lookups():
    probs = torch.tensor([[[0.1, 0.9], [0.6, 0.4]], [[1.0, 0.0], [0.5, 0.5]]])
    law = Law(probs=probs)
    assert torch.allclose(law.at(torch.tensor([[1], [1]])), torch.tensor([[0.9], [0.0]], dtype=torch.float64))
    assert torch.allclose(law.row(torch.tensor([1, 0])), torch.tensor([[0.6, 0.4], [1.0, 0.0]], dtype=torch.float64))
    point = Law(tokens=torch.tensor([[3, 1]]))
    assert point.at(torch.tensor([[3, -1]])).tolist() == [[1.0, 0.0]]
    with pytest.raises(AssertionError, match="point mass"):
        point.row(torch.tensor([0]))


def test_draw_follows_the_law_whatever_its_sum():
    law = torch.tensor([0.0, 0.1, 0.0, 0.4, 0.5, 0.0], dtype=torch.float64)
    for scale in (1.0, 1e-30, 7.0):
        assert misfit(draw((law * scale).expand(200_000, -1), rng()), law) < 1
    assert draw(law.expand(2, 3, -1), rng()).shape == (2, 3)


@pytest.mark.parametrize("point", [0.0, 0.5, 1 - 2**-53])
def test_draw_never_takes_the_impossible(monkeypatch, point):
    monkeypatch.setattr(sampling_module, "uniform", lambda shape, rng, device: torch.full(shape, point).double())
    for _ in range(50):
        law = torch.rand(20, generator=rng(_)) * (torch.rand(20, generator=rng(_ + 99)) < 0.2)
        law[_ % 20] = 1e-30
        assert float(law[draw(law, None)]) > 0


def test_draw_is_repeatable_and_seeds_differ():
    law = torch.rand(100, 50, generator=rng())
    assert torch.equal(draw(law, rng(1)), draw(law, rng(1)))
    assert not torch.equal(draw(law, rng(1)), draw(law, rng(2)))
    with pytest.raises(ConfigError, match="generator"):
        uniform((1,), None, torch.device("cpu"))


@pytest.mark.parametrize("heat", [0.3, 1.0, 30.0])
def test_top_p_over_a_large_vocabulary(heat):
    """Whether a few ids reach the sum or nearly all are needed."""
    logits = torch.randn(2, 2, 3000, generator=rng()).double() * 3
    expected = TopPLogitsWarper(0.95)(None, (logits / heat).flatten(0, 1)).softmax(-1)
    assert torch.allclose(distribution(logits, Sampling(heat, top_p=0.95)).probs.flatten(0, 1), expected)
