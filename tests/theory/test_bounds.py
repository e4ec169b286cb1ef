"""Wasserstein bounds (theory §8): each formula restated, and simulations that stay below it."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy.optimize import minimize

from equipoise.theory.bounds import (
    Bound,
    BoundConstants,
    WassersteinBound,
    finite_time_bound,
    fourth_moment_bound,
    fourth_moment_path,
    momentum_bound,
    stationary_bound,
)

C = BoundConstants(
    smoothness=1.3,
    strong_convexity=0.6,
    third_mean=0.2,
    third_mean_square=0.07,
    score_fourth=2.5,
    hessian_min=0.7,
    hessian_max=1.1,
    dim=3,
    convex=True,
)
STEP, BATCH, BETA = 0.01, 7, 40.0


def failing(bound: Bound) -> set[str]:
    assert (bound.value is None) == (not bound.applies)
    if bound.value is None:
        assert bound.terms == {}
        assert "no value" in str(bound)
    return {a.name for a in bound.assumptions if not a.holds}


# --- The formulas, restated ------------------------------------------------------------------------


def test_fourth_moment_formula():
    bound = fourth_moment_bound(C, STEP, BATCH, BETA)
    expected = {
        "gradient": 96 * 0.01**2 * 2.5 / (0.7**2 * 7**2),
        "cross": 24 * 0.01 * math.sqrt(2.5) * 3 / (0.7**2 * 7 * 40),
        "injected": 12 * 9 / (0.7**2 * 40**2),
        "injected_step": 48 * 0.01 * 15 / (0.7 * 40**2),
    }
    assert bound.terms == pytest.approx(expected)
    assert bound.value == pytest.approx(sum(expected.values()))
    assert str(bound).startswith("fourth moment of the proxy: at most")


def test_fourth_moment_bound_covers_the_fixed_point_of_its_recursion():
    # The lemma simplifies the stationary inequality of the proof, so it must lie above the recursion's limit.
    for step, batch, beta in [(0.01, 7, 40.0), (0.19, 100, 40.0), (0.002, 1, math.inf), (0.05, 30, 1e3)]:
        lemma = fourth_moment_bound(C, step, batch, beta).value
        limit = fourth_moment_path(C, step, batch, beta, 20_000)[-1]
        assert lemma is not None
        assert 0.04 * lemma < limit < lemma  # 0.04 is 4/96: what small steps make of the first term


def test_stationary_formula():
    bound = stationary_bound(C, STEP, BATCH, BETA)
    C0 = 2 / 0.6 * (0.07 / (8 * 1.3) + 0.2**2 / (4 * 0.6))
    A0 = 96 * C0 * 2.5 / 0.49
    A1 = 12 * C0 * math.sqrt(2.5) * 3 / 0.49
    A2 = C0 * (12 * 9 + 48 * 15) / 0.49
    x, y = STEP / BATCH, 1 / BETA
    assert bound.value == pytest.approx(math.sqrt(A0 * x**2 + 2 * A1 * x * y + A2 * y**2))
    assert sum(bound.terms.values()) == pytest.approx(bound.value**2)
    A = math.sqrt(max(A0, A1, A2))
    assert bound.constants["A"] == pytest.approx(A)
    assert bound.constants["simple"] == pytest.approx(A * (x + y))
    assert bound.value <= bound.constants["simple"]


def test_stationary_is_the_limit_of_finite_time_made_coarser():
    stationary = stationary_bound(C, STEP, BATCH, BETA).value
    late = finite_time_bound(C, STEP, BATCH, BETA, 20_000).value
    fourth = fourth_moment_bound(C, STEP, BATCH, BETA).value
    with_lemma = finite_time_bound(C, STEP, BATCH, BETA, 20_000, fourth_moments=fourth).value
    assert late < with_lemma < stationary


def test_fourth_moment_path_is_the_recursion_of_the_proof():
    lam, B, L, mu, t4, D = STEP, BATCH, 1.3, 0.7, 2.5, 3
    t2, v, m, expected = math.sqrt(t4), 0.0, 0.0, []
    for _ in range(50):
        expected.append(m)
        r = 1 - lam * mu
        m = (
            (r**4 + 64 * r**2 * lam**2 * L**2 / B + 9216 * lam**4 * L**4 / B**2) * m
            + 16 * r**2 * (lam**2 * t2 / B + lam * D / BETA) * v
            + 576 * lam**4 * t4 / B**2
            + 96 * lam**2 * D * (D + 2) / BETA**2
        )
        v = (r**2 + 8 * lam**2 * L**2 / B) * v + 2 * lam**2 * t2 / B + 2 * lam * D / BETA
    np.testing.assert_allclose(fourth_moment_path(C, STEP, BATCH, BETA, 50), expected, rtol=1e-12)
    # The momentum recursion is another code path and must agree as momentum vanishes.
    np.testing.assert_allclose(fourth_moment_path(C, STEP, BATCH, BETA, 50, 1e-14), expected, rtol=1e-9)


def test_momentum_path_restated():
    lam, k, B, L, H, t4, D = 0.05, 0.1, BATCH, 1.3, 1.1, 2.5, 3
    e2 = v2 = e4 = v4 = 0.0
    r, expected = 1 - lam * 0.7, []
    for _ in range(30):
        expected.append(e4)
        u2, u4 = (r * e2**0.5 + lam * k * v2**0.5) ** 2, (r * e4**0.25 + lam * k * v4**0.25) ** 4
        b2, b4 = (H * e2**0.5 + k * v2**0.5) ** 2, (H * e4**0.25 + k * v4**0.25) ** 4
        free, slope = 2 * t4**0.5 / B, 8 * L**2 / B
        eta4 = 24 * t4 / B**2 + 384 * L**4 * e4 / B**2
        w4 = 8 * lam**4 * eta4 + 8 * (2 * lam / BETA) ** 2 * D * (D + 2)
        cross = (lam**2 * free + 2 * lam * D / BETA) * u2 + lam**2 * slope * (u4 * e4) ** 0.5
        cross_v = free * b2 + slope * (b4 * e4) ** 0.5
        eta2 = free + slope * e2
        e2, v2 = u2 + lam**2 * eta2 + 2 * lam * D / BETA, b2 + eta2
        e4, v4 = u4 + 8 * cross + 3 * w4, b4 + 8 * cross_v + 3 * eta4
    np.testing.assert_allclose(fourth_moment_path(C, lam, B, BETA, 30, k), expected, rtol=1e-12)


def test_finite_time_formula():
    t, initial = 12, 0.3
    moments = np.linspace(0.1, 0.5, t)
    bound = finite_time_bound(C, STEP, BATCH, BETA, t, initial, moments)
    rate = 1 - 0.01 * 0.6 * (1 - 2 * 0.01 * 1.3)
    source = 0.01 * (0.01 * 0.07 / 2 + 0.2**2 / (4 * 0.6))
    squared = initial
    for moment in moments:
        squared = rate * squared + source * moment
    assert bound.value == pytest.approx(math.sqrt(squared))
    assert bound.constants["contraction"] == pytest.approx(rate)
    above = finite_time_bound(C, STEP, BATCH, BETA, t, initial, moments.max())
    flat = finite_time_bound(C, STEP, BATCH, BETA, t, initial, np.full(t, moments.max()))
    assert above.value == pytest.approx(flat.value)
    assert above.value > bound.value


def test_finite_time_for_a_million_steps():
    tiny = finite_time_bound(C, 1e-6, BATCH, math.inf, 1_000_000)
    assert 0 < tiny.value < stationary_bound(C, 1e-6, BATCH, math.inf).value


def test_momentum_formula():
    lam, kappa, t = 0.02, 0.03, 9
    moments = np.linspace(0.2, 0.1, t)
    bound = momentum_bound(C, lam, BATCH, kappa, t, 0.4, moments)
    rest = 1 - kappa
    A = np.array(
        [
            [1 - lam * 0.6 + lam * kappa + 2 * lam**2 * 1.69 / rest, lam * kappa * (1 + lam)],
            [2 * 1.69 / rest, kappa],
        ]
    )
    radius = np.abs(np.linalg.eigvals(A)).max()
    weight = (A[1, 1] - A[0, 0] + math.sqrt((A[0, 0] - A[1, 1]) ** 2 + 4 * A[0, 1] * A[1, 0])) / (2 * A[1, 0])
    source = lam**2 * 0.07 / (2 * rest) + lam * 0.2**2 / (4 * 0.6) + weight * 0.07 / (2 * rest)
    assert bound.constants["contraction"] == pytest.approx(radius, rel=1e-12)
    assert bound.constants["source"] == pytest.approx(source, rel=1e-10)
    squared, coupled = 0.4, np.array([0.4, 0.0])
    for moment in moments:
        squared = radius * squared + source * moment
        coupled = A @ coupled + moment * np.array([source - weight * 0.07 / (2 * rest), 0.07 / (2 * rest)])
    assert bound.value == pytest.approx(math.sqrt(squared))
    assert coupled[0] < squared  # the scalar recursion dominates the 2×2 one it summarises
    stationary = momentum_bound(C, lam, BATCH, kappa, fourth_moments=0.2)
    assert stationary.value == pytest.approx(math.sqrt(source / (1 - radius) * 0.2))


def test_momentum_condition_is_contraction():
    # The theorem's inequality is equivalent to a spectral radius below one: the bound exists right up to it.
    lam, L2 = 0.02, 1.69
    grid = np.linspace(0.001, 0.3, 400)
    exists = [momentum_bound(C, lam, BATCH, k, fourth_moments=1.0).value is not None for k in grid]
    matrices = [
        [[1 - lam * 0.6 + lam * k + 2 * lam**2 * L2 / (1 - k), lam * k * (1 + lam)], [2 * L2 / (1 - k), k]]
        for k in grid
    ]
    contracts = [np.abs(np.linalg.eigvals(np.array(m))).max() < 1 for m in matrices]
    assert exists == contracts
    assert any(exists)
    assert not all(exists)


# --- Shape: monotone, zero, scaling ----------------------------------------------------------------


def test_bounds_grow_with_step_and_shrink_with_batch_and_temperature():
    for function in (fourth_moment_bound, stationary_bound, lambda *a: finite_time_bound(*a, 300)):
        base = function(C, STEP, BATCH, BETA).value
        assert function(C, STEP * 1.1, BATCH, BETA).value > base
        assert function(C, STEP, BATCH + 1, BETA).value < base
        assert function(C, STEP, BATCH, BETA * 2).value < base
        assert function(dataclasses.replace(C, score_fourth=3.0), STEP, BATCH, BETA).value > base
    values = [finite_time_bound(C, STEP, BATCH, BETA, t).value for t in (1, 2, 10, 100, 1000)]
    assert values[0] == 0.0  # both start at the minimiser, so the first step makes no error
    assert np.all(np.diff(values) > 0)
    kappas = [momentum_bound(C, 0.02, BATCH, k, 50).value for k in (0.0, 0.01, 0.03, 0.05)]
    assert np.all(np.diff(kappas) > 0)


def test_sgd_bound_is_of_first_order_in_step_over_batch():
    steps = np.array([1e-4, 1e-3, 1e-2])
    values = [stationary_bound(C, s, BATCH, math.inf).value for s in steps]
    np.testing.assert_allclose(np.diff(np.log(values)) / np.diff(np.log(steps)), 1.0, rtol=1e-12)
    assert stationary_bound(C, 2e-3, 2 * BATCH, math.inf).value == pytest.approx(values[1])


def test_squared_loss_has_no_error():
    quadratic = dataclasses.replace(C, third_mean=0.0, third_mean_square=0.0)
    assert stationary_bound(quadratic, STEP, BATCH, BETA).value == 0.0
    assert finite_time_bound(quadratic, STEP, BATCH, BETA, 100).value == 0.0
    assert momentum_bound(quadratic, 0.02, BATCH, 0.03, 100).value == 0.0
    assert fourth_moment_bound(quadratic, STEP, BATCH, BETA).value > 0


def test_the_headline_speaks_for_the_whole():
    parts = stationary_bound(C, STEP, BATCH, BETA), fourth_moment_bound(C, STEP, BATCH, BETA)
    whole = WassersteinBound(headline=parts[0], fourth_moment=parts[1], stationary=parts[0])
    assert (whole.value, whole.terms) == (parts[0].value, parts[0].terms)
    assert (whole.constants, whole.assumptions) == (parts[0].constants, parts[0].assumptions)
    assert str(whole) == str(parts[0])


# --- Simulation: chain and proxy on the same batches and noise -------------------------------------


class Logistic:
    """Twelve observations in two dimensions; every loss carries its share of a ridge."""

    def __init__(self) -> None:
        rng = np.random.default_rng(11)
        self.ridge = 0.3
        self.x = rng.normal(size=(12, 2)) @ np.array([[1.0, 0.4], [0.0, 0.8]])
        self.y = (rng.random(12) < 0.7).astype(float)

        def loss(theta):
            eta = self.x @ theta
            return np.mean(np.logaddexp(0, eta) - self.y * eta) + self.ridge / 2 * theta @ theta

        self.best = minimize(loss, np.zeros(2), tol=1e-12, options={"gtol": 1e-10}).x
        p = 1 / (1 + np.exp(-self.x @ self.best))
        self.scores = (p - self.y)[:, None] * self.x + self.ridge * self.best
        self.scores -= self.scores.mean(0)  # removes the minimiser's residual gradient, about 1e-8
        self.weights = p * (1 - p)
        norms = np.linalg.norm(self.x, axis=1)
        third = norms**3 / (6 * math.sqrt(3))
        spectrum = np.linalg.eigvalsh((self.x.T * self.weights) @ self.x / 12) + self.ridge
        self.constants = BoundConstants(
            smoothness=float((norms**2).max() / 4 + self.ridge),
            strong_convexity=self.ridge,
            third_mean=float(third.mean()),
            third_mean_square=float((third**2).mean()),
            score_fourth=float((np.linalg.norm(self.scores, axis=1) ** 4).mean()),
            hessian_min=float(spectrum[0]),
            hessian_max=float(spectrum[-1]),
            dim=2,
            convex=True,
        )

    def couple(self, step, batch, beta, steps, momentum=0.0, replacement=True, chains=2000):
        """Mean of ‖θ−ψ‖² and of ‖ψ−θ̂‖⁴ at times 0…steps, with the standard errors of both."""
        rng = np.random.default_rng(3)
        theta, psi = np.zeros((2, chains, 2)), np.zeros((2, chains, 2))  # position − θ̂, momentum
        base = 1 / (1 + np.exp(-self.x @ self.best))
        records = []
        for _ in range(steps + 1):
            samples = ((theta[0] - psi[0]) ** 2).sum(1), (psi[0] ** 2).sum(1) ** 2
            records.append([f(s) for s in samples for f in (np.mean, lambda s: s.std() / math.sqrt(chains))])
            rows = rng.integers(12, size=(chains, batch))
            if not replacement:
                rows = rng.random((chains, 12)).argsort(1)[:, :batch]
            noise = math.sqrt(2 * step / beta) * rng.normal(size=(chains, 2))
            x, score = self.x[rows], self.scores[rows].mean(1)
            for state, exact in ((theta, True), (psi, False)):
                eta = np.einsum("cbd,cd->cb", x, state[0])
                if exact:
                    shifted = 1 / (1 + np.exp(-(self.x @ self.best)[rows] - eta))
                    slope = shifted - base[rows]
                else:
                    slope = self.weights[rows] * eta
                gradient = score + np.einsum("cb,cbd->cd", slope, x) / batch + self.ridge * state[0]
                state[1] = momentum * state[1] + gradient
                state[0] += noise - step * state[1]
        return np.array(records).T


PROBLEM = Logistic()


@pytest.mark.parametrize(("beta", "replacement"), [(math.inf, True), (math.inf, False), (60.0, True)])
def test_simulated_distance_and_moment_stay_below_the_bounds(beta, replacement):
    c, batch, steps = PROBLEM.constants, 10, 500
    step = 0.99 * min(batch * c.hessian_min / (200 * c.smoothness**2), 1 / (4 * c.smoothness))
    d2, d2_se, m4, m4_se = PROBLEM.couple(step, batch, beta, steps, replacement=replacement)
    path = fourth_moment_path(c, step, batch, beta, steps + 1)
    assert np.all(m4 <= path)
    assert m4[-1] + 4 * m4_se[-1] < fourth_moment_bound(c, step, batch, beta).value
    assert d2[-1] + 4 * d2_se[-1] < stationary_bound(c, step, batch, beta).value ** 2
    for t in (2, 10, 100, steps):
        default = finite_time_bound(c, step, batch, beta, t).value
        # Fed with the moments actually seen the theorem is much sharper, and still has to hold.
        seen = finite_time_bound(c, step, batch, beta, t, fourth_moments=(m4 + 4 * m4_se)[:t]).value
        assert d2[t] + 4 * d2_se[t] < seen**2
        assert seen < default
    # Negative control: the simulation is able to refute bounds that are too small.
    small = dataclasses.replace(c, score_fourth=c.score_fourth / 1e4, dim=0)
    assert np.any(m4 - 4 * m4_se > fourth_moment_path(small, step, batch, beta, steps + 1))
    flat = dataclasses.replace(c, third_mean=c.third_mean / 100, third_mean_square=c.third_mean_square / 1e4)
    refuted = finite_time_bound(flat, step, batch, beta, steps, fourth_moments=m4[:steps]).value
    assert d2[-1] - 4 * d2_se[-1] > refuted**2


def test_simulated_momentum_stays_below_its_bound():
    c, batch, beta, steps, kappa = PROBLEM.constants, 10, 60.0, 400, 0.02
    step = 0.02
    bound = momentum_bound(c, step, batch, kappa, steps, inverse_temperature=beta)
    assert failing(bound) == set()
    d2, d2_se, m4, m4_se = PROBLEM.couple(step, batch, beta, steps, momentum=kappa)
    assert np.all(m4 <= fourth_moment_path(c, step, batch, beta, steps + 1, kappa))
    seen = momentum_bound(c, step, batch, kappa, steps, fourth_moments=(m4 + 4 * m4_se)[:steps])
    assert d2[-1] + 4 * d2_se[-1] < seen.value**2 < bound.value**2
