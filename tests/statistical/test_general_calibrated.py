"""A chain of a loss written in JAX has the covariance that was asked for, within the predicted Monte Carlo error.

The criterion and its controls are those of `test_calibrated`. That losses of families take the same path in JAX as on the
compiled engine, step by step, is in `tests/engines/test_autodiff.py`.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import equipoise as eq
from tests.statistical.criterion import excess

N = 1000


def test_a_loss_that_is_no_glm() -> None:
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
    assert excess(model, y, eq.tune(m, "sandwich", eq.Dynamics(100)), goal=0.015) <= 1.0
