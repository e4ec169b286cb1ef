"""The Errors section of the contract: each message names the argument, the requirement, what was given, and a remedy."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest

import equipoise as eq
from tests.known import slopes


@pytest.fixture(scope="module")
def case(make_data):
    model, data = eq.glm("poisson"), make_data("poisson", n=100, dim=3)
    return model, data, eq.moments(model, data, eq.fit(model, data).params)


def refused(argument: str, given: str, call) -> eq.InvalidInput:
    """The call raises InvalidInput about the argument, in the form `argument: must be …; got …. To fix: …`."""
    with pytest.raises(eq.InvalidInput) as caught:
        call()
    message = str(caught.value)
    parts = re.fullmatch(r"(.+?): must be (.+); got (.*)\. To fix: (.+)[.?]", message)
    assert parts is not None, message
    assert parts[1] == caught.value.argument == argument
    assert given in parts[3], message
    assert all(len(part) > 2 for part in (parts[2], parts[4])), message
    return caught.value


def test_one_hierarchy() -> None:
    names = ["InvalidInput", "FitFailed", "InfeasibleTarget", "UnstableStep", "ChainDiverged", "CheckpointMismatch"]
    for name in names:
        assert issubclass(getattr(eq, name), eq.EquipoiseError)
    assert issubclass(eq.InvalidInput, ValueError)


# the response and the model


@pytest.mark.parametrize(
    ("family", "value", "requirement"),
    [
        ("bernoulli", 2.0, "between 0 and 1"),
        ("bernoulli", -0.5, "between 0 and 1"),
        ("poisson", -1.0, "zero or positive"),
        ("negative-binomial", -2.0, "zero or positive"),
        ("gamma", 0.0, "positive"),
    ],
)
def test_response_outside_the_range(family, value, requirement, make_data) -> None:
    x, y = make_data(family, n=30, dim=2)
    y = y.copy()
    y[[4, 7]] = value
    for call in (eq.fit, eq.plan, eq.calibrate):
        error = refused("y", f"{value:g} at row 4 (2 such rows)", lambda call=call: call(eq.glm(family), (x, y)))
        assert f"{requirement} for the {family} family" in str(error)


def test_the_response_is_called_by_its_name(make_data) -> None:
    import pandas as pd

    x, y = make_data("poisson", n=30, dim=2)
    refused("visits", "-1 at row 0", lambda: eq.fit(eq.glm("poisson"), (x, pd.Series(y - 1.0 - y[0], name="visits"))))


@pytest.mark.parametrize("family", ["poisson", "negative-binomial", "bernoulli"])
def test_pseudo_likelihood_responses_are_fine(family, make_data, make_model) -> None:
    x, y = make_data(family, n=50, dim=2)
    y = 0.5 * y + 0.25
    scores = x.T * slopes(family, x @ eq.fit(make_model(family), (x, y)).params, y, 0.6)[0]
    assert np.all(np.abs(scores.sum(axis=1)) < 1e-9 * np.abs(scores).sum(axis=1))


@pytest.mark.parametrize(
    ("argument", "given", "options"),
    [
        ("family", "'logistic'", {"family": "logistic"}),
        ("scale", "2.0", {"family": "poisson", "scale": 2.0}),
        ("shape", "2.0", {"family": "gaussian", "shape": 2.0}),
        ("dispersion", "1.0", {"family": "gamma", "dispersion": 1.0}),
        ("scale", "0.0", {"family": "gaussian", "scale": 0.0}),
        ("scale", "wide", {"family": "gaussian", "scale": "wide"}),
        ("shape", "-1.0", {"family": "gamma", "shape": -1.0}),
        ("dispersion", "nan", {"family": "negative-binomial", "dispersion": np.nan}),
        ("dispersion", "inf", {"family": "negative-binomial", "dispersion": np.inf}),
        ("prior_precision", "-2", {"family": "poisson", "prior_precision": [1.0, -2.0]}),
        ("prior_precision", "-1", {"family": "poisson", "prior_precision": [[1.0, 2.0], [2.0, 1.0]]}),
        ("prior_precision", "(2, 2)", {"family": "poisson", "prior_precision": [[1.0, 2.0], [0.0, 1.0]]}),
        ("prior_precision", "(2, 3)", {"family": "poisson", "prior_precision": np.ones((2, 3))}),
        ("prior_mean", "NaN or infinity", {"family": "poisson", "prior_mean": [0.0, np.inf]}),
    ],
)
def test_models_that_make_no_sense(argument, given, options) -> None:
    refused(argument, given, lambda: eq.glm(**options))


def test_priors_that_do_not_fit_the_columns(case) -> None:
    _, data, _ = case
    refused("prior_precision", "(2,)", lambda: eq.fit(eq.glm("poisson", prior_precision=[1.0, 2.0]), data))
    refused("prior_precision", "(2, 2)", lambda: eq.fit(eq.glm("poisson", prior_precision=np.eye(2)), data))
    refused("prior_mean", "(2,)", lambda: eq.fit(eq.glm("poisson", prior_precision=1.0, prior_mean=[1.0, 2.0]), data))


def test_a_response_that_the_columns_fit_exactly() -> None:
    x = np.column_stack([np.ones(20), np.arange(20.0)])
    refused("y", "zero residuals", lambda: eq.fit(eq.glm("gaussian"), (x, np.zeros(20))))
    np.testing.assert_array_equal(eq.fit(eq.glm("gaussian", scale=1.0), (x, np.zeros(20))).params, 0.0)


# dynamics and sampling


def test_a_batch_larger_than_the_data(case) -> None:
    model, data, m = case
    too_large = eq.Dynamics(101)
    for call in (
        lambda: eq.tune(m, "sandwich", too_large),
        lambda: eq.stationary(m, 0.01, too_large),
        lambda: m.gradient_noise(np.eye(3), too_large),
        lambda: eq.plan(model, data, batch_size=101),
        lambda: eq.calibrate(model, data, batch_size=101),
    ):
        assert "at most the number of rows, 100" in str(refused("batch_size", "101", call))


# in other processes


@pytest.mark.parametrize(
    "error",
    [
        eq.InvalidInput("a", "positive", -1, "pass 1"),
        eq.FitFailed("no", ("x",), np.eye(2)),
        eq.InfeasibleTarget("no", 3.0, np.eye(2)),
        eq.UnstableStep(1.2, 0.4),
        eq.ChainDiverged(1, 20, None),
        eq.CheckpointMismatch("other run"),
        eq.EquipoiseError("plain"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_errors_survive_a_process(error) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.__dict__.keys() == error.__dict__.keys()
    for name, value in error.__dict__.items():
        assert np.array_equal(getattr(back, name), value)
