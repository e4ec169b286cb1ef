"""Loops of optax and BlackJAX, run as their users run them: the draws have the covariance they were tuned to."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import equipoise as eq
from equipoise.interop import blackjax as eqb
from equipoise.interop import optax as eqo

blackjax = pytest.importorskip("blackjax")

SLOW = pytest.mark.slow
CHAINS, STEPS, SKIPPED = 64, 1200, 200
PRECISION = 3.0


def loss(params, row):
    """Counts with a log mean, in two leaves."""
    eta = params["b"] @ row["x"] + params["a"]
    return jnp.exp(eta) - row["y"] * eta


def rows(n=600, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2)) * [1.0, 0.3]
    # more spread than a Poisson law has, so that sandwich and posterior differ
    y = rng.poisson(np.exp(0.4 + x @ [0.3, -0.5]) * rng.gamma(2.0, 0.5, size=n)).astype(float)
    return {"x": x, "y": y}


MODEL = eq.Model(loss, init={"a": 0.0, "b": np.zeros(2)}, prior_precision=PRECISION)
DATA = rows()


@pytest.fixture(scope="module")
def moments():
    return eq.moments(MODEL, DATA, eq.fit(MODEL, DATA))


def tuned(moments, **options):
    """Tunings of several kinds."""
    dynamics = {"batch_size": 60, **options.pop("dynamics", {})}
    return eq.tune(moments, options.pop("target", "sandwich"), eq.Dynamics(**dynamics), **options)


KINDS = {
    "sgd": {},
    "momentum": {"dynamics": {"momentum": 0.5, "inverse_temperature": 3000.0}},
    "epochs": {"dynamics": {"batches": "epochs"}},
    "completed": {"dynamics": {"gradient": "control-variate"}, "noise": "completed", "target": "posterior"},
}


def batches(key, dynamics, n, steps):
    """Row numbers of every step, drawn as the dynamics say."""
    size = dynamics.batch_size
    if dynamics.batches == "independent":
        return jax.random.randint(key, (steps, size), 0, n)
    keys = jax.random.split(key, -(-steps * size // n))
    return jax.vmap(lambda k: jax.random.permutation(k, n))(keys).reshape(-1, size)[:steps]


def observed(draws, tuning):
    """A diagnosis of (chains, steps, D) iterates."""
    return eq.diagnose(eq.Chains.from_draws(np.asarray(draws, float)[:, SKIPPED:], tuning), tuning)


def flat(params):
    return jnp.concatenate([params["a"][None], params["b"]])


def start(tuning):
    center = tuning.center.astype(np.float32)
    return {"a": jnp.asarray(center[0]), "b": jnp.asarray(center[1:])}


def optax_run(tuning, transformation):
    """A user's own loop: their loss of a batch, their scan, one optimizer."""
    held, n = jax.tree.map(jnp.asarray, DATA), len(DATA["y"])

    def mean(params, batch):
        penalty = 0.5 * PRECISION * (params["a"] ** 2 + params["b"] @ params["b"])
        return jnp.mean(jax.vmap(loss, (None, 0))(params, batch)) + penalty / n

    slope = jax.grad(mean) if tuning.dynamics.gradient == "plain" else eqo.gradient(tuning, MODEL)

    def chain(key, state):
        def step(carry, index):
            params, state = carry
            updates, state = transformation.update(slope(params, jax.tree.map(lambda a: a[index], held)), state, params)
            params = optax.apply_updates(params, updates)
            return (params, state), flat(params)

        return jax.lax.scan(step, (start(tuning), state), batches(key, tuning.dynamics, n, STEPS))[1]

    keys = jax.random.split(jax.random.key(7), CHAINS)
    first = transformation.init(start(tuning))
    states = jax.vmap(lambda k: first._replace(key=jax.random.fold_in(k, 1)))(keys)
    return jax.jit(jax.vmap(chain))(keys, states)


@pytest.mark.parametrize("kind", ["momentum", *(pytest.param(k, marks=SLOW) for k in ("sgd", "epochs", "completed"))])
def test_optax(kind, moments) -> None:
    tuning = tuned(moments, **KINDS[kind].copy())
    found = observed(optax_run(tuning, eqo.calibrated(tuning, seed=3)), tuning)
    assert found.check("covariance").status == "ok", str(found)
    np.testing.assert_allclose(found.sd_ratio, 1.0, atol=5.0 * found.spread_error.max())


@SLOW
def test_a_step_that_is_wrong_shows(moments) -> None:
    tuning = tuned(moments)
    wrong = replace(tuning, step=1.5 * tuning.step)
    found = observed(optax_run(tuning, eqo.calibrated(wrong, seed=3)), tuning)
    assert found.check("covariance").status == "look", str(found)


@SLOW
def test_blackjax_kernels_are_the_same_chain(moments) -> None:
    held, n = jax.tree.map(jnp.asarray, DATA), len(DATA["y"])
    for kind in ("momentum", "completed"):
        tuning = tuned(moments, **KINDS[kind].copy())
        algorithm = eqb.sgmcmc(tuning, eq.bind(MODEL, DATA))

        def chain(key, algorithm=algorithm, tuning=tuning):
            def step(state, drawn):
                now, index = drawn
                state = algorithm.step(now, state, jax.tree.map(lambda a: a[index], held))
                return state, flat(state.position)

            keys = jax.random.split(jax.random.fold_in(key, 1), STEPS)
            drawn = keys, batches(key, tuning.dynamics, n, STEPS)
            return jax.lax.scan(step, algorithm.init(start(tuning)), drawn)[1]

        found = observed(jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(1), CHAINS)), tuning)
        assert found.check("covariance").status == "ok", str(found)


def test_their_own_sgld_with_exported_settings(moments) -> None:
    """A scalar step at a temperature of its own, by their gradient estimator and their kernel."""
    dynamics = eq.Dynamics(batch_size=60, inverse_temperature=900.0)
    tuning = eq.tune(moments, "sandwich", dynamics, structure="scalar")
    settings = eqb.sgld(tuning)
    n = len(DATA["y"])
    assert settings.step_size == pytest.approx(tuning.step[0, 0] / n)
    assert settings.temperature == pytest.approx(n / 900.0)
    held = jax.tree.map(jnp.asarray, DATA)
    estimator = blackjax.sgmcmc.gradients.grad_estimator(
        lambda p: -0.5 * PRECISION * (p["a"] ** 2 + p["b"] @ p["b"]), lambda p, row: -loss(p, row), n
    )
    theirs = blackjax.sgld(estimator)

    def chain(key):
        def step(position, drawn):
            now, index = drawn
            position = theirs.step(now, position, jax.tree.map(lambda a: a[index], held), *settings)
            return position, flat(position)

        keys = jax.random.split(jax.random.fold_in(key, 1), STEPS)
        return jax.lax.scan(step, theirs.init(start(tuning)), (keys, batches(key, dynamics, n, STEPS)))[1]

    found = observed(jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(2), CHAINS)), tuning)
    assert found.check("covariance").status == "ok", str(found)
    np.testing.assert_allclose(found.sd_ratio, 1.0, atol=5.0 * found.spread_error.max())


@SLOW
def test_gradients_are_those_of_the_engine(moments) -> None:
    """Both estimators by NumPy, on a batch; with all rows they agree, and control variates vanish at the minimiser."""
    index, away = np.arange(40, 80), np.array([0.1, -0.2, 0.3])
    n, (x, y) = len(DATA["y"]), (DATA["x"], DATA["y"])
    design = np.column_stack([np.ones(n), x])

    def mean(theta, some):
        return design[some].T @ (np.exp(design[some] @ theta) - y[some]) / len(some)

    center = moments.params
    theta, every = center + away, np.arange(n)
    plain = mean(theta, index) + PRECISION * theta / n
    varied = mean(theta, index) - mean(center, index) + mean(center, every) + PRECISION * theta / n
    with jax.enable_x64(True):
        for options, exact in (({}, plain), (KINDS["completed"], varied)):
            slope = eqo.gradient(tuned(moments, **options.copy()), MODEL)
            params = {"a": jnp.asarray(theta[0]), "b": jnp.asarray(theta[1:])}
            found = slope(params, jax.tree.map(lambda a: jnp.asarray(a[index]), DATA))
            np.testing.assert_allclose(flat(found), exact, rtol=1e-8, atol=1e-10)


@SLOW
def test_a_part_of_the_tree_is_masked_by_optax() -> None:
    model = eq.Model(loss, init={"a": 0.3, "b": np.zeros(2)}, trainable={"a": False, "b": True}, prior_precision=1.0)
    found = eq.moments(model, DATA, eq.fit(model, DATA))
    tuning = eq.tune(found, "sandwich", eq.Dynamics(batch_size=60))
    chain = optax.masked(eqo.calibrated(tuning, seed=0), {"a": False, "b": True})
    params = {"a": jnp.asarray(0.3), "b": jnp.zeros(2)}
    slope = eqo.gradient(tuning, model)(params, jax.tree.map(lambda a: jnp.asarray(a[:60]), DATA))
    updates, _ = chain.update(slope, chain.init(params), params)
    assert updates["a"] == 0.0
    np.testing.assert_allclose(updates["b"], -tuning.step @ np.asarray(slope["b"]), rtol=1e-4)


def test_what_does_not_fit_is_named(moments) -> None:
    tuning = tuned(moments)
    with pytest.raises(eq.InvalidInput, match="3 numbers; got 4"):
        eqo.calibrated(tuning, seed=0).init(jnp.zeros(4))
    with pytest.raises(eq.InvalidInput, match="leverage"):
        eqo.calibrated(tuned(moments, dynamics={"batches": "leverage"}), seed=0)
    with pytest.raises(eq.InvalidInput, match="scalar step"):
        eqb.sgld(tuning)
    dynamics = eq.Dynamics(batch_size=60, gradient="control-variate")
    completed = eq.tune(moments, "posterior", dynamics, noise="completed", step=1e-3)
    with pytest.raises(eq.InvalidInput, match="completed"):
        eqb.sgld(completed)
    with pytest.raises(eq.InvalidInput, match="whose loss is in JAX"):
        eqb.sgmcmc(tuning, eq.glm("poisson"))


def test_positions_of_a_kernel(moments) -> None:
    """Whole numbers, two precisions and flat vectors are taken through a scan; what has another shape is named."""
    tuning = tuned(moments)
    kernel, batch = eqb.sgmcmc(tuning, MODEL), jax.tree.map(lambda a: jnp.asarray(a[:60]), DATA)

    def second(position):
        keys = jax.random.split(jax.random.key(0), 2)
        return jax.lax.scan(lambda s, k: (kernel.step(k, s, batch), None), kernel.init(position), keys)[0].position

    want = flat(second({"a": jnp.zeros(()), "b": jnp.ones(2)}))
    np.testing.assert_allclose(flat(second({"a": 0, "b": np.ones(2, dtype=int)})), want, rtol=1e-6)
    np.testing.assert_allclose(flat(second({"a": jnp.float16(0), "b": jnp.ones(2)})), want, rtol=1e-6)
    np.testing.assert_allclose(second(np.array([0.0, 1.0, 1.0])), want, rtol=1e-6)
    slope = eqo.gradient(tuning, MODEL)
    for position, named in (
        ({"a": 0.0, "b": np.zeros(3)}, r"parameters b: must be of shape \(2,\)"),
        ({"a": np.zeros(2), "b": 0.0}, r"parameters a: must be of shape \(\)"),
        ({"a": 0.0, "c": np.zeros(2)}, "parameters: must be of the structure"),
        (np.zeros(4), r"parameters: must be of shape \(3,\)"),
    ):
        for door in (kernel.init, lambda params: slope(params, batch)):
            with pytest.raises(eq.InvalidInput, match=named):
                door(position)
    with pytest.raises(eq.InvalidInput, match=r"start with kernel\.init"):
        kernel.step(jax.random.key(0), {"a": 0.0, "b": np.zeros(2)}, batch)


def test_parameters_that_are_held_stay_usable_in_their_precision() -> None:
    """Arrays that are constants of a loss in float64 are not spoilt for the user's own float32 functions."""
    held = np.linspace(0.5, 1.5, 2)

    def row_loss(params, row):
        return 0.5 * (row["y"] - (params["a"] * params["w"]) @ row["x"]) ** 2

    model = eq.Model(row_loss, init={"a": 0.0, "w": held}, trainable={"a": True, "w": False}, prior_precision=1.0)
    found = eq.fit(model, DATA)
    for array in (held, found.params["w"]):
        assert jax.jit(lambda x: x + 1.0)(array).dtype == jnp.float32


def gamma_loss(params, row):
    """Gamma with a log mean, in nested leaves."""
    eta = params["shift"] + params["linear"]["b"] @ row["x"] + params["list"][0] * row["z"]
    return eta + row["y"] * jnp.exp(-eta)


@pytest.fixture(scope="module")
def heavy():
    """Gamma regression with weights in units of 1e9, and a prior for each leaf."""
    rng, n = np.random.default_rng(12), 900
    data = {"x": rng.gamma(2.0, 0.5, size=(n, 3)), "z": rng.integers(0, 2, n)}
    mean = np.exp(0.5 + data["x"] @ [0.4, -0.3, 0.2] + 0.5 * data["z"])
    data["y"], weights = rng.gamma(1.5, mean / 1.5), 1e9 * rng.gamma(3.0, 1.0 / 3.0, size=n)
    init = {"shift": 0.4, "linear": {"b": np.zeros(3)}, "list": [0.0]}
    model = eq.Model(gamma_loss, init, prior_precision={"shift": 1e9, "linear": {"b": 5e9}, "list": [2e9]})
    problem = eq.bind(model, eq.data.observations(data, weights=weights))
    return problem, (data, weights), eq.moments(problem, eq.fit(problem))


HEAVY = {
    "momentum": ("sandwich", {"batch_size": 45, "momentum": 0.5}, {}),
    "control": ("posterior", {"batch_size": 220, "gradient": "control-variate"}, {"noise": "completed"}),
}


@pytest.mark.parametrize("library", ["blackjax", pytest.param("optax", marks=SLOW)])
@pytest.mark.parametrize("kind", ["momentum", pytest.param("control", marks=SLOW)])
def test_rows_with_weights_have_their_target(heavy, kind, library) -> None:
    problem, data, moments = heavy
    target, dynamics, options = HEAVY[kind]
    tuning = eq.tune(moments, target, eq.Dynamics(**dynamics), **options)
    first = jax.tree.map(jnp.float32, problem.layout.unflatten(tuning.center))
    held, n = jax.tree.map(jnp.asarray, data), moments.n
    kernel, moving, slope = eqb.sgmcmc(tuning, problem), eqo.calibrated(tuning, seed=1), eqo.gradient(tuning, problem)

    def by_kernel(state, drawn):
        state = kernel.step(drawn[0], state, jax.tree.map(lambda a: a[drawn[1]], held))
        return state, ravel_pytree(state.position)[0]

    def by_updates(carry, drawn):
        params, state = carry
        updates, state = moving.update(slope(params, jax.tree.map(lambda a: a[drawn[1]], held)), state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), ravel_pytree(params)[0]

    def chain(key):
        drawn = jax.random.split(key, STEPS), batches(jax.random.fold_in(key, 1), tuning.dynamics, n, STEPS)
        if library == "blackjax":
            return jax.lax.scan(by_kernel, kernel.init(first), drawn)[1]
        return jax.lax.scan(by_updates, (first, moving.init(first)._replace(key=key)), drawn)[1]

    found = observed(jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(3), CHAINS)), tuning)
    assert found.check("covariance").status == "ok", str(found)
    np.testing.assert_allclose(found.sd_ratio, 1.0, atol=5.0 * found.spread_error.max())


def test_batches_without_their_weights_are_refused(heavy, moments) -> None:
    problem, (data, _), of_weighted = heavy
    tuning = eq.tune(of_weighted, "sandwich", eq.Dynamics(batch_size=45))
    params = problem.layout.unflatten(tuning.center)
    with pytest.raises(eq.InvalidInput, match=r"minibatch: must be \(rows, weights\)"):
        eqo.gradient(tuning, problem)(params, data)
    plain, of_plain = eq.bind(MODEL, DATA), tuned(moments)
    with pytest.raises(eq.InvalidInput, match="minibatch: must be rows in the data's structure"):
        eqo.gradient(of_plain, plain)(plain.layout.unflatten(of_plain.center), (DATA, np.ones(600)))
