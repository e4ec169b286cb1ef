"""Many columns, rows or parameters: how many Hessians and passes a fit takes, and what is said where it does not arrive."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.fitting import fit as fitting
from equipoise.fitting import products, trust
from equipoise.fitting.krylov import ends
from equipoise.models.linear import LinearProblem


def _regression(family: str, n: int = 3600, columns: int = 402):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, columns)) * np.exp(rng.normal(size=columns))
    X[:, 1:] += 0.5 * X[:, :-1]
    X[:, 0] = 1.0
    eta = X @ (0.5 * rng.normal(size=columns) / np.sqrt(columns) / X.std(axis=0).clip(0.1))
    y = {
        "gaussian": eta + rng.normal(size=n),
        "poisson": rng.poisson(np.exp(0.5 * eta)),
        "bernoulli": rng.random(n) < 1.0 / (1.0 + np.exp(-eta)),
    }
    return X, y[family].astype(np.float64)


@pytest.mark.parametrize("family", ["gaussian", "poisson", "bernoulli"])
def test_many_columns_take_one_hessian_of_a_part_of_the_rows(family: str, monkeypatch) -> None:
    data, model = _regression(family), eq.glm(family, prior_precision=1.0)
    direct = eq.fit(model, data)
    monkeypatch.setattr(fitting, "_SAMPLE", 1700)
    real, asked = LinearProblem.derivatives, Counter()

    def derivatives(self, theta, order):
        asked[order, self.source.n] += 1
        return real(self, theta, order)

    monkeypatch.setattr(LinearProblem, "derivatives", derivatives)
    found = eq.fit(model, data)
    assert [key for key in asked.elements() if key[0] == 2] == [(2, 1700)]
    monkeypatch.undo()
    here = eq.bind(model, data).at_constant(found.constant).derivatives(found.theta, 2)
    distance = np.sqrt(3600 * here.gradient @ np.linalg.solve(here.hessian, here.gradient))
    assert distance < 1e-9
    assert found.gradient_norm < 1e-9
    away = found.theta - direct.theta
    assert np.sqrt(3600 * away @ here.hessian @ away) < 1e-8
    assert found.constant == (None if direct.constant is None else pytest.approx(direct.constant, rel=1e-9))


def _softmax(n: int = 4000):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(n, 5))
    y = (x @ rng.normal(scale=6.0, size=(5, 3)) + rng.gumbel(size=(n, 3))).argmax(axis=1)
    loss = lambda p, o: -jax.nn.log_softmax(o["x"] @ p)[o["y"]]  # noqa: E731
    return eq.Model(loss, np.zeros((5, 3)), prior_precision=0.1), {"x": x, "y": y}


def test_growing_parts_of_the_rows_save_passes_over_all(monkeypatch) -> None:
    problem = eq.bind(*_softmax())
    monkeypatch.setattr(trust, "FEW", 0)
    monkeypatch.setattr(trust, "_SOME", 0)
    rows = Counter()
    for name in ("product", "derivatives"):
        real = getattr(type(problem), name)

        def counted(self, *args, real=real):
            rows[self.source.n] += 1
            return real(self, *args)

        monkeypatch.setattr(type(problem), name, counted)
    alone = eq.fit(problem)
    without = rows[4000]
    assert set(rows) == {4000}
    rows.clear()
    monkeypatch.setattr(products, "_FEWEST", 50)
    monkeypatch.setattr(products, "_WORTH", 0.0)
    led = eq.fit(problem)
    assert set(rows) == {62, 500, 4000}
    assert rows[4000] < without
    assert led.converged
    np.testing.assert_allclose(led.theta, alone.theta, atol=1e-8)


def _network(hidden: int = 8):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(300, 3))
    data = {"x": x, "y": np.sin(2.0 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * rng.normal(size=300)}
    init = {"a": rng.normal(size=(3, hidden)), "b": np.zeros(hidden), "c": rng.normal(size=hidden) / np.sqrt(hidden)}
    loss = lambda p, o: 0.5 * (o["y"] - jnp.tanh(o["x"] @ p["a"] + p["b"]) @ p["c"]) ** 2 / 0.09  # noqa: E731
    return lambda start=init: eq.Model(loss, start, prior_precision=1.0), data


def test_a_search_that_does_not_arrive_can_go_on(monkeypatch) -> None:
    model, data = _network()
    monkeypatch.setattr(trust, "FEW", 0)
    monkeypatch.setattr(trust, "_SOME", 0)
    with pytest.raises(eq.FitFailed, match=r"did not converge.*init=error\.params") as raised:
        eq.fit(model(), data, max_iterations=1, restarts=0)
    error = raised.value
    assert set(error.params) == {"a", "b", "c"}
    value = lambda theta: eq.bind(model(), data).derivatives(theta, 0).value  # noqa: E731
    start = np.concatenate([np.ravel(v) for v in jax.tree.leaves(model().init)])
    assert value(error.theta) < value(start)
    found = eq.fit(model(error.params), data, restarts=0)
    assert found.converged
    assert found.gradient_norm < 1e-6
    assert found.loss < value(error.theta)


def test_a_sign_of_curvature_needs_no_vector() -> None:
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(200, 200)))[0]
    asked = []

    def product(v):
        asked.append(1)
        return axes @ (np.linspace(0.5, 3.0, 200) * (axes.T @ v))

    full = ends(product, 200, 200, np.random.default_rng(1))
    many = len(asked)
    asked.clear()
    short = ends(product, 200, 200, np.random.default_rng(1), settled=0.5, below=1e-9)
    assert 0.5 - 1e-9 <= full.value <= short.value < 1.0
    assert len(asked) < 0.6 * many
