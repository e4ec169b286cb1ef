"""Probit and complementary log-log: likelihood, tails, bounds, and fits and chains beside statsmodels."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.special import log_ndtr, ndtr

import equipoise as eq
from equipoise.families.links import LINKS

NAMES = ("probit", "cloglog")
links = pytest.mark.parametrize("link", NAMES)
THEIRS = {"probit": sm.families.links.Probit(), "cloglog": sm.families.links.CLogLog()}
P = np.array([])


def log_likelihood(link, eta, y):
    if link == "probit":
        return y * log_ndtr(eta) + (1 - y) * log_ndtr(-eta)
    m = np.exp(eta)
    return y * np.log(-np.expm1(-m)) - (1 - y) * m


@links
def test_the_loss_is_minus_the_log_likelihood(link) -> None:
    family = LINKS["bernoulli"][link]
    eta = np.linspace(-30.0, 5.0 if link == "cloglog" else 30.0, 201)
    for y in (0.0, 1.0, 0.3):
        with np.errstate(divide="ignore"):
            expected = -log_likelihood(link, eta, y)
        np.testing.assert_allclose(family.loss.value(eta, y, P), expected, rtol=2e-13, atol=1e-14)


@links
def test_a_loss_never_rises_towards_the_end_that_agrees_with_the_response(link) -> None:
    low, high = LINKS["bernoulli"][link].loss.far_slopes(np.array([0.0, 1.0, 0.3]))
    assert (low[0], high[1]) == (0.0, 0.0)
    assert low[1] < 0.0 < high[0]
    assert low[2] < 0.0 < high[2]


def test_tails_keep_their_relative_accuracy() -> None:
    """Against SciPy's logarithm of Φ, and the first terms of asymptotic series."""
    probit, cloglog = (LINKS["bernoulli"][name].loss for name in NAMES)
    a = np.array([8.0, 30.0, 49.9, 50.1, 300.0])
    hazard = np.exp(-0.5 * a**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(-a))
    # a logarithm of −45 000 is known to 7e-12
    np.testing.assert_allclose(probit.d1(a, 0.0, P), hazard, rtol=1e-11)
    np.testing.assert_allclose(probit.d1(-a, 1.0, P), -hazard, rtol=1e-11)
    big = np.array([200.0, 1e4, 1e8])
    np.testing.assert_allclose(1.0 - probit.d2(big, 0.0, P), 1 / big**2 - 6 / big**4, rtol=1e-5, atol=2e-16)
    np.testing.assert_allclose(probit.d3(big, 0.0, P), 2 / big**3 - 24 / big**5, rtol=1e-4)
    # on either side of where the series takes over
    for function in (probit.d1, probit.d2, probit.d3):
        below, above = (function(np.array([50.0 + d]), 0.0, P)[0] for d in (-1e-9, 1e-9))
        assert below == pytest.approx(above, rel=2e-6, abs=1e-11)
    small = np.array([-300.0, -40.0])
    np.testing.assert_allclose(cloglog.d2(small, 1.0, P), 0.5 * np.exp(small), rtol=1e-13)
    np.testing.assert_allclose(cloglog.d3(small, 1.0, P), 0.5 * np.exp(small), rtol=1e-13)
    np.testing.assert_allclose(cloglog.value(small, 1.0, P), -small, rtol=1e-14)


def test_bounds_hold() -> None:
    family = LINKS["bernoulli"]["probit"]
    grid = np.linspace(-60.0, 60.0, 600_001)
    for y in (0.0, 1.0, 0.3):
        second, third = (np.abs(d(grid, y, P)).max() for d in (family.loss.d2, family.loss.d3))
        at = np.array([y])
        assert second <= family.second_bound(at, P)[0]
        assert third <= family.third_bound(at, P)[0] * (1 + 1e-12)
        if y != 0.3:
            assert second > 0.999
            assert third == pytest.approx(family.third_bound(at, P)[0], rel=1e-7)


@links
def test_mean_link_and_slope(link) -> None:
    family = LINKS["bernoulli"][link]
    eta = np.linspace(-3.0, 2.0, 21)
    mean = ndtr(eta) if link == "probit" else 1 - np.exp(-np.exp(eta))
    np.testing.assert_allclose(family.mean(eta), mean, rtol=1e-13)
    np.testing.assert_allclose(family.link(mean), eta, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(family.slope(eta), (family.mean(eta + 1e-6) - family.mean(eta - 1e-6)) / 2e-6, rtol=1e-8)
    np.testing.assert_allclose(family.loss.d1(eta, mean, P), 0.0, atol=1e-13)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(2)
    x = np.column_stack([np.ones(400), rng.normal(size=(400, 2))])
    trials = rng.integers(1, 6, 400)
    return x, rng.binomial(trials, ndtr(x @ [-0.2, 0.5, -0.4] + 0.3 * rng.normal(size=400))), trials


@links
def test_fits_targets_and_statistics(link, data, tmp_path) -> None:
    x, y, trials = data
    cal = eq.calibrate(
        eq.glm("bernoulli", link), eq.data.rows(x, y, trials=trials), "HC0", sampler="sgmcmc", ess=2000, progress=False
    )
    glm = sm.GLM(np.column_stack([y, trials - y]), x, sm.families.Binomial(THEIRS[link]))
    other = glm.fit(tol=1e-13)
    np.testing.assert_allclose(cal.params, other.params, rtol=1e-7, atol=1e-9)
    # observed information: not the expected one of their robust covariances
    H = -glm.hessian(cal.fit.theta, observed=True)
    g = glm.score_obs(cal.fit.theta)
    expected = np.linalg.inv(H) @ g.T @ g @ np.linalg.inv(H)
    np.testing.assert_allclose(cal.vcov(), expected, rtol=1e-6, atol=1e-10)
    found = cal.fit_statistics
    assert found.log_likelihood == pytest.approx(other.llf, rel=1e-10)
    assert found.deviance == pytest.approx(other.deviance, rel=1e-9)
    assert found.pearson == pytest.approx(other.pearson_chi2, rel=1e-8)
    # the compiled chain has the target as its covariance: 2000 draws, 3.2 % of a variance
    root = np.linalg.inv(np.linalg.cholesky(expected))
    seen = root @ np.cov(cal.chains.flat().T) @ root.T
    np.testing.assert_allclose(seen, np.eye(3), atol=4 * 0.032)
    new = x[:5]
    np.testing.assert_allclose(cal.predict(new).estimate, other.predict(new), rtol=1e-7)
    cal.save(tmp_path / "run.eqz")
    back = eq.load(tmp_path / "run.eqz")
    np.testing.assert_array_equal(back.predict(new), cal.predict(new))
    assert back.title.name == f"bernoulli-{link}"


def test_links_that_are_not_there() -> None:
    for family, link in (("poisson", "identity"), ("gamma", "inverse"), ("bernoulli", "log"), ("gaussian", "log")):
        with pytest.raises(eq.InvalidInput, match="link: must be one of"):
            eq.glm(family, link)
    assert eq.glm("poisson", "log").family.name == "poisson"
    with pytest.raises(eq.InvalidInput, match="family"):
        eq.glm("bernoulli", "probit", divergence=eq.Beta(1.2))
