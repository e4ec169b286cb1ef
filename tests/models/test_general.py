"""A loss of one's own: agreement with the built-in families, structure, curvature, minima, bad code, one-call runs."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.special import ndtri

import equipoise as eq
from equipoise.data import fields as arrays_module
from equipoise.data.source import chosen_rows
from equipoise.models.general import curvature as curvature_module
from equipoise.models.general.curvature import FactoredCurvature, GeneralCurvature, factored_curvature
from equipoise.models.general.structure import trainable_structure

DIM = 8
SCALE = 1.3


def data_of(problem):
    """The rows of a problem, in the user's structure."""
    return jax.tree.unflatten(problem.tree, problem.source.leaves)


def nested():
    """A scalar, a vector, a matrix and a Python number; dicts in a list in a dict; two precisions."""
    return {
        "head": [{"bias": np.float32(0.0), "w": jnp.zeros(2, dtype=jnp.float32)}, {"m": np.zeros((2, 2))}],
        "z": 0.0,
    }


def predictor(p, x):
    """xᵀθ with θ taken apart, in the order in which the leaves are flattened."""
    first, second = p["head"]
    return x[0] * first["bias"] + x[1:3] @ first["w"] + jnp.sum(x[3:7].reshape(2, 2) * second["m"]) + x[7] * p["z"]


def loss_of(family):
    def loss(p, o):
        eta, y = predictor(p, o["x"]), o["y"]
        value = {
            "gaussian": lambda: 0.5 * ((y - eta) / SCALE) ** 2,
            "bernoulli": lambda: jnp.logaddexp(0.0, eta) - y * eta,
            "poisson": lambda: jnp.exp(eta) - y * eta,
        }[family]()
        return value * o["weight"] if "weight" in o else value

    return loss


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


def test_weights_are_a_field_of_the_observation(make_data) -> None:
    x, y = make_data("bernoulli", dim=DIM)
    weight = np.random.default_rng(0).uniform(0.2, 3.0, len(y))
    model = eq.Model(loss_of("bernoulli"), nested())
    compare(model, {"x": x, "y": y, "weight": weight}, eq.glm("bernoulli"), eq.data.rows(x, y, weights=weight))


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


# structure


class Pair(NamedTuple):
    left: object
    right: object


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    """A module in the style of Equinox: parameters are its fields, and it is callable."""

    weight: object
    bias: object

    def __call__(self, x):
        return x @ self.weight + self.bias


ENTRIES = [f"head.1.m[{i},{j}]" for i in (0, 1) for j in (0, 1)]
STRUCTURES = {
    "nested": (nested(), ["head.0.bias", "head.0.w[0]", "head.0.w[1]", *ENTRIES, "z"]),
    "tuple": ((0.0, np.zeros(2)), ["0", "1[0]", "1[1]"]),
    "list": ([np.zeros((1, 2)), 1.5], ["0[0,0]", "0[0,1]", "1"]),
    "named tuple": (Pair(np.zeros(2), {"b": 0.0}), ["left[0]", "left[1]", "right.b"]),
    "module": (Layer(np.zeros((2, 1)), np.zeros(1)), ["weight[0,0]", "weight[1,0]", "bias[0]"]),
    "bare array": (np.zeros(3), ["theta[0]", "theta[1]", "theta[2]"]),
    "bare number": (0.5, ["theta"]),
    "keys out of order, a None": ({"b": 1.0, "a": None, "A": np.ones(1)}, ["A[0]", "b"]),
}  # fmt: skip


@pytest.mark.parametrize("name", list(STRUCTURES))
def test_names_and_round_trips(name) -> None:
    init, names = STRUCTURES[name]
    structure = trainable_structure(init, None)
    assert list(structure.names) == names
    assert structure.dim == structure.full == len(names)
    assert sum(int(np.prod(shape)) for _, shape in structure.variables) == len(names)
    for lead in ((), (4,), (2, 5)):
        flat = np.random.default_rng(0).normal(size=(*lead, len(names)))
        tree = structure.unflatten(flat)
        assert jax.tree.structure(tree) == jax.tree.structure(init)
        for leaf, start in zip(jax.tree.leaves(tree), jax.tree.leaves(init), strict=True):
            assert leaf.shape == (*lead, *np.shape(start))
            assert leaf.dtype == np.float64
        # the order is that of ravel_pytree, for every index of the leading axes
        for index in np.ndindex(*lead):
            one = jax.tree.map(lambda a, i=index: a[i], tree)
            with jax.enable_x64(True):
                np.testing.assert_array_equal(ravel_pytree(one)[0], flat[index])
            np.testing.assert_array_equal(structure.flatten(one), flat[index])


def test_flat_vectors_are_accepted_wherever_they_are_not_ambiguous() -> None:
    structure = trainable_structure({"a": 0.0, "b": np.zeros(2)}, None)
    np.testing.assert_array_equal(structure.flatten(np.arange(3.0)), np.arange(3.0))
    bare = trainable_structure(np.zeros(3), None)
    np.testing.assert_array_equal(bare.flatten(np.arange(3.0)), np.arange(3.0))
    for bad, words in [
        ({"a": 1.0}, "params: must be of the structure"),
        ({"a": 1.0, "b": np.zeros(3)}, r"params b: must be of shape \(2,\); got shape \(3,\)"),
        ({"a": np.nan, "b": np.zeros(2)}, "params: must be finite"),
        (np.array([0.0, np.inf, 0.0]), "params: must be finite"),
        (np.zeros(4), "params: must be of the structure"),
    ]:
        with pytest.raises(eq.InvalidInput, match=words):
            structure.flatten(bad)


@pytest.mark.parametrize(
    ("trainable", "names"),
    [
        ({"head": [True, False], "z": False}, ["head.0.bias", "head.0.w[0]", "head.0.w[1]"]),
        ({"head": [{"bias": False, "w": True}, False], "z": True}, ["head.0.w[0]", "head.0.w[1]", "z"]),
        (lambda name: name.startswith("head.1") or name == "z", [*ENTRIES, "z"]),
        (True, list(STRUCTURES["nested"][1])),
    ],
    ids=["prefix", "mixed", "function of the name", "one flag"],
)  # fmt: skip
def test_trainable_leaves(trainable, names) -> None:
    init = jax.tree.map(lambda a: np.asarray(a, dtype=np.float64) + 0.7, nested())
    structure = trainable_structure(init, trainable)
    assert list(structure.names) == names
    tree = structure.unflatten(np.zeros((5, len(names))))
    for leaf, start, varies in zip(jax.tree.leaves(tree), jax.tree.leaves(init), structure.varies, strict=True):
        # constants are returned as they were given, without leading axes
        np.testing.assert_array_equal(leaf, np.zeros((5, *np.shape(start))) if varies else start)


def test_a_callable_module_of_flags_is_a_mask_not_a_function() -> None:
    structure = trainable_structure(Layer(np.zeros((2, 1)), np.ones(1)), Layer(True, False))
    assert structure.names == ("weight[0,0]", "weight[1,0]")


def test_frozen_parameters_stay_and_come_back() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 2))
    data = {"x": x, "y": x @ [1.0, -1.0] + 0.7 + rng.normal(size=100), "label": np.arange(100)}
    init = {"layer": Layer(np.zeros(2), 0.25), "order": 3, "act": jnp.tanh}

    def loss(p, o):
        assert isinstance(p["order"], int)
        return 0.5 * (o["y"] - p["layer"](o["x"])) ** 2

    model = eq.Model(loss, init, trainable=lambda name: name == "layer.weight")
    found = eq.fit(model, data)
    exact = np.linalg.lstsq(x, data["y"] - 0.25, rcond=None)[0]
    np.testing.assert_allclose(found.params["layer"].weight, exact, rtol=1e-12)
    assert (found.params["layer"].bias, found.params["order"], found.params["act"]) == (0.25, 3, jnp.tanh)
    tuning = eq.tune(eq.moments(model, data, found.params), "sandwich", eq.Dynamics(10))
    chains = eq.sample(model, data, tuning, draws=7, chains=3, progress=False)
    tree = chains.tree()
    assert chains.names == ("layer.weight[0]", "layer.weight[1]")
    assert chains.layout.variables == (("layer.weight", (2,)),)
    np.testing.assert_array_equal(tree["layer"].weight, chains.draws)
    assert tree["layer"].bias == 0.25


# curvature


def softmax(classes, features, n, seed=0, size=1.0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, features))
    theta = {"w": size * rng.normal(size=(features, classes - 1)), "b": np.zeros(classes - 1)}

    def loss(p, o):
        z = jnp.concatenate([o["x"] @ p["w"] + p["b"], jnp.zeros(1)])
        return jax.nn.logsumexp(z) - z[o["class"]]

    scores = np.column_stack([x @ theta["w"], np.zeros(n)])
    model = eq.Model(loss, theta)
    problem = model.bind({"x": x, "class": (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)})
    return problem, problem.flatten(theta)


def brute(problem, theta, S, third=True):
    """mean J_n S J_n and ∇³L[S], row by row with jax.hessian."""
    row = problem.model.functions.row
    with jax.enable_x64(True):
        hessian = jax.jit(jax.hessian(row))
        rows = [jax.tree.map(lambda a, k=k: a[k], data_of(problem)) for k in range(problem.source.n)]
        hessians = [np.asarray(hessian(theta, o)) for o in rows]
        # central differences of tr(J S), fourth order: error about h⁴ = 1e-10 of the fifth derivative
        h, bend = 3e-3, np.zeros(len(S))
        for j, step in enumerate(h * np.eye(len(S)) if third else ()):
            for weight, far in ((8.0, 1.0), (-1.0, 2.0)):
                ahead, behind = (
                    sum(np.sum(np.asarray(hessian(theta + s * far * step, o)) * S) for o in rows) for s in (1, -1)
                )
                bend[j] += weight * (ahead - behind) / (12.0 * h * len(rows))
    return sum(J @ S @ J for J in hessians) / len(rows), bend


def symmetric_matrix(dim, seed=0):
    root = np.random.default_rng(seed).normal(size=(dim, dim))
    return root + root.T  # indefinite: nothing may rely on a positive S


def close(one, other, tolerance=1e-10):
    np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * np.abs(other).max())


def test_softmax_has_factors_of_rank_one_less_than_its_classes() -> None:
    problem, theta = softmax(3, 4, 60)
    exact = GeneralCurvature(problem, theta)
    found = factored_curvature(exact)
    assert found is not None
    assert found.rank == 2
    S = symmetric_matrix(theta.size)
    quadratic, third = brute(problem, theta, S)
    close(found.quadratic(S), quadratic)
    close(exact.quadratic(S), quadratic)
    close(found.third(S), third, 1e-8)
    close(problem.moments(theta).curvature.quadratic(S), quadratic)


def test_factors_survive_many_rows_and_saturated_ones() -> None:
    # with no spare probe some of 20,000 random 5×5 matrices are nearly singular, and one such row spoils the check
    problem, theta = softmax(6, 4, 20_000, size=3.0)
    found = factored_curvature(GeneralCurvature(problem, theta))
    assert found is not None
    assert found.rank == 5
    u, w, _ = (np.concatenate(part)[::97] for part in zip(*found.stored, strict=True))
    # the softmax Hessian in closed form: (diag q − q qᵀ) ⊗ z zᵀ, z = (1, x); parameters are b, then w by rows
    x, p = np.asarray(data_of(problem)["x"])[::97], problem.layout.unflatten(theta)
    scores = np.column_stack([x @ p["w"] + p["b"], np.zeros(len(x))])
    q = np.exp(scores - scores.max(axis=1, keepdims=True))
    q = (q / q.sum(axis=1, keepdims=True))[:, :-1]
    assert q.min() < 1e-10  # rows whose Hessian is of lower rank to rounding
    z = np.column_stack([np.ones(len(x)), x])
    J = np.einsum("nab,nc,nd->ncadb", q[:, :, None] * (np.eye(5) - q[:, None, :]), z, z).reshape(-1, 25, 25)
    close(np.einsum("nki,nk,nkj->nij", u, w, u), J, 1e-9)


def test_full_rank_falls_back_to_exact_hessians() -> None:
    rng = np.random.default_rng(0)
    model = eq.Model(lambda p, o: jnp.sum(jnp.sin(p - o) ** 2) + 0.1 * jnp.sum(p) ** 3, np.full(5, 0.1))
    problem = model.bind(0.3 * rng.normal(size=(40, 5)))
    theta, S = np.linspace(0.0, 0.3, 5), symmetric_matrix(5)
    found = problem.moments(theta).curvature
    assert isinstance(found, GeneralCurvature)
    quadratic, third = brute(problem, theta, S)
    close(found.quadratic(S), quadratic)
    close(found.third(S), third, 1e-8)


def test_one_row_of_higher_rank_is_not_missed() -> None:
    rng = np.random.default_rng(0)
    n, dim = 400, 6
    odd = np.zeros(n)
    probed = chosen_rows(n, curvature_module._PROBED_ROWS, seed=0)
    odd[np.setdiff1d(np.arange(n), probed)[-1]] = 1.0

    def loss(p, o):
        return jnp.logaddexp(0.0, o["x"] @ p) + 1e-4 * o["odd"] * jnp.sum(p**2)

    x = rng.normal(size=(n, dim))
    problem = eq.Model(loss, np.zeros(dim)).bind({"x": x, "odd": odd})
    theta, S = np.full(dim, 0.2), symmetric_matrix(dim)
    found = problem.moments(theta).curvature
    assert isinstance(found, GeneralCurvature)
    close(found.quadratic(S), brute(problem, theta, S, third=False)[0])
    # the same rows without the odd one do have factors
    plain = eq.Model(loss, np.zeros(dim)).bind({"x": x, "odd": 0.0 * odd})
    assert isinstance(plain.moments(theta).curvature, FactoredCurvature)


def test_small_blocks_give_the_same(monkeypatch) -> None:
    x = np.random.default_rng(0).normal(size=(53, 10))
    problem = eq.Model(lambda p, o: jnp.exp(o @ p) - 0.5 * (o @ p), np.zeros(10)).bind(x)
    theta, S = np.full(10, 0.1), symmetric_matrix(10)

    def everything():
        m = problem.moments(theta)
        exact = GeneralCurvature(problem, theta)
        return [
            *problem.derivatives(theta, 2),
            problem.derivatives(theta, 0).value,
            m.score_cov,
            m.mean_score,
            m.curvature.quadratic(S),
            m.curvature.third(S),
            exact.quadratic(S),
        ]

    whole = everything()
    monkeypatch.setattr(arrays_module, "_COLUMN_ELEMENTS", 200)
    # half of the factors are stored, the others found again
    monkeypatch.setattr(curvature_module, "_STORED", 27 * theta.size)
    for one, other in zip(everything(), whole, strict=True):
        close(np.asarray(one), np.asarray(other), 1e-13)
    stored = factored_curvature(GeneralCurvature(problem, theta)).stored
    # three rows of 6 probes × 10 parameters fit into a block
    assert [len(w) for _, w, _ in stored] == [3] * 9


# minima


def one_row_each(n=40, seed=0):
    return {"e": 0.1 * np.random.default_rng(seed).normal(size=n)}


def test_double_well_and_restarts_keep_the_lower_minimum() -> None:
    def loss(p, o):
        return (p**2 - 1.0) ** 2 + 0.3 * p + o["e"] * p

    data = one_row_each()
    tilt = 0.3 + data["e"].mean()
    # 4p³ − 4p + tilt = 0: the two outer roots
    low, _, high = np.sort(np.roots([4.0, 0.0, -4.0, tilt]).real)
    model = eq.Model(loss, 0.9)
    np.testing.assert_allclose(eq.fit(model, data).params, high, rtol=1e-10)
    best = eq.fit(model, data, restarts=60)
    np.testing.assert_allclose(best.params, low, rtol=1e-10)
    assert best.loss < eq.fit(model, data, restarts=0).loss
    np.testing.assert_allclose(eq.fit(model, data, restarts=0).params, high, rtol=1e-10)
    for bad in (-1, 2.5, "all"):
        with pytest.raises(eq.InvalidInput, match="restarts: must be None or a whole number, at least 0"):
            eq.fit(model, data, restarts=bad)


def test_rosenbrock() -> None:
    def loss(p, o):
        return (1.0 + o["e"] - p["a"]) ** 2 + 100.0 * (p["b"] - p["a"] ** 2) ** 2

    data = one_row_each()
    found = eq.fit(eq.Model(loss, {"a": -1.2, "b": 1.0}), data)
    a = 1.0 + data["e"].mean()
    np.testing.assert_allclose([found.params["a"], found.params["b"]], [a, a**2], rtol=1e-9)
    assert found.converged
    assert found.gradient_norm < 1e-6
    assert found.flat is None
    np.testing.assert_allclose(found.loss, data["e"].var(), rtol=1e-9)


def test_one_hidden_unit() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=300)
    y = 1.5 * np.tanh(0.8 * x - 0.3) + 0.2 + 0.1 * rng.normal(size=300)

    def loss(p, o):
        return 0.5 * (o["y"] - p["v"] * jnp.tanh(p["w"] * o["x"] + p["b"]) - p["c"]) ** 2

    found = eq.fit(eq.Model(loss, {"v": 1.0, "w": 1.0, "b": 0.0, "c": 0.0}), {"x": x, "y": y})
    p = found.params
    r = y - p["v"] * np.tanh(p["w"] * x + p["b"]) - p["c"]
    t = np.tanh(p["w"] * x + p["b"])
    gradient = -np.array([np.mean(r), np.mean(r * t), np.mean(r * p["v"] * (1 - t**2) * x)])
    np.testing.assert_allclose(gradient, 0.0, atol=1e-10)
    np.testing.assert_allclose([p["v"], p["w"], p["b"], p["c"]], [1.5, 0.8, -0.3, 0.2], atol=0.15)


def saddle(p, o):
    return 0.5 * (p["a"] - 0.1 * o["e"]) ** 2 - 0.5 * p["b"] ** 2 + 0.25 * p["b"] ** 4


def test_a_saddle_point_is_left_or_reported() -> None:
    data = {"e": np.array([-1.0, 1.0])}
    model = eq.Model(saddle, {"a": 0.0, "b": 0.0})
    found = eq.fit(model, data)
    np.testing.assert_allclose(np.abs(found.params["b"]), 1.0, rtol=1e-10)
    with pytest.raises(eq.FitFailed, match=r"1 direction\(s\) of negative curvature, mainly b") as caught:
        eq.fit(model, data, restarts=0)
    # −b²/2: curvature −1 along b alone
    np.testing.assert_allclose(np.abs(caught.value.directions), [[0.0, 1.0]], atol=1e-12)


def test_a_saddle_point_without_a_diagonal() -> None:
    # ab at the origin: the Hessian is [[0, c], [c, 0]]
    data = {"x": np.array([1.0, 2.0, -1.0]), "y": np.array([2.0, 3.0, -2.5])}
    model = eq.Model(lambda p, o: 0.5 * (o["y"] - p["a"] * p["b"] * o["x"]) ** 2, {"a": 0.0, "b": 0.0})
    with pytest.raises(eq.FitFailed, match="saddle point"):
        eq.fit(model, data, restarts=0)
    p = eq.fit(model, data).params
    np.testing.assert_allclose(p["a"] * p["b"], data["x"] @ data["y"] / (data["x"] @ data["x"]), rtol=1e-9)


@pytest.mark.parametrize("scale", [0.01, 1e6])
def test_a_domain_with_an_edge_and_parameters_of_any_size(scale) -> None:
    # log s is NaN for s < 0, which the search must step back from
    y = 3.0 * scale + scale * np.random.default_rng(0).normal(size=100)
    model = eq.Model(lambda p, o: 0.5 * ((o - p["mu"]) / p["s"]) ** 2 + jnp.log(p["s"]), {"mu": 0.0, "s": 1.0})
    found = eq.fit(model, y)
    np.testing.assert_allclose([found.params["mu"], found.params["s"]], [y.mean(), y.std()], rtol=1e-9)
    assert found.iterations < 100


def test_separated_classes_have_no_minimiser() -> None:
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(60), rng.normal(size=60)])
    model = eq.Model(lambda p, o: jnp.logaddexp(0.0, o["x"] @ p) - o["y"] * (o["x"] @ p), np.zeros(2))
    with pytest.raises(eq.FitFailed, match=r"no finite minimiser"):
        eq.fit(model, {"x": x, "y": (x[:, 1] > 0.1).astype(float)})
    # a prior makes one
    held = eq.Model(model.loss, model.init, prior_precision=0.1)
    assert eq.fit(held, {"x": x, "y": (x[:, 1] > 0.1).astype(float)}).converged


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (lambda p: p["c"], "did not converge.*no finite minimiser"),
        (lambda p: jnp.exp(-p["c"]), "no finite minimiser"),
        (lambda p: -(p["c"] ** 2), "negative curvature, mainly c"),
        (lambda p: jnp.sqrt(p["c"]), "not finite at the start"),
    ],
    ids=["slope", "asymptote", "hill", "vertical"],
)
def test_losses_without_a_minimum(extra, words) -> None:
    model = eq.Model(lambda p, o: 0.5 * (o - p["a"]) ** 2 + extra(p), {"a": 0.0, "c": 0.0})
    with pytest.raises(eq.FitFailed, match=words):
        eq.fit(model, np.arange(5.0), restarts=0)


def test_a_loss_that_ignores_its_parameters() -> None:
    with pytest.raises(eq.FitFailed, match="does not curve along any direction"):
        eq.fit(eq.Model(lambda p, o: o["e"] + 0.0 * p, 1.0), one_row_each())


def redundant(n=400, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    data = {"x": x, "y": 2.0 * x + rng.normal(size=n) * (0.5 + np.abs(x))}
    return eq.Model(lambda p, o: 0.5 * (o["y"] - p["a"] * p["b"] * o["x"]) ** 2, {"a": 1.0, "b": 1.2}), data


def test_flat_directions_are_reported() -> None:
    model, data = redundant()
    found = eq.fit(model, data)
    a, b = found.params["a"], found.params["b"]
    # a·b stays when (a, b) moves along (a, −b)
    flat = found.flat / np.linalg.norm(found.flat)
    np.testing.assert_allclose(np.abs(flat @ [a, -b]) / np.hypot(a, b), 1.0, rtol=1e-9)
    restricted = model.identified(data, found.params)
    problem = restricted.bind(data)
    assert problem.names == ("direction[0]",)
    np.testing.assert_allclose(problem.flatten(found.params), 0.0, atol=1e-12)
    tree = problem.layout.unflatten(np.zeros(1))
    np.testing.assert_allclose([tree["a"], tree["b"]], [a, b], rtol=1e-14)
    # restricting again, now with nothing flat, changes only the length: Δa/a = Δb/b, as the scaled Hessian has it
    again = restricted.identified(data, found.params).bind(data)
    step = again.layout.unflatten(np.array([0.1]))
    np.testing.assert_allclose((step["a"] - a) / (step["b"] - b), a / b, rtol=1e-6)


def agrees_on_the_product(budget, data, rtol=1e-6, **options):
    """The predicted law of ab is that of the one-parameter model: delta method along the direction."""
    step = budget.model.structure.unflatten(np.array([[1e-6], [-1e-6]]))
    slope = np.diff(step["a"] * step["b"])[0] / -2e-6
    one = eq.Model(lambda p, o: 0.5 * (o["y"] - p * o["x"]) ** 2, 1.0)
    target = eq.plan(one, data, batch_size=40, **options).tuning.target
    np.testing.assert_allclose(slope**2 * budget.tuning.target, target, rtol=rtol)
    return float(target[0, 0])


def test_redundant_parameters_are_restricted_with_a_warning() -> None:
    model, data = redundant()
    with pytest.warns(eq.EquipoiseWarning, match="flat along 1 of 2 directions.*restricted") as caught:
        cal = eq.calibrate(model, data, batch_size=40, ess=4000, chains=2, progress=False)
    assert len(caught) == 1
    assert cal.fit.flat is None
    assert cal.names == ("direction[0]",)
    assert "direction[0]" in str(cal.summary())
    target = agrees_on_the_product(cal.plan, data)
    independent = eq.calibrate(cal.model, data, batch_size=40, ess=4000, chains=2, sampler="gaussian")
    for run in (cal, independent):
        tree = run.chains.tree()
        assert tree["a"].shape == tree["b"].shape == run.draws.shape[:2]
        # a variance from 4000 effective draws is off by sqrt(2/4000) = 2.2 %; three of them, and 2 % for ab's curvature
        np.testing.assert_allclose((tree["a"] * tree["b"]).var(), target, rtol=0.067 + 0.02)


def test_redundant_parameters_on_tuning_rows() -> None:
    model, data = redundant()
    options = {"tuning_rows": 150, "seed": 9}
    some, whole = (eq.fit(model, data, **kind).params for kind in (options, {}))
    assert some["a"] * some["b"] == pytest.approx(whole["a"] * whole["b"], rel=1e-8)
    with pytest.warns(eq.EquipoiseWarning, match="flat along 1 of 2"):
        budget = eq.plan(model, data, batch_size=40, **options)
    assert budget.moments.dim == 1
    # at the minimiser of all rows some of them have a slope of order 1/√150, which the bend of ab turns into curvature
    agrees_on_the_product(budget, data, rtol=1.0 / np.sqrt(150), **options)


# bad code and bad data

GOOD = {"x": np.arange(6.0), "y": np.arange(6.0) ** 2}


def squared(p, o):
    return 0.5 * (o["y"] - p["a"] - p["b"] * o["x"]) ** 2


def init(**changes):
    return {"a": 0.0, "b": 0.0, **changes}


SCALAR = "must be a floating-point scalar; got"
BOTH = "regularizer: must be left out .* got both"


def fails(loss=squared, start=None, **options):
    """The message of the error that a fit raises."""
    with pytest.raises(eq.InvalidInput) as caught:
        eq.fit(eq.Model(loss, init() if start is None else start, **options), GOOD)
    return str(caught.value)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda p, o: p["a"] * jnp.ones(2), SCALAR + r" float64, shape \(2,\)"),
        (lambda p, o: squared(p, o)[None], SCALAR + r" float64, shape \(1,\)"),
        (lambda p, o: None, SCALAR + " None"),
        (lambda p, o: {"value": squared(p, o)}, SCALAR + " {'value'"),
        (lambda p, o: 3, SCALAR + " int64"),
        (lambda p, o: 1j * p["a"], SCALAR + " complex128"),
        (lambda p, o: p["c"], "KeyError: 'c'"),
        (lambda p, o: o["z"] * p["a"], "KeyError: 'z'"),
        (lambda p: p["a"], "TypeError: .*positional argument"),
        (7, "'int' object is not callable"),
        (lambda p, o: 1 / 0, "ZeroDivisionError"),
        (lambda p, o: p["a"] if p["a"] > 0 else -p["a"], "TracerBoolConversionError.*jax.numpy"),
        (lambda p, o: np.exp(p["a"]), "TracerArrayConversionError.*jax.numpy"),
        (lambda p, o: jax.lax.while_loop(lambda v: v < 1, lambda v: v + 1, p["a"]), "Reverse-mode differentiation"),
    ],
)
def test_bad_losses_are_named(loss, words) -> None:
    assert re.match(f"loss: .*{words}", fails(loss))


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (init(a=0), "init a: must be a floating-point array; got dtype int64.*0.0 for 0"),
        (init(b=np.array([True])), "init b: must be a floating-point array; got dtype bool"),
        (init(b="0.0"), "init b: must be a floating-point array; got dtype <U3"),
        (init(b=jnp.tanh), "init b: must be a floating-point array; got dtype object"),
        (init(a=np.nan), "init a: must be finite"),
        ({}, "trainable: must be true for at least one parameter"),
    ],
)
def test_bad_starts_are_named(start, words) -> None:
    assert re.match(words, fails(start=start))


def test_a_loss_that_is_not_finite_at_the_start() -> None:
    assert re.match("init: .* where the loss is finite; got mean loss nan", fails(lambda p, o: jnp.log(p["a"] - 1.0)))
    # on one row is enough
    assert "mean loss inf" in fails(lambda p, o: squared(p, o) + jnp.where(o["x"] == 5.0, jnp.inf, 0.0))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prior_precision": np.ones(3)}, r"prior_precision.*a vector \(2,\).*got shapes \(3,\)"),
        ({"prior_precision": np.ones((2, 3))}, r"prior_precision.*got shapes \(2, 3\)"),
        ({"prior_mean": np.ones(3)}, r"prior_precision, prior_mean.*got shapes \(\), \(3,\)"),
        ({"prior_precision": -1.0}, "prior_precision: must be positive semi-definite"),
        ({"prior_precision": np.inf}, "prior_precision: must be finite"),
        ({"prior_precision": "weak"}, "prior_precision: must be numeric; got 'weak'"),
        ({"prior_precision": np.array([[1.0, 2.0], [0.0, 1.0]])}, "prior_precision: must be symmetric"),
        ({"prior_mean": np.nan}, "prior_mean: must be finite"),
        ({"prior_precision": 1.0, "regularizer": lambda p: p["a"]}, BOTH),
        ({"prior_mean": 1.0, "regularizer": lambda p: p["a"]}, BOTH),
        ({"regularizer": lambda p: jnp.ones(2)}, f"regularizer: {SCALAR} float64, shape"),
        ({"regularizer": lambda p: p["c"]}, "regularizer: .*KeyError: 'c'"),
        ({"trainable": lambda name: name == "c"}, "trainable: must be true for at least one parameter; got none"),
        ({"trainable": {"a": False, "b": False}}, "trainable: must be true for at least one parameter; got none"),
        ({"trainable": {"a": True}}, "trainable: must be a pytree of booleans that fits init"),
    ],
)
def test_bad_options_are_named(options, words) -> None:
    assert re.match(words, fails(**options))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"x": np.arange(5.0), "y": np.arange(6.0)}, "data: must be arrays with one common, .*got {'x': 5, 'y': 6}"),
        ({"x": np.zeros(0), "y": np.zeros(0)}, "data: .*non-empty leading axis; got {'x': 0, 'y': 0}"),
        ({**GOOD, "x": np.where(GOOD["x"] == 2, np.nan, 1.0)}, "data x: must be finite; got NaN or infinity"),
        ({**GOOD, "y": np.full(6, np.inf)}, "data y: must be finite"),
        ({**GOOD, "x": np.array(list("abcdef"))}, "data x: must be a numeric array with a row axis; got <U1"),
        ({**GOOD, "x": np.array([None] * 6)}, "data x: must be a numeric array with a row axis; got ndarray"),
        ({**GOOD, "x": 3.0}, r"data x: must be a numeric array with a row axis; got float64, shape \(\)"),
        (np.array(list("ab")), "data: must be a numeric array"),
        (None, "data: must be given with a model; got None"),
        (eq.data.rows(np.ones((6, 1)), GOOD["y"]), "data: must be a numeric array with a row axis; got Rows"),
    ],
)  # fmt: skip
def test_bad_data_are_named(data, words) -> None:
    with pytest.raises(eq.InvalidInput, match=words):
        eq.fit(eq.Model(squared, init()), data)


def test_x64_is_off_again_after_a_failure() -> None:
    for data in (GOOD, {**GOOD, "x": None}):
        with pytest.raises(eq.InvalidInput):
            eq.fit(eq.Model(lambda p, o: p["a"] * jnp.ones(2), init()), data)
        assert jnp.zeros(1).dtype == jnp.float32


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


def test_report_is_a_page(calibrated, tmp_path) -> None:
    cal, _ = calibrated
    text = cal.report(tmp_path / "page.html").read_text()
    assert "head.1.m[1,0]" in text
    assert "<svg" in text or "<img" in text


def test_independent_draws_keep_the_structure(calibrated, make_data) -> None:
    x, y = make_data("bernoulli", n=400, dim=DIM)
    cal = eq.calibrate(calibrated[0].model, {"x": x, "y": y}, ess=100, chains=2, sampler="gaussian", progress=False)
    assert cal.chains.tree()["head"][1]["m"].shape == (2, 50, 2, 2)
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
