"""Targets against statsmodels' information and against their definitions; test_weights has those of statsmodels itself."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm

import equipoise as eq
from equipoise.theory.targets import target_matrix

N, D = 400, 4


@pytest.fixture(scope="module")
def at_the_minimiser(make_data, make_model):
    def make(family, **options):
        data, model = make_data(family, n=N, dim=D, seed=2), make_model(family, **options)
        return data, eq.moments(model, data, eq.fit(model, data).params)

    return make


@pytest.mark.parametrize("family", ["gamma", "negative-binomial"])
def test_sandwich_uses_observed_information(family, at_the_minimiser) -> None:
    (x, y), m = at_the_minimiser(family)
    link = sm.families.links.Log()
    theirs = sm.families.Gamma(link) if family == "gamma" else sm.families.NegativeBinomial(link, alpha=0.6)
    model = sm.GLM(y, x, theirs)
    # statsmodels at our minimiser; the gamma's shape is a common factor, which the sandwich cancels
    H = -model.hessian(m.params, scale=1.0, observed=True)
    g = model.score_obs(m.params, scale=1.0)
    expected = np.linalg.inv(H) @ (g.T @ g) @ np.linalg.inv(H)
    np.testing.assert_allclose(eq.sandwich(m), expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
    # expected information is measurably different on misspecified data: the test can tell
    E = -model.hessian(m.params, scale=1.0, observed=False)
    other = np.linalg.inv(E) @ (g.T @ g) @ np.linalg.inv(E)
    assert np.linalg.norm(other - expected) > 1e-3 * np.linalg.norm(expected)


def test_posterior_is_the_inverse_of_the_total_hessian(at_the_minimiser) -> None:
    precision = np.diag([1.0, 5.0, 2.0, 9.0]) + 1.0
    (x, _), m = at_the_minimiser("poisson", prior_precision=precision)
    mu = np.exp(x @ m.params)
    np.testing.assert_allclose(eq.posterior(m), np.linalg.inv((x.T * mu) @ x + precision), rtol=1e-9)


def test_sandwich_with_a_prior_centres_the_scores(at_the_minimiser) -> None:
    (x, y), m = at_the_minimiser("poisson", prior_precision=80.0)
    mu = np.exp(x @ m.params)
    g = (mu - y)[:, None] * x
    H = (x.T * mu) @ x + 80.0 * np.eye(D)
    centred = g - g.mean(axis=0)
    assert np.abs(g.mean(axis=0)).max() > 1e-2
    expected = np.linalg.inv(H) @ (centred.T @ centred) @ np.linalg.inv(H)
    np.testing.assert_allclose(eq.sandwich(m), expected, rtol=1e-9, atol=1e-14)


def test_bayesbag_is_posterior_plus_sandwich(at_the_minimiser) -> None:
    _, m = at_the_minimiser("bernoulli")
    np.testing.assert_allclose(eq.bayesbag(m), eq.posterior(m) + eq.sandwich(m), rtol=1e-12)
    # bags of M rows: every term is over M instead of N
    np.testing.assert_allclose(eq.bayesbag(m, bag_size=100), (N / 100) * eq.bayesbag(m), rtol=1e-12)


def test_targets_by_name_and_as_matrices(at_the_minimiser) -> None:
    _, m = at_the_minimiser("poisson")
    for name, function in (("sandwich", eq.sandwich), ("posterior", eq.posterior), ("bayesbag", eq.bayesbag)):
        np.testing.assert_array_equal(target_matrix(name, m), function(m))
    given = np.diag([1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(target_matrix(given, m), given)


def test_targets_at_very_different_scales_are_accepted(at_the_minimiser) -> None:
    _, m = at_the_minimiser("poisson")
    wide = np.diag([1e-12, 1.0, 1e12, 1.0])
    np.testing.assert_array_equal(target_matrix(wide, m), wide)


def test_indefinite_hessian_gives_no_covariance() -> None:
    x = np.random.default_rng(0).normal(size=(20, 2))
    m = eq.Moments.from_arrays(x, -x[:, :, None] * x[:, None, :])
    for target in (eq.sandwich, eq.posterior, eq.bayesbag):
        with pytest.raises(eq.FitFailed, match="not positive definite"):
            target(m)
