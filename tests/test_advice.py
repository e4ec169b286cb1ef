"""What messages advise, done literally, leads where they say."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import equipoise as eq

np_name = {"numpy": np}


def _counts(unit: float = 1.0):
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(300), rng.normal(size=300) * unit])
    return X, rng.poisson(np.exp(X @ [0.3, 0.2 / unit])).astype(float)


def _moments(data, **prior):
    model = eq.glm("poisson", **prior)
    return eq.moments(model, data, eq.fit(model, data))


def test_a_chain_that_never_forgets_its_start() -> None:
    moments, dynamics = _moments(_counts(1e-3)), eq.Dynamics(batch_size=10)
    law = eq.stationary(moments, 1e-12, dynamics)
    with pytest.raises(eq.EquipoiseError, match=r"forgets its start too slowly.*noise='completed'.*other units"):
        law.burn_in(np.ones(2))
    sd = np.sqrt(np.diag(eq.posterior(moments)))
    assert eq.tune(moments, "posterior", dynamics, noise="completed").predicted.burn_in(sd) < 1000
    # in other units one scalar step suits both columns
    other = _moments(_counts(1.0))
    sd = np.sqrt(np.diag(eq.posterior(other)))
    assert eq.stationary(other, 0.1, dynamics).burn_in(sd) < 1000


def test_a_singular_hessian_of_collinear_columns() -> None:
    X, y = _counts()
    twice = np.column_stack([X, X[:, 1]])
    message = "not positive definite.*remove collinear columns.*model.identified.*prior_precision"
    with pytest.raises(eq.FitFailed, match=message):
        eq.sandwich(eq.moments(eq.glm("poisson"), (twice, y), np.array([0.3, 0.1, 0.1])))
    without = _moments((X, y))
    mean = np.exp(X @ without.params)
    bread = np.linalg.inv(X.T @ (X * mean[:, None]))
    expected = bread @ X.T @ (X * ((y - mean) ** 2)[:, None]) @ bread
    np.testing.assert_allclose(eq.sandwich(without), expected, rtol=1e-8)
    held = _moments((twice, y), prior_precision=1.0)
    tuned = eq.tune(held, "posterior", eq.Dynamics(batch_size=40, gradient="control-variate"), noise="completed")
    np.testing.assert_allclose(tuned.predicted.cov, eq.posterior(held), rtol=1e-8, atol=1e-12)


def test_a_singular_hessian_of_redundant_parameters() -> None:
    """Of a·b the Hessian is singular but for rounding, which a Cholesky factor alone does not see."""
    data = np.random.default_rng(1).normal(2.0, 1.0, size=200)
    model = eq.Model(lambda p, o: 0.5 * (o - p["a"] * p["b"]) ** 2, {"a": 1.0, "b": 2.0})
    found = eq.fit(model, data)
    for covariance in (eq.sandwich, eq.posterior):
        with pytest.raises(eq.FitFailed, match="redundant parameters"):
            covariance(eq.moments(model, data, found))
    smaller = model.identified(data, found.params)
    fit = eq.fit(smaller, data)
    moments = eq.moments(smaller, data, fit)
    assert moments.dim == 1
    # the product, the mean of the data, has the variance of a mean
    a, b = found.params["a"], found.params["b"]
    along = moments.attach(eq.bind(smaller, data)).hessian[0, 0]
    assert eq.sandwich(moments)[0, 0] * along == pytest.approx(data.var() / 200.0, rel=1e-6)
    assert a * b == pytest.approx(data.mean(), rel=1e-8)


@pytest.mark.parametrize("correlation", [1.0, 1.3, 2.0])
def test_a_matrix_that_is_no_covariance(correlation: float) -> None:
    moments = _moments(_counts())
    target = 1e-3 * np.array([[1.0, correlation], [correlation, 1.0]])
    with pytest.raises(eq.InfeasibleTarget, match="positive definite") as raised:
        eq.tune(moments, target, eq.Dynamics(batch_size=10))
    advised = re.search(r"as (target \+ .*\)\)) has", str(raised.value))
    assert advised is not None
    better = eval(advised[1], np_name, {"target": target})
    tuned = eq.tune(moments, better, eq.Dynamics(batch_size=10))
    np.testing.assert_allclose(tuned.predicted.cov, better, rtol=1e-6, atol=1e-12)
    assert eq.tune(moments, "posterior", eq.Dynamics(batch_size=10)).residual < 1e-8


def test_a_matrix_without_a_variance_names_the_parameter() -> None:
    with pytest.raises(eq.InfeasibleTarget, match="its diagonal has 0 at x1"):
        eq.tune(_moments(_counts()), np.diag([1e-3, 0.0]), eq.Dynamics(batch_size=10))


def test_a_repaired_two_way_matrix_that_a_chain_can_hardly_follow() -> None:
    """What is left of a negative variance is next to nothing: a chain would take hours, and the plan says what would not."""
    rng = np.random.default_rng(3)
    firm, year, x = rng.integers(0, 25, 60_000), rng.integers(0, 20, 60_000), rng.normal(size=(60_000, 8))
    X = np.column_stack([np.ones(60_000), x])
    data = eq.data.rows(X, rng.poisson(np.exp(0.1 + 0.05 * x.sum(axis=1))), clusters={"firm": firm, "year": year})
    problem, options = eq.bind(eq.glm("poisson"), data), {"target": "CRV1", "ess": 1000}
    with pytest.warns(eq.EquipoiseWarning, match="was repaired"):
        dear = eq.plan(problem, **options)
    assert dear.seconds > 600.0
    advised = re.search(
        r"to be faster +sampler='(\w+)'.*; clusters='(\w+)', one way.*; ess=(\d+) takes a tenth", str(dear)
    )
    assert advised is not None
    with pytest.warns(eq.EquipoiseWarning, match="was repaired"):
        drawn = eq.calibrate(problem, **options, sampler=advised[1])
    np.testing.assert_allclose(drawn.tuning.target, dear.tuning.target, rtol=1e-10)
    quick = eq.plan(problem, **options, clusters=advised[2])
    assert quick.seconds < 60.0
    assert "to be faster" not in str(quick)
    with pytest.warns(eq.EquipoiseWarning, match="was repaired"):
        assert eq.plan(problem, target="CRV1", ess=float(advised[3])).seconds < 0.15 * dear.seconds


def test_warnings_stand_at_the_line_that_asked() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0, np.nan, 4.0, 5.0], "y": [1.0, 0.0, 2.0, 3.0, 2.0], "g": [1, 1, 2, 2, 3]})
    X, y = np.column_stack([np.ones(5), [1.0, 2.0, 4.0, 8.0, 9.0], [0.0, 1.0, 3.0, 2.0, 7.0]]), frame.y.to_numpy()
    asked = (
        lambda: eq.data.table(frame, "y ~ x", missing="drop"),
        lambda: eq.data.scan(pa.table(frame), "y ~ x", missing="drop"),
        lambda: eq.fit(eq.glm("poisson"), pa.table(frame), formula="y ~ x", missing="drop"),
        lambda: eq.robust(eq.glm("gaussian"), (X, y), [0.5, 0.2, 0.1], kind="CRV1", clusters=frame.g),
    )
    for call in asked:
        with pytest.warns(eq.EquipoiseWarning) as told:
            call()
        assert [(each.filename, each.lineno) for each in told] == [(__file__, call.__code__.co_firstlineno)]
