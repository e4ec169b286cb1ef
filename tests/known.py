"""Known answers that several tests share: data, problems, sources and the sums they must give, computed row by row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit

import equipoise as eq

__all__ = ["DIVERGENCES", "brute_moments", "jax_loss", "jax_loss_of", "misspecified", "problems", "slopes", "sources"]

# Files of the sources that read some; gone when the tests end.
_FOLDER = TemporaryDirectory()

DIVERGENCES = {"beta": eq.Beta(1.4), "huber": eq.Huber(), "student": eq.StudentT(), "pinball": eq.Pinball(0.3)}


def misspecified(family: str, n: int = 120, dim: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(X, y) with an intercept, from none of the models fitted to it."""
    rng = np.random.default_rng([seed, n, dim])
    x = np.column_stack([np.ones(n), rng.normal(size=(n, dim - 1))])
    eta = 0.3 * x.sum(axis=1) + 0.1 * x[:, -1] ** 2
    spread = rng.gamma(2.0, 0.5, size=n)
    if family == "gaussian":
        return x, eta + (0.4 + np.abs(eta)) * rng.standard_t(5, size=n)
    if family == "bernoulli":
        return x, (rng.random(n) < 1.0 / (1.0 + np.exp(-eta))).astype(float)
    return x, rng.poisson(np.exp(eta) * spread).astype(float) + (0.5 if family == "gamma" else 0.0)


def slopes(family: str, eta: Any, y: Any, constant: float | None = None) -> tuple[np.ndarray, np.ndarray]:
    """First and second derivative of a family's loss of a row, restated from its likelihood."""
    if family == "gaussian":
        return (eta - y) / constant**2, np.full_like(eta, constant**-2)
    if family == "bernoulli":
        return expit(eta) - y, expit(eta) * expit(-eta)
    mu = np.exp(eta)
    if family == "poisson":
        return mu - y, mu
    if family == "gamma":
        return constant * (1.0 - y / mu), constant * y / mu
    a = constant
    return (mu - y) / (1.0 + a * mu), mu * (1.0 + a * y) / (1.0 + a * mu) ** 2


def jax_loss(p: Any, o: Any) -> Any:
    """A Poisson regression written as a loss of one's own, over a nested structure."""
    import jax.numpy as jnp

    eta = p["a"] + jnp.dot(o["x"], p["b"])
    return jnp.exp(eta) - o["y"] * eta


def jax_loss_of(family: str, eta: Any, y: Any, scale: float = 1.3) -> Any:
    """Minus the log likelihood of a row, written out; the scale is that of the models of `make_model`."""
    import jax.numpy as jnp

    return {
        "gaussian": lambda: 0.5 * ((y - eta) / scale) ** 2,
        "bernoulli": lambda: jnp.logaddexp(0.0, eta) - y * eta,
        "poisson": lambda: jnp.exp(eta) - y * eta,
    }[family]()


@dataclass(frozen=True)
class Case:
    """A bound problem, and the gradient and Hessian of every row's loss at θ by differences of its value."""

    problem: Any
    theta: np.ndarray


def problems() -> dict[str, Case]:
    """One problem of every kind: families, robust losses, weights, offsets, priors, a subsample, losses of one's own."""
    made: dict[str, Any] = {}
    for family in ("gaussian", "bernoulli", "poisson", "gamma", "negative-binomial"):
        made[family] = eq.bind(eq.glm(family, prior_precision=0.7, prior_mean=0.1), misspecified(family))
    for name, divergence in DIVERGENCES.items():
        made[name] = eq.bind(eq.glm("gaussian", divergence=divergence), misspecified("gaussian"))
    made["poisson-beta"] = eq.bind(eq.glm("poisson", divergence=eq.Beta(1.3)), misspecified("poisson"))
    x, y = misspecified("poisson")
    rng = np.random.default_rng(1)
    rows = eq.data.rows(x, y, weights=rng.uniform(0.5, 2.0, len(y)), offset=0.1 * rng.normal(size=len(y)))
    made["weights, offset, prior matrix"] = eq.bind(eq.glm("poisson", prior_precision=np.eye(3) + 0.3), rows)
    made["subsample"] = eq.bind(eq.glm("poisson", prior_precision=1.0), (x, y)).subsample(60, seed=2)
    init = {"a": 0.0, "b": np.zeros(2)}
    made["own loss"] = eq.bind(eq.Model(jax_loss, init, prior_precision=0.5), {"x": x[:, 1:], "y": y})
    frozen = eq.Model(jax_loss, init, trainable={"a": True, "b": False})
    made["own loss, partly frozen"] = eq.bind(frozen, {"x": x[:, 1:], "y": y})
    return {name: Case(p.settled(t), t) for name, p in made.items() for t in [np.full(len(p.names), 0.15)]}


class PickledPart:
    """A part of somebody's own: a pickled table."""

    first, identity = 0, None

    def __init__(self, label: str, count: int) -> None:
        self.label, self.count = label, count

    def frames(self, columns: Any, rows: int) -> Any:
        """Slices of the columns."""
        table = pd.read_pickle(self.label)[list(columns)]
        for start in range(0, len(table), rows):
            yield table[start : start + rows]


def sources() -> dict[str, Any]:
    """One source of every kind, all of more than one block."""
    x, y = misspecified("poisson", n=700, dim=3)
    frame = pd.DataFrame({"y": y, "a": x[:, 1], "b": x[:, 2]})
    weights = np.random.default_rng(0).uniform(0.5, 2.0, len(y))
    from equipoise.data.fields import Columns

    folder = Path(_FOLDER.name)
    frame["w"] = weights
    for k, start in enumerate(range(0, len(frame), 150)):
        frame[start : start + 150].to_parquet(folder / f"{k}.parquet", index=False)
        frame[start : start + 150].to_pickle(folder / f"{k}.pickle")
    frame.to_csv(folder / "all.csv", index=False)
    own = [PickledPart(str(folder / f"{k}.pickle"), min(150, len(frame) - 150 * k)) for k in range(k + 1)]
    made = {
        "files": eq.data.scan(folder / "*.parquet", "y ~ a + b"),
        "files by a formula": eq.data.scan(folder / "*.parquet", "y ~ np.tanh(a) + b", weights="w", offset="a"),
        "text": eq.data.scan(folder / "all.csv", "y ~ a + b"),
        "parts of one's own": eq.data.scan(own, "y ~ a + b"),
        "files of columns": eq.data.scan(folder / "*.parquet", columns={"x": ["a", "b"], "y": "y"}),
    }
    return {
        **made,
        "arrays": eq.data.rows(x, y),
        "weights and offset": eq.data.rows(x, y, weights=weights, offset=0.1 * x[:, 1]),
        "table": eq.data.table(frame, "y ~ a + b"),
        "columns": Columns((x, y, np.arange(len(y))), ("x", "y", "k")),
    }


def brute_moments(problem: Any, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradient and Hessian of the regularised mean loss by fourth-order differences of its value."""
    value = lambda t: problem.derivatives(t, 0).value  # noqa: E731
    gradient = np.array([_slope(value, theta, k, 1e-3) for k in range(theta.size)])
    slope = lambda t: problem.derivatives(t, 1).gradient  # noqa: E731
    hessian = np.array([_slope(slope, theta, k, 1e-3) for k in range(theta.size)])
    return gradient, hessian


def _slope(f: Any, theta: np.ndarray, k: int, h: float) -> Any:
    e = np.zeros(theta.size)
    e[k] = h
    return (8.0 * (f(theta + e) - f(theta - e)) - (f(theta + 2 * e) - f(theta - 2 * e))) / (12.0 * h)
