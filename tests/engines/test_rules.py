"""The tables of rules: every value on `Dynamics` has its entry, and a new one needs nothing but its entry."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.engines import rules
from equipoise.engines.engine import Guard, initial_state
from equipoise.engines.jax.loop import GRADIENTS, SHAKES
from equipoise.engines.numba.linear import advance
from equipoise.engines.numba.table import SIDES
from equipoise.engines.random import distinct_rows, internal, rows_with_replacement
from equipoise.theory.dynamics import GRADIENTS as ESTIMATORS
from equipoise.theory.dynamics import Independent

WORDS = np.array([1, 2, 3, 4], dtype=np.uint64)
STEPS = 30


@dataclass(frozen=True)
class First:
    """The same rows at every step: the first B."""

    name: str = "first"
    weighted: bool = False

    def factor(self, batch_size, n):
        return 0.0


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


def test_batches_are_those_of_the_rule(poisson_run) -> None:
    """A chain whose noise is silent draws nothing but its batches, with the function its rule stands for."""
    model, data, tuning = poisson_run
    n, size = len(data[1]), tuning.dynamics.batch_size
    for replacement in (True, False):
        rng, batch, swaps = WORDS.copy(), np.zeros(size, np.uint64), np.zeros(size, np.uint64)
        drawing = rules.DRAWINGS[Independent(replacement)]
        assert len(drawing.order(n)) == (0 if replacement else n)
        if replacement:
            rows_with_replacement(rng, np.uint64(n), batch)
        else:
            distinct_rows(rng, drawing.order(n), swaps, batch)
        moving = eq.tune(tuning.predicted.moments, "sandwich", eq.Dynamics(size, replacement=replacement))
        engine = model.bind(data).engine(moving, Guard(np.inf, moving.expected))
        state = initial_state(np.zeros(3), np.random.SeedSequence(0))
        state.rng[:] = WORDS
        before = state.position.copy()
        advance(engine.program, state, 1, None, np.zeros((0, 3)))
        np.testing.assert_array_equal(state.rng, rng)
        x, base, y = engine.program.rows[batch], engine.program.base[batch], data[1][batch]
        expected = before - (np.exp(base + x @ before) - y) @ x / size
        np.testing.assert_allclose(state.position, expected, rtol=0.0, atol=1e-14)


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
