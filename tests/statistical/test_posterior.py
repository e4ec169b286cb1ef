"""With the posterior as target and a fidelity the chain samples the posterior itself, shape included (theory §14)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import equipoise as eq
from benchmarks.posteriors import Reference, compare, posteriordb, sampled

REFERENCES = Path(__file__).parents[3] / "shared" / "data" / "posteriordb.npz"


def importance(problem, cal, log_density, count=400_000):
    """Moments and quantiles of a posterior by importance sampling from a wide t law around the estimate."""
    rng = np.random.default_rng(0)
    center, root = cal.tuning.center, np.linalg.cholesky(eq.posterior(cal.plan.moments)) * 1.3
    dim, freedom = center.size, 6.0
    z = rng.normal(size=(count, dim)) / np.sqrt(rng.chisquare(freedom, size=count) / freedom)[:, None]
    theta = center + z @ root.T
    proposal = -0.5 * (freedom + dim) * np.log1p((z**2).sum(axis=1) / freedom)
    log_weight = log_density(theta) - proposal
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    mean = weight @ theta
    sd = np.sqrt(weight @ (theta - mean) ** 2)
    skewness = weight @ ((theta - mean) / sd) ** 3
    quantiles = np.empty((3, dim))
    for j in range(dim):
        order = np.argsort(theta[:, j])
        quantiles[:, j] = np.interp((0.025, 0.5, 0.975), np.cumsum(weight[order]), theta[order, j])
    return Reference(mean, sd, skewness, quantiles, 1.0 / np.sum(weight**2))


@pytest.mark.parametrize("family", ["bernoulli", "poisson"])
def test_small_samples_against_importance_sampling(family):
    n, dim = (150, 3) if family == "bernoulli" else (60, 3)
    rng = np.random.default_rng(2)
    x = np.column_stack([np.ones(n), rng.normal(size=(n, dim - 1))])
    eta = x @ np.array([-1.0, 0.8, -0.5]) if family == "bernoulli" else x @ np.array([0.2, 0.4, -0.3])
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-eta))) if family == "bernoulli" else rng.poisson(np.exp(eta))
    y = y.astype(float)
    cal = eq.calibrate(
        eq.glm(family, prior_precision=0.1), (x, y), target="posterior", fidelity=0.95, ess=20_000, progress=False
    )

    def log_density(theta):
        e = theta @ x.T
        fit = e @ y - (np.logaddexp(0.0, e) if family == "bernoulli" else np.exp(e)).sum(axis=1)
        return fit - 0.05 * (theta**2).sum(axis=1)

    reference = importance(cal.plan.problem, cal, log_density)
    assert reference.draws > 50_000
    found = compare(Reference.of(cal.chains.flat(), float(cal.diagnosis.ess.min())), reference)
    # what a fidelity of 0.95 leaves out of the skewness, and Monte Carlo error
    assert found.mean < 0.04
    assert found.sd < 0.03
    assert found.quantile < 0.08
    assert found.skewness < 0.05 * np.abs(reference.skewness).max() + 4.0 * np.sqrt(6.0 / 20_000) + 0.03
    assert cal.diagnosis.check("half step").ok
    assert cal.diagnosis.status == "ok", str(cal.diagnosis)
    assert "quantiles" in cal.diagnosis.verdict
    # the control: plain SGD tuned to the same covariance has another shape
    plain = eq.calibrate(
        eq.glm(family, prior_precision=0.1), (x, y), target="posterior", sampler="sgmcmc", ess=20_000, progress=False
    )
    assert compare(Reference.of(plain.chains.flat(), 20_000.0), reference).quantile > 2.0 * found.quantile


@pytest.mark.slow
@pytest.mark.skipif(not REFERENCES.exists(), reason="the reference draws are not beside the repository")
@pytest.mark.parametrize("name", ["mesquite-logmesquite_logva", "sblrc-blr"])
def test_against_reference_draws(name):
    (case,) = (case for case in posteriordb(REFERENCES) if case.name == name)
    found, made = sampled(case, 8000.0, fidelity=0.95)
    difference = compare(found, case.reference)
    assert difference.mean < 0.06, difference
    assert difference.sd < 0.05, difference
    assert difference.quantile < 0.12, difference
    assert made.diagnosis.check("half step").status != "look"
