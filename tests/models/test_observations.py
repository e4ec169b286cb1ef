"""Weights, frequencies, clusters and tables of losses of one's own: those of `eq.glm` on the same rows."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import equipoise as eq

RNG = np.random.default_rng(0)
N = 150
X = np.column_stack([np.ones(N), RNG.normal(size=(N, 2))])
Y = RNG.poisson(np.exp(X @ [0.3, 0.4, -0.3])).astype(float)
WEIGHTS, FREQUENCY, FIRM = RNG.gamma(2.0, 0.5, N), RNG.integers(0, 4, N), RNG.integers(0, 20, N)
FRAME = pd.DataFrame({"a": X[:, 1], "b": X[:, 2], "y": Y, "w": WEIGHTS, "f": FREQUENCY, "firm": FIRM})


def loss(p, o):
    eta = p[0] + o["x"] @ p[1:]
    return jnp.exp(eta) - o["y"] * eta


MODEL = eq.Model(loss, init=np.zeros(3), prior_precision=2.0)
FIELDS = {"x": ["a", "b"], "y": "y"}
BESIDE = {"weights": "w", "frequency": "f", "clusters": "firm"}
SOURCES = {
    "arrays": lambda: eq.data.observations(
        {"x": X[:, 1:], "y": Y}, weights=WEIGHTS, frequency=FREQUENCY, clusters={"firm": FIRM}
    ),
    "table": lambda: eq.data.observations(FRAME, columns=FIELDS, **BESIDE),
    "scan": lambda: eq.data.scan(pa.Table.from_pandas(FRAME), columns=FIELDS, **BESIDE),
}


@pytest.mark.parametrize("kind", list(SOURCES))
def test_all_verbs_agree_with_the_family(kind) -> None:
    rows = eq.data.rows(X, Y, weights=WEIGHTS, frequency=FREQUENCY, clusters={"firm": FIRM})
    known, mine = eq.bind(eq.glm("poisson", prior_precision=2.0), rows), eq.bind(MODEL, SOURCES[kind]())
    assert mine.n == known.n == FREQUENCY.sum()
    first, second = eq.fit(known), eq.fit(mine)
    m, k = eq.moments(mine, second), eq.moments(known, first)
    S = np.eye(3) + 0.2
    pairs = [(second.theta, first.theta), (m.curvature_noise(S), k.curvature_noise(S))]
    pairs += [(getattr(m, a), getattr(k, a)) for a in ("hessian", "score_cov")]
    pairs += [(m.third_derivative(S), k.third_derivative(S))]
    for covariance, extra in (("HC3", {}), ("CRV1", {"clusters": "firm"})):
        pairs += [tuple(eq.robust(p, f, kind=covariance, **extra) for p, f in ((mine, second), (known, first)))]
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-10)
    tuned = [eq.tune(found, "sandwich", eq.Dynamics(20)) for found in (m, k)]
    draws = [eq.sample(p, t, draws=50, seed=1, progress=False).draws for p, t in zip((mine, known), tuned, strict=True)]
    np.testing.assert_allclose(draws[0], draws[1], rtol=0, atol=1e-8)


def test_leverage_and_epochs_know_them() -> None:
    rows = eq.data.rows(X, Y, weights=WEIGHTS, frequency=FREQUENCY)
    known, mine = eq.bind(eq.glm("poisson", prior_precision=2.0), rows), eq.bind(MODEL, SOURCES["arrays"]())
    first, second = eq.fit(known), eq.fit(mine)
    m, k = eq.moments(mine, second), eq.moments(known, first)
    ways = [(eq.Dynamics(20, batches="epochs"), {})]
    ways += [(eq.Dynamics(16, gradient="control-variate", batches="leverage"), {"noise": "completed"})]
    for dynamics, extra in ways:
        both = [(mine, eq.tune(m, "sandwich", dynamics, **extra)), (known, eq.tune(k, "sandwich", dynamics, **extra))]
        draws = [eq.sample(p, t, draws=40, chains=2, seed=1, progress=False).draws for p, t in both]
        np.testing.assert_allclose(draws[0], draws[1], rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"weights": WEIGHTS[:5]}, r"weights: must be one number per row, \(150,\)"),
        ({"weights": -WEIGHTS}, "weights: must be positive or zero"),
        ({"frequency": WEIGHTS}, "frequency: must be whole numbers"),
        ({"weights": "v"}, "weights: must be a column of the table"),
        ({"columns": {"x": ["a", "q"]}}, "columns x: must be a column of the table; got 'q'"),
    ],
)
def test_bad_ones_are_named(extra, words) -> None:
    with pytest.raises(eq.InvalidInput, match=words):
        eq.fit(MODEL, eq.data.observations(FRAME, **extra))


def test_a_table_is_its_columns() -> None:
    plain = eq.Model(lambda p, o: 0.5 * (o["y"] - p[0] - p[1] * o["a"]) ** 2, init=np.zeros(2))
    np.testing.assert_allclose(eq.fit(plain, FRAME).theta, np.polyfit(X[:, 1], Y, 1)[::-1], rtol=1e-9)
