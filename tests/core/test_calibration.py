"""What a drafter's own probability is worth, from counts."""

from __future__ import annotations

import pytest
import torch

from semiar.core.calibration import EDGES, Calibration, calibrate, count_by_bin


def test_counts_become_a_rising_map_that_finds_the_true_rates() -> None:
    rng = torch.Generator().manual_seed(0)
    own = torch.rand(400, 50, 2, generator=rng)
    true = torch.stack([own[..., 0] ** 2, 0.3 + 0.5 * own[..., 1]], -1)  # overconfident, then flat
    hits = (torch.rand(own.shape, generator=rng) < true).long()
    trials = torch.ones_like(hits)
    found = calibrate(count_by_bin(own, hits), count_by_bin(own, trials))
    for step, rates in enumerate(found.rates):
        assert rates == sorted(rates) and len(rates) == len(EDGES) + 1
        asked = torch.tensor([[0.2], [0.6], [0.9]])
        wanted = [0.07, 0.34, 0.84] if step == 0 else [0.43, 0.59, 0.76]  # of the bins around them
        assert found(asked, step)[:, 0].tolist() == pytest.approx(wanted, abs=0.04)
    assert torch.equal(found(asked, 7), found(asked, 1))  # beyond what was measured: as at the last position


def test_positions_that_were_never_reached_take_the_drafter_at_its_word() -> None:
    nothing = torch.zeros(1, len(EDGES) + 1, dtype=torch.long)
    own = torch.linspace(0, 1, 101)
    found = calibrate(nothing, nothing)(own, 0)
    assert float((found - own).abs().max()) < 0.09 and bool((found.diff() >= 0).all())


def test_rates_that_fall_are_pooled() -> None:
    hits, trials = torch.zeros(1, len(EDGES) + 1), torch.zeros(1, len(EDGES) + 1)
    hits[0, 6:9], trials[0, 6:9] = torch.tensor([900.0, 100.0, 410.0]), torch.tensor([1000.0, 1000.0, 1000.0])
    rates = calibrate(hits, trials).rates[0]
    assert rates[6] == rates[7] == rates[8] == pytest.approx(0.47, abs=0.01)
    assert Calibration(EDGES, [rates])(torch.tensor([0.7]), 0).tolist() == pytest.approx([rates[8]])
