"""Draws in ArviZ: groups named for what they are, statistics, and log-likelihoods that its criteria take."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import stats

import equipoise as eq
from equipoise.interop.likelihood import log_likelihood

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    arviz = pytest.importorskip("arviz", exc_type=ImportError)


def data(n=150, seed=0):
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(n), rng.normal(size=n)])
    return x, rng.poisson(np.exp(x @ [0.5, 0.4])).astype(float)


def test_only_a_posterior_is_called_one() -> None:
    x, y = data()
    for target, group in (("posterior", "posterior"), ("sandwich", "draws")):
        cal = eq.calibrate(eq.glm("poisson"), (x, y), target=target, ess=50, chains=2, fidelity=0.0, progress=False)
        for found in (cal.to_arviz(), cal.chains.to_arviz(), eq.Chains.from_draws(cal.draws, cal.tuning).to_arviz()):
            assert group in found
            np.testing.assert_array_equal(found[group]["x1"].to_numpy(), cal.draws[:, :, 1])
        whole = cal.to_arviz()
        steps = whole["sample_stats"]["step"].to_numpy()
        assert steps[0, 0] == cal.chains.burn_in + cal.chains.thin
        assert steps[1, -1] == cal.chains.statistics["steps"]
        assert not whole["sample_stats"]["diverging"].to_numpy().any()
        assert whole[group].attrs["target"] == target
        assert whole[group].attrs["sampler"] == cal.plan.sampler


@pytest.mark.slow
def test_leave_one_out() -> None:
    x, y = data()
    kept = {"target": "posterior", "ess": 400, "fidelity": 0.0, "progress": False}
    models = {"slope": x, "none": x[:, :1]}
    found = {
        name: arviz.loo(eq.calibrate(eq.glm("poisson"), (part, y), **kept).to_arviz(log_likelihood=True))
        for name, part in models.items()
    }
    # by hand: leaving a row out of a Poisson regression
    exact = 0.0
    for n in range(len(y)):
        rest = np.arange(len(y)) != n
        theta = eq.fit(eq.glm("poisson"), (x[rest], y[rest])).theta
        exact += stats.poisson.logpmf(y[n], np.exp(x[n] @ theta))
    assert found["slope"].elpd_loo > found["none"].elpd_loo + 3.0
    assert found["slope"].elpd_loo == pytest.approx(
        exact, abs=1.5
    )  # averaging over draws costs about half a unit per parameter
    assert found["slope"].p_loo == pytest.approx(2.0, abs=1.0)


@pytest.mark.parametrize(
    ("model", "law"),
    [
        (eq.glm("gaussian", scale=1.7), lambda eta, y, w: stats.norm.logpdf(y, eta, 1.7 / np.sqrt(w))),
        (eq.glm("gamma", shape=2.5), lambda eta, y, w: w * stats.gamma.logpdf(y, 2.5, scale=np.exp(eta) / 2.5)),
        (
            eq.glm("negative-binomial", dispersion=0.7),
            lambda eta, y, w: w * stats.nbinom.logpmf(np.ceil(y), 1 / 0.7, 1 / (1 + 0.7 * np.exp(eta))),
        ),
        (eq.glm("bernoulli", "probit"), lambda eta, y, w: w * stats.bernoulli.logpmf(y > 0.5, stats.norm.cdf(eta))),
    ],
)
def test_log_likelihoods_are_whole(model, law) -> None:
    """With weights, frequencies and an offset, against SciPy's densities."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(30, 2)), rng.gamma(2.0, size=30)
    if model.family.law == "negative-binomial":
        y = np.ceil(y)
    if model.family.law == "bernoulli":
        y = (y > 0.5).astype(float)
    weights, frequency, offset = rng.gamma(2.0, size=30), rng.integers(1, 4, size=30), rng.normal(size=30)
    draws = rng.normal(size=(2, 5, 2))
    rows = eq.data.rows(x, y, weights=weights, frequency=frequency, offset=offset)
    found = log_likelihood(eq.bind(model, rows), draws)
    exact = law(draws @ x.T + offset, y, weights)
    np.testing.assert_allclose(found, np.repeat(exact, frequency, axis=2), rtol=1e-9)


def test_counts_of_successes_are_binomial() -> None:
    rng = np.random.default_rng(1)
    x, trials = rng.normal(size=(20, 2)), rng.integers(1, 9, size=20)
    y, draws = rng.binomial(trials, 0.4), rng.normal(size=(1, 3, 2))
    found = log_likelihood(eq.bind(eq.glm("bernoulli"), eq.data.rows(x, y, trials=trials)), draws)
    np.testing.assert_allclose(found, stats.binom.logpmf(y, trials, 1 / (1 + np.exp(-draws @ x.T))), rtol=1e-9)


def test_a_loss_of_ones_own_is_minus_its_likelihood() -> None:
    x, y = data()
    model = eq.Model(lambda t, o: 0.5 * (o["y"] - t @ o["x"]) ** 2, init=np.zeros(2))
    draws = np.random.default_rng(0).normal(size=(2, 3, 2))
    found = log_likelihood(eq.bind(model, {"x": x, "y": y}), draws)
    np.testing.assert_allclose(found, -0.5 * (y - draws @ x.T) ** 2, rtol=1e-12)


def test_what_has_no_likelihood_says_so() -> None:
    x, y = data()
    robust = eq.bind(eq.glm("gaussian", scale=1.0, divergence=eq.Huber()), (x, y))
    with pytest.raises(eq.InvalidInput, match="no likelihood"):
        log_likelihood(robust, np.zeros((1, 2, 2)))
    with pytest.raises(eq.InvalidInput, match="at most"):
        log_likelihood(eq.bind(eq.glm("poisson"), (x, y)), np.zeros((10, 1_000_000, 2)))
