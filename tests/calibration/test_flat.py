"""Directions that the data do not identify: one threshold for every loss, the route that is taken, and advice that works."""

from __future__ import annotations

import re
import warnings
from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.linalg import FLAT

N = 300
RNG = np.random.default_rng(0)
Z = RNG.normal(size=(N, 3))
COUNTS = RNG.poisson(np.exp(0.3 + 0.2 * Z[:, 0])).astype(float)
LINE = (Z[:, 0], 0.8 * Z[:, 0] + RNG.normal(size=N))


def poisson(theta, observation):
    x, y = observation
    eta = x @ theta
    return jnp.exp(eta) - y * eta


def total(theta, observation):
    """A line whose slope is the sum of two parameters."""
    x, y = observation
    return 0.5 * (y - (theta[0] + theta[1]) * x - theta[2]) ** 2


def product(theta, observation):
    """A line whose slope is the product of two parameters."""
    x, y = observation
    return 0.5 * (y - theta[0] * theta[1] * x) ** 2


STARTS = {"sum": (total, np.zeros(3)), "product": (product, np.array([1.0, 1.2]))}


@cache
def model(name, **prior):
    loss, init = STARTS[name]
    return eq.Model(loss, init=init, **prior)


def collinear(delta, unit):
    return np.column_stack([np.ones(N), Z[:, 0], unit * (Z[:, 0] + delta * Z[:, 1])])


GENERAL = eq.Model(poisson, init=np.zeros(3))


@pytest.mark.parametrize("unit", [1.0, 1e-6, 1e6])
@pytest.mark.parametrize("digits", range(2, 10))
def test_a_regression_and_a_loss_of_your_own_agree_on_nearly_collinear_columns(digits, unit) -> None:
    """Both keep the direction, with the same standard errors, or neither does; never one of them."""
    data = collinear(10.0**-digits, unit), COUNTS
    scaled = data[0] / np.linalg.norm(data[0], axis=0)
    spectrum = np.linalg.svd(scaled, compute_uv=False) ** 2
    free = eq.fit(GENERAL, data)
    if spectrum[-1] < FLAT * spectrum[0]:
        assert free.flat is not None
        assert len(free.flat) == 1
        with pytest.raises(eq.FitFailed, match="x1, x2 are collinear"):
            eq.fit(eq.glm("poisson"), data)
        return
    assert free.flat is None
    glm = eq.fit(eq.glm("poisson"), data)
    # rounding of the Hessian, as its condition number magnifies it
    rounding = 1e-14 * spectrum[0] / spectrum[-1]
    np.testing.assert_allclose(free.params, glm.params, rtol=1e-6)
    for target in (eq.sandwich, eq.posterior):
        errors = [np.sqrt(np.diag(target(eq.moments(m, data, glm.params)))) for m in (eq.glm("poisson"), GENERAL)]
        np.testing.assert_allclose(errors[0], errors[1], rtol=max(1e-8, rounding))


def test_steps_and_plans_do_not_depend_on_units() -> None:
    plans = [eq.plan(eq.glm("poisson"), (collinear(1e-4, unit), COUNTS)) for unit in (1.0, 1e-6)]
    errors = [np.sqrt(np.diag(p.tuning.predicted.cov)) for p in plans]
    np.testing.assert_allclose(errors[0][:2], errors[1][:2], rtol=1e-5)
    np.testing.assert_allclose(errors[0][2], 1e-6 * errors[1][2], rtol=1e-5)


@pytest.mark.parametrize("name", ["sum", "product"])
def test_with_a_prior_the_posterior_is_sampled_along_all_directions(name) -> None:
    """By control variates with completed noise, which need no noise of the scores."""
    # of a product the posterior is close to normal only where the prior keeps it near one of its values
    held = model(name, prior_precision=1.0 if name == "sum" else 100.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cal = eq.calibrate(held, LINE, target="posterior", ess=1000, seed=1, progress=False)
    assert cal.plan.sampler == "control-variate"
    assert cal.draws.shape[2] == len(STARTS[name][1])
    if name == "sum":  # squared loss: the Laplace approximation is the posterior
        check = cal.diagnosis.check("covariance")
        assert check.ok, str(cal.diagnosis)
        x = np.column_stack([LINE[0], LINE[0], np.ones(N)])
        exact = np.linalg.inv(x.T @ x + np.eye(3))
        np.testing.assert_allclose(cal.tuning.target, exact, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "sampler", "target"),
    [("sum", "auto", "sandwich"), ("product", "sgmcmc", "HC1"), ("sum", "gaussian", "HC3")],
)
def test_a_robust_target_runs_where_it_has_variance_and_is_exact_there(name, sampler, target) -> None:
    held = model(name, prior_precision=2.0)
    with pytest.warns(eq.EquipoiseWarning, match="the scores do not vary along 1 of"):
        plan = eq.plan(held, LINE, target=target, sampler=sampler)
    m = eq.moments(held, LINE, plan.fit.params)
    H_inverse = np.linalg.inv(m.hessian)
    basis = plan.model.subspace[1]
    expected = H_inverse @ m.score_cov @ H_inverse / N
    found = basis.T @ plan.tuning.target @ basis
    assert np.linalg.matrix_rank(found, tol=1e-12) == m.dim - 1
    if target == "HC3":  # rows by what they weigh: a little wider
        assert 1.0 < np.trace(found) / np.trace(expected) < 1.1
        return
    factor = N / (N - m.dim + 1) if target == "HC1" else 1.0
    np.testing.assert_allclose(found, factor * expected, rtol=1e-6, atol=1e-14)


def test_the_draws_of_a_restricted_run_have_the_singular_sandwich() -> None:
    held = model("sum", prior_precision=2.0)
    with pytest.warns(eq.EquipoiseWarning, match="do not vary"):
        cal = eq.calibrate(held, LINE, ess=1000, seed=2, progress=False)
    draws = np.asarray(cal.chains.tree()).reshape(-1, 3)
    m = eq.moments(held, LINE, cal.fit.params)
    expected = np.linalg.solve(m.hessian, np.linalg.solve(m.hessian, m.score_cov).T) / N
    np.testing.assert_allclose(np.cov(draws, rowvar=False), expected, atol=0.15 * np.abs(expected).max())
    np.testing.assert_allclose(draws[:, 0] - draws[:, 1], draws[0, 0] - draws[0, 1], atol=1e-10)


def test_plain_gradients_are_refused_and_each_advice_works() -> None:
    """Taken literally: the inverse temperature that is named, completed noise, the sampler that is named."""
    held = model("sum", prior_precision=1.0)
    with pytest.raises(eq.InfeasibleTarget, match=r"no noise along 1 of 3 .*theta\[0\], theta\[1\]") as told:
        eq.plan(held, LINE, target="posterior", sampler="sgmcmc")
    problem = eq.bind(held, LINE)
    m = eq.moments(problem, eq.fit(problem))
    with pytest.raises(eq.InfeasibleTarget, match="no noise along 1 of 3"):
        eq.tune(m, "posterior", eq.Dynamics(batch_size=20))
    beta = float(re.search(r"inverse_temperature=([\d.e+]+\d)", str(told.value)).group(1))
    for tuning in (
        eq.tune(m, "posterior", eq.Dynamics(batch_size=20, inverse_temperature=beta)),
        eq.tune(m, "posterior", eq.Dynamics(batch_size=100, gradient="control-variate"), noise="completed"),
    ):
        assert tuning.predicted.is_stable
        law = eq.stationary(
            m, tuning.step, tuning.dynamics, noise=tuning.noise if tuning.dynamics.beta == np.inf else None
        )
        np.testing.assert_allclose(law.cov, eq.posterior(m), rtol=1e-6, atol=1e-12)
    assert eq.plan(held, LINE, target="posterior", sampler="auto").sampler == "control-variate"
    assert eq.plan(held, LINE, target="posterior", sampler="gaussian").sampler == "gaussian"


def test_a_regression_refuses_a_singular_sandwich_and_its_advice_works() -> None:
    data = np.column_stack([collinear(0.1, 1.0), Z[:, 0]]), COUNTS
    with pytest.raises(eq.FitFailed, match=r"prior_precision=\.\.\.\) and use target='posterior'"):
        eq.fit(eq.glm("poisson"), data)
    held = eq.glm("poisson", prior_precision=1.0)
    for target in ("sandwich", "HC3"):
        with pytest.raises(
            eq.InfeasibleTarget, match=f"the {target} covariance is singular.*x1, x3.*use target='posterior'"
        ):
            eq.plan(held, data, target=target)
    assert eq.plan(held, data, target="posterior").sampler == "control-variate"
    assert eq.plan(eq.glm("poisson"), (data[0][:, :3], COUNTS)).moments.dim == 3


def test_more_columns_than_rows_have_a_posterior() -> None:
    x, y = Z[:20] @ RNG.normal(size=(3, 30)), COUNTS[:20]
    with pytest.raises(eq.FitFailed, match="use target='posterior'"):
        eq.fit(eq.glm("poisson"), (x, y))
    assert eq.plan(eq.glm("poisson", prior_precision=1.0), (x, y), target="posterior").moments.dim == 30


def test_a_step_without_noise_somewhere_is_completed_as_its_message_says() -> None:
    held = model("sum", prior_precision=1.0)
    problem = eq.bind(held, LINE)
    m, dynamics = eq.moments(problem, eq.fit(problem)), eq.Dynamics(batch_size=20)
    with pytest.raises(eq.InfeasibleTarget, match=r"noise='completed', step=\.\.\.") as told:
        eq.Tuning.at(m, 0.05, dynamics)
    assert told.value.directions is not None
    assert eq.Tuning.at(m, 0.05, eq.Dynamics(batch_size=20, inverse_temperature=float(N))).residual == 0.0
    completed = eq.tune(m, "posterior", dynamics, noise="completed", step=0.01)
    np.testing.assert_allclose(eq.stationary(m, 0.01, dynamics, noise=completed.noise).cov, eq.posterior(m), rtol=1e-6)
