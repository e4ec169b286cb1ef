"""Which intervals tables print: closed forms against statsmodels, quantiles of draws, and their Monte Carlo error."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.stats as st
import statsmodels.api as sm

import equipoise as eq
from equipoise.calibration.ends import quantile_error


def logistic(n: int, target: str = "posterior", **options: object) -> eq.Calibration:
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(n), rng.normal(size=n)])
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-x @ [-1.0, 1.0]))).astype(float)
    return eq.calibrate(eq.glm("bernoulli"), (x, y), target=target, ess=800, progress=False, **options)


@pytest.fixture(scope="module")
def skewed() -> eq.Calibration:
    return logistic(60)


def test_draws_that_carry_a_shape_lend_their_quantiles(skewed) -> None:
    assert skewed.diagnosis.carries_shape
    assert "read their quantiles" in skewed.diagnosis.verdict
    drawn = np.quantile(skewed.chains.flat(), [0.05, 0.95], axis=0).T
    for table in (
        skewed.tidy(0.9)[["conf_low", "conf_high"]],
        skewed.confint(0.9),
        skewed.intervals(0.9)[["lower", "upper"]],
    ):
        np.testing.assert_allclose(table, drawn, rtol=1e-12)
        assert "5% and 95% quantiles of the draws" in table.attrs["intervals"]
    assert "quantiles of the draws" in str(skewed.summary())
    # the closed form for those who ask for it, and for a covariance that is not the draws'
    se, theta = np.sqrt(np.diag(skewed.tuning.target)), skewed.fit.params
    np.testing.assert_allclose(
        skewed.confint(0.9, method="closed")["lower"], theta - st.norm.ppf(0.95) * se, rtol=1e-10
    )
    robust = skewed.tidy(0.9, "HC0")
    np.testing.assert_allclose(robust["conf_low"], theta - st.norm.ppf(0.95) * robust["std_error"], rtol=1e-10)
    closed = skewed.combine("x0 + 2*x1", method="closed")
    np.testing.assert_allclose(closed["conf_low"] + closed["conf_high"], 2.0 * closed["estimate"], rtol=1e-10)
    both = skewed.combine("x0 + 2*x1")
    np.testing.assert_allclose(
        both[["conf_low", "conf_high"]].iloc[0],
        np.quantile(skewed.chains.flat() @ [1.0, 2.0], [0.025, 0.975]),
        rtol=1e-12,
    )
    new = np.array([[1.0, 0.4], [1.0, -2.0]])
    pd.testing.assert_frame_equal(skewed.predict(new), skewed.predict(new, method="draws"))


def test_the_closed_form_where_it_is_enough() -> None:
    for cal in (logistic(6000), logistic(60, "sandwich"), logistic(60, sampler="gaussian")):
        assert not cal.diagnosis.carries_shape
        table = cal.tidy(0.8)
        reach = st.norm.ppf(0.9) * np.sqrt(np.diag(cal.tuning.target))
        np.testing.assert_allclose(table["conf_high"], cal.fit.params + reach, rtol=1e-10)
        assert "estimate ± 1.282 standard errors (the normal law)" in table.attrs["intervals"]
        assert table.attrs["intervals"] in str(cal.summary(0.8))


def test_an_unsettled_shape_is_not_read_off(skewed) -> None:
    from dataclasses import replace

    half = skewed.half_step
    moved = replace(half, skewness=half.skewness + 3.0)
    assert not replace(skewed, half_step=moved).diagnosis.carries_shape
    assert "no Monte Carlo error" in replace(skewed, half_step=moved).tidy().attrs["intervals"]


@pytest.mark.parametrize("probability", [0.025, 0.5, 0.9])
def test_the_error_of_a_quantile_is_its_spread_over_runs(probability) -> None:
    rng, runs, length, phi = np.random.default_rng(1), 400, 1500, 0.6
    noise = rng.normal(size=(length + 50, runs, 2)) * np.sqrt(1.0 - phi**2)
    path = np.zeros_like(noise)
    for t in range(1, len(path)):
        path[t] = phi * path[t - 1] + noise[t]
    draws = np.exp(0.5 * path[50:].transpose(1, 2, 0))
    found = [np.quantile(run, probability) for run in draws]
    told = [quantile_error(run, probability) for run in draws]
    # the spread of 400 runs is known to 3.5 %, and the estimate's own bias is a few per cent
    assert abs(np.mean(told) / np.std(found) - 1.0) < 0.15


def test_errors_come_with_the_intervals(skewed) -> None:
    table = skewed.intervals(0.5)
    expected = [quantile_error(skewed.draws[:, :, j], 0.25) for j in range(2)]
    np.testing.assert_array_equal(table["lower_error"], expected)
    assert (table["upper_error"] > 0.0).all()


def test_ratios_and_their_intervals(skewed) -> None:
    plain, ratios = skewed.tidy(0.9), skewed.tidy(0.9, exponentiate=True)
    for column in ("estimate", "conf_low", "conf_high"):
        np.testing.assert_allclose(ratios[column], np.exp(plain[column]), rtol=1e-12)
    np.testing.assert_allclose(ratios["std_error"], np.exp(plain["estimate"]) * plain["std_error"], rtol=1e-12)
    np.testing.assert_array_equal(ratios["p_value"], plain["p_value"])
    assert ratios.attrs == plain.attrs
    assert "odds ratio" in str(skewed.summary(exponentiate=True))
    np.testing.assert_allclose(skewed.confint(exponentiate=True), np.exp(skewed.confint()), rtol=1e-12)
    combined = skewed.combine("x1 - x0", exponentiate=True)["estimate"]
    np.testing.assert_allclose(combined, np.exp(skewed.fit.params @ [-1.0, 1.0]), rtol=1e-10)


def test_stars_are_for_those_who_ask(skewed) -> None:
    assert "***" not in str(skewed.summary())
    assert "***" in str(skewed.summary(stars=True))
    assert list(skewed.summary(stars=True).frame[""]) == [
        "*" * int((p < 0.05) + (p < 0.01) + (p < 0.001)) for p in skewed.pvalues
    ]


@pytest.mark.parametrize("target", ["posterior", "HC0"])
def test_closed_predictions_are_those_of_statsmodels(target) -> None:
    rng = np.random.default_rng(2)
    x, offset = np.column_stack([np.ones(250), rng.normal(size=(250, 2))]), 0.3 * rng.normal(size=250)
    y = rng.poisson(np.exp(x @ [0.2, 0.3, -0.4] + offset))
    rows = eq.data.rows(x, y, offset=offset)
    cal = eq.calibrate(eq.glm("poisson"), rows, target, sampler="gaussian", ess=50)
    covariance = {"cov_type": "nonrobust"} if target == "posterior" else {"cov_type": "HC0"}
    theirs = sm.GLM(y, x, family=sm.families.Poisson(), offset=offset).fit(tol=1e-12, **covariance)
    found = cal.predict(x[:9], 0.9, offset=offset[:9])
    other = theirs.get_prediction(x[:9], offset=offset[:9]).summary_frame(alpha=0.1)
    np.testing.assert_allclose(found, other[["mean", "mean_ci_lower", "mean_ci_upper"]], rtol=1e-7)
    assert "± 1.645" in found.attrs["intervals"]


def test_closed_predictions_of_new_observations_are_those_of_least_squares() -> None:
    rng = np.random.default_rng(3)
    x = np.column_stack([np.ones(40), rng.normal(size=(40, 2))])
    y = x @ [0.2, 0.3, -0.4] + rng.normal(size=40)
    cal = eq.calibrate(eq.glm("gaussian"), (x, y), "posterior", sampler="gaussian", ess=50)
    other = sm.OLS(y, x).fit().get_prediction(x[:5]).summary_frame(alpha=0.2)
    for kind, name in (("mean", "mean_ci"), ("observation", "obs_ci")):
        found = cal.predict(x[:5], 0.8, kind=kind)
        np.testing.assert_allclose(found.iloc[:, 1:], other[[f"{name}_lower", f"{name}_upper"]], rtol=1e-8)
    assert "37 degrees" in found.attrs["intervals"]
    counts = eq.calibrate(eq.glm("poisson"), (x, np.round(np.abs(y))), sampler="gaussian", ess=50)
    assert "quantiles of the draws" in counts.predict(x[:2], kind="observation").attrs["intervals"]
    with pytest.raises(eq.InvalidInput, match="method: must be one of auto, draws"):
        counts.predict(x[:2], kind="observation", method="closed")
    with pytest.raises(eq.InvalidInput, match="method: must be one of auto, closed, draws"):
        cal.tidy(method="bootstrap")


def test_the_shift_is_where_it_was_predicted() -> None:
    rng = np.random.default_rng(2)
    x = np.column_stack([np.ones(60), rng.normal(size=(60, 2))])
    y = (rng.random(60) < 1.0 / (1.0 + np.exp(-x @ [0.5, 1.0, -1.0]))).astype(float)
    cal = eq.calibrate(eq.glm("bernoulli"), (x, y), ess=20_000, progress=False)
    sd = np.sqrt(np.diag(cal.tuning.target))
    assert np.abs(cal.diagnosis.predicted_shift).max() > 0.15
    before, after = (
        np.abs((0.5 * (found["lower"] + found["upper"]) - found["estimate"]) / sd).max()
        for found in (cal.intervals(0.5), cal.intervals(0.5, recentred=True))
    )
    # the median of a skewed law is not its mean: what remains is a third of the shift at most
    assert after < 0.34 * before
