"""Data without a minimiser, and data that only seem so: what the error names, and what its remedy gives."""

from __future__ import annotations

import numpy as np
import pytest

import equipoise as eq
from equipoise.families.family import FAMILIES
from tests.test_fit import families, newton

NAMES = ["one", "a", "b", "c"]


@pytest.fixture(scope="module")
def covariates():
    rng = np.random.default_rng(11)
    return rng, np.column_stack([np.ones(300), rng.normal(size=(300, 3))])


def failure(model, x, y, names) -> eq.FitFailed:
    with pytest.raises(eq.FitFailed) as caught:
        eq.fit(model, eq.data.rows(x, y, names=names))
    for name in caught.value.columns:
        assert name in str(caught.value)
    assert "To fix" in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("along", "above", "names"), [([1, 0, 0], 0.3, ["C(g, contr.treatment)[T.b]"]), ([1, 0, -1], 0.0, ["a", "c"])]
)
def test_complete_separation(along, above, names, covariates) -> None:
    """By one column, whose name keeps its comma, or by a combination of two."""
    _, x = covariates
    error = failure(eq.glm("bernoulli"), x, (x[:, 1:] @ along > above).astype(float), ["one", names[0], "b", "c"])
    assert error.columns == tuple(names)
    assert "separated" in str(error)


def test_rows_far_down_decide_about_separation() -> None:
    rng = np.random.default_rng(5)
    x = np.column_stack([np.ones(4000), rng.normal(size=4000), np.arange(4000) >= 3000])
    y = (x[:, 1] > 0.0).astype(float)
    assert failure(eq.glm("bernoulli"), x, y, NAMES[:3]).columns == ("a",)
    y[2000:] = rng.random(2000) < 0.5  # the first rows alone are separated
    assert eq.fit(eq.glm("bernoulli"), (x, y)).converged
    y[3000:] = 1.0  # by a column that is zero in the first rows
    assert failure(eq.glm("bernoulli"), x, y, NAMES[:3]).columns == ("b",)


def test_quasi_separation_by_a_dummy(covariates) -> None:
    rng, x = covariates
    dummy = (rng.random(300) < 0.1).astype(float)
    y = np.where(dummy == 1.0, 1.0, rng.random(300) < 0.5).astype(float)
    error = failure(eq.glm("bernoulli"), np.column_stack([x, dummy]), y, [*NAMES, "dummy"])
    assert error.columns == ("dummy",)


@pytest.mark.parametrize("family", ["poisson", "negative-binomial"])
def test_category_of_zeros(family, covariates) -> None:
    rng, x = covariates
    dummy = (rng.random(300) < 0.1).astype(float)
    y = np.where(dummy == 1.0, 0.0, rng.poisson(2.0, 300)).astype(float)
    x = np.column_stack([x, dummy])
    fixed = {"dispersion": 1.0} if family == "negative-binomial" else {}
    assert failure(eq.glm(family), x, y, [*NAMES, "dummy"]).columns == ("dummy",)
    # a prior on that column alone is the remedy the message names; one on the others is not
    precision = np.array([0.0, 0.0, 0.0, 0.0, 0.1])
    assert eq.fit(eq.glm(family, **fixed, prior_precision=precision), (x, y)).converged
    assert failure(eq.glm(family, prior_precision=0.1 - precision), x, y, [*NAMES, "dummy"]).columns == ("dummy",)


@families
def test_collinear_columns_are_named(family, make_data, make_model) -> None:
    x, y = make_data(family, n=200, dim=4)
    dependent = np.column_stack([x, x[:, 1] - 2.0 * x[:, 3]])
    error = failure(make_model(family), dependent, y, [*NAMES, "sum"])
    assert error.columns == ("a", "c", "sum")
    constant = failure(make_model(family), np.column_stack([x, np.full(200, 1e6)]), y, [*NAMES, "constant"])
    assert constant.columns == ("one", "constant")


@families
def test_zero_column_is_named(family, make_data, make_model) -> None:
    x, y = make_data(family, n=200, dim=4)
    x = np.insert(x, 2, 0.0, axis=1)
    assert failure(make_model(family), x, y, ["one", "a", "zero", "b", "c"]).columns == ("zero",)


@pytest.mark.parametrize(
    ("family", "value", "end"),
    [("poisson", 0.0, "−∞"), ("negative-binomial", 0.0, "−∞"), ("bernoulli", 0.0, "−∞"), ("bernoulli", 1.0, " ∞")],
)
def test_response_that_is_the_same_everywhere(family, value, end, covariates) -> None:
    _, x = covariates
    y = np.full(300, value)
    error = failure(eq.glm(family), x, y, NAMES)
    assert error.columns == ("one",)
    assert f"y is {value:g} everywhere" in str(error)
    assert f"one goes to {end.strip()}" in str(error)
    # an intercept of the other sign, or none of its own
    turned = "∞" if "−" in end else "−∞"
    assert f"one goes to {turned}" in str(failure(eq.glm(family), x * [-2.0, 1.0, 1.0, 1.0], y, NAMES))
    assert failure(eq.glm(family), np.exp(x[:, 1:]), y, NAMES[1:]).columns == ()
    assert eq.fit(eq.glm(family, prior_precision=1.0), (x, y)).converged


def test_zeros_alone_are_no_obstacle_without_an_intercept(covariates) -> None:
    _, x = covariates
    found = eq.fit(eq.glm("poisson"), (x[:, 1:], np.zeros(300))).params
    np.testing.assert_allclose(found, newton("poisson", x[:, 1:], np.zeros(300)), atol=1e-10)


def test_too_few_rows_say_so(covariates, make_model) -> None:
    _, x = covariates
    y = x @ [1.0, 2.0, -1.0, 0.5] + np.sin(np.arange(300.0))
    for robust in (None, eq.Huber(), eq.StudentT()):
        model = eq.glm("gaussian", divergence=robust)
        assert "4 columns fit 4 rows exactly: no residual is left" in str(failure(model, x[:4], y[:4], NAMES))
    assert eq.fit(eq.glm("gaussian", scale=1.0), (x[:4], y[:4])).converged
    for family in FAMILIES:
        error = failure(eq.glm(family), x[:3], np.array([0.5, 0.25, 0.75]), NAMES)
        assert "fewer rows than columns, 3 and 4" in str(error)
        assert eq.fit(make_model(family, prior_precision=1.0), (x[:3], np.array([0.5, 0.25, 0.75]))).converged
    with pytest.raises(eq.FitFailed, match="shrink to nothing"):  # the less is left, the less the prior has to say
        eq.fit(eq.glm("gaussian", prior_precision=0.01), (x[:3], y[:3]))
    # too few rows to lead the way: all of them do it alone
    np.testing.assert_allclose(
        eq.fit(eq.glm("gaussian"), (x, y), tuning_rows=2).params, eq.fit(eq.glm("gaussian"), (x, y)).params, rtol=1e-10
    )


def test_exact_fit_leaves_no_scale(covariates) -> None:
    _, x = covariates
    theta = np.array([1.0, 2.0, -1.0, 0.5])
    for size in (1.0, 1e8):
        assert "residuals shrink to nothing" in str(failure(eq.glm("gaussian"), x, size * (x @ theta), NAMES))
        found = eq.fit(eq.glm("gaussian", scale=3.0), (x, size * (x @ theta)))
        np.testing.assert_allclose(found.params, size * theta, rtol=1e-13)
    noise = 1e-6 * np.sin(np.arange(300.0))
    assert eq.fit(eq.glm("gaussian"), (x, x @ theta + noise)).constant == pytest.approx(1e-6 * np.sqrt(0.5), rel=0.05)


def test_numbers_beyond_floating_point_are_named(covariates) -> None:
    _, x = covariates
    y, size = np.exp(x[:, 1]), 1e-200
    for family in ("gaussian", "poisson", "gamma"):
        error = failure(eq.glm(family), x * [1.0, 1.0, size, 1.0], y, NAMES)
        assert error.columns == ("b",)
        assert "too large or too small" in str(error)
        assert failure(eq.glm(family), x * size, y, NAMES).columns == tuple(NAMES)
    for robust in (None, eq.Huber(), eq.Beta(1.5)):
        assert "choose another unit" in str(failure(eq.glm("gaussian", divergence=robust), x, y * size, NAMES))


def test_an_error_names_a_few_columns_and_carries_all() -> None:
    x, y = np.eye(40), np.r_[np.zeros(20), np.ones(20)]
    with pytest.raises(eq.FitFailed, match=r"x0, x1, x2, x3, x4, x5 and 34 more") as caught:
        eq.fit(eq.glm("bernoulli"), eq.data.rows(x, y, names=[f"x{k}" for k in range(40)]))
    assert len(caught.value.columns) == 40
