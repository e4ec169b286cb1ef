"""The β-divergence of every family: against densities and integrals computed independently, and by its properties."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest
from scipy.special import ive

from equipoise.engines.engine import initial_state
from equipoise.engines.numba.compiling import compile_helper
from equipoise.engines.numba.linear import LinearProgram, advance
from equipoise.engines.numba.table import RowTable, side_columns
from equipoise.errors import InvalidInput
from equipoise.families.counts import LEFT_OUT
from equipoise.families.divergence import Beta, log_rising
from equipoise.families.family import FAMILIES
from equipoise.theory.dynamics import Dynamics
from tests.contracts.test_families import orders, response_law

POWERS = (1.05, 1.5, 2.0, 3.0)
SETTINGS = {
    "gaussian": [0.4, 1.3, 20.0],
    "bernoulli": [None],
    "poisson": [None],
    "gamma": [0.9, 1.7, 30.0],
    "negative-binomial": [0.003, 0.6, 2.0, 40.0],
}
RESPONSES = {
    "gaussian": (-2.5, 0.0, 4.0),
    "bernoulli": (0.0, 1.0),
    "poisson": (0.0, 1.0, 7.0),
    "gamma": (0.01, 1.0, 7.5),
    "negative-binomial": (0.0, 1.0, 7.0),
}
ETA = np.array([-3.0, -0.7, 0.0, 1.1, 2.6])
CASES = [(name, constant) for name, constants in SETTINGS.items() for constant in constants]
COUNTS = [case for case in CASES if case[0] in {"poisson", "negative-binomial"}]
cases = pytest.mark.parametrize(("name", "constant"), CASES)
counts = pytest.mark.parametrize(("name", "constant"), COUNTS)
powers = pytest.mark.parametrize("b", POWERS)


def expectation(name, eta, constant, function):
    """∫ f(t) function(t) dt or the sum, term by term, so far that nothing is left.

    The integrands fall to zero at both ends (for the gamma as functions of log y), where the trapezoidal rule converges
    faster than any power of its step.
    """
    law = response_law(name, eta, constant)
    if name == "gaussian":
        t = eta + constant * np.linspace(-40.0, 40.0, 8001)
        return np.sum(law.pdf(t) * function(t)) * (t[1] - t[0])
    if name == "gamma":
        v = np.linspace(-80.0 / min(1.0, constant), 8.0, 16001)
        t = np.exp(eta + v)
        return np.sum(law.pdf(t) * function(t) * t) * (v[1] - v[0])
    end = 60.0 + 40.0 * (law.mean() + law.std()) + 45.0 * (1.0 + (constant or 0.0) * law.mean())
    t = np.arange(2.0 if name == "bernoulli" else end)
    return math.fsum(law.pmf(t) * function(t))


def reference(name, eta, y, constant, b):
    """The loss, from its definition, with 1/(b−1) − 1/b added."""
    law = response_law(name, eta, constant)
    density = law.pdf if name in {"gaussian", "gamma"} else law.pmf
    integral = expectation(name, eta, constant, lambda t: density(t) ** (b - 1.0))
    return (1.0 - density(y) ** (b - 1.0)) / (b - 1.0) + (integral - 1.0) / b


def exact(name, eta, y, constant, b):
    """The same with 40 digits, from elementary functions alone; `eta` is a Decimal, the gamma's k and b (k−1) whole."""
    b, one = Decimal(b), Decimal(1)

    def mixed(log_f, log_integral):
        return (one - ((b - 1) * log_f).exp()) / (b - 1) + (log_integral - one) / b

    if name == "gaussian":
        s, two_pi = Decimal(constant), 2 * Decimal("3.14159265358979323846264338327950288419716939937510")
        half_log = (two_pi * s * s).ln() / 2
        return mixed(-(((eta - Decimal(y)) / s) ** 2) / 2 - half_log, ((one - b) * half_log).exp() / b.sqrt())
    mu = eta.exp()
    if name == "gamma":
        k, t = Decimal(constant), Decimal(y)
        log_f = k * (k.ln() - eta) - Decimal(math.factorial(int(k) - 1)).ln() + (k - 1) * t.ln() - k * t / mu
        s = b * (k - 1) + 1
        assert s == int(s)
        power = b * (k * (k.ln() - eta) - Decimal(math.factorial(int(k) - 1)).ln())
        return mixed(log_f, (power + Decimal(math.factorial(int(s) - 1)).ln() - s * (b * k / mu).ln()).exp())
    if name == "bernoulli":
        logs = [-(one + mu).ln(), -(one + one / mu).ln()]
    else:
        a = Decimal(constant or 0)
        logs = [-(one + a * mu).ln() / a if a else -mu]
        while len(logs) <= max(mu, Decimal(y)) or logs[-1] > -60:  # what is left out is below 1e-24
            t = len(logs)
            logs.append(logs[-1] + (mu * (1 + a * (t - 1)) / ((1 + a * mu) * t)).ln())
    return mixed(logs[int(y)], sum((b * log_f).exp() for log_f in logs))


@lru_cache
def stencil(order, half):
    """Weights of the central difference of the given order on −half, …, half, exactly."""
    points = range(-half, half + 1)
    rows = [
        [Fraction(x) ** j for x in points] + [Fraction(math.factorial(order) * (j == order))]
        for j in range(2 * half + 1)
    ]
    for i in range(len(rows)):
        pivot = next(r for r in range(i, len(rows)) if rows[r][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [v / rows[i][i] for v in rows[i]]
        rows = [r if r is rows[i] else [v - r[i] * w for v, w in zip(r, rows[i], strict=True)] for r in rows]
    return [r[-1] for r in rows]


def exact_derivatives(name, eta, y, constant, b):
    """Value and three derivatives, by differences on seven points 1e-4 apart: an error of about 1e-16 for the third."""
    half, h = 3, Decimal("1e-4")
    with localcontext() as context:
        context.prec = 40
        values = [exact(name, Decimal(eta) + k * h, y, constant, b) for k in range(-half, half + 1)]
        found = [values[half]]
        for order in (1, 2, 3):
            weights = [Decimal(w.numerator) / Decimal(w.denominator) for w in stencil(order, half)]
            found.append(sum(w * v for w, v in zip(weights, values, strict=True)) / h**order)
    return [float(v) for v in found]


@cases
@powers
def test_value_is_its_definition(name, constant, b) -> None:
    loss = Beta(b).loss(FAMILIES[name], constant)
    for eta in ETA:
        y = np.array(RESPONSES[name])
        expected = [reference(name, eta, t, constant, b) for t in y]
        np.testing.assert_allclose(loss.value(np.full(y.shape, eta), y, loss.constants), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "constant"),
    [("gaussian", 1.3), ("bernoulli", None), ("poisson", None), ("gamma", 3.0), ("negative-binomial", 0.003),
     ("negative-binomial", 0.6), ("negative-binomial", 2.0)],
)  # fmt: skip
@powers
def test_derivatives_against_40_digits(name, constant, b) -> None:
    if name == "gamma" and b == 1.05:
        b = 1.5  # the exact integral needs b (k − 1) whole
    loss = Beta(b).loss(FAMILIES[name], constant)
    for eta, y in [(-2.3, RESPONSES[name][1]), (0.4, RESPONSES[name][0]), (1.7, RESPONSES[name][-1])]:
        got = [float(f(eta, y, loss.constants)) for f in orders(loss)]
        np.testing.assert_allclose(got, exact_derivatives(name, eta, y, constant, b), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "constant"), [("poisson", None), ("negative-binomial", 0.05)])
@pytest.mark.parametrize("b", [1.3, 5.0])
@pytest.mark.parametrize("eta", [-21.0, -9.0, 4.1, 6.3])
def test_small_and_large_means_against_40_digits(name, constant, b, eta) -> None:
    """6.3 is beyond the Poisson table; at y = 0 and a large mean the loss is I alone, which is what the scale is."""
    loss = Beta(b).loss(FAMILIES[name], constant)
    got = np.array([float(f(eta, 0.0, loss.constants)) for f in orders(loss)])
    expected = np.array(exact_derivatives(name, eta, 0.0, constant, b))
    scale = abs(1.0 + b * (expected[0] - 1.0 / (b - 1.0)))  # I + (1 − f^(b−1)) b / (b−1)
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9 * scale)


def test_poisson_integral_is_a_bessel_function() -> None:
    """Σ f² = e^(−2μ) I₀(2μ), for any mean; f is zero at y = 10¹⁰."""
    loss = Beta(2.0).loss(FAMILIES["poisson"], None)
    eta = np.linspace(-21.0, 17.0, 777)
    integral = 2.0 * (loss.value(eta, 1e10, loss.constants) - 1.0) + 1.0
    np.testing.assert_allclose(integral, ive(0, 2.0 * np.exp(eta)), rtol=1e-10, atol=1e-14)


@powers
def test_geometric_integral_in_closed_form(b) -> None:
    """For dispersion 1, Σ f^b = (1−q)^b / (1 − q^b), whatever the mean; f is zero at y = 10¹⁵ up to η = 28."""
    loss = Beta(b).loss(FAMILIES["negative-binomial"], 1.0)
    eta = np.linspace(-21.9, 26.0, 400)
    exact = np.exp(-b * np.log1p(np.exp(eta))) / -np.expm1(-b * np.log1p(np.exp(-eta)))
    integral = b * (loss.value(eta, 1e15, loss.constants) - 1.0 / (b - 1.0)) + 1.0
    np.testing.assert_allclose(integral, exact, rtol=1e-9, atol=1e-13)


@counts
@pytest.mark.parametrize("b", [1.05, 2.0, 5.0])
def test_derivatives_belong_to_each_other_everywhere(name, constant, b) -> None:
    """Eighth-order differences in extended precision; cells and continuations join to 1e-8."""
    loss = Beta(b).loss(FAMILIES[name], constant)
    p = loss.constants.astype(np.longdouble)
    low, high, density = p[2], p[3], p[4]
    h = np.longdouble(0.01)
    weights = (4 / np.longdouble(5), -1 / np.longdouble(5), 4 / np.longdouble(105), -1 / np.longdouble(280))
    joins = low + np.arange(1 + round(float((high - low) * density))) / density
    middles = np.concatenate([joins[:-1] + 0.5 / density, [low - 1.0, high + 1.0]])
    for lower, upper in zip(orders(loss)[:-1], orders(loss)[1:], strict=True):
        slope = sum(
            w * (lower(middles + k * h, 2.0, p) - lower(middles - k * h, 2.0, p)) / h for k, w in enumerate(weights, 1)
        )
        np.testing.assert_allclose(upper(middles, 2.0, p), slope, atol=1e-10, rtol=1e-8)
    for f in orders(loss):
        left, right = f(joins - 1e-12, 2.0, p), f(joins + 1e-12, 2.0, p)
        np.testing.assert_allclose(left, right, atol=1e-8, rtol=1e-8)


@cases
def test_small_powers_recover_the_log_loss(name, constant) -> None:
    family, b = FAMILIES[name], 1.0 + 1e-7
    loss = Beta(b).loss(family, constant)
    eta, y = (a.ravel() for a in np.meshgrid(ETA, RESPONSES[name]))
    laws = [response_law(name, e, constant) for e in eta]
    u = -np.array([(w.logpdf if name in {"gaussian", "gamma"} else w.logpmf)(t) for w, t in zip(laws, y, strict=True)])
    u1, u2, u3 = (f(eta, y, np.array([constant or 0.0])) for f in orders(family.loss)[1:])
    # to first order in b − 1 they differ by products of these
    scale = (1.0 + np.abs(u)) * (1.0 + np.abs(u1) ** 3 + np.abs(u1 * u2) + np.abs(u2) + np.abs(u3) + np.abs(u))
    for ours, log in zip(orders(loss), (u, u1, u2, u3), strict=True):
        assert np.all(np.abs(ours(eta, y, loss.constants) - log) < 1e-6 * scale)


@cases
@powers
def test_extreme_predictors_are_finite_and_silent(name, constant, b) -> None:
    loss = Beta(b).loss(FAMILIES[name], constant)
    eta, y = (a.ravel() for a in np.meshgrid([-700.0, -300.0, -30.0, 30.0, 300.0, 700.0], RESPONSES[name]))
    bound = 1e12 if name != "gamma" else np.inf  # I grows without bound as the gamma's mean tends to zero
    for f in orders(loss):
        found = f(eta, y, loss.constants)
        assert np.isfinite(found).all()
        assert np.abs(found).max() < bound


@pytest.mark.parametrize("name", SETTINGS)
def test_compiled_equals_numpy(name) -> None:
    rng, constant = np.random.default_rng(3), SETTINGS[name][0]
    loss = Beta(1.4).loss(FAMILIES[name], constant)
    eta = np.concatenate([rng.normal(0.0, 2.0, 60), [-700.0, -25.0, 25.0, 700.0]])
    y = rng.choice(RESPONSES[name], eta.size)
    for f in (loss.d1, loss.d3) if name == "poisson" else (loss.d1,):
        fast = compile_helper(f)
        found = [fast(e, t, loss.constants) for e, t in zip(eta, y, strict=True)]
        np.testing.assert_allclose(found, f(eta, y, loss.constants), rtol=1e-11, atol=1e-12)


def test_a_chain_runs_on_it_and_compiles_once_for_all_powers() -> None:
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(200, 3)), rng.poisson(2.0, 200).astype(np.float64)
    first, second = (Beta(b).loss(FAMILIES["poisson"], None) for b in (1.2, 1.6))
    assert first.d1 is second.d1
    ends = []
    table = RowTable.blank(200, 3)
    table.put(slice(None), 0.02 * x)
    table.sides[:] = side_columns(np.zeros(200), y, np.ones(200), np.zeros(200))
    for loss in (first, second):
        program = LinearProgram(
            loss, table, np.zeros(3), np.zeros(3), Dynamics(200, replacement=False), np.inf, np.eye(3), 1.0, np.zeros(3)
        )
        state = initial_state(np.zeros(3), np.random.SeedSequence(0))
        assert advance(program, state, 3, None, np.empty((0, 3))) == (0, False)
        phi = np.zeros(3)
        for _ in range(3):
            phi -= 0.02 * x.T @ loss.d1(0.02 * x @ phi, y, loss.constants) / 200
        np.testing.assert_allclose(state.position, phi, rtol=1e-10)
        ends.append(phi)
    assert np.abs(ends[0] - ends[1]).max() > 1e-5


@pytest.mark.parametrize("r", [0.001, 0.3, 1.0, 2.5, 100.0, 1e4])
def test_log_rising_factorial(r) -> None:
    with localcontext() as context:
        context.prec = 40
        total, worst = Decimal(0), 0.0
        for y in range(600):
            error = abs(Decimal(float(log_rising(float(y), r))) - total)
            worst = max(worst, float(error / max(abs(total), Decimal(1))))
            total += (Decimal(r) + y).ln()
    assert worst < 1e-14
    assert log_rising(0.0, r) == 0.0
    assert log_rising(0.5, 1.0) == pytest.approx(math.lgamma(1.5), rel=1e-13)


@counts
def test_truncation_error_is_stated(name, constant) -> None:
    for b in POWERS:
        assert 0.0 < Beta(b).loss(FAMILIES[name], constant).p[LEFT_OUT] < 1e-25


def test_nan_does_not_leave_the_table() -> None:
    loss = Beta(1.5).loss(FAMILIES["poisson"], None)
    with np.errstate(invalid="ignore"):
        found = loss.d1(np.array([np.nan, 0.0]), np.ones(2), loss.constants)
    assert np.isnan(found[0])
    assert np.isfinite(found[1])


@pytest.mark.parametrize("b", [1.0, 1, 0.5, -1.0, 6.0, np.nan, np.inf, True, "2", None])
def test_bad_powers_are_refused(b) -> None:
    with pytest.raises(InvalidInput, match="b above 1") as caught:
        Beta(b)
    assert ("leave divergence out" in str(caught.value)) == (b == 1)


@pytest.mark.parametrize(
    ("name", "constant", "b", "words"),
    [
        ("gaussian", None, 1.5, "pass scale="),
        ("gamma", -1.0, 1.5, "positive"),
        ("gamma", 0.2, 1.5, "above 1 − 1/b = 0.333333.*b below 1.25"),
        ("negative-binomial", 1e-5, 1.5, "poisson"),
        ("negative-binomial", 1e5, 1.5, "log loss"),
    ],
)
def test_bad_constants_are_refused(name, constant, b, words) -> None:
    with pytest.raises(InvalidInput, match=words):
        Beta(b).loss(FAMILIES[name], constant)
