"""Autocorrelations: known times of AR(1) chains, variances of their means, and the error of each."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.calibration.autocorrelation import autocorrelations, bartlett_error, per_stored_draw
from equipoise.calibration.diagnostics import autocorrelation_time


def ar1(rng, coefficient, chains, length):
    """Stationary AR(1) with unit variance."""
    draws = np.empty((chains, length))
    noise = rng.normal(size=(chains, length)) * np.sqrt(1.0 - coefficient**2)
    draws[:, 0] = rng.normal(size=chains)
    for t in range(1, length):
        draws[:, t] = coefficient * draws[:, t - 1] + noise[:, t]
    return draws


@pytest.mark.parametrize(("coefficient", "expected"), [(0.9, 19.0), (0.5, 3.0), (0.0, 1.0), (-0.5, 1.0 / 3.0)])
def test_autocorrelation_time_of_ar1(coefficient, expected) -> None:
    chains, length = 4, 50_000
    found = autocorrelation_time(ar1(np.random.default_rng(1), coefficient, chains, length))
    assert expected == pytest.approx((1.0 + coefficient) / (1.0 - coefficient))
    # a sum over M = 5 max(τ, 1) lags has standard error τ sqrt(2 (2M + 1) / T), and leaves out 2 Σ_{k>M} ρ^k
    window = 5.0 * max(expected, 1.0)
    error = max(expected, 1.0) * np.sqrt(2.0 * (2.0 * window + 1.0) / (chains * length))
    left_out = 2.0 * abs(coefficient) ** (window + 1.0) / (1.0 - coefficient)
    assert abs(found - expected) < 4.0 * error + left_out


def test_autocorrelation_time_ignores_where_chains_are_and_their_scale() -> None:
    draws = ar1(np.random.default_rng(2), 0.8, 3, 2000)
    assert autocorrelation_time(1e6 * draws + 1e3) == pytest.approx(autocorrelation_time(draws), rel=1e-6)


def test_autocorrelation_time_of_constants_is_one() -> None:
    assert autocorrelation_time(np.zeros((2, 50))) == 1.0


def test_variance_of_a_mean_is_that_of_the_sum_over_lags() -> None:
    for tau, thin, n in ((9.0, 1, 50), (9.0, 3, 20), (0.4, 1, 11)):
        a = ((tau - 1.0) / (tau + 1.0)) ** thin
        lags = a ** np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
        np.testing.assert_allclose(per_stored_draw(np.array([tau]), thin, n), lags.mean() * n)


def test_autocorrelations_and_their_error() -> None:
    runs = np.array([autocorrelations(ar1(np.random.default_rng([6, s]), 0.8, 2, 2000), 12) for s in range(200)])
    lag = np.arange(13)
    error = bartlett_error(9.0, lag, 4000)
    assert np.all(np.abs(runs.mean(axis=0) - 0.8**lag) < 4.0 * error / np.sqrt(200) + 5e-3)
    # the standard deviation of 200 values errs by 1/√400
    np.testing.assert_allclose(runs.std(axis=0)[1:], error[1:], rtol=4.0 / np.sqrt(400))
