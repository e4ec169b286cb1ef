"""Gelbrich ≤ W₂ ≤ coupling ≤ theorem, measured and computed on real models."""

from __future__ import annotations

import numpy as np
import pytest

import equipoise as eq


@pytest.fixture(scope="module")
def counts():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(800, 3)) * 0.5
    y = rng.poisson(np.exp(x @ [0.3, -0.2, 0.1])).astype(float)
    model = eq.glm("poisson", prior_precision=1.0)
    fitted = eq.fit(model, (x, y))
    return model, (x, y), fitted, eq.moments(model, (x, y), fitted.params)


def test_coupling_distance_is_of_first_order_in_step_over_batch(counts):
    """Fit the observed order on a log-log line; its standard error comes from the runs' own Monte Carlo errors."""
    model, data, _, moments = counts
    points = []
    for step, batch in ((0.002, 10), (0.006, 10), (0.02, 10), (0.02, 30)):
        tuning = eq.Tuning.at(moments, step, eq.Dynamics(batch))
        found = eq.coupled_distance(model, data, tuning, steps=1_000_000, seed=1)
        assert 0.0 < found.gelbrich <= found.coupling
        points.append((np.log(step / batch), np.log(found.coupling), found.coupling_error / found.coupling))
    x, y, error = np.array(points).T
    (slope, _), cov = np.polyfit(x, y, 1, w=1.0 / error, cov="unscaled")
    # the leading order is exact only as λ → 0: at these steps the next order bends the line a little
    assert abs(slope - 1.0) < 3.0 * np.sqrt(cov[0, 0]) + 0.03


def test_theorem_lies_above_the_coupling_where_it_applies(counts):
    model, data, fitted, moments = counts
    dynamics = eq.Dynamics(200)
    constants = model.bind(data).bound_constants(fitted.params, None)
    step = 0.9 * min(200 * constants.hessian_min / (200 * constants.smoothness**2), 1 / (4 * constants.smoothness))
    bound = eq.wasserstein_bound(model, data, fitted, step, dynamics)
    measured = eq.coupled_distance(model, data, eq.Tuning.at(moments, step, dynamics), steps=100_000, seed=2)
    assert bound.value is not None
    assert measured.gelbrich <= measured.coupling < bound.value
    assert bound.std == bound.value
    assert bound.cov > 2 * bound.value * np.sqrt(np.linalg.norm(eq.stationary(moments, step, dynamics).cov, 2))
    assert "plug-in" in bound.headline.scope
    near = eq.wasserstein_bound(model, data, fitted, step, dynamics, radius=0.1)
    assert "ball of radius 0.1" in near.headline.scope
    free = eq.coupled_distance(model, data, eq.Tuning.at(moments, step, dynamics), steps=100_000, seed=2, guard=None)
    assert free.coupling == pytest.approx(measured.coupling)  # no guard acts at so small a step


def test_bound_outside_its_range_says_so(counts):
    model, data, fitted, _ = counts
    bound = eq.wasserstein_bound(model, data, fitted, 0.4, eq.Dynamics(2))
    assert bound.value is None
    assert bound.std is None
    assert any(a.name == "step range" and not a.holds for a in bound.assumptions)
    assert "step range" in str(bound)
    matrix = eq.wasserstein_bound(model, data, fitted, np.diag([1e-4, 2e-4, 1e-4]), eq.Dynamics(200))
    assert any(a.name == "scalar step" and not a.holds for a in matrix.assumptions)


def test_finite_time_bound_grows_to_its_limit(counts):
    model, data, fitted, _ = counts
    values = [eq.wasserstein_bound(model, data, fitted, 1e-3, eq.Dynamics(200), t=t).value for t in (10, 100, 10_000)]
    assert values[0] < values[1] < values[2]


def test_momentum_bound_is_the_headline_with_momentum(counts):
    model, data, fitted, _ = counts
    bound = eq.wasserstein_bound(model, data, fitted, 1e-3, eq.Dynamics(200, momentum=1e-4), t=50)
    assert bound.momentum is bound.headline
    assert bound.value is not None
    assert bound.stationary.value is None
    plain = eq.wasserstein_bound(model, data, fitted, 1e-3, eq.Dynamics(200), t=50)
    assert bound.value == pytest.approx(plain.value, rel=0.1)  # nearly no momentum


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_squared_loss_has_no_distance_at_all(momentum):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 3))
    y = x @ [1.0, 0.0, -1.0] + rng.normal(size=300)
    model = eq.glm("gaussian", scale=1.3, prior_precision=2.0)
    fitted = eq.fit(model, (x, y))
    moments = eq.moments(model, (x, y), fitted.params)
    dynamics = eq.Dynamics(20, momentum, 3000.0)
    found = eq.coupled_distance(model, (x, y), eq.Tuning.at(moments, 0.05, dynamics), steps=5000, seed=0)
    assert found.gelbrich <= found.coupling < 1e-12  # rounding
    bound = eq.wasserstein_bound(model, (x, y), fitted, 0.05 * np.diag([1.0, 2.0, 1.0]), dynamics)
    assert bound.value == 0.0


def test_constants_against_brute_force():
    """Logistic: sup of the second derivative ¼‖x‖², M_n = ‖x‖³/(6√3), scores with the prior's share inside."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(150, 3))
    y = (rng.random(150) < 0.4).astype(float)
    prior = np.diag([1.0, 2.0, 3.0])
    model = eq.glm("bernoulli", prior_precision=prior, prior_mean=0.5)
    fitted = eq.fit(model, (x, y))
    c = model.bind((x, y)).bound_constants(fitted.params, None)
    norms = np.linalg.norm(x, axis=1)
    assert c.smoothness == pytest.approx((norms**2).max() / 4 + 3.0 / 150)
    assert c.third_mean == pytest.approx((norms**3).mean() / (6 * np.sqrt(3)))
    assert c.third_mean_square == pytest.approx((norms**6).mean() / 108)
    mu = 1 / (1 + np.exp(-x @ fitted.params))
    scores = (mu - y)[:, None] * x + prior @ (fitted.params - 0.5) / 150
    np.testing.assert_allclose(scores.mean(axis=0), 0.0, atol=1e-12)
    assert c.score_fourth == pytest.approx((np.linalg.norm(scores, axis=1) ** 4).mean())
    H = (x * (mu * (1 - mu))[:, None]).T @ x / 150 + prior / 150
    assert (c.hessian_min, c.hessian_max) == pytest.approx(tuple(np.linalg.eigvalsh(H)[[0, -1]]))
    assert c.strong_convexity == pytest.approx(c.hessian_min)
    assert "L and M global" in c.scope


@pytest.mark.parametrize("family", ["poisson", "gamma", "bernoulli", "negative-binomial"])
def test_constants_on_a_ball_dominate_every_point_of_it(family):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(100, 2))
    y = rng.gamma(2.0, size=100) if family == "gamma" else (rng.random(100) < 0.5).astype(float)
    constant = {"gamma": {"shape": 1.0}, "negative-binomial": {"dispersion": 1.0}}.get(family, {})
    model = eq.glm(family, prior_precision=0.5, **constant)
    problem = model.bind((x, y))
    theta = eq.fit(model, (x, y)).params
    c = problem.bound_constants(theta, 0.4)
    assert "ball of radius 0.4" in c.scope
    for _ in range(200):
        v = rng.normal(size=2)
        point = theta + 0.4 * rng.random() * v / np.linalg.norm(v)
        loss = problem.model.loss
        eta, p = x @ point, loss.constants
        norms = np.linalg.norm(x, axis=1)
        assert np.max(loss.d2(eta, y, p) * norms**2) <= c.smoothness
        assert np.mean(np.abs(loss.d3(eta, y, p)) * norms**3) <= c.third_mean
        assert np.linalg.eigvalsh(problem.derivatives(point, 2).hessian)[0] >= c.strong_convexity


def test_bounds_are_refused_where_they_do_not_apply_and_the_distance_is_measured():
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(300), rng.normal(size=(300, 2))])
    for family, y in (
        ("gaussian", x @ [0.5, 0.2, -0.1] + rng.normal(size=300)),
        ("poisson", rng.poisson(1.5, size=300)),
    ):
        problem = eq.bind(eq.glm(family), (x, y))
        fit = eq.fit(problem)
        moments = eq.moments(problem, fit)
        for options in ({"gradient": "control-variate"}, {"batches": "leverage"}, {"batches": "epochs"}):
            with pytest.raises(eq.InvalidInput, match=next(iter(options))):
                eq.wasserstein_bound(problem, fit, 1e-3, eq.Dynamics(30, **options))
        for batches in ("independent", "leverage"):
            dynamics = eq.Dynamics(60, gradient="control-variate", batches=batches)
            tuning = eq.tune(moments, "posterior", dynamics, noise="completed")
            measured = eq.coupled_distance(problem, tuning, steps=2000)
            assert measured.gelbrich <= measured.coupling
            # chain and proxy draw the same rows and noise: for squared loss they are the same chain
            assert measured.coupling < (1e-12 if family == "gaussian" else 0.1)
            assert (measured.coupling > 1e-5) == (family == "poisson")
