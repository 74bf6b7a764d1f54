"""The speed-up model."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semiar.core.theory import (
    Costs,
    best_count,
    expected_tokens_per_pass,
    passes_for,
    predict,
    predict_answers,
)
from semiar.errors import ConfigError

UNIT = st.floats(0, 1)


def speedup(betas, verify, draft, overhead, count):
    return predict(betas, Costs(verify, draft, overhead), count).speedup


def test_expected_tokens_per_pass():
    assert expected_tokens_per_pass([]) == 1
    assert expected_tokens_per_pass([0.5, 0.5, 0.5]) == pytest.approx(1 + 0.5 + 0.25 + 0.125)
    assert expected_tokens_per_pass([1.0] * 4) == 5
    with pytest.raises(ConfigError):
        expected_tokens_per_pass([1.2])


def test_speedup_by_hand():
    assert speedup([0.7] * 4, [1.0] * 6, 0.1, 0.0, 4) == pytest.approx((1 + 0.7 + 0.49 + 0.343 + 0.2401) / 1.4)
    assert speedup([0.7], [10.0, 12.0], 1.0, 2.0, 1) == pytest.approx(1.7 * 10 / (12 + 1 + 2))  # milliseconds as well
    assert speedup([0.7] * 2, [10.0, 12.0, 13.0], [4.0, 5.0], 0.0, 2) == pytest.approx((1 + 0.7 + 0.49) * 10 / 18)


def test_no_draft_is_plain_decoding():
    assert speedup([], [3.0], 0.1, 5.0, 0) == 1
    assert best_count([0.05] * 4, [1.0] * 5, 0.3, 0.1, 4) == 0


def test_the_papers_three_or_four():
    """c = 0.1 and an acceptance of 0.7 give K = 3..4."""
    assert best_count([0.7] * 8, [1.0] * 9, 0.1, 0.0, 8) in (3, 4)


def test_a_step_in_the_verify_cost_is_crossed_where_it_pays():
    assert best_count([0.9] * 5, [1.0, 1.2, 1.2, 1.2, 1.2, 1.2], [0.8, 0.8, 0.8, 0.8, 0.8], 0.0, 5) == 5


def test_what_was_not_measured_is_refused():
    with pytest.raises(ConfigError, match="measured"):
        predict([0.5], Costs([1.0] * 5), 2)
    with pytest.raises(ConfigError, match="verify"):
        predict([0.5] * 3, Costs([1.0] * 3), 3)
    with pytest.raises(ConfigError, match="draft"):
        predict([0.5] * 3, Costs([1.0] * 4, [0.1, 0.1]), 3)


@given(st.lists(UNIT, max_size=8), st.floats(0, 2), st.floats(0, 1))
def test_best_count_is_best(betas, cost, overhead):
    verify = [1 + 0.1 * n for n in range(len(betas) + 1)]
    best = best_count(betas, verify, cost, overhead, len(betas))
    every = [speedup(betas, verify, cost, overhead, k) for k in range(len(betas) + 1)]
    assert every[best] == max(every) >= 1
    counts = [expected_tokens_per_pass(betas[:k]) for k in range(len(betas) + 1)]
    assert all(a <= b for a, b in pairwise(counts))


def test_passes_for_short_answers_count_the_cut_last_pass():
    assert passes_for(1, [0.5, 0.5], 2) == 1
    assert passes_for(7, [], 0) == 7
    # length 2, one draft accepted with 0.5: a hit ends it in one pass, a miss needs a second
    assert passes_for(2, [0.5], 1) == pytest.approx(1.5)
    betas = [0.8, 0.7, 0.6]
    assert 4000 / passes_for(4000, betas, 3) == pytest.approx(expected_tokens_per_pass(betas), rel=1e-3)


def test_answers_are_predicted_slower_than_endless_text():
    costs = Costs([1.0, 1.0, 1.0, 1.0], 0.05, 0.0)
    betas = [0.8, 0.7, 0.6]
    assert predict_answers(betas, costs, 0, [5, 9]).speedup == 1
    assert predict_answers(betas, costs, 3, [4, 4]).speedup < predict(betas, costs, 3).speedup
