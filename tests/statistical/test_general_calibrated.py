"""Chains of losses written in JAX have the covariance that was asked for, within the predicted Monte Carlo error.

The criterion is that of `criterion.py`, the controls are those of `test_calibrated`; seeds are fixed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from tests.statistical.criterion import excess as excess_over

N, D, FLOOR = 1000, 3, 0.015
excess = partial(excess_over, goal=FLOOR)


def predictor(p, o):
    return p["b"] + o["x"] @ p["w"]


LOSSES = {
    "gaussian": lambda p, o: 0.5 * (o["y"] - predictor(p, o)) ** 2,
    "bernoulli": lambda p, o: jnp.logaddexp(0.0, predictor(p, o)) - o["y"] * predictor(p, o),
    "poisson": lambda p, o: jnp.exp(predictor(p, o)) - o["y"] * predictor(p, o),
}


@pytest.fixture(scope="module")
def prepared(make_data):
    """Model, data and moments of each loss."""
    cache = {}

    def make(family):
        if family not in cache:
            x, y = make_data(family, n=N, dim=D, seed=1)
            model = eq.Model(LOSSES[family], {"b": 0.0, "w": np.zeros(D - 1)})
            data = {"x": x[:, 1:], "y": y}
            cache[family] = model, data, eq.moments(model, data, eq.fit(model, data).params)
        return cache[family]

    return make


@pytest.mark.parametrize(
    ("family", "dynamics"),
    [
        ("bernoulli", eq.Dynamics(100)),
        ("poisson", eq.Dynamics(100)),
        ("gaussian", eq.Dynamics(100, momentum=0.9)),
        ("bernoulli", eq.Dynamics(300, replacement=False)),
        ("poisson", eq.Dynamics(100, inverse_temperature=4.0 * N)),
        ("gaussian", eq.Dynamics(100, momentum=0.6, inverse_temperature=4.0 * N, replacement=False)),
    ],
    ids=["logistic", "Poisson", "momentum", "without replacement", "SGLD", "all together"],
)
def test_chain_samples_the_sandwich(family, dynamics, prepared) -> None:
    model, data, m = prepared(family)
    assert excess(model, data, eq.tune(m, "sandwich", dynamics)) <= 1.0


@pytest.mark.parametrize("family", ["bernoulli", "poisson"])
def test_control_a_step_thirty_per_cent_too_large_is_detected(family, prepared) -> None:
    model, data, m = prepared(family)
    tuning = eq.tune(m, "sandwich", eq.Dynamics(100))
    step = 1.3 * tuning.step
    law = eq.stationary(m, step, tuning.dynamics)
    assert excess(model, data, replace(tuning, step=step), law) > 3.0
    # and the chain is where the exact proxy puts it
    assert excess(model, data, replace(tuning, step=step, target=law.cov, predicted=law), law) <= 1.0


def test_control_noise_that_the_tuning_did_not_know_is_detected(prepared) -> None:
    model, data, m = prepared("gaussian")
    tuning = eq.tune(m, "sandwich", eq.Dynamics(100))
    dynamics = eq.Dynamics(100, inverse_temperature=3.0 * N)
    law = eq.stationary(m, tuning.step, dynamics)
    assert excess(model, data, replace(tuning, dynamics=dynamics, predicted=law), law) > 3.0


def test_a_loss_that_is_no_glm(prepared) -> None:
    # location and scale, heavy tails the model does not know: full-rank Hessians, exact curvature
    rng = np.random.default_rng(4)
    y = {"y": 1.0 + 2.0 * rng.standard_t(8, size=N)}
    model = eq.Model(lambda p, o: 0.5 * ((o["y"] - p["m"]) / jnp.exp(p["s"])) ** 2 + p["s"], {"m": 0.0, "s": 0.0})
    found = eq.fit(model, y)
    np.testing.assert_allclose([found.params["m"], np.exp(found.params["s"])], [y["y"].mean(), y["y"].std()], rtol=1e-9)
    m = eq.moments(model, y, found.params)
    # the sandwich of log s, in closed form: (kurtosis − 1)/4 over N
    z = (y["y"] - y["y"].mean()) / y["y"].std()
    np.testing.assert_allclose(eq.sandwich(m)[1, 1], (np.mean(z**4) - 1.0) / 4.0 / N, rtol=1e-9)
    assert excess(model, y, eq.tune(m, "sandwich", eq.Dynamics(100))) <= 1.0
