"""Huber, Student's t and smoothed quantile losses: restated independently, compiled, and run end to end."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, special, stats

import equipoise as eq
from equipoise.engines.numba.compiling import compile_helper
from equipoise.families.family import FAMILIES
from equipoise.families.robust import Huber, Pinball, StudentT
from tests.contracts.test_families import orders, require_finite, slope
from tests.statistical.criterion import excess

GAUSSIAN, SCALE = FAMILIES["gaussian"], 1.7
LOSSES = [Huber(1.2), Huber(0.05), StudentT(4.0), StudentT(0.7), Pinball(0.3, 0.2), Pinball(0.9, 0.02)]
losses = pytest.mark.parametrize("divergence", LOSSES, ids=repr)
ETA = np.concatenate([np.linspace(-6.0, 6.0, 33), [-300.0, -40.0, 40.0, 300.0]])
Y = (-2.53, 0.011, 3.1)


def grid():
    return (a.ravel() for a in np.meshgrid(ETA, Y))


def restated(divergence, r):
    """ρ of the residual in units of the scale, from SciPy."""
    if isinstance(divergence, Huber):
        return special.huber(divergence.threshold, r)
    if isinstance(divergence, StudentT):
        return stats.t.logpdf(0.0, divergence.degrees) - stats.t.logpdf(r, divergence.degrees)
    q, h = divergence.quantile, divergence.smoothing
    return q * r + h * np.logaddexp(0.0, -r / h)


@losses
def test_value_is_its_definition(divergence) -> None:
    eta, y = grid()
    loss = divergence.loss(GAUSSIAN, SCALE)
    expected = restated(divergence, (y - eta) / SCALE)
    np.testing.assert_allclose(loss.value(eta, y, loss.constants), expected, rtol=1e-12, atol=1e-13)


@losses
@pytest.mark.parametrize("order", [1, 2, 3])
def test_derivative_is_that_of_the_one_before(divergence, order) -> None:
    eta, y = grid()
    loss = divergence.loss(GAUSSIAN, SCALE)
    chain = orders(loss)
    # the length on which the loss bends; the difference below is exact to (1/100)⁸ of that
    length = SCALE * getattr(divergence, "smoothing", min(1.0, getattr(divergence, "degrees", 1.0)))
    if isinstance(divergence, Huber):
        away = np.abs(np.abs(eta - y) - SCALE * divergence.threshold)
        eta, y = eta[away > 0.08], y[away > 0.08]
        assert eta.size > 100
    p, step = loss.constants.astype(np.longdouble), 0.01 * length
    expected = slope(chain[order - 1], eta, y, p, step)
    size = np.abs(expected).max() if expected.any() else 1.0
    np.testing.assert_allclose(chain[order](eta, y, loss.constants), expected, rtol=1e-9, atol=1e-11 * size)


@losses
def test_compiled_equals_numpy(divergence) -> None:
    eta, y = grid()
    loss = divergence.loss(GAUSSIAN, SCALE)
    for function in orders(loss):
        fast = compile_helper(function)
        found = [fast(a, b, loss.constants) for a, b in zip(eta, y, strict=True)]
        plain = function(eta, y, loss.constants)
        np.testing.assert_allclose(found, plain, rtol=1e-12, atol=1e-15 * np.abs(plain).max())


@losses
def test_extreme_predictors_are_finite_and_silent(divergence) -> None:
    loss = divergence.loss(GAUSSIAN, SCALE)
    require_finite(loss, (-1e150, -700.0, 700.0, 1e150), (0.3,), loss.constants)
    assert np.isnan(loss.d1(np.nan, 0.3, loss.constants))  # a lost chain must not come back unnoticed


@losses
def test_convexity_is_as_claimed(divergence) -> None:
    eta, y = grid()
    loss = divergence.loss(GAUSSIAN, SCALE)
    assert divergence.convex == bool(np.all(loss.d2(eta, y, loss.constants) >= 0.0))


@pytest.mark.parametrize("divergence", [Huber(1e6), StudentT(1e9)], ids=repr)
def test_the_limit_is_the_squared_loss(divergence) -> None:
    eta, y = (a.ravel() for a in np.meshgrid(np.linspace(-6.0, 6.0, 33), Y))
    loss, p = divergence.loss(GAUSSIAN, SCALE), np.array([SCALE])
    for name in ("value", "d1", "d2", "d3"):
        expected = getattr(GAUSSIAN.loss, name)(eta, y, p)
        # (ν+1)/ν and r²/ν differ from their limits by about 50/ν
        np.testing.assert_allclose(getattr(loss, name)(eta, y, loss.constants), expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(("quantile", "smoothing"), [(0.5, 0.1), (0.9, 0.1), (0.2, 0.3)])
def test_pinball_estimates_the_quantile_up_to_the_stated_bias(quantile, smoothing) -> None:
    # a sample at the normal's own quantiles: its sampling error is far below the bias
    y = SCALE * stats.norm.ppf((np.arange(40_000) + 0.5) / 40_000)
    model = eq.glm("gaussian", scale=SCALE, divergence=Pinball(quantile, smoothing))
    fitted = float(eq.fit(model, (np.ones((y.size, 1)), y)).params[0])
    # exactly: the quantile of y plus logistic noise, whose distribution function is a mixture of logistic ones
    noisy = optimize.brentq(lambda m: special.expit((m - y) / (SCALE * smoothing)).mean() - quantile, -10.0, 10.0)
    assert fitted == pytest.approx(noisy, abs=1e-9)
    # to second order: f'/f = −Q/s² for a normal density; the next term is of relative size h²
    exact = SCALE * stats.norm.ppf(quantile)
    bias = np.pi**2 / 6.0 * smoothing**2 * exact
    assert fitted - exact == pytest.approx(bias, rel=5.0 * smoothing**2, abs=1e-4)
    assert abs(fitted - np.quantile(y, quantile)) <= 1.1 * abs(bias) + 1e-4


def contaminated(n=1000, seed=3):
    """A straight line with 10 % of the responses thrown far off, to one side."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(n), rng.normal(size=(n, 3))])
    y = x @ [1.0, -0.5, 0.3, 0.8] + (0.6 + 0.4 * np.abs(x[:, 1])) * rng.normal(size=n)
    return x, np.where(rng.random(n) < 0.1, y + 15.0 + 5.0 * rng.normal(size=n), y)


def test_outliers_move_least_squares_but_not_the_robust_fits() -> None:
    x, y = contaminated()
    truth = np.array([1.0, -0.5, 0.3, 0.8])
    off = {
        name: np.abs(eq.fit(eq.glm("gaussian", scale=0.9, divergence=d), (x, y)).params - truth).max()
        for name, d in {"least squares": None, "huber": Huber(), "t": StudentT(), "median": Pinball()}.items()
    }
    assert off["least squares"] > 1.0
    assert off["huber"] < 0.4  # outliers on one side leave it a bias, bounded
    assert off["median"] < 0.3
    assert off["t"] < 0.15


def tuned(divergence):
    data, model = contaminated(), eq.glm("gaussian", scale=0.9, divergence=divergence)
    return model, data, eq.tune(eq.moments(model, data, eq.fit(model, data).params), "sandwich", eq.Dynamics(50))


@pytest.mark.parametrize("divergence", [Huber(1.345), StudentT(4.0), Pinball(0.75, 0.3)], ids=repr)
def test_a_chain_on_data_with_outliers_is_calibrated(divergence) -> None:
    assert excess(*tuned(divergence), goal=0.01) <= 1.0


@losses
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "gaussian"])
def test_other_families_are_refused(divergence, family) -> None:
    with pytest.raises(eq.InvalidInput, match=f"family: must be gaussian .*; got {family}. To fix: .*Beta"):
        divergence.loss(FAMILIES[family], 1.0)
    with pytest.raises(eq.InvalidInput, match="family: must be gaussian"):
        eq.glm(family, divergence=divergence)


@losses
@pytest.mark.parametrize("scale", [None, 0.0, -1.0, np.inf, np.nan, "1", True])
def test_bad_scales_are_refused(divergence, scale) -> None:
    with pytest.raises(eq.InvalidInput, match="scale: must be a positive number"):
        divergence.loss(GAUSSIAN, scale)
