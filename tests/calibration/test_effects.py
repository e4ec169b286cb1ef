"""Predictions, contrasts and effects of a run against statsmodels, numeric derivatives and simulation."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm

import equipoise as eq
from tests.calibration.test_answers import FORMULA, N, run, table
from tests.calibration.test_fitstats import THEIRS
from tests.contracts.test_families import minus_log_likelihood, response_law

FAMILIES = ["gaussian", "bernoulli", "poisson", "gamma", "negative-binomial"]


@pytest.mark.parametrize("family", FAMILIES)
def test_contrasts_from_draws_and_by_the_delta_method(family) -> None:
    data = table(family)
    cal = run(data, family, ess=4000)
    high, low = data.head(40).assign(a=1.0), data.head(40).assign(a=-0.5)

    x_high, x_low = (cal.design.encode(part)[0].to_numpy() for part in (high, low))

    def mean(theta, x):
        return cal.model.family.mean(x @ theta)

    theta, every = cal.fit.theta, cal.chains.flat().T
    for function, contrast in (("difference", np.subtract), ("ratio", np.divide)):

        def value(t, contrast=contrast):
            return contrast(mean(t, x_high), mean(t, x_low))

        found = cal.compare(high, low, function, level=0.9)
        np.testing.assert_allclose(found.estimate, value(theta))
        gradient = np.array([(value(theta + h) - value(theta - h)) / 2e-6 for h in 1e-6 * np.eye(5)])
        error = np.sqrt(np.einsum("di,de,ei->i", gradient, cal.vcov(), gradient))
        np.testing.assert_allclose(found.std_error, error, rtol=1e-6)
        np.testing.assert_allclose(found.lower, np.quantile(value(every), 0.05, axis=1), rtol=1e-9)
        np.testing.assert_allclose(found.conf_high - found.estimate, 1.6448536 * error, rtol=1e-6)
        # draws and delta method agree to Monte Carlo error and curvature
        if function == "difference":
            assert np.abs((found.upper - found.conf_high) / error).max() < 0.35
        assert cal.compare(high, low, function, average=True).estimate.tolist() == pytest.approx(
            [contrast(mean(theta, x_high).mean(), mean(theta, x_low).mean())]
        )
        whole = cal.compare(high, low.head(7), function, level=0.9, average=True)
        averages = contrast(mean(every, x_high).mean(axis=0), mean(every, x_low[:7]).mean(axis=0))
        assert whole.estimate.item() == pytest.approx(
            contrast(mean(theta, x_high).mean(), mean(theta, x_low[:7]).mean())
        )
        assert whole.upper.item() == pytest.approx(np.quantile(averages, 0.95))
    with pytest.raises(eq.InvalidInput, match="frame_b: must be as many rows"):
        cal.compare(high, low.head(7))
    assert cal.compare(high, low, kind="HC1").std_error.to_numpy() != pytest.approx(cal.compare(high, low).std_error)


@pytest.mark.parametrize(("family", "theirs"), [("bernoulli", sm.Logit), ("poisson", sm.Poisson)])
def test_average_marginal_effects_of_columns(family, theirs) -> None:
    data = table(family)
    x = sm.add_constant(data[["a", "b"]].assign(c=data.zone == 2).astype(float))
    other = theirs(data.y, x).fit(disp=0, method="newton", tol=1e-13, cov_type="HC0").get_margeff()
    cal = eq.calibrate(eq.glm(family), (x, data.y), sampler="gaussian", ess=50)
    found = cal.effects()
    assert list(found.term) == ["a", "b", "c"]
    np.testing.assert_allclose(found.estimate, other.margeff, rtol=1e-8)
    np.testing.assert_allclose(found.std_error, other.margeff_se, rtol=1e-7)
    np.testing.assert_allclose(found.p_value, other.pvalues, rtol=1e-6)
    np.testing.assert_allclose(cal.effects(x).estimate, found.estimate)
    assert list(cal.effects(variables="b").term) == ["b"]
    with pytest.raises(eq.InvalidInput, match="variables: must be columns of the model"):
        cal.effects(variables=["d"])


@pytest.mark.parametrize("family", FAMILIES)
def test_average_marginal_effects_of_variables(family) -> None:
    """Wherever they enter a formula: against derivatives of the averaged prediction, in the table and in θ."""
    data = table(family)
    formula = "y ~ a * C(zone) + bs(b, df=4) + I(a**2)"
    cal = run(data, family, formula=formula)
    found = cal.effects(data, level=0.9).set_index(["term", "contrast"])
    assert list(found.index) == [("a", "dy/dx"), ("zone", "2 - 1"), ("zone", "3 - 1"), ("b", "dy/dx")]

    def at(**columns):
        return cal.design.encode(data.assign(**columns))[0].to_numpy()

    for (name, contrast), row in found.iterrows():
        if contrast == "dy/dx":
            h = 1e-3 if name == "a" else 1e-7
            low, high = data[name] - h, data[name] + h
            if name == "b":  # a spline ends with the table
                low, high = low.clip(lower=data.b.min()), high.clip(upper=data.b.max())
            one, two, width = at(**{name: low}), at(**{name: high}), (high - low).to_numpy()
        else:
            one, two, width = at(zone=1), at(zone=int(contrast[0])), 1.0

        def effect(t, one=one, two=two, width=width):
            return ((cal.model.family.mean(two @ t) - cal.model.family.mean(one @ t)) / width).mean()

        theta, d = cal.fit.theta, 1e-5
        assert row.estimate == pytest.approx(effect(theta), rel=1e-5, abs=1e-7)
        gradient = [(effect(theta + d * e) - effect(theta - d * e)) / (2 * d) for e in np.eye(len(theta))]
        assert row.std_error == pytest.approx(np.sqrt(gradient @ cal.vcov() @ gradient), rel=1e-3)
    with pytest.raises(eq.InvalidInput, match="data: must be given for a model with a formula"):
        cal.effects()


def test_effects_count_rows_as_often_as_they_stand_there() -> None:
    data = table("poisson")
    x, times = sm.add_constant(data[["a", "b"]]).to_numpy(), np.random.default_rng(0).integers(1, 4, N)
    every = np.repeat(np.arange(N), times)
    made = [
        eq.calibrate(eq.glm("poisson"), rows, sampler="gaussian", ess=50).effects().iloc[:, 2:]
        for rows in (eq.data.rows(x, data.y, frequency=times), eq.data.rows(x[every], data.y.to_numpy()[every]))
    ]
    np.testing.assert_allclose(*made, rtol=1e-7)


@pytest.mark.parametrize("family", FAMILIES)
def test_intervals_for_a_new_observation(family) -> None:
    data = table(family)
    model = eq.glm(family, **{"gamma": {"shape": 1.7}, "negative-binomial": {"dispersion": 0.6}}.get(family, {}))
    rows = eq.data.table(data, FORMULA, offset=0.1 * data.b)
    cal = eq.calibrate(model, rows, "posterior", sampler="gaussian", ess=2000, seed=2)
    new = data.head(6)
    found = cal.predict(new, 0.9, offset=0.1 * new.b, kind="observation")
    mean = cal.predict(new, 0.9, offset=0.1 * new.b)
    np.testing.assert_array_equal(found.estimate, mean.estimate)
    assert np.all(found.lower <= mean.lower) or family == "bernoulli"
    # simulated: draws of θ, then of the response
    rng = np.random.default_rng(5)
    eta = cal.design.encode(new, 0.1 * new.b)[0].to_numpy() @ np.tile(cal.chains.flat(), (100, 1)).T
    mu, constant = cal.model.family.mean(eta + 0.1 * new.b.to_numpy()[:, None]), cal.model.constant
    drawn = {
        "gaussian": lambda: rng.normal(mu, constant), "bernoulli": lambda: rng.random(mu.shape) < mu,
        "poisson": lambda: rng.poisson(mu), "gamma": lambda: rng.gamma(1.7, mu / 1.7),
        "negative-binomial": lambda: rng.poisson(mu * rng.gamma(1 / 0.6, 0.6, size=mu.shape)),
    }[family]().astype(float)  # fmt: skip
    below, above = (
        (drawn < found.lower.to_numpy()[:, None]).mean(axis=1),
        (drawn > found.upper.to_numpy()[:, None]).mean(axis=1),
    )
    if family in ("gaussian", "gamma"):
        # 200 000 draws of 2000 θ: 5 % ± 0.05 %, and the θ that are left out
        np.testing.assert_allclose(below, 0.05, atol=0.004)
        np.testing.assert_allclose(above, 0.05, atol=0.004)
    else:
        at = (drawn <= found.upper.to_numpy()[:, None]).mean(axis=1)
        assert np.all(below < 0.054)
        assert np.all(at > 0.946)
        assert np.all((drawn <= found.lower.to_numpy()[:, None]).mean(axis=1) > 0.046)
        assert np.all((drawn < found.upper.to_numpy()[:, None]).mean(axis=1) < 0.954)


def test_a_loss_that_is_no_law_has_no_new_observations() -> None:
    frame = table()
    new = frame.head(10)
    robust = eq.calibrate(eq.glm("gaussian", divergence=eq.Huber()), frame, formula=FORMULA, sampler="gaussian", ess=50)
    with pytest.raises(eq.InvalidInput, match="no law of the response"):
        robust.predict(new, kind="observation")
    with pytest.raises(eq.InvalidInput, match="kind: must be one of mean, observation"):
        robust.predict(new, kind="response")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_law_of_a_response(family) -> None:
    """Distribution functions and what losses leave out, against SciPy's densities."""
    from equipoise.families.family import FAMILIES as KNOWN
    from equipoise.families.response import LAWS

    a = 0.7
    eta = np.linspace(-1.0, 1.5, 7)
    mu = KNOWN[family].mean(eta)
    p, law = np.array([a]), LAWS[family]
    made = response_law(family, eta, a)
    for value in (0.0, 1.0, 3.0) if family != "gamma" else (0.3, 1.0, 3.0):
        if family == "bernoulli" and value > 1:
            continue
        y = np.full(7, value)
        whole = KNOWN[family].loss.value(eta, y, p) + law.left_out(y, p)
        np.testing.assert_allclose(whole, minus_log_likelihood(family, eta, y, a), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(law.cdf(y, mu, p), made.cdf(y), rtol=1e-9)
        if law.quantile is not None:
            np.testing.assert_allclose(law.quantile(0.3, mu, p), made.ppf(0.3), rtol=1e-8)
        theirs = {**THEIRS, "negative-binomial": sm.families.NegativeBinomial(alpha=a)}[family]
        expected = [theirs.deviance(np.array([v]), np.array([m])) for v, m in zip(y, mu, strict=True)]
        np.testing.assert_allclose(law.deviance(y, mu, p), expected, rtol=1e-9, atol=1e-12)
