"""The tables of rules: every value on `Dynamics` has its entry, and a new one needs nothing but its entry."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.engines import rules
from equipoise.engines.engine import Guard
from equipoise.engines.jax.loop import GRADIENTS, SHAKES
from equipoise.engines.numba.table import SIDES
from equipoise.engines.random import internal
from equipoise.theory.dynamics import GRADIENTS as ESTIMATORS

STEPS = 30


@dataclass(frozen=True)
class First:
    """The same rows at every step: the first B."""

    name: str = "first"
    weighted: bool = False


class Still(eq.Dynamics):
    """Dynamics with that rule."""

    @property
    def rule(self):
        return First()


@internal
def draw_first(rng, step, urn, batch):
    for k in range(batch.size):
        batch[k] = k
    return batch.size


@pytest.mark.parametrize(
    "dynamics",
    [
        eq.Dynamics(5),
        eq.Dynamics(5, 0.3, 700.0, replacement=False),
        eq.Dynamics(5, gradient="control-variate", batches="leverage"),
        eq.Dynamics(5, batches="epochs"),
        eq.Dynamics(5, batches="epochs", drop_last=True),
    ],
)
def test_every_value_has_its_entry(dynamics) -> None:
    assert dynamics.rule in rules.DRAWINGS
    assert dynamics.estimator in SIDES
    assert dynamics.estimator in GRADIENTS


def test_a_noise_draws_only_where_it_has_a_scale() -> None:
    for scales in (np.zeros(3), np.array([0.0, 0.1, 0.0])):
        noise = rules.noise_of(scales)
        assert noise.shake in SHAKES
        assert noise.drawn == scales.any()


def test_the_tables_know_every_estimator() -> None:
    assert set(SIDES) == set(GRADIENTS) == set(ESTIMATORS.values())
    assert set(SHAKES) == {noise.shake for noise in rules.NOISES.values()}


def path(problem, tuning):
    engine = problem.engine(tuning, Guard(np.inf, tuning.expected))
    state, out = engine.start(tuning.center + 0.1, np.random.SeedSequence(1)), np.zeros((STEPS, tuning.dim))
    with ThreadPoolExecutor(1) as pool:
        assert engine.advance([state], STEPS, 1, [out], pool) == [(STEPS, False)]
    return out


def test_a_new_batch_rule_is_a_function_and_an_entry(poisson_run, monkeypatch) -> None:
    model, (x, y), tuning = poisson_run
    size = tuning.dynamics.batch_size
    monkeypatch.setitem(rules.DRAWINGS, First(), rules.Drawing(draw_first, permutes=False))
    tuning = replace(tuning, dynamics=Still(size))
    theta, expected = tuning.center + 0.1, []
    for _ in range(STEPS):
        theta = theta - tuning.step @ ((np.exp(x[:size] @ theta) - y[:size]) @ x[:size]) / size
        expected.append(theta)
    own = eq.Model(lambda p, o: jnp.exp(o["x"] @ p) - o["y"] * (o["x"] @ p), np.zeros(3))
    for problem in (model.bind((x, y)), own.bind({"x": x, "y": y})):
        np.testing.assert_allclose(path(problem, tuning), expected, rtol=0.0, atol=1e-12)
