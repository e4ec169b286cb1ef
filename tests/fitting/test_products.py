"""Minima by products with vectors: against the dense search, peers' minimisers and closed forms; saddles, flatness, units."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import equipoise as eq
from equipoise.fitting import trust
from equipoise.fitting.krylov import ends, solved


@pytest.fixture
def only_products(monkeypatch) -> None:
    """No matrix, however few the parameters."""
    monkeypatch.setattr(trust, "FEW", 0)
    monkeypatch.setattr(trust, "_SOME", 0)


def softmax(unit: float = 1.0, n: int = 300, columns: int = 4, classes: int = 3, precision: float = 2.0):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(n, columns))
    y = (x @ rng.normal(size=(columns, classes)) + rng.gumbel(size=(n, classes))).argmax(axis=1)
    model = eq.Model(
        lambda p, o: -jax.nn.log_softmax(o["x"] @ p["w"] + p["b"])[o["y"]],
        init={"w": np.zeros((columns, classes)), "b": np.zeros(classes)},
        prior_precision={"w": precision / unit**2, "b": precision},
    )
    return model, {"x": x / unit, "y": y}


def network(n: int = 200, hidden: int = 5):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(n, 2))
    data = {"x": x, "y": np.sin(x[:, 0]) + 0.4 * x[:, 1] + 0.3 * rng.normal(size=n)}
    init = {"a": rng.normal(size=(2, hidden)), "b": 0.1 * rng.normal(size=hidden), "c": rng.normal(size=hidden)}
    loss = lambda p, o: 0.5 * (o["y"] - jnp.tanh(o["x"] @ p["a"] + p["b"]) @ p["c"]) ** 2 / 0.09  # noqa: E731
    return eq.Model(loss, init, prior_precision=3.0), data


def mixture():
    rng = np.random.default_rng(3)
    y = np.concatenate([rng.normal(-2.0, 0.7, 150), rng.normal(1.5, 1.1, 250)])

    def loss(p, o):
        share, spread = jnp.array([-jax.nn.softplus(-p["t"]), -jax.nn.softplus(p["t"])]), jnp.exp(p["s"])
        return -jax.nn.logsumexp(share - 0.5 * ((o - p["m"]) / spread) ** 2 - p["s"])

    return eq.Model(loss, {"m": np.array([-1.0, 1.0]), "s": np.zeros(2), "t": 0.0}, prior_precision=0.3), y


CASES = {"softmax": softmax, "network": network, "mixture": mixture}


@pytest.mark.parametrize("name", list(CASES))
def test_agrees_with_the_dense_search_and_with_scipy(name, monkeypatch) -> None:
    model, data = CASES[name]()
    problem = eq.bind(model, data)
    dense = eq.fit(problem)
    monkeypatch.setattr(trust, "FEW", 0)
    monkeypatch.setattr(trust, "_SOME", 0)
    found = eq.fit(problem)
    assert found.converged
    assert found.gradient_norm <= 1e-6
    assert found.flat is None
    np.testing.assert_allclose(found.loss, dense.loss, rtol=1e-12)
    if name != "network":  # whose hidden units may change places
        # distances of 1e-8 standard errors, in units of the parameters
        np.testing.assert_allclose(found.theta, dense.theta, rtol=0, atol=1e-7)
    value = lambda t: problem.derivatives(t, 1)[:2]  # noqa: E731
    other = minimize(value, dense.theta + 0.01, jac=True, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9})
    np.testing.assert_allclose(found.loss, other.fun, rtol=1e-9)


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
@pytest.mark.usefixtures("only_products")
def test_units_change_nothing(unit) -> None:
    model, data = softmax(unit)
    found = eq.fit(model, data)
    known = eq.fit(*softmax())
    np.testing.assert_allclose(found.params["w"] / unit, known.params["w"], rtol=0, atol=1e-8)
    np.testing.assert_allclose(found.loss, known.loss, rtol=1e-12)
    assert found.iterations == known.iterations


@pytest.mark.usefixtures("only_products")
def test_saddle_points_are_left() -> None:
    loss = lambda p, o: 0.5 * (p["a"] - 0.1 * o) ** 2 - 0.5 * p["b"] ** 2 + 0.25 * p["b"] ** 4  # noqa: E731
    found = eq.fit(eq.Model(loss, {"a": 0.0, "b": 0.0}), np.array([-1.0, 1.0]), restarts=0)
    np.testing.assert_allclose(np.abs(found.params["b"]), 1.0, rtol=1e-7)


@pytest.mark.usefixtures("only_products")
def test_a_hill_is_named() -> None:
    model = eq.Model(lambda p, o: 0.5 * (o - p["a"]) ** 2 - p["c"] ** 2, {"a": 0.0, "c": 0.0})
    with pytest.raises(eq.FitFailed):
        eq.fit(model, np.arange(5.0), restarts=0, max_iterations=5)


@pytest.mark.usefixtures("only_products")
def test_rosenbrock_whose_scores_vanish() -> None:
    loss = lambda p, o: (1.0 + o - p["a"]) ** 2 + 100.0 * (p["b"] - p["a"] ** 2) ** 2  # noqa: E731
    found = eq.fit(eq.Model(loss, {"a": -1.2, "b": 1.0}), np.array([-0.1, 0.1]))
    np.testing.assert_allclose([found.params["a"], found.params["b"]], [1.0, 1.0], rtol=1e-6)


@pytest.mark.usefixtures("only_products")
def test_flat_directions_are_found() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    model = eq.Model(lambda p, o: 0.5 * (o["y"] - p["a"] * p["b"] * o["x"]) ** 2, {"a": 1.0, "b": 1.3})
    found = eq.fit(model, {"x": x, "y": 2.0 * x + rng.normal(size=200)})
    a, b = found.params["a"], found.params["b"]
    flat = found.flat[0] / np.linalg.norm(found.flat[0])
    # a·b stays when (a, b) moves along (a, −b)
    np.testing.assert_allclose(np.abs(flat @ [a, -b]) / np.hypot(a, b), 1.0, rtol=1e-6)


def test_no_matrix_is_made_of_many_parameters(monkeypatch) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 700))
    data = {"x": x, "y": rng.integers(0, 3, 60)}
    model = eq.Model(lambda p, o: -jax.nn.log_softmax(o["x"] @ p)[o["y"]], init=np.zeros((700, 3)), prior_precision=5.0)
    problem = eq.bind(model, data)
    real = type(problem).derivatives

    def derivatives(self, theta, order):
        assert order < 2
        return real(self, theta, order)

    monkeypatch.setattr(type(problem), "derivatives", derivatives)
    found = eq.fit(problem)
    assert found.theta.size == 2100
    # with more columns than rows the minimiser is a combination of them: R's gradient is that of the rows
    weights = found.params - x.T @ np.linalg.lstsq(x.T, found.params, rcond=None)[0]
    np.testing.assert_allclose(weights, 0.0, atol=1e-8)
    assert found.gradient_norm < 1e-6


def test_products_and_diagonals_are_those_of_the_hessian() -> None:
    for problem in (eq.bind(*network()), eq.bind(eq.glm("poisson", prior_precision=[1.0, 2.0]), _counts())):
        theta = problem.search.starts()[0] + 0.1
        H = problem.derivatives(theta, 2).hessian
        v = np.random.default_rng(1).normal(size=theta.size)
        np.testing.assert_allclose(problem.product(theta, v), H @ v, rtol=1e-10, atol=1e-12)
        assert problem.diagonal(theta).min() > 0.0
    np.testing.assert_allclose(problem.diagonal(theta), np.diag(H), rtol=1e-12)


def _counts():
    rng = np.random.default_rng(4)
    x = np.column_stack([np.ones(80), rng.normal(size=80)])
    return eq.data.rows(x, rng.poisson(np.exp(0.3 * x.sum(axis=1))), weights=rng.uniform(0.5, 2.0, 80))


def test_conjugate_gradients_and_lanczos_against_dense_algebra() -> None:
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(60, 60)))[0]
    values = np.linspace(0.5, 3.0, 60)
    H, g = axes @ np.diag(values) @ axes.T, rng.normal(size=60)
    inside = solved(lambda v: H @ v, g, np.inf, 1e-10, 0.0, 200)
    np.testing.assert_allclose(inside.step, -np.linalg.solve(H, g), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(inside.decrement(g), g @ np.linalg.solve(H, g), rtol=1e-8)
    edge = solved(lambda v: H @ v, g, 0.1, 1e-10, 0.0, 200)
    assert edge.edge
    np.testing.assert_allclose(np.linalg.norm(edge.step), 0.1, rtol=1e-12)
    values[0] = -0.2
    H = axes @ np.diag(values) @ axes.T
    low = ends(lambda v: H @ v, 60, 60, rng)
    assert low.value < -0.1
    np.testing.assert_allclose(low.vector @ H @ low.vector, low.value, rtol=1e-8)
    assert solved(lambda v: H @ v, axes[:, 0], 2.0, 1e-10, 0.0, 50).edge


# losses that have no second derivative, or round


def _line(scale: float = 1.0):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(120, 2))
    return {"x": x, "y": scale * (x @ [1.0, -1.0] + rng.standard_t(3, size=120))}


KINKS = {
    "absolute value": (lambda p, o: jnp.abs(o["y"] - o["x"] @ p), None, "the loss is not twice differentiable.*Huber"),
    "hinge": (lambda p, o: jnp.maximum(0.0, 1.0 - jnp.sign(o["y"]) * (o["x"] @ p)), None, "not twice differentiable.*softplus"),
    "lasso": (
        lambda p, o: 0.5 * (o["y"] - o["x"] @ p[:2]) ** 2, lambda p: 40.0 * jnp.abs(p).sum(),
        "the regularizer is not twice differentiable.*Gaussian prior",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "scale"), [("absolute value", 1.0), ("absolute value", 1e6), ("hinge", 1.0), ("lasso", 1.0)]
)
def test_kinks_are_named(kind, scale) -> None:
    loss, penalty, words = KINKS[kind]
    prior = {"regularizer": penalty} if penalty else {"prior_precision": (1.0 if kind == "hinge" else 0.1) / scale}
    model = eq.Model(loss, np.full(3, 0.1) if penalty else np.zeros(2), **prior)
    with pytest.raises(eq.FitFailed, match=words):
        eq.fit(model, _line(scale), restarts=0)


def test_smooth_failures_are_not_called_kinks() -> None:
    model = eq.Model(lambda p, o: 0.5 * (o - p["a"]) ** 2 + p["c"], {"a": 0.0, "c": 0.0})
    with pytest.raises(eq.FitFailed, match="no finite minimiser"):
        eq.fit(model, np.arange(5.0), restarts=0)


@pytest.mark.parametrize("products", [False, True])
def test_float32_is_certified_to_its_own_precision(products, monkeypatch) -> None:
    if products:
        monkeypatch.setattr(trust, "FEW", 0)
        monkeypatch.setattr(trust, "_SOME", 0)
    data = _line()
    low = lambda a: a.astype(jnp.float32)  # noqa: E731
    loss = lambda p, o: 0.5 * (low(o["y"]) - jnp.sin(low(o["x"]) @ low(p["w"])) - low(p["b"])) ** 2  # noqa: E731
    init = {"w": np.array([0.3, -0.2]), "b": 0.1}
    found = eq.fit(eq.Model(loss, init, prior_precision=1.0), data)
    exact = lambda p, o: 0.5 * (o["y"] - jnp.sin(o["x"] @ p["w"]) - p["b"]) ** 2  # noqa: E731
    known = eq.fit(eq.Model(exact, init, prior_precision=1.0), data)
    assert found.converged
    np.testing.assert_allclose(found.params["w"], known.params["w"], atol=1e-4)
    assert found.gradient_norm < 1e-3


@pytest.mark.parametrize("family", ["poisson", "gaussian", "bernoulli"])
def test_a_regression_whose_matrices_do_not_fit_is_fitted_by_products(family: str, monkeypatch) -> None:
    rng = np.random.default_rng(5)
    unit = np.logspace(-3.0, 3.0, 12)
    X = rng.normal(size=(300, 12)) * unit
    eta = X @ (0.2 * rng.normal(size=12) / unit)
    y = {
        "poisson": rng.poisson(np.exp(eta)),
        "gaussian": eta + rng.normal(size=300),
        "bernoulli": rng.random(300) < 0.5,
    }
    model, data = eq.glm(family, prior_precision=0.5), (X, y[family].astype(np.float64))
    dense = eq.fit(model, data)
    monkeypatch.setattr("equipoise.fitting.fit.available_memory", lambda: 0.0)
    found = eq.fit(model, data)
    sd = np.sqrt(np.diag(eq.posterior(eq.moments(model, data, dense))))
    np.testing.assert_allclose((found.params - dense.params) / sd, 0.0, atol=1e-6)
    assert found.constant == pytest.approx(dense.constant, rel=1e-8)
