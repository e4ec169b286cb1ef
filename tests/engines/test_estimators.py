"""Gradients, batch rules and noises of both engines: one recursion in parameters, written out in NumPy (theory §12–§15)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import cholesky
from scipy.stats import chi2

import equipoise as eq
from equipoise.engines.engine import Guard
from equipoise.engines.jax import autodiff
from equipoise.engines.lottery import Lottery, _tickets
from equipoise.engines.random import (
    add_normals,
    distinct_rows,
    permute,
    rows_by_lottery,
    rows_with_replacement,
)
from equipoise.engines.rules import coordinates
from equipoise.sampling.checkpoint import Checkpoint

STEPS, SIZE, DIM = 40, 8, 3
PRECISION = np.diag([1.0, 4.0, 9.0]) + 1.0
PRIOR_MEAN = np.array([0.4, -0.2, 0.1])
RULES = {
    "independent": {},
    "distinct": {"replacement": False},
    "leverage": {"batches": "leverage"},
    "epochs": {"batches": "epochs"},
    "whole epochs": {"batches": "epochs", "drop_last": True},
}


def loss(p, o):
    """A Poisson regression with offsets and weights."""
    eta = o["x"] @ p + o["offset"]
    return o["weight"] * (jnp.exp(eta) - o["y"] * eta)


@pytest.fixture(scope="module")
def case():
    """A Poisson problem with weights, offset, frequencies and a prior; the same in JAX, a row for each observation."""
    rng = np.random.default_rng(3)
    x = np.column_stack([np.ones(31), rng.normal(size=(31, DIM - 1))])
    y = rng.poisson(np.exp(0.4 * x[:, 1])).astype(float)
    weights, offset = rng.uniform(0.5, 2.0, 31), 0.3 * rng.normal(size=31)
    frequency = rng.integers(1, 3, 31)
    prior = {"prior_precision": PRECISION, "prior_mean": PRIOR_MEAN}
    data = eq.data.rows(x, y, weights=weights, offset=offset, frequency=frequency)
    glm = eq.glm("poisson", **prior).bind(data)
    each = np.repeat(np.arange(31), frequency)
    rows = {"x": x[each], "y": y[each], "weight": weights[each], "offset": offset[each]}
    own = eq.Model(loss, np.zeros(DIM), **prior).bind(rows)
    moments = eq.moments(glm, eq.fit(glm))
    return glm, own, rows, eq.tune(moments, "sandwich", eq.Dynamics(SIZE))


def tuning_of(tuning, kind, noise="nothing", momentum=0.0, gradient="plain"):
    """The tuned step with other dynamics and a noise of its own."""
    temperature = {"inverse_temperature": 300.0} if noise == "langevin" else {}
    dynamics = eq.Dynamics(SIZE, momentum, gradient=gradient, **temperature, **RULES[kind])
    root = np.array([[0.1, 0.0, 0.0], [0.03, 0.05, 0.0], [0.02, -0.04, 0.08]])
    completion = root @ root.T if noise == "completed" else None
    return replace(
        tuning, dynamics=dynamics, predicted=replace(tuning.predicted, dynamics=dynamics, completion=completion)
    )


def scores(rows, theta):
    eta = rows["x"] @ theta + rows["offset"]
    return (rows["weight"] * (np.exp(eta) - rows["y"]))[:, None] * rows["x"]


def emphasis_of(rows, moments):
    """1/(N p_n) from the definitions: p_n = 0.1/N + 0.9 l_n/Σl, l_n = h_n x_nᵀ H⁻¹ x_n."""
    x, theta = rows["x"], moments.params
    h = rows["weight"] * np.exp(x @ theta + rows["offset"])
    leverage = h * np.einsum("ni,ij,nj->n", x, np.linalg.inv(moments.hessian), x)
    return 1.0 / (0.1 + 0.9 * leverage / leverage.mean())


class Batches:
    """The rows of each step and their weights, from the generator's own functions."""

    def __init__(self, kind, rows, moments):
        self.kind, self.n, self.order = kind, len(rows["y"]), np.zeros(0, np.uint32)
        self.lottery = Lottery.of(emphasis_of(rows, moments)) if kind == "leverage" else None
        self.weights = self.lottery.weights if self.lottery else np.ones(self.n)
        self.per = self.n // SIZE if kind == "whole epochs" else -(-self.n // SIZE)

    def draw(self, rng, step):
        batch, swaps = np.zeros((2, SIZE), dtype=np.uint64)
        if self.kind == "independent":
            rows_with_replacement(rng, np.uint64(self.n), batch)
        elif self.kind == "distinct":
            distinct_rows(rng, np.arange(self.n, dtype=np.uint32), swaps, batch)
        elif self.kind == "leverage":
            rows_by_lottery(rng, self.lottery.columns, swaps, batch)
        else:
            if step % self.per == 0:
                self.order = np.zeros(self.n, np.uint32)
                permute(rng, self.order)
            batch = self.order[step % self.per * SIZE :][:SIZE]
        return batch


def reference(rows, tuning, kind, theta, rng, root, scales):
    """θ ← θ − Λ m + L (s ∘ ξ), m ← κ m + G, step by step."""
    center, n = tuning.center, len(rows["y"])
    batches, m, path = Batches(kind, rows, tuning.predicted.moments), np.zeros(DIM), []
    varied = tuning.dynamics.gradient == "control-variate"
    all_rows = scores(rows, center).mean(axis=0)
    for step in range(STEPS):
        batch = batches.draw(rng, step)
        some, w = {k: v[batch] for k, v in rows.items()}, batches.weights[batch, None]
        g = np.mean(w * scores(some, theta), axis=0)
        if varied:
            g = g - np.mean(w * scores(some, center), axis=0) + all_rows
        g = g + PRECISION @ (theta - PRIOR_MEAN) / n
        m = tuning.dynamics.momentum * m + g
        noise = np.zeros(DIM)
        if scales.any():
            add_normals(rng, np.ones(DIM), noise, DIM)
        theta = theta - tuning.step @ m + root @ (scales * noise)
        path.append(theta)
    return np.array(path)


def engines(case, tuning, which):
    glm, own, _, _ = case
    guard = Guard(np.inf, tuning.expected)
    if which == "numba":
        return glm.engine(tuning, guard)
    found = own.engine(tuning, guard)
    assert found.projection is not None
    return found if which == "projected" else autodiff.autodiff_engine(found.task, tuning, guard, whiten=False)


def path_of(engine, start, splits=(STEPS,), thin=1):
    state, pieces = engine.start(start, np.random.SeedSequence(1)), []
    with ThreadPoolExecutor(1) as pool:
        for steps in splits:
            out = np.zeros((steps, DIM))
            ((written, diverged),) = engine.advance([state], steps, thin, [out], pool)
            assert not diverged
            pieces.append(out[:written])
    return np.concatenate(pieces), state


def compare(case, which, kind, gradient, noise, momentum):
    *_, rows, plain = case
    tuning = tuning_of(plain, kind, noise, momentum, gradient)
    engine, start = engines(case, tuning, which), tuning.center + 0.1
    root = engine.root
    scales = engine.program.noise if which == "numba" else engine.noise
    np.testing.assert_allclose(root @ root.T, tuning.step, rtol=0, atol=1e-12)
    np.testing.assert_allclose((root * scales**2) @ root.T, tuning.noise, rtol=0, atol=1e-14)
    found, state = path_of(engine, start)
    rng = engine.start(start, np.random.SeedSequence(1)).rng
    np.testing.assert_allclose(found, reference(rows, tuning, kind, start, rng, root, scales), rtol=0, atol=1e-11)
    np.testing.assert_array_equal(state.rng, rng)
    assert np.ptp(found) > 0.05
    again, end = path_of(engine, start, (1, 4, 2, 13, 20))
    np.testing.assert_array_equal(again, found)
    for one, other in zip(vars(state).values(), vars(end).values(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("noise", ["nothing", "langevin", "completed"])
@pytest.mark.parametrize("gradient", ["plain", "control-variate"])
@pytest.mark.parametrize("kind", RULES)
def test_the_linear_engine_takes_the_steps_of_the_recursion(case, kind, gradient, noise):
    for momentum in (0.0, 0.6):
        compare(case, "numba", kind, gradient, noise, momentum)


@pytest.mark.parametrize(("which", "noise", "momentum"), [("projected", "completed", 0.0), ("direct", "langevin", 0.6)])
@pytest.mark.parametrize("gradient", ["plain", "control-variate"])
@pytest.mark.parametrize("kind", RULES)
def test_the_general_engine_takes_the_steps_of_the_recursion(case, kind, gradient, which, noise, momentum):
    compare(case, which, kind, gradient, noise, momentum)


@pytest.mark.parametrize(
    ("which", "kind", "noise", "momentum"),
    [("projected", "leverage", "nothing", 0.6), ("direct", "epochs", "completed", 0.0)],
)
def test_the_general_engine_combines_the_rest(case, which, kind, noise, momentum):
    compare(case, which, kind, "control-variate", noise, momentum)


@pytest.mark.parametrize("which", ["numba", "projected", "direct"])
@pytest.mark.parametrize("gradient", ["plain", "control-variate"])
def test_gradients_by_leverage_are_unbiased(case, which, gradient):
    """The mean of one step over every row that can be drawn, with its probability, is the step of the whole loss."""
    glm, _, rows, plain = case
    tuning = tuning_of(plain, "leverage", gradient=gradient)
    tuning = replace(tuning, dynamics=replace(tuning.dynamics, batch_size=1))
    engine, start = engines(case, tuning, which), tuning.center + 0.1
    lottery = engine.program.lottery if which == "numba" else engine.lottery
    # a lottery with one ticket per row makes the engine draw that row
    total, n = np.zeros(DIM), len(rows["y"])
    for row in range(n):
        alone = Lottery(np.full(n, row, np.uint64), lottery.weights)
        if which == "numba":
            forced = replace(engine, program=replace(engine.program, lottery=alone))
        else:
            forced = replace(engine, lottery=alone)
        total += path_of(forced, start, (1,))[0][0] / lottery.weights[row] / n
    expected = start - tuning.step @ glm.derivatives(start, 1).gradient
    np.testing.assert_allclose(total, expected, rtol=0, atol=1e-13)


# the lottery


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100, 1001])
def test_a_lottery_gives_every_row_its_tickets_exactly(count):
    rng = np.random.default_rng(count)
    one = np.where(np.arange(count) == 0, 1.0 / (0.1 + 0.9 * count), 10.0)
    for emphasis in (np.ones(count), 1.0 / (0.1 + 0.9 * np.abs(rng.standard_cauchy(count))), one):
        lottery, (tickets, bits) = Lottery.of(emphasis), _tickets(1.0 / emphasis)
        assert int(tickets.sum()) == count << bits
        share = [0] * count
        for column, word in enumerate(lottery.columns.tolist()):
            limit, alias = divmod(word, 2**32)
            own = 2**32 if alias == column else limit
            share[column] += own
            share[alias] += 2**32 - own
        assert share == [k << (32 - bits) for k in tickets.tolist()]
        np.testing.assert_allclose(lottery.weights, emphasis * np.mean(1.0 / emphasis), rtol=1e-6)


def test_rows_come_as_often_as_their_tickets_say():
    emphasis = 1.0 / (0.1 + 0.9 * np.random.default_rng(0).exponential(size=60) ** 2)
    lottery, batch, rng = Lottery.of(emphasis), np.zeros(400_000, np.uint64), np.arange(1, 5).astype(np.uint64)
    rows_by_lottery(rng, lottery.columns, np.zeros_like(batch), batch)
    expected = batch.size / 60 / lottery.weights
    counts = np.bincount(batch.astype(np.int64), minlength=60)
    statistic = np.sum((counts - expected) ** 2 / expected)
    # one in 10,000 on either side; the same numbers against equal shares are far outside
    assert chi2.ppf(1e-4, 59) < statistic < chi2.ppf(1 - 1e-4, 59)
    assert np.sum((counts - batch.size / 60) ** 2 / (batch.size / 60)) > 1e4
    # two successive rows are independent: the chi-square of pairs of ten classes
    pairs = np.histogram2d(batch[:-1:2] % 10, batch[1::2] % 10, bins=10)[0]
    product = np.outer(pairs.sum(axis=1), pairs.sum(axis=0)) / pairs.sum()
    assert np.sum((pairs - product) ** 2 / product) < chi2.ppf(1 - 1e-4, 81)


# epochs


@pytest.mark.parametrize("kind", ["epochs", "whole epochs"])
def test_an_epoch_visits_every_row_once_and_the_next_in_another_order(case, kind):
    """A row whose score is a unit vector of its own shows in the path where it was visited."""
    n, size = 11, 4
    rows = {"k": np.arange(n)}
    model = eq.Model(lambda p, o: -p[o["k"]], np.zeros(n))
    m = eq.Moments.from_arrays(np.random.default_rng(0).normal(size=(40, n)), np.stack([np.eye(n)] * 40), n=n * 40)
    tuning = eq.Tuning.at(m, 0.1, eq.Dynamics(1))
    dynamics = eq.Dynamics(size, **RULES[kind])
    tuning = replace(tuning, dynamics=dynamics, step=np.eye(n))
    engine = model.bind(rows).engine(tuning, Guard(np.inf, np.eye(n)))
    per = 2 if dynamics.drop_last else 3
    state, out = engine.start(np.zeros(n), np.random.SeedSequence(2)), np.zeros((4 * per, n))
    with ThreadPoolExecutor(1) as pool:
        engine.advance([state], 4 * per, 1, [out], pool)
    visits = np.diff(out, axis=0, prepend=0.0).reshape(4, per, n)
    sizes = np.round(1.0 / visits.max(axis=2)).astype(int)
    np.testing.assert_array_equal(sizes, [dynamics.rule.sizes(size, n)] * 4)
    times = (visits > 1e-12).sum(axis=1)
    assert times.max() == 1
    assert np.all(times.sum(axis=1) == sum(dynamics.rule.sizes(size, n)))
    assert len({tuple(epoch.ravel() > 1e-12) for epoch in visits}) == 4


def test_permutations_are_uniform():
    rng, order = np.arange(1, 5).astype(np.uint64), np.zeros(4, np.uint32)
    seen = {}
    for _ in range(24_000):
        permute(rng, order)
        seen[tuple(order)] = seen.get(tuple(order), 0) + 1
    assert len(seen) == 24
    assert sum((k - 1000) ** 2 / 1000 for k in seen.values()) < chi2.ppf(1 - 1e-4, 23)


@pytest.mark.parametrize("which", ["numba", "projected"])
@pytest.mark.parametrize("noise", ["nothing", "langevin"])
def test_a_chain_resumes_in_the_middle_of_an_epoch(case, which, noise, tmp_path):
    """From what a checkpoint holds, by an engine that never saw the epoch's start."""
    tuning = tuning_of(case[-1], "epochs", noise, 0.3)
    start = tuning.center + 0.1
    whole, end = path_of(engines(case, tuning, which), start)
    for stop in (1, 9, 13):
        first, state = path_of(engines(case, tuning, which), start, (stop,))
        engine = engines(case, tuning, which)
        again = engine.start(start, np.random.SeedSequence(9))
        with Checkpoint(tmp_path / f"{which}{noise}{stop}", "key", 0.0) as keeper:
            keeper.restore([again], np.zeros((1, STEPS, DIM)), [0], [False])
            keeper.save([state], np.zeros((1, STEPS, DIM)), [0], [False], force=True)
        with Checkpoint(tmp_path / f"{which}{noise}{stop}", "key", 0.0) as keeper:
            keeper.restore([again], np.zeros((1, STEPS, DIM)), [0], [False])
        assert again.step == stop
        out = np.zeros((STEPS - stop, DIM))
        with ThreadPoolExecutor(1) as pool:
            engine.advance([again], STEPS - stop, 1, [out], pool)
        np.testing.assert_array_equal(np.concatenate([first, out]), whole)
        for one, other in zip(vars(again).values(), vars(end).values(), strict=True):
            np.testing.assert_array_equal(one, other)


# coordinates of a noise


def test_coordinates_make_step_and_noise_diagonal_together():
    rng = np.random.default_rng(4)
    a, b = rng.normal(size=(2, 6, 6))
    step, noise = a @ a.T + np.eye(6), b[:, :4] @ b[:, :4].T
    root, scales, free = coordinates(step, noise, 0.0)
    assert not free
    np.testing.assert_allclose(root @ root.T, step, rtol=0, atol=1e-12)
    np.testing.assert_allclose((root * scales**2) @ root.T, noise, rtol=0, atol=1e-12)
    # two directions without noise: its rank is four
    assert np.sum(scales > 1e-6) == 4
    # eigenvectors come with either sign, depending on the library: a chain must not
    plain = np.linalg.eigh
    for signs in (np.array([1, -1, 1, 1, -1, -1.0]), -np.ones(6)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(np.linalg, "eigh", lambda m, s=signs: (plain(m)[0], plain(m)[1] * s))
            np.testing.assert_array_equal(coordinates(step, noise, 0.0).root, root)
    for temperature in (0.0, 0.02):
        root, scales, free = coordinates(step, 2.0 * temperature * step, temperature)
        assert free
        np.testing.assert_array_equal(root, cholesky(step, lower=True))
        np.testing.assert_array_equal(scales, np.full(6, np.sqrt(2.0 * temperature)))
