"""Minima of a loss of one's own, or why there is none: saddles, flat directions, domains; bad code and bad data by name."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq


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
        ({"prior_precision": np.array([[1.0, 2.0], [0.0, 1.0]])}, "prior_precision: must be a symmetric matrix"),
        ({"prior_mean": np.nan}, "prior_mean: must be finite"),
        ({"prior_precision": 1.0, "regularizer": lambda p: p["a"]}, BOTH),
        ({"prior_mean": 1.0, "regularizer": lambda p: p["a"]}, BOTH),
        ({"regularizer": lambda p: jnp.ones(2)}, f"regularizer: {SCALAR} float64, shape"),
        ({"regularizer": lambda p: p["c"]}, "regularizer: .*KeyError: 'c'"),
        ({"regularizer": 3}, "regularizer: "),
        ({"prior_mean": 1.0}, "prior_mean: "),
        ({"lambda_": 1.0}, "lambda_: "),
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


@pytest.mark.parametrize("part", ["all", "one column"])
@pytest.mark.parametrize("seed", [0, 1, 3])
def test_separated_classes_of_a_softmax_have_no_minimum(part, seed) -> None:
    """Where all classes are separated, or one column's rows are all of one class; not a kink, a saddle or a minimum."""
    rng, classes = np.random.default_rng(seed), 3 + seed % 2
    x = np.column_stack([np.ones(200), rng.normal(size=(200, 2)), rng.random(200) < 0.1])
    noise = rng.gumbel(size=(200, classes)) if part == "one column" else 0.0
    y = np.argmax(x @ rng.normal(size=(4, classes)) + noise, axis=1)
    y = np.where((x[:, 3] > 0) & (part == "one column"), 1, y)

    def loss(p, row):
        eta = jnp.append(row["x"] @ p, 0.0)
        return jax.nn.logsumexp(eta) - eta[row["y"]]

    with pytest.raises(eq.FitFailed, match="no finite minimiser"):
        eq.fit(eq.Model(loss, init=np.zeros((4, classes - 1))), {"x": x, "y": y})


def effects(prior):
    """Means of groups that do not differ, around one mean, with a scale that has a prior in its logarithm."""
    rng = np.random.default_rng(3)
    data = {"g": rng.integers(0, 4, 400), "y": 1.0 + 0.7 * rng.normal(size=400)}

    def regularizer(p):
        away = (p["u"] - p["mean"]) / jnp.exp(p["log_scale"])
        return 0.5 * jnp.sum(away**2) + 4.0 * p["log_scale"] + 0.5 * (p["mean"] / 5.0) ** 2 + prior(p["log_scale"])

    def loss(p, row):
        return 0.5 * ((row["y"] - p["u"][row["g"]]) / 0.7) ** 2

    return eq.Model(loss, init={"log_scale": 0.0, "mean": 0.0, "u": np.zeros(4)}, regularizer=regularizer), data


def test_a_scale_that_goes_to_zero_is_named_and_the_advice_helps() -> None:
    with pytest.raises(eq.FitFailed, match=r"no finite minimiser.* along log_scale .*log-normal"):
        eq.fit(*effects(lambda t: 0.5 * jnp.exp(2.0 * t) - t))  # half-normal
    assert eq.fit(*effects(lambda t: 0.5 * ((t + 0.7) / 0.5) ** 2)).converged
