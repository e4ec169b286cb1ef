"""Fit statistics and estimated constants against statsmodels and direct maximisation of the likelihood."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats as st
import statsmodels.api as sm
from scipy.optimize import minimize

import equipoise as eq
from tests.contracts.test_families import minus_log_likelihood

N = 400
THEIRS = {
    "gaussian": sm.families.Gaussian(),
    "bernoulli": sm.families.Binomial(),
    "poisson": sm.families.Poisson(),
    "gamma": sm.families.Gamma(sm.families.links.Log()),
}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(8)
    x = np.column_stack([np.ones(N), rng.normal(size=(N, 2))])
    eta, spread = x @ [0.5, 0.4, -0.3], rng.gamma(2.0, 0.5, N)
    return {
        "x": x, "offset": 0.2 * rng.normal(size=N), "times": rng.integers(1, 4, N), "weights": rng.uniform(0.5, 2.0, N),
        "gaussian": eta + rng.standard_t(5, size=N), "bernoulli": (rng.random(N) < 1 / (1 + np.exp(-eta))).astype(float),
        "poisson": rng.poisson(np.exp(eta) * spread).astype(float), "gamma": np.exp(eta) * rng.gamma(2.5, 0.4, N),
        "tame": rng.poisson(np.exp(eta)).astype(float),
    }  # fmt: skip


def statistics(model, rows, **options):
    return eq.calibrate(model, rows, sampler="gaussian", ess=20, **options).fit_statistics


@pytest.mark.parametrize("family", list(THEIRS))
def test_statistics_of_generalised_linear_models(family, data) -> None:
    model = eq.glm(family, **({"shape": 1.7} if family == "gamma" else {}))
    rows = eq.data.rows(data["x"], data[family], offset=data["offset"], frequency=data["times"])
    found = statistics(model, rows)
    glm = sm.GLM(data[family], data["x"], THEIRS[family], offset=data["offset"], freq_weights=data["times"])
    other = glm.fit(tol=1e-14)
    llf = other.llf if family != "gamma" else glm.loglike(other.params, scale=1 / 1.7)
    assert (found.n, found.df_resid) == (data["times"].sum(), other.df_resid)
    for mine, theirs in (
        (found.log_likelihood, llf), (found.deviance, other.deviance), (found.null_deviance, other.null_deviance),
        (found.pearson, other.pearson_chi2), (found.dispersion, other.pearson_chi2 / other.df_resid),
        (found.aic, -2 * llf + 6), (found.bic, -2 * llf + 3 * np.log(found.n)),
    ):  # fmt: skip
        assert mine == pytest.approx(theirs, rel=1e-9)
    if family in ("bernoulli", "poisson"):
        assert found.r_squared == pytest.approx(other.pseudo_rsquared("mcf"), rel=1e-8)
        assert found.r_squared_kind == "McFadden's R²"


def test_statistics_of_least_squares(data) -> None:
    x, y, w = data["x"], data["gaussian"], data["weights"]
    for columns in (x, x[:, 1:], np.column_stack([x[:, 1] > 0, x[:, 1] <= 0, x[:, 2]]).astype(float)):
        cal = eq.calibrate(eq.glm("gaussian"), eq.data.rows(columns, y, weights=w), sampler="gaussian", ess=20)
        other = sm.WLS(y, columns, weights=w).fit()
        assert cal.llf == pytest.approx(other.llf, rel=1e-10)
        assert cal.aic == pytest.approx(other.aic, rel=1e-10)
        assert cal.bic == pytest.approx(other.bic, rel=1e-10)
        # about the mean where the columns make a constant, also as dummies; else about zero
        assert cal.fit_statistics.r_squared == pytest.approx(other.rsquared, rel=1e-9)
        assert cal.fit_statistics.dispersion == pytest.approx(other.scale, rel=1e-10)
    fixed = statistics(eq.glm("gaussian", scale=1.7), (x, y))
    resid = sm.OLS(y, x).fit().resid
    assert fixed.log_likelihood == pytest.approx(st.norm(0, 1.7).logpdf(resid).sum())


def test_what_a_dispersion_says(data) -> None:
    assert "Overdispersion: the response varies" in statistics(eq.glm("poisson"), (data["x"], data["poisson"])).words
    assert "about as much as" in statistics(eq.glm("poisson"), (data["x"], data["tame"])).words
    under = np.round(np.exp(data["x"] @ [0.5, 0.4, -0.3]))
    assert "Underdispersion" in statistics(eq.glm("poisson"), (data["x"], under)).words
    assert statistics(eq.glm("bernoulli"), (data["x"], data["bernoulli"])).words == ""
    with pytest.raises(eq.InvalidInput, match="one whose loss is a likelihood"):
        statistics(eq.glm("gaussian", divergence=eq.Huber()), (data["x"], data["gaussian"]))


# --- Estimated constants ----------------------------------------------------------------------------------


def test_the_dispersion_of_largest_likelihood(data, tmp_path) -> None:
    rows = eq.data.rows(data["x"], data["poisson"], offset=data["offset"])
    cal = eq.calibrate(eq.glm("negative-binomial"), rows, sampler="gaussian", ess=20)
    other = sm.NegativeBinomial(data["poisson"], data["x"], offset=data["offset"]).fit(
        disp=0, method="newton", tol=1e-13
    )
    np.testing.assert_allclose([*cal.params, cal.fit.constant], other.params, rtol=1e-8)
    assert cal.llf == pytest.approx(other.llf, rel=1e-12)
    assert cal.aic == pytest.approx(other.aic, rel=1e-12)
    assert cal.bic == pytest.approx(other.bic, rel=1e-12)
    assert cal.fit_statistics.r_squared == pytest.approx(other.prsquared, rel=1e-6)
    cal.save(tmp_path / "run.eqz")
    back = eq.load(tmp_path / "run.eqz")
    assert back.model.estimated
    assert back.model.constant == cal.fit.constant
    assert back.attach(eq.glm("negative-binomial"), rows).aic == cal.aic


@pytest.mark.parametrize("family", ["gamma", "negative-binomial"])
def test_estimated_constants_with_weights_frequency_and_prior(family, data) -> None:
    """Joint maximum of the weighted log-likelihood and the prior, found by another method in other coordinates."""
    x, y, w, times = data["x"], data["gamma" if family == "gamma" else "poisson"], data["weights"], data["times"]
    model = eq.glm(family, prior_precision=20.0, prior_mean=0.3)
    found = eq.fit(model, eq.data.rows(x, y, weights=w, frequency=times, offset=data["offset"]))

    def cost(p):
        losses = minus_log_likelihood(family, x @ p[:3] + data["offset"], y, np.exp(p[3]))
        return (w * times * losses).sum() + 10.0 * np.sum((p[:3] - 0.3) ** 2)

    best = minimize(cost, np.zeros(4), method="BFGS", options={"gtol": 1e-7})
    np.testing.assert_allclose([*found.theta, np.log(found.constant)], best.x, atol=2e-6)
    assert cost(np.array([*found.theta, np.log(found.constant)])) <= best.fun + 1e-9


@pytest.mark.parametrize(
    ("family", "c"), [("gamma", 0.02), ("gamma", 300.0), ("negative-binomial", 0.02), ("negative-binomial", 8.0)]
)
def test_constants_far_from_one(family, c) -> None:
    rng = np.random.default_rng(3)
    x = np.column_stack([np.ones(3000), rng.normal(size=3000)])
    mu = np.exp(x @ [2.0, 0.3])
    y = (
        mu * rng.gamma(c, 1 / c, 3000)
        if family == "gamma"
        else rng.poisson(mu * rng.gamma(1 / c, c, 3000)).astype(float)
    )
    y = np.maximum(y, 1e-300) if family == "gamma" else y
    fit = eq.fit(eq.glm(family), (x, y))

    def cost(log_c):
        # at the fitted means: the constant is stationary given them
        return minus_log_likelihood(family, x @ fit.theta, y, np.exp(log_c)).sum()

    at, h = np.log(fit.constant), 1e-3
    slope, bend = (cost(at + h) - cost(at - h)) / (2 * h), (cost(at + h) - 2 * cost(at) + cost(at - h)) / h**2
    assert abs(slope / bend) < 1e-5
    # and near the truth: a few standard errors of log c
    assert abs(at - np.log(c)) < 5 / np.sqrt(bend)


def test_counts_without_dispersion_say_so(data) -> None:
    even = np.round(np.exp(data["x"] @ [0.5, 0.4, -0.3]))
    with pytest.warns(eq.EquipoiseWarning, match=r"no more than Poisson's .* eq\.glm\('poisson'\)"):
        found = eq.fit(eq.glm("negative-binomial"), (data["x"], even))
    np.testing.assert_allclose(found.theta, eq.fit(eq.glm("poisson"), (data["x"], even)).theta, atol=1e-6)
    with pytest.raises(eq.FitFailed, match=r"no shape can be estimated|exactly"):
        eq.fit(eq.glm("gamma"), (data["x"], np.exp(data["x"] @ [0.5, 0.4, -0.3])))
    assert eq.fit(eq.glm("gamma", shape=2.0), (data["x"], np.exp(data["x"] @ [0.5, 0.4, -0.3]))).converged


def test_many_rows_start_from_a_part_of_them() -> None:
    rng = np.random.default_rng(1)
    x = np.column_stack([np.ones(50_000), rng.normal(size=50_000)])
    y = rng.poisson(np.exp(x @ [0.5, 0.3]) * rng.gamma(2.0, 0.5, 50_000)).astype(float)
    found = eq.fit(eq.glm("negative-binomial"), (x, y))
    assert found.constant == pytest.approx(0.5, rel=0.05)
    here = eq.bind(eq.glm("negative-binomial"), (x, y))
    assert here.settled(found.theta).constant == pytest.approx(found.constant, rel=1e-9)


# --- What an estimated constant adds to the target -------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sandwich", "HC0", "posterior", "CRV1", "HAC"])
def test_an_estimated_dispersion_enters_through_stacked_scores(kind, data) -> None:
    """The block of θ in the covariance of θ and the dispersion together, as statsmodels has it."""
    rng = np.random.default_rng(5)
    firm = rng.integers(0, 30, N)
    # means that are wrong: the dispersion and θ then depend on each other
    y = rng.poisson(np.exp(0.3 + 0.8 * np.abs(data["x"][:, 1])) * rng.gamma(2.0, 0.5, N)).astype(float)
    words, theirs, options = {
        "CRV1": ("cluster", {"groups": firm, "use_correction": False}, {"clusters": firm, "small_sample": False}),
        "HAC": ("HAC", {"maxlags": 3}, {"lags": 3}),
        "posterior": ("nonrobust", {}, {}),
    }.get(kind, ("HC0", {}, {}))
    other = sm.NegativeBinomial(y, data["x"]).fit(
        disp=0, method="newton", tol=1e-13, maxiter=100, cov_type=words, cov_kwds=theirs or None
    )
    model = eq.glm("negative-binomial")
    fit = eq.fit(model, (data["x"], y))
    expected = np.asarray(other.cov_params())[:3, :3]
    problem = eq.bind(model, (data["x"], y))
    found = eq.robust(problem, fit, kind=kind, **options)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-7)
    fixed = eq.robust(eq.glm("negative-binomial", dispersion=fit.constant), (data["x"], y), fit, kind=kind, **options)
    assert np.abs(fixed / expected - 1.0).max() > 1e-3
    plan = eq.plan(problem, target=kind, sampler="gaussian", **options)
    np.testing.assert_allclose(plan.tuning.target, found, rtol=1e-10)


def test_with_the_right_mean_it_adds_nothing(data) -> None:
    rng = np.random.default_rng(6)
    x = np.column_stack([np.ones(40_000), rng.normal(size=40_000)])
    mu = np.exp(x @ [0.5, 0.4])
    y = rng.poisson(mu * rng.gamma(2.0, 0.5, 40_000)).astype(float)
    model = eq.glm("negative-binomial")
    fit = eq.fit(model, (x, y))
    free, fixed = eq.robust(model, (x, y), fit), eq.sandwich(eq.moments(model, (x, y), fit))
    np.testing.assert_allclose(free, fixed, rtol=2e-3)
    # the gamma's shape multiplies the loss: nothing at all without a prior
    model, y = eq.glm("gamma"), mu * rng.gamma(2.0, 0.5, 40_000)
    fit = eq.fit(model, (x, y))
    free, fixed = eq.robust(model, (x, y), fit), eq.sandwich(eq.moments(model, (x, y), fit))
    np.testing.assert_allclose(free, fixed, rtol=1e-9)


@pytest.mark.parametrize("family", ["gamma", "negative-binomial"])
def test_stacked_scores_with_weights_and_prior(family, data) -> None:
    """Written out: derivatives of every row's −log f by θ and the logarithm of the constant, by differences."""
    x, y, w = data["x"], data["gamma" if family == "gamma" else "poisson"], data["weights"]
    model = eq.glm(family, prior_precision=30.0, prior_mean=0.5)
    rows = eq.data.rows(x, y, weights=w, frequency=data["times"])
    fit = eq.fit(model, rows)

    def losses(p):
        return w * minus_log_likelihood(family, x @ p[:3], y, np.exp(p[3]))

    at, eye = np.array([*fit.theta, np.log(fit.constant)]), np.eye(4)
    h = 1e-3
    g = np.array([(losses(at + h * e) - losses(at - h * e)) / (2 * h) for e in eye]).T

    def bend(a, b):
        ends = losses(at + h * (a + b)) - losses(at + h * (a - b)) - losses(at + h * (b - a)) + losses(at - h * (a + b))
        return data["times"] @ ends / (4 * h * h)

    H = np.array([[bend(a, b) for a in eye] for b in eye])
    H[:3, :3] += 30.0 * np.eye(3)
    every = np.repeat(np.arange(N), data["times"])
    centred = g[every] - g[every].mean(axis=0)
    expected = (np.linalg.inv(H) @ centred.T @ centred @ np.linalg.inv(H))[:3, :3]
    np.testing.assert_allclose(eq.robust(model, rows, fit), expected, rtol=1e-4, atol=1e-9)
