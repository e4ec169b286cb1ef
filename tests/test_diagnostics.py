"""Diagnostics: known autocorrelation times, and chains that are wrong in one known way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import equipoise as eq
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


@pytest.fixture(scope="module")
def good(make_data):
    """A gaussian model's long run, which is exactly as predicted, with its tuning."""
    model, data = eq.glm("gaussian", scale=1.3), make_data("gaussian", n=500, dim=3)
    tuning = eq.tune(eq.moments(model, data, eq.fit(model, data).params), "sandwich", eq.Dynamics(50))
    return eq.sample(model, data, tuning, draws=10_000, chains=4, seed=2, thin=2, progress=False), tuning


def failed(chains, tuning) -> set[str]:
    found = eq.diagnose(chains, tuning)
    bad = {check.name for check in found.checks if not check.ok}
    assert found.ok == (not bad)
    assert len(found.warnings) == len(bad)
    return bad


def test_a_calibrated_run_passes_every_check(good) -> None:
    chains, tuning = good
    assert failed(chains, tuning) == set()
    found = eq.diagnose(chains, tuning)
    assert [c.name for c in found.checks] == ["covariance", "effective draws", "mean bias", "shape", "chains", "guard"]
    assert "closed form would have been enough" in found.verdict
    np.testing.assert_allclose(found.cov, np.cov(chains.flat(), rowvar=False))
    np.testing.assert_allclose(found.predicted_ess, 40_000 / (tuning.predicted.iacts() / 2))
    sd = np.sqrt(np.diag(tuning.target))
    np.testing.assert_allclose(found.shift, (chains.flat().mean(axis=0) - tuning.center) / sd)
    np.testing.assert_allclose(found.sd_ratio, chains.flat().std(axis=0, ddof=1) / sd)
    np.testing.assert_array_equal(found.predicted_shift, 0.0)
    assert str(found).count("ok  ") == 6


def changed(chains, tuning, change):
    return replace(chains, draws=tuning.center + change(chains.draws - tuning.center))


def test_draws_fifteen_per_cent_too_wide_are_flagged(good) -> None:
    chains, tuning = good
    wide = changed(chains, tuning, lambda e: 1.15 * e)
    assert failed(wide, tuning) == {"covariance"}
    found = eq.diagnose(wide, tuning)
    assert found.checks[0].observed == pytest.approx(0.3225, abs=0.06)
    assert "beyond Monte Carlo error" in found.warnings[0]
    assert found.verdict.startswith("The chain adds something")
    assert "covariance" in found.verdict
    # half a per cent is not: it could be chance
    assert failed(changed(chains, tuning, lambda e: 1.005 * e), tuning) == set()


def test_a_wrong_correlation_with_right_variances_is_flagged(good) -> None:
    chains, tuning = good
    sd = np.sqrt(np.diag(tuning.target))
    # reflecting one coordinate keeps every variance
    assert failed(changed(chains, tuning, lambda e: e * [1.0, 1.0, -1.0]), tuning) == {"covariance"}
    assert np.abs(tuning.target / np.outer(sd, sd))[2, :2].max() > 0.1


def test_a_biased_mean_is_flagged(good) -> None:
    chains, tuning = good
    sd = np.sqrt(np.diag(tuning.target))
    shifted = replace(chains, draws=chains.draws + np.array([0.0, 0.3, 0.0]) * sd)
    assert failed(shifted, tuning) == {"mean bias"}
    found = eq.diagnose(shifted, tuning)
    assert found.shift[1] == pytest.approx(0.3, abs=4.0 * found.shift_error[1])
    assert "+0.3" in found.warnings[0] or "+0.2" in found.warnings[0]
    assert "mean bias" in found.verdict


def test_a_predicted_bias_is_reported_as_predicted(good) -> None:
    chains, tuning = good
    sd = np.sqrt(np.diag(tuning.target))
    bias = np.array([0.0, 0.3, 0.0]) * sd
    biased = replace(tuning, predicted=replace(tuning.predicted, bias=bias))
    shifted = replace(chains, draws=chains.draws + bias)
    assert failed(shifted, biased) == {"mean bias"}
    assert "as predicted" in eq.diagnose(shifted, biased).warnings[0]
    # predicted but not there is a surprise as well
    assert failed(chains, biased) == {"mean bias"}
    assert "was predicted" in eq.diagnose(chains, biased).warnings[0]


def test_slow_mixing_is_flagged(good) -> None:
    chains, tuning = good
    rng = np.random.default_rng(4)
    root = np.linalg.cholesky(tuning.target)
    z = np.stack([ar1(rng, 0.95, 4, 10_000) for _ in range(3)], axis=2)
    assert "effective draws" in failed(replace(chains, draws=tuning.center + z @ root.T), tuning)


def test_heavy_tails_and_skewness_are_flagged(good) -> None:
    chains, tuning = good
    rng = np.random.default_rng(5)
    root = np.linalg.cholesky(tuning.target)
    shape = chains.draws.shape
    heavy = rng.standard_t(5, size=shape) / np.sqrt(5.0 / 3.0)
    skewed = rng.exponential(size=shape) - 1.0
    normal = rng.normal(size=shape)
    for z, expected in ((heavy, {"shape"}), (skewed, {"shape"}), (normal, set())):
        assert failed(replace(chains, draws=tuning.center + z @ root.T), tuning) == expected


def test_chains_that_disagree_are_flagged(good) -> None:
    chains, tuning = good
    sd = np.sqrt(np.diag(tuning.target))
    apart = np.array([-0.5, 0.5, -0.5, 0.5])[:, None, None] * sd
    assert "chains" in failed(replace(chains, draws=chains.draws + apart), tuning)
    # a drift inside every chain as well: the halves are compared
    drift = np.linspace(-1.0, 1.0, 10_000)[None, :, None] * sd
    assert "chains" in failed(replace(chains, draws=chains.draws + drift), tuning)


def test_a_busy_guard_is_flagged(good) -> None:
    chains, tuning = good
    for rate, expected in ((0.0, set()), (1e-3, set()), (2e-3, {"guard"})):
        assert failed(replace(chains, statistics={**chains.statistics, "guard_rate": rate}), tuning) == expected


@pytest.mark.parametrize("structure", ["full", "scalar"])
def test_independent_draws_get_their_own_verdict(make_data, structure) -> None:
    cal = eq.calibrate(
        eq.glm("poisson"), make_data("poisson"), sampler="gaussian", ess=20_000, chains=2, structure=structure
    )
    found = cal.diagnosis
    # compared with the target they were drawn from, also where a chain could not reach it
    assert found.ok, str(found)
    assert "no chain was run" in found.verdict
    # independent: every draw counts, up to the error of the estimate
    np.testing.assert_allclose(found.ess, 20_000, rtol=4.0 * np.sqrt(2.0 * 11.0 / 20_000))
    np.testing.assert_array_equal(found.predicted_ess, 20_000)
    wide = replace(cal.chains, draws=cal.tuning.center + 1.15 * (cal.draws - cal.tuning.center))
    assert "covariance" in failed(wide, cal.tuning)
