"""Sums of a time series over blocks: those of the whole, wherever it is cut."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest

from equipoise.models.autocorrelated import Series


def _whole(scores, lags):
    """Σ_l k(l) (Γ_l + Γ_lᵀ) as it is written."""
    total = scores.T @ scores
    for lag in range(1, min(lags, len(scores) - 1) + 1):
        product = scores[lag:].T @ scores[:-lag]
        total += (1.0 - lag / (lags + 1.0)) * (product + product.T)
    return total


@pytest.mark.parametrize("lags", [0, 1, 5, 40, 300])
@pytest.mark.parametrize("free", [False, True])
def test_blocks_add_up_to_the_whole(lags, free) -> None:
    rng = np.random.default_rng(lags)
    scores = rng.normal(size=(200, 4)) + np.array([0.5, -2.0, 0.0, 1.0])
    along = rng.normal(size=3) if free else None
    mean = rng.normal(size=3 if free else 4)
    folded = scores[:, :3] - scores[:, 3:] * along if free else scores
    expected = _whole(folded - mean, lags)
    for cuts in ([], [1, 2, 3], [50, 100, 150], sorted(rng.choice(np.arange(1, 200), 30, replace=False))):
        blocks = [Series.of(part, None, lags) for part in np.split(scores, cuts)]
        for found in (reduce(Series.__add__, blocks), _from_the_right(blocks)):
            np.testing.assert_allclose(found.middle(mean, along), expected, rtol=1e-11, atol=1e-10)
            again = Series(*found.arrays, lags=lags)
            np.testing.assert_array_equal(again.middle(mean, along), found.middle(mean, along))


def _from_the_right(blocks):
    found = blocks[-1]
    for block in reversed(blocks[:-1]):
        found = block + found
    return found


@pytest.mark.parametrize(("swapped", "early"), [(None, -1), (0, 1), (49, 50), (50, 51), (120, 121)])
def test_times_are_told_across_borders(swapped, early) -> None:
    scores, time = np.ones((200, 1)), np.repeat(np.arange(100.0), 2)
    if swapped is not None:
        time[swapped] = time[swapped + 1] + 0.5
    for cuts in ([], [50], [51, 121], [1, 2, 120, 199]):
        pieces = zip(np.split(scores, cuts), np.split(time, cuts), strict=True)
        told = reduce(Series.__add__, (Series.of(part, when, 3) for part, when in pieces)).told
        assert told[0] == 200.0
        assert told[1:3].tolist() == [time[0], time[-1]]
        assert told[3] == np.sum(np.diff(time) == 0.0)
        assert told[4] == early
