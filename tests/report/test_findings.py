"""What a report tells, as numbers: against their definitions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import equipoise as eq
from equipoise.calibration import curves, findings


@pytest.fixture(scope="module")
def run() -> eq.Calibration:
    rng = np.random.default_rng(3)
    x = np.column_stack([np.ones(200), rng.normal(size=(200, 3))])
    y = rng.poisson(np.exp(0.4 + 0.3 * x[:, 1]) * rng.gamma(1.0, 1.0, 200))
    return eq.calibrate(eq.glm("poisson"), (x, y), ess=500, chains=3, progress=False)


def test_coefficients_are_those_of_the_run(run: eq.Calibration) -> None:
    found = findings.coefficients(run, 0.8, "draws")
    np.testing.assert_array_equal(found.estimate, run.fit.params)
    np.testing.assert_allclose(found.se, np.sqrt(np.diag(eq.sandwich(run.plan.moments))), rtol=1e-12)
    np.testing.assert_allclose(found.interval.lower, np.quantile(run.chains.flat(), 0.1, axis=0))
    np.testing.assert_allclose(found.interval.upper, np.quantile(run.chains.flat(), 0.9, axis=0))
    assert found.flags is run.diagnosis.flags
    assert found.robust
    assert found.tail == pytest.approx(0.1)


def test_recentred_intervals_are_shifted_by_the_predicted_bias(run: eq.Calibration) -> None:
    plain, moved = run.intervals(0.9), run.intervals(0.9, recentred=True)
    bias = run.tuning.predicted.mean_bias
    assert np.abs(bias).max() > 0.0
    for end in ("lower", "upper"):
        np.testing.assert_allclose(plain[end] - moved[end], bias)
    np.testing.assert_array_equal(moved["estimate"], run.fit.params)
    assert list(moved.index) == list(run.names)
    blind = replace(run.tuning, predicted=replace(run.tuning.predicted, bias=np.full(4, np.nan)))
    with pytest.raises(eq.InvalidInput, match="third derivatives"):
        replace(run, plan=replace(run.plan, tuning=blind)).intervals(recentred=True)
    with pytest.raises(eq.InvalidInput, match="level"):
        run.intervals(95)


def test_independent_draws_have_nothing_to_recentre(run: eq.Calibration) -> None:
    model, problem = run.model, run.plan.problem
    assert model is not None
    made = eq.calibrate(problem, sampler="gaussian", ess=500, progress=False)
    assert made.intervals().equals(made.intervals(recentred=True))


def test_standard_errors_are_compared_with_the_other_covariance(run: eq.Calibration) -> None:
    found = findings.compare_errors(run)
    model, robust = (np.sqrt(np.diag(c(run.plan.moments))) for c in (eq.posterior, eq.sandwich))
    np.testing.assert_allclose(found.ratio, model / robust)
    assert found.name == "model-based (posterior)"
    # the counts are overdispersed
    assert "too narrow" in found.meaning
    assert found.largest < 0.9


def test_headline_and_choices_are_the_worst(run: eq.Calibration) -> None:
    d, head = run.diagnosis, findings.headline(run)
    assert (head.ess, head.predicted_ess) == (min(d.ess), min(d.predicted_ess))
    assert (head.shift, head.rhat) == (max(abs(d.shift)), max(d.rhat))
    chosen = findings.choose(run, 2, 1, 3)
    assert set(chosen.spread) == set(np.argsort(-np.abs(d.sd_ratio - 1.0) / d.spread_error)[:2])
    assert len(chosen.drawn) == 1
    assert len(chosen.slowest) == 3
    assert list(chosen.skewness) == sorted(chosen.skewness)


def test_cost_and_step(run: eq.Calibration) -> None:
    assert findings.passes_spent(run) == pytest.approx(run.plan.rows / 200)
    assert run.chains.statistics["steps"] == run.plan.steps
    rates = np.sort(np.linalg.eigvals(run.tuning.step @ run.plan.moments.hessian).real)
    np.testing.assert_allclose(findings.step_found(run)[1], rates, rtol=1e-8)


def test_curves_are_what_they_say(run: eq.Calibration) -> None:
    shape = curves.density(run, 1)
    assert np.sum(shape.heights * np.diff(shape.edges)) == pytest.approx(1.0)
    assert np.trapezoid(shape.normal, shape.grid) == pytest.approx(1.0, abs=0.01)
    memory = curves.autocorrelation(run, 2)
    assert memory.observed[0] == pytest.approx(1.0)
    assert memory.predicted[0] == pytest.approx(1.0)
    # predicted autocorrelations of stored draws, a few lags of them
    law, lag = run.tuning.predicted, memory.lags[3]
    assert memory.predicted[3] == pytest.approx(law.autocovariance(int(lag))[2, 2] / law.cov[2, 2])
    assert np.mean(np.abs(memory.observed - memory.predicted) < 3.0 * memory.error + 1e-12) > 0.8
    pairs = curves.covariance_entries(run)
    assert pairs is not None
    assert len(pairs.observed) == 6
    sd = np.sqrt(np.diag(run.tuning.target))
    assert pairs.observed[0] == pytest.approx(run.diagnosis.cov[1, 0] / sd[1] / sd[0])
