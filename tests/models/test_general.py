"""A loss of one's own: agreement with the built-in families, and one-call runs."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.special import ndtri

import equipoise as eq
from tests.known import jax_loss_of
from tests.models.test_structure import STRUCTURES, nested

DIM = 8


def predictor(p, x):
    """xᵀθ with θ taken apart, in the order in which the leaves are flattened."""
    first, second = p["head"]
    return x[0] * first["bias"] + x[1:3] @ first["w"] + jnp.sum(x[3:7].reshape(2, 2) * second["m"]) + x[7] * p["z"]


def loss_of(family):
    return lambda p, o: jax_loss_of(family, predictor(p, o["x"]), o["y"])


MATRIX = np.diag(np.linspace(0.0, 14.0, DIM)) + 3.0
VECTOR, MEAN = np.linspace(0.0, 9.0, DIM), np.linspace(-0.5, 0.5, DIM)
PRIORS = {
    "none": {},
    "scalar": {"prior_precision": 5.0},
    "vector and mean": {"prior_precision": VECTOR, "prior_mean": MEAN},
    "matrix and scalar mean": {"prior_precision": MATRIX, "prior_mean": 0.5},
}


def compare(model, data, glm, rows, batch_size=30):
    """Fit, moments and tuning of two models that are the same: 1e-8, far above rounding and far below any error of mine."""
    mine, theirs = eq.fit(model, data), eq.fit(glm, rows)
    theta = ravel_in_float64(mine.params)
    np.testing.assert_allclose(theta, theirs.params, rtol=0, atol=1e-8)
    m, k = eq.moments(model, data, mine.params), eq.moments(glm, rows, theirs.params)
    root = np.random.default_rng(3).normal(size=(DIM, DIM))
    S = root @ root.T
    assert (m.n, m.dim) == (k.n, k.dim)
    pairs = [(getattr(m, a), getattr(k, a)) for a in ("params", "loss_hessian", "hessian", "score_cov")]
    pairs += [(m.curvature_noise(S), k.curvature_noise(S)), (m.third_derivative(S), k.third_derivative(S))]
    dynamics = eq.Dynamics(batch_size)
    pairs += [(eq.tune(m, "sandwich", dynamics).step, eq.tune(k, "sandwich", dynamics).step)]
    for one, other in pairs:
        assert one.dtype == np.float64
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8 * np.abs(other).max())
    # zero without a prior, so in units of the scores' standard deviation
    np.testing.assert_allclose(m.mean_score, k.mean_score, rtol=0, atol=1e-8 * np.sqrt(np.diag(k.score_cov)).min())
    return m


def ravel_in_float64(tree):
    return np.concatenate([np.ravel(np.asarray(leaf, dtype=np.float64)) for leaf in jax.tree.leaves(tree)])


# agreement with the built-in families


@pytest.mark.parametrize(
    ("family", "prior"),
    [
        ("gaussian", "none"),
        ("gaussian", "matrix and scalar mean"),
        ("bernoulli", "none"),
        ("bernoulli", "scalar"),
        ("poisson", "none"),
        ("poisson", "vector and mean"),
    ],
)
def test_agrees_with_the_family(family, prior, make_data, make_model) -> None:
    x, y = make_data(family, dim=DIM)
    model = eq.Model(loss_of(family), nested(), **PRIORS[prior])
    assert not jax.config.jax_enable_x64
    compare(model, {"x": x, "y": y}, make_model(family, **PRIORS[prior]), (x, y))
    assert not jax.config.jax_enable_x64
    assert jnp.zeros(1).dtype == jnp.float32


def test_a_quadratic_regularizer_is_the_gaussian_prior(make_data) -> None:
    x, y = make_data("poisson", dim=DIM)

    def regularizer(p):
        away = ravel_pytree(p)[0] - MEAN
        return 0.5 * away @ MATRIX @ away

    model = eq.Model(loss_of("poisson"), nested(), regularizer=regularizer)
    glm = eq.glm("poisson", prior_precision=MATRIX, prior_mean=MEAN)
    m = compare(model, {"x": x, "y": y}, glm, (x, y))
    # and the prior is in it: the mean score balances its gradient
    np.testing.assert_allclose(m.mean_score, -MATRIX @ (m.params - MEAN) / 300, rtol=1e-7, atol=1e-12)


def test_a_regularizer_enters_the_third_derivative() -> None:
    rng = np.random.default_rng(0)
    data = {"y": rng.normal(size=50)}
    model = eq.Model(lambda p, o: 0.5 * (o["y"] - p) ** 2, 0.2, regularizer=lambda p: 4.0 * p**3 + 60.0 * p**2)
    found = eq.fit(model, data)
    m = eq.moments(model, data, found.params)
    # R''' = 24, over N = 50; squared loss has none of its own
    np.testing.assert_allclose(m.third_derivative(np.array([[2.0]])), [24.0 * 2.0 / 50.0], rtol=1e-12)
    np.testing.assert_allclose(m.hessian, 1.0 + (24.0 * found.params + 120.0) / 50.0, rtol=1e-12)


def test_subsampled_rows_carry_the_full_number(make_data) -> None:
    x, y = make_data("poisson", dim=DIM)
    data, options = {"x": x, "y": y}, {"tuning_rows": 120, "seed": 5}
    model, glm = eq.Model(loss_of("poisson"), nested(), prior_precision=2.0), eq.glm("poisson", prior_precision=2.0)
    mine, theirs = eq.fit(model, data, **options), eq.fit(glm, (x, y), **options)
    np.testing.assert_allclose(ravel_in_float64(mine.params), theirs.params, rtol=0, atol=1e-8)
    m, k = eq.moments(model, data, mine.params, **options), eq.moments(glm, (x, y), theirs.params, **options)
    assert m.n == 300
    np.testing.assert_allclose(m.hessian, k.hessian, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(m.curvature_noise(np.eye(DIM)), k.curvature_noise(np.eye(DIM)), rtol=1e-8, atol=1e-10)
    # the estimate is that of all rows; the curvature is that of some
    np.testing.assert_allclose(theirs.params, eq.fit(glm, (x, y)).params, rtol=1e-8)
    assert np.abs(k.hessian - eq.moments(glm, (x, y), theirs.params).hessian).max() > 1e-3
    with pytest.raises(eq.InvalidInput, match="tuning_rows: must be between 1 and the number of rows, 300; got 301"):
        eq.fit(model, data, tuning_rows=301)


def test_float32_constants_in_the_loss_and_a_global_float64() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(80, 2)).astype(np.float32)
    y = rng.normal(size=80).astype(np.float32)

    def loss(p, o):
        # an array of float32 from the user's code, combined with float64 parameters
        shift = jnp.array([0.5, 0.25], dtype=jnp.float32)
        return jnp.float32(0.5) * (o["y"] - o["x"] @ (p["w"] + shift)) ** 2

    model = eq.Model(loss, {"w": jnp.zeros(2)})
    found = eq.fit(model, {"x": x, "y": y}).params["w"]
    exact = np.linalg.lstsq(x.astype(np.float64), y.astype(np.float64), rcond=None)[0] - [0.5, 0.25]
    assert found.dtype == np.float64
    # float32 anywhere on the way would leave 1e-7
    np.testing.assert_allclose(found, exact, rtol=1e-13, atol=1e-13)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(eq.fit(model, {"x": x, "y": y}).params["w"], found)
        assert jnp.zeros(1).dtype == jnp.float64
    assert jnp.zeros(1).dtype == jnp.float32


def test_integer_and_boolean_columns_stay_what_they_are() -> None:
    seen = []

    def loss(p, o):
        seen.append((o["group"].dtype.kind, o["flag"].dtype.kind, o["y"].dtype.name))
        return 0.5 * (o["y"] - p["effect"][o["group"]]) ** 2 + jnp.where(o["flag"], 1.0, 0.0)

    group = np.array([0, 1, 2, 1, 0, 2])
    y = np.array([1.0, 2.0, 4.0, 3.0, 2.0, 7.0], dtype=np.float32)
    found = eq.fit(eq.Model(loss, {"effect": np.zeros(3)}), {"group": group, "flag": y > 3, "y": y})
    np.testing.assert_allclose(found.params["effect"], [1.5, 2.5, 5.5], rtol=1e-12)
    assert set(seen) == {("i", "b", "float64")}


# one call


@pytest.fixture(scope="module")
def calibrated(make_data):
    x, y = make_data("bernoulli", n=400, dim=DIM)
    model = eq.Model(loss_of("bernoulli"), nested())
    return eq.calibrate(model, {"x": x, "y": y}, ess=600, chains=3, seed=2, progress=False), x


def test_calibrate_needs_nothing_else(calibrated, make_data) -> None:
    cal, _ = calibrated
    x, y = make_data("bernoulli", n=400, dim=DIM)
    theirs = eq.calibrate(eq.glm("bernoulli"), (x, y), ess=600, chains=3, seed=2, progress=False)
    np.testing.assert_allclose(cal.plan.ess, theirs.plan.ess, rtol=1e-8)
    assert cal.tuning.dynamics == theirs.tuning.dynamics
    np.testing.assert_allclose(cal.tuning.noise, theirs.tuning.noise, rtol=1e-6, atol=1e-12)
    # without completed noise, whose axes may be of nearly the same size and then turn with rounding: the same batches, and
    # the same draws, of size one
    run = {"ess": 200, "chains": 2, "seed": 2, "progress": False, "sampler": "sgmcmc"}
    own = eq.calibrate(eq.Model(loss_of("bernoulli"), nested()), {"x": x, "y": y}, **run)
    glm = eq.calibrate(eq.glm("bernoulli"), (x, y), **run)
    np.testing.assert_allclose(own.draws, glm.draws, rtol=0, atol=1e-9)
    assert cal.names == tuple(STRUCTURES["nested"][1])
    assert [check.ok for check in own.diagnosis.checks] == [check.ok for check in glm.diagnosis.checks]
    frame = cal.summary().frame
    np.testing.assert_allclose(frame["robust se"], np.sqrt(np.diag(theirs.tuning.target)), rtol=1e-8)
    np.testing.assert_allclose(frame["estimate"], theirs.fit.params, atol=1e-8)
    # the closed form is enough here, and free of the chains' Monte Carlo error
    np.testing.assert_allclose(frame["[0.025"], frame["estimate"] - ndtri(0.975) * frame["robust se"], rtol=1e-12)
    assert "custom loss" in str(cal.summary())


def test_draws_in_the_users_structure(calibrated) -> None:
    cal, _ = calibrated
    tree = cal.chains.tree()
    lead = cal.draws.shape[:2]
    assert [leaf.shape for leaf in jax.tree.leaves(tree)] == [lead, (*lead, 2), (*lead, 2, 2), lead]
    one = jax.tree.map(lambda a: a[1, 5], tree)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(ravel_pytree(one)[0], cal.draws[1, 5])


def test_evaluate_is_numpy_on_the_draws(calibrated) -> None:
    cal, x = calibrated
    new = x[:9] * 1.1

    def function(p, o):
        eta = predictor(p, o["x"])
        return jnp.stack([jax.nn.sigmoid(eta), eta])

    found = cal.evaluate(function, {"x": new}, interval=0.8)
    eta = cal.chains.flat() @ new.T
    for k, values in enumerate((1.0 / (1.0 + np.exp(-eta)), eta)):
        lower, upper = np.quantile(values, [0.1, 0.9], axis=0)
        np.testing.assert_allclose(found["lower"][:, k], lower, rtol=1e-10)
        np.testing.assert_allclose(found["upper"][:, k], upper, rtol=1e-10)
    np.testing.assert_allclose(found["estimate"][:, 1], new @ ravel_in_float64(cal.fit.params), rtol=1e-10)
    assert all(found[key].shape == (9, 2) for key in ("estimate", "lower", "upper"))
    with pytest.raises(eq.InvalidInput, match="data x: must be finite"):
        cal.evaluate(function, {"x": np.full((2, DIM), np.nan)})
    with pytest.raises(eq.InvalidInput, match=r"model: must be one from eq.glm.*use evaluate\(function, data\)"):
        cal.predict(new)


def test_save_and_load_keep_all_but_the_loss(calibrated, tmp_path) -> None:
    cal, x = calibrated
    cal.save(tmp_path / "run.eqz")
    again = eq.load(tmp_path / "run.eqz")
    assert again.model is None
    np.testing.assert_array_equal(again.draws, cal.draws)
    assert again.chains.layout.variables == cal.chains.layout.variables
    assert str(again.summary()) == str(cal.summary())
    with pytest.raises(eq.InvalidInput, match=r"model: must be at hand.*a loss of your own.*attach\(eq\.bind"):
        again.predict(x)
    # the structure is kept, so that functions of the parameters still work
    jax.tree.map(np.testing.assert_array_equal, again.chains.tree(), cal.chains.tree())
    jax.tree.map(np.testing.assert_array_equal, again.fit.params, cal.fit.params)
    for run in (cal, again):
        found = run.evaluate(lambda p, o: predictor(p, o["x"]), {"x": x[:5]})
        np.testing.assert_array_equal(
            found["lower"], cal.evaluate(lambda p, o: predictor(p, o["x"]), {"x": x[:5]})["lower"]
        )


def test_arviz_has_one_variable_per_leaf(calibrated, tmp_path) -> None:
    cal, _ = calibrated
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = eq.load(cal.save(tmp_path / "run.eqz"))
        for run in (cal, loaded):
            posterior = run.to_arviz()["draws"]
            lead = cal.draws.shape[:2]
            shapes = {name: posterior[name].shape for name in posterior.data_vars}
            assert shapes == {
                "head.0.bias": lead,
                "head.0.w": (*lead, 2),
                "head.1.m": (*lead, 2, 2),
                "z": lead,
            }
            np.testing.assert_array_equal(posterior["head.1.m"].values.reshape(*lead, 4), cal.draws[:, :, 3:7])


def test_independent_draws_keep_the_structure(calibrated, make_data) -> None:
    x, y = make_data("bernoulli", n=400, dim=DIM)
    cal = eq.calibrate(calibrated[0].model, {"x": x, "y": y}, ess=100, chains=2, sampler="gaussian", progress=False)
    tree = cal.chains.tree()
    np.testing.assert_array_equal(tree["head"][1]["m"], cal.draws[:, :, 3:7].reshape(2, 50, 2, 2))
    np.testing.assert_array_equal(tree["z"], cal.draws[:, :, 7])
    assert cal.chains.layout.variables == calibrated[0].chains.layout.variables


def test_bounds_are_for_built_in_families(calibrated) -> None:
    cal, x = calibrated
    data = {"x": x, "y": np.zeros(len(x))}
    for call in (
        lambda: eq.wasserstein_bound(cal.model, data, cal.fit, 0.1, eq.Dynamics(10)),
        lambda: eq.coupled_distance(cal.model, data, cal.tuning),
    ):
        with pytest.raises(eq.InvalidInput, match=r"model: must be one from eq\.glm.*got a loss of your own"):
            call()
