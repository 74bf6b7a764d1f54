"""Stretches of text and the bootstrap over them: totals are kept, and noise of time widens the interval."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import case_h34, generation, header, long_trace, step

from semiar.measuring.blocks import BLOCK, COLUMNS, blocks_of
from semiar.measuring.metrics import disturbance, summarise
from semiar.measuring.resample import middle, resampled
from semiar.measuring.trace import Trace


@given(st.lists(st.integers(1, 6), min_size=1, max_size=60), st.floats(0.01, 9))
def test_stretches_add_up_to_the_runs(emitted: list[int], seconds: float) -> None:
    tokens = sum(emitted)
    plain = generation("plain", 0, [1] * tokens, [step(0, 0, 1)] * tokens, seconds + 0.01)
    fast = generation("speculative", 0, [1] * tokens, [step(5, n - 1, n) for n in emitted], seconds / 2 + 0.01)
    table = blocks_of([(plain, fast)])
    assert len(table) == max(1, tokens // BLOCK)
    total = dict(zip((*COLUMNS, "plain_prefill", "speculative_prefill"), table.sum(0), strict=True))
    assert total["passes"] == len(emitted) and total["plain_tokens"] == total["speculative_tokens"] == tokens
    assert total["accepted"] == tokens - len(emitted)
    assert total["plain_seconds"] == pytest.approx(seconds, rel=1e-6)
    assert total["speculative_seconds"] == pytest.approx(seconds / 2, rel=1e-6)
    assert total["plain_prefill"] == pytest.approx(0.01)


def test_one_stretch_each_is_the_bootstrap_over_prompts() -> None:
    rng = np.random.default_rng(3)
    prompts = rng.random((9, 4))
    found = resampled([one[None] for one in prompts])
    picks = np.random.default_rng(0).integers(9, size=(len(found), 9))
    np.testing.assert_allclose(found, prompts[picks].sum(1))


def test_a_machine_that_is_not_quiet_widens_the_interval() -> None:
    """Prompts that agree, decoded while the machine slowed down for some stretches: the mean is the same."""
    calm = [np.array([[1.0, 1.0]] * 8) for _ in range(6)]
    noisy = [np.array([[1.0, 0.5], [1.0, 1.5]] * 4) for _ in range(6)]
    widths = []
    for prompts in (calm, noisy):
        low, high = middle(resampled(prompts).T[1] / resampled(prompts).T[0])
        assert low <= 1 <= high
        widths.append(high - low)
    assert widths[0] == 0 and widths[1] > 0.1


def test_what_cannot_be_is_found() -> None:
    """12 plain passes against 3: at most 4 times as fast, whatever the clock says."""
    trace = case_h34()
    assert disturbance(trace.pairs()) == "" == summarise(trace).disturbed
    plain, fast = trace.generations
    slow = Trace(trace.header, {}, [plain | {"seconds": 0.4}, fast])
    assert "a speed-up of 5.65 where a pass yields 4.00 tokens" in summarise(slow).disturbed
    same = [generation(mode, 0, [1], [step(0, 0, 1)], 1.0 + (mode == "plain")) for mode in ("plain", "speculative")]
    assert summarise(Trace(header(0), {}, same)).disturbed == ""  # nothing was drafted: both ways are one
    assert summarise(long_trace()).disturbed == ""
