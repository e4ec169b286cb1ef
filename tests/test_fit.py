"""The minimiser: against a Newton written here, from anywhere, on any scale, with scales that are estimated."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

import equipoise as eq
from equipoise.families.family import FAMILIES
from equipoise.fitting.newton import minimise
from equipoise.models.linear import LinearProblem
from tests.known import slopes

families = pytest.mark.parametrize("family", list(FAMILIES))
CONSTANTS = {"gaussian": 1.3, "gamma": 1.7, "negative-binomial": 0.6}


def newton(family, x, y, *, weights=1.0, offset=0.0, precision=0.0, center=0.0, constant=None):
    """Plain Newton on Σ w ℓ + ½ (θ−m)ᵀΓ(θ−m), halving steps that raise the gradient."""
    prior = precision * np.eye(x.shape[1]) if np.ndim(precision) < 2 else np.asarray(precision)
    center = np.broadcast_to(center, x.shape[1])

    def gradient(theta):
        g, h = slopes(family, x @ theta + offset, y, constant)
        return x.T @ (weights * g) + prior @ (theta - center), (x.T * (weights * h)) @ x + prior

    theta = np.linalg.lstsq(x, 0.5 * np.clip(y, -2.0, 2.0), rcond=None)[0]
    g, H = gradient(theta)
    for _ in range(200):
        step, length = np.linalg.solve(H, g), 1.0
        while length > 1e-6:
            trial = theta - length * step
            g_new, H_new = gradient(trial)
            if np.linalg.norm(g_new) <= np.linalg.norm(g):
                break
            length *= 0.5
        theta, g, H = trial, g_new, H_new
    return theta


@families
@pytest.mark.parametrize("kind", ["plain", "weights and offset", "scalar prior", "vector prior", "matrix prior"])
def test_agrees_with_an_independent_newton(family, kind, make_data, make_model) -> None:
    x, y = make_data(family, n=250, dim=4, seed=3)
    rng = np.random.default_rng(5)
    rows, prior = {}, {}
    if kind == "weights and offset":
        rows = {"weights": rng.uniform(0.2, 3.0, 250), "offset": 0.3 * rng.normal(size=250)}
    elif kind == "scalar prior":
        prior = {"prior_precision": 7.0, "prior_mean": 0.4}
    elif kind == "vector prior":
        prior = {"prior_precision": np.array([0.0, 3.0, 40.0, 1.0]), "prior_mean": np.array([9.0, 0.1, -1.0, 0.5])}
    elif kind == "matrix prior":
        root = rng.normal(size=(4, 4))
        prior = {"prior_precision": root @ root.T, "prior_mean": np.array([0.2, 0.1, -1.0, 0.5])}
    found = eq.fit(make_model(family, **prior), eq.data.rows(x, y, **rows))
    expected = newton(
        family, x, y, precision=prior.get("prior_precision", 0.0), center=prior.get("prior_mean", 0.0),
        constant=CONSTANTS.get(family), **rows,
    )  # fmt: skip
    # both are at rounding error of a well-conditioned problem
    np.testing.assert_allclose(found.params, expected, rtol=0.0, atol=1e-9)
    assert found.converged
    assert found.gradient_norm < 1e-6


@pytest.mark.parametrize("precision", [0.5, 30.0, 3000.0])
def test_gaussian_with_estimated_scale_and_prior_is_self_consistent(make_data, precision) -> None:
    x, y = make_data("gaussian", n=120, dim=3)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, 120)
    found = eq.fit(eq.glm("gaussian", prior_precision=precision, prior_mean=0.7), eq.data.rows(x, y, weights=weights))
    residual = y - x @ found.params
    scale2 = np.sum(weights * residual**2) / (120 - 3)
    expected = newton("gaussian", x, y, weights=weights, precision=precision, center=0.7, constant=np.sqrt(scale2))
    np.testing.assert_allclose(found.params, expected, rtol=1e-10)


@families
@pytest.mark.parametrize("rows", [30, 100])
def test_tuning_rows_only_lead_the_way(family, rows, make_data, make_model) -> None:
    data = make_data(family, n=400, dim=3)
    model = make_model(family, prior_precision=2.0)
    whole, led = eq.fit(model, data), eq.fit(model, data, tuning_rows=rows, seed=8)
    np.testing.assert_allclose(led.params, whole.params, rtol=1e-9, atol=1e-11)
    assert led.gradient_norm <= 1e-6
    # a control: the rows themselves have another minimum
    part = eq.bind(model, data).subsample(rows, seed=8)
    assert np.abs(eq.fit(part).params - whole.params).max() > 1e-3


@pytest.mark.parametrize("divergence", [None, eq.Beta(1.3), eq.Huber(), eq.StudentT()])
def test_the_scale_is_that_of_all_rows(divergence, make_data) -> None:
    model, data = eq.glm("gaussian", divergence=divergence), make_data("gaussian", n=500, dim=3)
    whole, led = eq.fit(model, data), eq.fit(model, data, tuning_rows=60, seed=1)
    assert led.constant == pytest.approx(whole.constant, rel=1e-8)
    np.testing.assert_allclose(led.params, whole.params, rtol=1e-6, atol=1e-8)


def test_gradient_norm_is_in_posterior_standard_deviations(make_data, make_model) -> None:
    x, y = make_data("bernoulli", n=150, dim=3)
    problem = make_model("bernoulli").bind((x, y))
    best = eq.fit(make_model("bernoulli"), (x, y)).params
    cov = np.linalg.inv(problem.derivatives(best, 2).hessian) / 150
    # one Newton step allowed from a point 1e-7 standard deviations away: the certificate says so
    start = best + 1e-7 * np.linalg.cholesky(cov)[:, 0]
    assert minimise(problem, start, max_iterations=0).gradient_norm == pytest.approx(1e-7, rel=1e-3)


@families
@pytest.mark.parametrize("sample", [30, 200, 1200])
def test_many_rows_start_from_a_sample(family, sample, make_data, make_model, monkeypatch) -> None:
    x, y = make_data(family, n=2500, dim=4)
    monkeypatch.setattr(sys.modules["equipoise.fitting.fit"], "_SAMPLE", sample)
    hessians = []
    whole = LinearProblem.derivatives

    def counted(self, theta, order):
        if order == 2:
            hessians.append(self.source.n)
        return whole(self, theta, order)

    monkeypatch.setattr(LinearProblem, "derivatives", counted)
    found = eq.fit(make_model(family), (x, y))
    # a small sample may lead astray or have no minimiser: then more Hessians are made, as usual
    assert hessians.count(2500) == 1 or sample < 1200
    expected = newton(family, x, y, constant=CONSTANTS.get(family))
    np.testing.assert_allclose(found.params, expected, rtol=1e-9, atol=1e-11)
    _, gradient, H, _ = whole(make_model(family).bind((x, y)), found.params, 2)
    assert found.gradient_norm <= 2e-10
    # the certificate's Hessian is a standard deviation away at most; of a step taken unseen it is what it leaves at most
    assert np.sqrt(2500 * gradient @ np.linalg.solve(H, gradient)) <= 1.1 * found.gradient_norm + 1e-13


def test_steps_are_counted_over_all_scales(make_data, monkeypatch) -> None:
    steps = []

    def counted(*args, **kwargs):
        result = minimise(*args, **kwargs)
        steps.append(result.iterations)
        return result

    monkeypatch.setattr(sys.modules["equipoise.fitting.fit"], "minimise", counted)
    found = eq.fit(eq.glm("gaussian", prior_precision=5.0), make_data("gaussian", n=60, dim=3))
    assert len(steps) > 2
    assert found.iterations == sum(steps) > steps[-1]


@pytest.mark.parametrize(
    ("family", "start"),
    [
        ("gaussian", [100.0, -100.0, 50.0]),
        ("bernoulli", [0.0, 30.0, -30.0]),
        ("bernoulli", [0.0, -100.0, 100.0]),
        ("poisson", [30.0, 0.0, 0.0]),
        ("gamma", [-30.0, 0.0, 0.0]),
        ("negative-binomial", [0.0, 100.0, 100.0]),
    ],
)
def test_extreme_starts_reach_the_same_minimiser(family, start, make_data, make_model) -> None:
    x, y = make_data(family, n=300, dim=3)
    problem = make_model(family).bind((x, y))
    found = minimise(problem, np.array(start), max_iterations=200)
    np.testing.assert_allclose(found.theta, eq.fit(make_model(family), (x, y)).theta, atol=1e-8)


def test_counts_over_many_orders_of_magnitude() -> None:
    # found by fuzzing: the loss of large counts used to cancel, and a fall from a bad start looked like separation
    rng = np.random.default_rng(1)
    x = np.column_stack([np.ones(100), rng.standard_t(3, size=(100, 2))])
    mu = np.exp(np.clip(x @ [2.0, 4.0, -3.0], -20.0, 25.0))
    y = rng.poisson(mu * rng.gamma(1.0, size=100)).astype(float)
    for family, constant in (("poisson", None), ("negative-binomial", 1.0)):
        found = eq.fit(eq.glm(family, dispersion=constant), (x, y)).params
        g, _ = slopes(family, x @ found, y, constant)
        # the score vanishes relative to its terms
        assert np.abs(x.T @ g).max() < 1e-7 * np.abs(x.T * g).sum(axis=1).max()


def test_one_count_holds_a_group_of_zeros() -> None:
    # found by fuzzing: the first step led to where the loss is level, and its next to nowhere
    group = np.repeat([0.0, 1.0], [13, 12])
    y = np.where(group == 1.0, 400.0, 0.0)
    y[0] = 1.0
    for unit in (1.0, 1e-8, 1e8):
        found = eq.fit(
            eq.glm("negative-binomial", dispersion=1.0), (np.column_stack([np.ones(25), group * unit]), y)
        ).params
        np.testing.assert_allclose(found, [-np.log(13.0), np.log(5200.0) / unit], rtol=1e-9)


def test_overflow_on_threads_stays_quiet(monkeypatch) -> None:
    # the sample's minimiser leads to where the loss of the last row overflows
    monkeypatch.setattr("equipoise.linalg._BLOCK_ELEMENTS", 1 << 12)
    monkeypatch.setattr("equipoise.fitting.fit._SAMPLE", 300)
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(20_000), rng.normal(size=20_000)])
    y = rng.poisson(np.exp(x @ [0.5, 0.4])).astype(float)
    x[-1, 1] = 1e4
    found = eq.fit(eq.glm("poisson"), (x, y)).params
    g, _ = slopes("poisson", x @ found, y, None)
    assert np.abs(x.T @ g).max() < 1e-10 * np.abs(x.T * g).sum(axis=1).max()


@pytest.mark.parametrize("robust", [eq.Huber(), eq.Pinball(0.3), eq.StudentT(), eq.Beta(1.5)])
@pytest.mark.parametrize("precision", [0.0, 20.0])
def test_a_robust_scale_and_its_parameters_agree(robust, precision, make_data) -> None:
    x, y = make_data("gaussian", n=200, dim=3)
    weights = np.random.default_rng(1).integers(1, 4, 200)
    model = eq.glm("gaussian", divergence=robust, prior_precision=precision)
    found = eq.fit(model, eq.data.rows(x, y, weights=weights))
    residuals = np.repeat(np.abs(y - x @ found.params), weights)
    assert found.constant == pytest.approx(np.median(residuals) / 0.6744897501960817, rel=1e-11)
    fixed = eq.glm("gaussian", divergence=robust, prior_precision=precision, scale=found.constant)
    again = eq.fit(fixed, eq.data.rows(x, y, weights=weights))
    np.testing.assert_allclose(again.params, found.params, rtol=1e-9, atol=1e-10)
    assert again.loss == pytest.approx(found.loss, rel=1e-10)


def test_a_scale_far_below_the_residuals(make_data) -> None:
    x, y = make_data("gaussian", n=300, dim=3)
    found = eq.fit(eq.glm("gaussian", scale=1e-6, divergence=eq.Pinball(0.3)), (x, y)).params
    theirs = sm.QuantReg(y, x).fit(q=0.3, p_tol=1e-10, max_iter=5000).params
    np.testing.assert_allclose(found, theirs, atol=1e-4)
    with pytest.raises(eq.FitFailed, match=r"hardly bends along some direction.*larger scale="):
        eq.fit(eq.glm("gaussian", scale=1e-6, divergence=eq.Huber()), (x, y))


def test_every_verb_reads_a_table_by_a_formula() -> None:
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"a": rng.normal(size=60), "w": rng.integers(1, 4, 60)})
    frame["y"] = rng.poisson(np.exp(0.4 * frame.a))
    model, how = eq.glm("poisson"), {"formula": "y ~ a", "frequency": "w"}
    problem = eq.bind(model, frame, **how)
    found = eq.fit(model, frame, **how)
    np.testing.assert_array_equal(found.params, eq.fit(problem).params)
    taken = eq.moments(model, frame, found, **how)
    np.testing.assert_array_equal(taken.score_cov, eq.moments(problem, found).score_cov)
    with pytest.raises(eq.InvalidInput, match="formula"):
        eq.fit(problem, formula="y ~ a")
