"""The general engine: the linear engine's paths, bits that depend on the seed alone, divergence, guard, checkpoints."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.engines.engine import Guard
from equipoise.engines.jax import autodiff
from equipoise.engines.jax.loop import GRADIENTS, SHAKES, compiled_loop
from equipoise.engines.rules import add_nothing
from tests.known import jax_loss_of

N, DIM = 200, 3


def loss_of(family, traces=None):
    """The loss of a row; `traces` counts how often Python runs it."""

    def loss(p, o):
        if traces is not None:
            traces.append(family)
        return jax_loss_of(family, o["x"] @ p["w"] + p["b"], o["y"])

    return loss


@pytest.fixture(scope="module")
def case(make_data, make_model):
    """`case(family, **prior)`: the built-in model, the same in JAX (flat order b, w), data for both, moments."""
    cache = {}

    def make(family, **prior):
        key = family, repr(prior)
        if key not in cache:
            x, y = make_data(family, n=N, dim=DIM)
            glm = make_model(family, **prior)
            model = eq.Model(loss_of(family), {"b": 0.0, "w": np.zeros(DIM - 1)}, **prior)
            data = {"x": x[:, 1:], "y": y}
            cache[key] = glm, model, (x, y), data, eq.moments(glm, (x, y), eq.fit(glm, (x, y)).params)
        return cache[key]

    return make


@pytest.fixture(scope="module")
def logistic(case):
    """A JAX model, its data and a tuning."""
    _, model, _, data, m = case("bernoulli")
    return model, data, eq.tune(m, "sandwich", eq.Dynamics(20))


def engine_of(model, data, tuning):
    """The engine a run without a guard would use."""
    return model.bind(data).engine(tuning, Guard(np.inf, tuning.expected))


def run(model, data, tuning, **options):
    defaults = {"draws": 60, "chains": 3, "seed": 3, "thin": 1, "burn_in": 0, "guard": None, "progress": False}
    return eq.sample(model, data, tuning, **{**defaults, **options})


# the same path as the linear engine


@pytest.mark.parametrize(
    "dynamics",
    [eq.Dynamics(20, momentum=0.7), eq.Dynamics(50, replacement=False), eq.Dynamics(1), eq.Dynamics(N, momentum=0.2)],
    ids=["momentum", "without replacement", "one row", "many rows"],
)
def test_path_of_other_dynamics(dynamics, case) -> None:
    prior = {"prior_precision": np.diag([1.0, 4.0, 9.0]) + 1.0, "prior_mean": 0.4}
    glm, model, rows, data, m = case("bernoulli", **prior)
    tuning = eq.tune(m, "sandwich", dynamics)
    mine, theirs = (run(*pair, tuning, draws=300) for pair in ((model, data), (glm, rows)))
    np.testing.assert_allclose(mine.draws, theirs.draws, rtol=0, atol=1e-12)


def test_chains_with_and_without_a_projection_take_the_same_path(case, monkeypatch) -> None:
    _, model, _, data, m = case("poisson", prior_precision=np.diag([1.0, 4.0, 9.0]) + 1.0, prior_mean=0.4)
    tuning = eq.tune(m, "sandwich", eq.Dynamics(20, 0.5, 8.0 * N))
    engine = engine_of(model, data, tuning)
    assert engine.projection.rank == 1
    assert (
        autodiff.autodiff_engine(engine.task, tuning, Guard(np.inf, tuning.expected), whiten=False).projection is None
    )
    expected = run(model, data, tuning, draws=400, guard=2.0)
    assert expected.statistics["guard_hits"] > 0
    monkeypatch.setattr("equipoise.engines.jax.autodiff._projection", lambda *_: None)
    found = run(model, data, tuning, draws=400, guard=2.0)
    # the noise L ξ is the same, too
    np.testing.assert_allclose(found.draws, expected.draws, rtol=0, atol=1e-11)
    assert found.statistics["guard_hits"] == expected.statistics["guard_hits"]


def test_no_projection_where_it_would_not_pay_or_hold(case) -> None:
    _, model, _, data, m = case("gaussian")
    tuning = eq.tune(m, "sandwich", eq.Dynamics(20))
    narrow = eq.Model(lambda p, o: jnp.sum((p - o["y"]) ** 2), np.zeros(DIM))
    curved = eq.Model(model.loss, model.init, regularizer=lambda p: p["b"] ** 4)
    # three combinations of three parameters for every number of a row; a regulariser that is not quadratic
    for other, rows in ((narrow, {"y": data["y"]}), (curved, data)):
        assert engine_of(other, rows, tuning).projection is None


# bits


def test_bits_do_not_depend_on_how_a_run_is_split(case, monkeypatch) -> None:
    _, model, _, data, m = case("bernoulli")
    for dynamics in (eq.Dynamics(20), eq.Dynamics(20, 0.5, 8.0 * N, replacement=False)):
        tuning = eq.tune(m, "sandwich", dynamics)
        options = {"draws": 70, "thin": 3, "burn_in": 11}
        expected = run(model, data, tuning, **options)
        for module, name, value in (
            ("engines.jax.autodiff", "_STEPS", 2),
            ("engines.jax.autodiff", "_STEPS", 13),
            ("engines.jax.autodiff", "_AHEAD", 20 * 5),
            ("sampling.run", "_ROUND_SECONDS", 1e-9),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(f"equipoise.{module}.{name}", value)
                found = run(model, data, tuning, **options)
            np.testing.assert_array_equal(found.draws, expected.draws)
            for one, other in zip(found.state, expected.state, strict=True):
                np.testing.assert_array_equal(one.rng, other.rng)
                np.testing.assert_array_equal(one.velocity, other.velocity)


def test_bits_do_not_depend_on_threads_or_the_number_of_chains_and_draws(logistic) -> None:
    expected = run(*logistic, draws=300, chains=4, threads=1).draws
    np.testing.assert_array_equal(run(*logistic, draws=300, chains=4, threads=2).draws, expected)
    np.testing.assert_array_equal(run(*logistic, draws=300, chains=4, threads=None).draws, expected)
    # vectorised over chains, a compiler would order sums by how many there are
    for chains, draws in ((1, 300), (3, 40), (2, 17)):
        np.testing.assert_array_equal(run(*logistic, draws=draws, chains=chains).draws, expected[:chains, :draws])
    assert not np.intersect1d(run(*logistic, seed=4).draws, expected).size


def test_nothing_is_compiled_between_rounds(case, monkeypatch) -> None:
    _, _, _, data, m = case("bernoulli")
    traces = []
    model = eq.Model(loss_of("bernoulli", traces), {"b": 0.0, "w": np.zeros(DIM - 1)})
    tuning = eq.tune(m, "sandwich", eq.Dynamics(20))
    run(model, data, tuning, draws=10, chains=2)
    engine = engine_of(model, data, tuning)
    parts = GRADIENTS[tuning.dynamics.estimator], SHAKES[add_nothing]
    loop = compiled_loop(engine.task.loss, engine.projection, *parts, False, False)
    assert loop._cache_size() == 1
    # binding the data again traces the loss to check it, and compiles nothing
    before = len(traces)
    model.bind(data)
    each = len(traces) - before
    monkeypatch.setattr("equipoise.sampling.run._ROUND_SECONDS", 0.002)
    for draws, chains, thin in ((10, 2, 1), (6000, 2, 1), (777, 3, 5)):
        before = len(traces)
        run(model, data, tuning, draws=draws, chains=chains, thin=thin)
        assert len(traces) - before == each
    # a checkpoint needs the gradient, once
    assert loop._cache_size() == 1


def test_rows_of_a_loss_of_your_own_are_float64(logistic) -> None:
    with pytest.raises(eq.InvalidInput, match="storage: must be float64 for a loss of your own; got 'float32'"):
        run(*logistic, storage="float32")


# divergence


def quartic(p, o):
    """Steps of one half take p to p/2 − p³/2: away from zero, and ever faster, exactly where |p| > √3."""
    return o["s"] * (0.5 * p**2 + 0.25 * p**4)


def moved(tuning):
    """The tuning with a step of one half, centred at zero."""
    law = tuning.predicted
    centred = replace(law, moments=replace(law.moments, params=np.zeros(1)))
    return replace(tuning, step=np.array([[0.5]]), predicted=centred)


@pytest.fixture(scope="module")
def explosive():
    """A chain without noise, started at N(0, 4): some diverge, the others go to zero."""
    y = np.random.default_rng(0).normal(size=40)
    m = eq.moments(eq.Model(lambda p, o: 0.5 * (p - o["s"]) ** 2, 0.0), {"s": y}, np.array(y.mean()))
    tuning = eq.tune(m, np.array([[4.0]]), eq.Dynamics(4))
    return eq.Model(quartic, 0.1), {"s": np.ones(40)}, moved(tuning)


def simulated(starts, steps):
    """Paths in NumPy, and the step at which each square is no longer finite (0: never)."""
    path, lost = np.full((len(starts), steps), np.nan), np.zeros(len(starts), dtype=int)
    with np.errstate(over="ignore", invalid="ignore"):
        for c, p in enumerate(starts):
            for t in range(steps):
                p = p - 0.5 * (p + p**3)
                if not np.isfinite(p * p):
                    lost[c] = t + 1
                    break
                path[c, t] = p
    return path, lost


def test_divergence_is_found_at_its_step_and_the_others_go_on(explosive, monkeypatch) -> None:
    model, data, tuning = explosive
    options = {"draws": 50, "chains": 6, "seed": 1}
    # a vanishing step shows where the chains start
    starts = run(model, data, replace(tuning, step=np.array([[1e-14]])), **{**options, "draws": 1}).draws[:, 0, 0]
    path, lost = simulated(starts, 50)
    assert 0 < np.count_nonzero(lost) < 6
    with pytest.raises(eq.ChainDiverged) as caught:
        run(model, data, tuning, **options)
    error, first = caught.value, int(np.flatnonzero(lost)[0])
    assert (error.chain, error.step) == (first, lost[first])
    assert f"chain {first} diverged at step {lost[first]};" in str(error)
    assert [s.step for s in error.chains.state] == [k or 50 for k in lost]
    found = error.chains.draws[:, :, 0]
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(path))
    # the starts are known to 1e-14, which an explosion multiplies: p³ at every step
    kept = np.abs(path) < 10.0
    np.testing.assert_allclose(found[kept], path[kept], rtol=1e-9, atol=1e-12)
    # and no bit of it depends on when the sampler looked
    for name, value in (("equipoise.sampling.run._ROUND_SECONDS", 1e-9), ("equipoise.engines.jax.autodiff._STEPS", 2)):
        with monkeypatch.context() as patch:
            patch.setattr(name, value)
            with pytest.raises(eq.ChainDiverged) as again:
                run(model, data, tuning, **options)
        np.testing.assert_array_equal(again.value.chains.draws, error.chains.draws)
        assert again.value.step == error.step
    # thinned, the draws before the divergence are kept
    with pytest.raises(eq.ChainDiverged) as thinned:
        run(model, data, tuning, **{**options, "draws": 25}, thin=2)
    np.testing.assert_array_equal(thinned.value.chains.draws, error.chains.draws[:, 1::2])


def test_guard_is_that_of_the_linear_engine(case) -> None:
    glm, model, rows, data, m = case("poisson")
    tuning = eq.tune(m, "sandwich", eq.Dynamics(20))
    mine, theirs = (run(*pair, tuning, draws=600, guard=1.5) for pair in ((model, data), (glm, rows)))
    np.testing.assert_allclose(mine.draws, theirs.draws, rtol=0, atol=1e-12)
    assert [s.hits for s in mine.state] == [s.hits for s in theirs.state]
    assert mine.statistics["guard_hits"] > 30
    e = mine.flat() - tuning.center
    forms = np.einsum("ni,ni->n", e @ np.linalg.inv(tuning.predicted.cov), e)
    assert forms.max() <= 1.5**2 * (1.0 + 1e-9)
    # a general loss is unguarded unless asked
    np.testing.assert_array_equal(
        run(model, data, tuning, guard="auto").draws, run(model, data, tuning, guard=None).draws
    )


# checkpoints


def test_a_checkpoint_of_another_loss_or_other_data_is_refused(logistic, tmp_path) -> None:
    model, data, tuning = logistic
    path = tmp_path / "run.ckpt"
    first = run(model, data, tuning, checkpoint=path)
    # the same loss written anew is the same run
    same = eq.Model(loss_of("bernoulli"), model.init)
    np.testing.assert_array_equal(run(same, data, tuning, checkpoint=path).draws, first.draws)
    other = eq.Model(lambda p, o: 1.001 * model.loss(p, o), model.init)
    held = eq.Model(model.loss, model.init, prior_precision=0.01)
    moved = {**data, "x": data["x"] + 1e-9}
    for changed in ((other, data), (held, data), (model, moved)):
        with pytest.raises(eq.CheckpointMismatch, match="belongs to another run"):
            run(*changed, tuning, checkpoint=path)


# and the rest


def test_x64_stays_off(logistic) -> None:
    chains = run(*logistic)
    assert chains.draws.dtype == np.float64
    assert not jax.config.jax_enable_x64
    assert jnp.zeros(1).dtype == jnp.float32
