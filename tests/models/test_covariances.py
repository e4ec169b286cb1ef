"""Robust covariances against statsmodels, against refits without a cluster, and against sums written out row by row."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
from statsmodels.stats.sandwich_covariance import cov_cluster, cov_hac

import equipoise as eq
from equipoise.models.robust import KINDS
from tests.known import DIVERGENCES, jax_loss
from tests.models.conftest import CLUSTERS, N, bound, close

every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def weighted_least_squares(panel):
    problem = bound(panel, "gaussian")
    y = panel["gaussian"] - panel["offset"]
    return problem, eq.fit(problem), sm.WLS(y, panel["x"], weights=panel["weights"]).fit()


@pytest.mark.parametrize("correction", [True, False])
def test_clustered_least_squares(correction, panel, weighted_least_squares) -> None:
    problem, fit, theirs = weighted_least_squares
    one = cov_cluster(theirs, panel["firm"], use_correction=correction)
    close(eq.robust(problem, fit, kind="CRV1", clusters="firm", small_sample=correction), one)
    three = cov_cluster(theirs, panel["firm"], use_correction=correction, crv_type="cluster-crv3")
    close(eq.robust(problem, fit, kind="CRV3", clusters="firm", small_sample=correction), three)
    both = np.column_stack([panel["firm"], panel["year"]])
    two = theirs.get_robustcov_results("cluster", groups=both, use_correction=correction).cov_params()
    found = eq.robust(problem, fit, kind="CRV1", clusters=["firm", "year"], small_sample=correction)
    close(found, two)
    assert np.abs(found / one - 1.0).max() > 0.05


def test_the_smallest_number_of_clusters_for_all_ways(weighted_least_squares) -> None:
    problem, fit, _ = weighted_least_squares
    plain, found = (
        eq.robust(problem, fit, kind="CRV1", clusters=["firm", "year"], small_sample=way) for way in (False, "min")
    )
    np.testing.assert_allclose(found, plain * (8 / 7) * (N - 1) / (N - 3), rtol=1e-10)


@pytest.mark.parametrize("lags", [None, 0, 1, 7])
def test_autocorrelated_least_squares(lags, weighted_least_squares) -> None:
    problem, fit, theirs = weighted_least_squares
    close(eq.robust(problem, fit, kind="HAC", lags=lags), cov_hac(theirs, nlags=lags, use_correction=False))


@pytest.mark.parametrize(("family", "theirs"), [("poisson", sm.families.Poisson), ("bernoulli", sm.families.Binomial)])
def test_generalised_linear_models(family, theirs, panel) -> None:
    """With a canonical link the observed information is the expected one, and the definitions coincide."""
    rows = eq.data.rows(panel["x"], panel[family], offset=panel["offset"], clusters={"firm": panel["firm"]})
    problem = eq.bind(eq.glm(family), rows)
    fit = eq.fit(problem)
    other = sm.GLM(panel[family], panel["x"], theirs(), offset=panel["offset"])
    for kind, words, options in [
        ("HC0", "HC0", {}),
        ("CRV1", "cluster", {"groups": panel["firm"]}),
        ("HAC", "HAC", {"maxlags": 3}),
    ]:
        expected = other.fit(tol=1e-13, cov_type=words, cov_kwds=options).cov_params()
        mine = {"CRV1": {"clusters": "firm"}, "HAC": {"lags": 3}}.get(kind, {})
        close(eq.robust(problem, fit, kind=kind, **mine), expected, 1e-7)


# --- Definitions written out ---------------------------------------------------------------------------


def row_by_row(problem, theta):
    """Scores and Hessians of every row, from problems of one row each."""
    found = []
    for k in range(problem.source.height):
        one = problem.source.take(slice(k, k + 1))
        alone = type(problem)(problem.model, one, 1, np.zeros((3, 3)), np.zeros(3))
        made = alone.derivatives(theta, 2)
        found.append((made.gradient, made.hessian))
    return np.array([g for g, _ in found]), np.array([h for _, h in found])


def written_out(kind, scores, hessians, information, prior, firm):
    """The definition of each kind, dense; `information` is what leverages are shares of, one matrix per row."""
    n, dim = scores.shape
    H, g = hessians.sum(axis=0) + prior, scores - scores.mean(axis=0)
    bread = np.linalg.inv(H)
    if kind in ("HC0", "HC1"):
        return bread @ g.T @ g @ bread * (n / (n - dim) if kind == "HC1" else 1.0)
    if kind in ("HC2", "HC3"):
        total = np.linalg.inv(information.sum(axis=0) + prior)
        leverage = np.einsum("nij,ji->n", information, total)
        g = scores / (1.0 - leverage[:, None]) ** (0.5 if kind == "HC2" else 1.0) - scores.mean(axis=0)
        return bread @ g.T @ g @ bread
    if kind == "HAC":
        middle = g.T @ g
        for lag in range(1, 5):
            across = g[lag:].T @ g[:-lag]
            middle += (1.0 - lag / 5.0) * (across + across.T)
        return bread @ middle @ bread
    groups = np.unique(firm)
    G, total = len(groups), np.zeros((dim, dim))
    for name in groups:
        inside = firm == name
        s = g[inside].sum(axis=0)
        left = H - hessians[inside].sum(axis=0) - prior * inside.mean()
        step = bread @ s if kind == "CRV1" else np.linalg.solve(left, s)
        total += np.outer(step, step)
    return total * (G / (G - 1) * (n - 1) / (n - dim) if kind == "CRV1" else (G - 1) / G)


@every_kind
@pytest.mark.parametrize("family", ["gaussian", "gamma", "negative-binomial", "poisson", "bernoulli"])
def test_every_kind_is_its_definition(kind, family, panel, make_model) -> None:
    prior = np.array([[3.0, 0.5, 0.0], [0.5, 2.0, 0.0], [0.0, 0.0, 9.0]])
    problem = bound(panel, family, model=make_model(family, prior_precision=prior, prior_mean=0.3))
    fit = eq.fit(problem)
    scores, hessians = row_by_row(problem, fit.theta)
    assert np.abs(scores.mean(axis=0)).max() > 1e-3  # the prior pulls
    mean = problem.model.family.mean(panel["x"] @ fit.theta + panel["offset"])
    expected = panel["weights"][:, None, None] * panel["x"][:, :, None] * panel["x"][:, None, :]
    constant = problem.constant or 1.0
    working = {
        "gaussian": np.full(N, constant**-2), "gamma": np.full(N, constant), "poisson": mean,
        "bernoulli": mean * (1.0 - mean), "negative-binomial": mean / (1.0 + constant * mean),
    }[family]  # fmt: skip
    dense = written_out(kind, scores, hessians, expected * working[:, None, None], prior, panel["firm"])
    close(eq.robust(problem, fit, kind=kind, **CLUSTERS.get(kind, {})), dense, 1e-9)


@every_kind
@pytest.mark.parametrize("name", ["beta", "huber", "student"])
def test_robust_losses_are_measured_by_their_own_curvature(kind, name, panel) -> None:
    problem = bound(panel, "gaussian", divergence=DIVERGENCES[name], prior_precision=0.4)
    fit = eq.fit(problem)
    here = problem.at_constant(fit.constant)
    scores, hessians = row_by_row(here, fit.theta)
    dense = written_out(kind, scores, hessians, hessians, 0.4 * np.eye(3), panel["firm"])
    close(eq.robust(problem, fit, kind=kind, **CLUSTERS.get(kind, {})), dense, 1e-9)


@every_kind
def test_a_loss_of_ones_own_has_that_of_its_family(kind, panel) -> None:
    glm = bound(panel, "poisson", beside=False, prior_precision=0.8)
    own = eq.Model(jax_loss, {"a": 0.0, "b": np.zeros(2)}, prior_precision=0.8)
    data = {"x": panel["x"][:, 1:], "y": panel["poisson"]}
    marks = {"clusters": {"firm": panel["firm"]}} if kind in ("CRV1", "CRV3") else {}
    options = {"lags": 4} if kind == "HAC" else {}
    expected = eq.robust(glm, eq.fit(glm), kind=kind, **CLUSTERS.get(kind, {}))
    close(eq.robust(own, data, eq.fit(own, data), kind=kind, **marks, **options), expected, 1e-6)


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "HAC"])
def test_a_frequency_is_that_of_the_rows_written_out(kind, panel) -> None:
    times = np.random.default_rng(0).integers(1, 4, N)
    x, y, firm = panel["x"], panel["poisson"], panel["firm"]
    short = eq.data.rows(x, y, weights=panel["weights"], frequency=times, clusters=firm)
    every = np.repeat(np.arange(N), times)
    long = eq.data.rows(x[every], y[every], weights=panel["weights"][every], clusters=firm[every])
    model = eq.glm("poisson", prior_precision=0.5)
    close(*(eq.robust(model, data, eq.fit(model, data), kind=kind) for data in (short, long)), 1e-9)


def test_the_jackknife_of_squared_loss_is_that_of_refits(panel) -> None:
    prior, firm = np.array([5.0, 2.0, 8.0]), panel["firm"]
    problem = bound(panel, "gaussian", scale=1.3, prior_precision=prior)
    fit, groups = eq.fit(problem), np.unique(firm)
    moved = []
    for name in groups:
        kept = np.flatnonzero(firm != name)
        # every observation carries its share of the prior
        model = eq.glm("gaussian", scale=1.3, prior_precision=prior * len(kept) / N)
        moved.append(eq.fit(model, problem.source.take(kept)).theta - fit.theta)
    G = len(groups)
    close(eq.robust(problem, fit, kind="CRV3", clusters="firm"), (G - 1) / G * np.transpose(moved) @ np.array(moved))


# --- Chains ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["HC3", "CRV1", "CRV3", "HAC", "two-way", "function"])
def test_a_chain_has_its_target_as_covariance(kind, panel) -> None:
    options = {**CLUSTERS, "two-way": {"clusters": ["firm", "year"]}}.get(kind, {})
    problem = bound(panel, "gaussian")
    target = {"two-way": "CRV1", "function": lambda p, m: 1.7 * eq.robust(p, m.params, kind="HC2")}.get(kind, kind)
    cal = eq.calibrate(problem, target=target, sampler="sgmcmc", ess=4000, seed=3, progress=False, **options)
    expected = eq.robust(problem, cal.fit, kind={"two-way": "CRV1", "function": "HC2"}.get(kind, kind), **options)
    expected = expected * (1.7 if kind == "function" else 1.0)
    np.testing.assert_allclose(cal.tuning.target, expected, rtol=1e-10)
    np.testing.assert_allclose(cal.tuning.predicted.cov, expected, rtol=1e-10)
    root = np.linalg.inv(np.linalg.cholesky(expected))
    seen = root @ np.cov(cal.chains.flat().T) @ root.T
    # variances of 4000 effective draws have standard errors of √(2/4000) = 2.2 %
    np.testing.assert_allclose(seen, np.eye(3), atol=4 * 0.0224)
    # the sandwich is far away
    assert np.abs(root @ eq.sandwich(cal.plan.moments) @ root.T - np.eye(3)).max() > (0.02 if kind == "HC3" else 0.1)


def test_the_run_says_what_it_aimed_at_and_keeps_it(panel, tmp_path) -> None:
    problem = bound(panel, "poisson")
    cal = eq.calibrate(problem, target="CRV1", clusters=["firm", "year"], sampler="gaussian", ess=200)
    assert (cal.plan.target_name, cal.plan.target.df) == ("CRV1", 7.0)
    assert "CRV1 by firm (21 clusters) and year (8 clusters)" in str(cal.plan)
    assert "CRV1 by firm" in str(cal.summary())
    cal.save(tmp_path / "run.eqz")
    back = eq.load(tmp_path / "run.eqz").plan.target
    assert (back.words, back.df, back.groups) == (cal.plan.target.words, 7.0, (21, 8))
    np.testing.assert_array_equal(back.matrix, cal.plan.target.matrix)
    # tuned on some rows, the target is still that of all
    some = eq.plan(problem, target="CRV3", clusters="firm", sampler="gaussian", tuning_rows=100)
    np.testing.assert_allclose(some.tuning.target, eq.robust(problem, cal.fit, kind="CRV3", clusters="firm"), rtol=1e-6)
