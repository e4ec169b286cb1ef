"""Every family and link: derivatives, likelihood, bounds, link and range, at moderate and at extreme predictors."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from equipoise.families.family import FAMILIES
from equipoise.families.links import LINKS

CONSTANTS = {
    "gaussian": (1.3,),
    "bernoulli": (),
    "poisson": (),
    "gamma": (1.7,),
    "negative-binomial": (0.6,),
}
RESPONSES = {
    "gaussian": (-2.5, 0.0, 4.0),
    "bernoulli": (0.0, 1.0, 0.3),
    "poisson": (0.0, 3.0, 2.5),
    "gamma": (0.01, 1.0, 7.5),
    "negative-binomial": (0.0, 2.0, 9.5),
}
ETA = np.concatenate([np.linspace(-8.0, 8.0, 41), [-690.0, -300.0, -40.0, 40.0, 300.0, 690.0]])
families = pytest.mark.parametrize("name", list(FAMILIES))
every = pytest.mark.parametrize("name", [*FAMILIES, "probit", "cloglog"])


def setting(name: str):
    """The family, or bernoulli with another link, all pairs of eta and y, and the constants."""
    family, beside = LINKS["bernoulli"].get(name) or FAMILIES[name], name if name in FAMILIES else "bernoulli"
    eta, y = (a.ravel() for a in np.meshgrid(ETA, RESPONSES[beside]))
    return family, eta, y, np.array(CONSTANTS[beside])


def response_law(name: str, eta, constant=None):
    """The distribution of the response, from SciPy."""
    if name == "gaussian":
        return stats.norm(eta, constant)
    if name == "bernoulli":
        return stats.bernoulli(expit(eta))
    mu = np.exp(eta)
    if name == "poisson":
        return stats.poisson(mu)
    if name == "gamma":
        return stats.gamma(constant, scale=mu / constant)
    return stats.nbinom(1.0 / constant, 1.0 / (1.0 + constant * mu))


def minus_log_likelihood(name: str, eta, y, *constant):
    """−log of SciPy's density, or probability, of every response."""
    law = response_law(name, eta, *constant)
    return -(law.logpdf(y) if name in ("gaussian", "gamma") else law.logpmf(y))


def orders(loss):
    """The value and its derivatives, in order."""
    return loss.value, loss.d1, loss.d2, loss.d3


def slope(function, eta, y, p, h=0.02):
    """An eighth-order central difference in extended precision: error about h⁸ = 3e-14 times the ninth derivative."""
    eta, h = eta.astype(np.longdouble), np.longdouble(h)
    weights = (4 / np.longdouble(5), -1 / np.longdouble(5), 4 / np.longdouble(105), -1 / np.longdouble(280))
    return sum(
        w * (function(eta + k * h, y, p) - function(eta - k * h, y, p)) / h for k, w in enumerate(weights, start=1)
    ).astype(np.float64)


def require_finite(loss, predictors, responses, p) -> None:
    """No infinity and no warning, which pytest turns into an error, for numbers and for arrays."""
    for eta, y, function in product(predictors, responses, orders(loss)):
        for argument in (eta, np.array([eta])):
            assert np.all(np.isfinite(function(argument, y, p)))


@every
@pytest.mark.parametrize("order", [1, 2, 3])
def test_derivative_is_that_of_the_one_before(name: str, order: int) -> None:
    family, eta, y, p = setting(name)
    if name == "cloglog" or (name == "probit" and order > 1):  # exp(exp(300)); differences of 300²
        eta, y = eta[np.abs(eta) < 300], y[np.abs(eta) < 300]
    chain = orders(family.loss)
    expected = slope(chain[order - 1], eta, y, p)
    # 1e-10: the truncation error above, with room for a ninth derivative of a thousand
    rtol = 1e-10 if name in FAMILIES else 1e-9
    np.testing.assert_allclose(chain[order](eta, y, p), expected, rtol=rtol, atol=1e-10)


@every
def test_finite_and_silent_at_extreme_predictors(name: str) -> None:
    family, _, y, p = setting(name)
    require_finite(family.loss, (-700.0, 700.0), np.unique(y), p)


@families
def test_loss_is_minus_log_likelihood_up_to_a_constant(name: str) -> None:
    family, p = FAMILIES[name], np.array(CONSTANTS[name])
    eta = np.linspace(-4.0, 4.0, 33)
    for y in {"poisson": (0, 3), "negative-binomial": (0, 9), "bernoulli": (0, 1)}.get(name, RESPONSES[name]):
        ours = family.loss.value(eta, float(y), p)
        theirs = minus_log_likelihood(name, eta, y, *p)
        # differences between predictors; SciPy's gammaln terms cancel to about 1e-13
        np.testing.assert_allclose(ours - ours[0], theirs - theirs[0], rtol=1e-10, atol=1e-11)


@families
def test_bounds_are_suprema(name: str) -> None:
    family, p = FAMILIES[name], np.array(CONSTANTS[name])
    grid = np.linspace(-30.0, 30.0, 600_001)
    for y in RESPONSES[name]:
        for bound, function in ((family.second_bound, family.loss.d2), (family.third_bound, family.loss.d3)):
            found = np.abs(function(grid, y, p)).max()
            if bound is None:
                # unbounded: as large as one likes within the line, for every admissible response
                far = np.abs(function(np.array([-60.0, 60.0]), y, p)).max()
                assert far > 1e6 * found
            else:
                stated = float(bound(np.array([y]), p)[0])
                assert found <= stated * (1.0 + 1e-12)
                # a grid of spacing 1e-4 misses the top by about 1e-9 relative
                assert found >= stated * (1.0 - 1e-7)


@families
def test_mean_variance_and_link_agree_with_the_likelihood(name: str) -> None:
    family, p = FAMILIES[name], np.array(CONSTANTS[name])
    eta = np.linspace(-3.0, 3.0, 13)
    mean = family.mean(eta)
    np.testing.assert_allclose(family.link(mean), eta, rtol=1e-12, atol=1e-12)
    expected = response_law(name, eta, *p)
    np.testing.assert_allclose(mean, expected.mean(), rtol=1e-12)
    np.testing.assert_allclose(family.variance(mean, p), expected.var(), rtol=1e-12)
    # the score has mean zero where the response equals its mean
    np.testing.assert_allclose(family.loss.d1(eta, mean, p), 0.0, atol=1e-12 * np.exp(3.0))


def test_tails_keep_their_relative_accuracy() -> None:
    eta = np.array([-300.0, -60.0, 60.0, 300.0])
    p = np.array(CONSTANTS["negative-binomial"])
    # s(1−s) = exp(−|eta|) where the other factor is 1 to the last bit
    np.testing.assert_allclose(FAMILIES["bernoulli"].loss.d2(eta, 1.0, np.array([])), np.exp(-np.abs(eta)), rtol=1e-13)
    np.testing.assert_allclose(FAMILIES["bernoulli"].loss.d1(eta[:2], 0.0, np.array([])), np.exp(eta[:2]), rtol=1e-13)
    # mu (1 + a y) / (1 + a mu)² ≈ (1 + a y) / (a² mu) for a large mean
    tail = (1.0 + 0.6 * 9.5) / 0.36 * np.exp(-eta[2:])
    np.testing.assert_allclose(FAMILIES["negative-binomial"].loss.d2(eta[2:], 9.5, p), tail, rtol=1e-12)


def test_negative_binomial_does_not_cancel_for_large_counts() -> None:
    loss, p, y = FAMILIES["negative-binomial"].loss, np.array([0.6]), 1e12
    eta = np.log(y) + np.array([-1e-3, 0.0, 1e-3])
    # (mu − y)/(1 + a mu), with mu − y = y expm1(shift): the shift itself is known to 1e-15/1e-3
    mu = y * np.exp(eta - np.log(y))
    np.testing.assert_allclose(loss.d1(eta, y, p), (mu - y) / (1.0 + 0.6 * mu), rtol=1e-10, atol=1e-13)
    value = loss.value(eta, y, p)
    # curvature 1/a at the mean of a large count: ½ · 1e-6 / 0.6, a difference of values of order ten
    np.testing.assert_allclose(value[[0, 2]] - value[1], 0.5e-6 / 0.6, rtol=2e-3)
