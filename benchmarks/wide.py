"""Regressions of many columns and losses of many parameters: seconds, processor seconds and peak memory of one fit.

python benchmarks/wide.py [--columns 5000] [--rows 50000] [--kind gaussian bernoulli poisson softmax network]
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import equipoise as eq

_CLASSES = 10


def regression(family: str, rows: int, columns: int) -> tuple[Any, Any]:
    """Standard normal columns with coefficients that explain little each."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, columns))
    eta = X @ (0.3 / np.sqrt(columns) * rng.standard_normal(columns))
    if family == "gaussian":
        y = eta + rng.standard_normal(rows)
    elif family == "bernoulli":
        y = (rng.random(rows) < 1.0 / (1.0 + np.exp(-eta))).astype(np.float64)
    else:
        y = rng.poisson(np.exp(eta)).astype(np.float64)
    return eq.glm(family, prior_precision=0.0 if rows > columns else 100.0), (X, y)


def softmax(rows: int, columns: int) -> tuple[Any, Any]:
    """A linear classifier with a score for each of ten classes and a prior."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, columns))
    scores = X @ (3.0 / np.sqrt(columns) * rng.standard_normal((columns, _CLASSES)))
    data = {"x": X, "y": (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)}
    loss = lambda p, row: -jax.nn.log_softmax(row["x"] @ p)[row["y"]]  # noqa: E731
    return eq.Model(loss, init=np.zeros((columns, _CLASSES)), prior_precision=1.0), data


def network(rows: int, width: int) -> tuple[Any, Any]:
    """One hidden layer over twenty inputs, squared error and a weak prior: long curved valleys."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, 20))
    data = {"x": X, "y": np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.standard_normal(rows)}
    init = {
        "a": rng.standard_normal((20, width)) / np.sqrt(20), "b": np.zeros(width),
        "c": rng.standard_normal(width) / np.sqrt(width), "d": np.zeros(()),
    }  # fmt: skip

    def loss(p, row):
        return (row["y"] - jnp.tanh(row["x"] @ p["a"] + p["b"]) @ p["c"] - p["d"]) ** 2 / 0.18

    return eq.Model(loss, init=init, prior_precision=1.0), data


def main() -> None:
    """Fit each kind once."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument(
        "--columns", type=int, default=5000, help="of a regression or softmax; units of the network's layer"
    )
    asked.add_argument("--rows", type=int, default=50_000)
    asked.add_argument("--kind", nargs="+", default=["gaussian", "bernoulli", "poisson"])
    given = asked.parse_args()
    for kind in given.kind:
        make = {"softmax": softmax, "network": network}.get(kind)
        model, data = make(given.rows, given.columns) if make else regression(kind, given.rows, given.columns)
        began, used = time.perf_counter(), time.process_time()
        fit = eq.fit(model, data)
        seconds, cpu = time.perf_counter() - began, time.process_time() - used
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1e-9 if sys.platform == "darwin" else 1e-6)
        print(
            f"{kind} of {fit.theta.size:,} parameters, {given.rows:,} rows: {seconds:.1f} s ({cpu:.1f} s of processors), "
            f"peak {peak:.2f} GB, {fit.iterations} steps, {fit.gradient_norm:.1g} standard errors from the minimiser",
            flush=True,
        )


if __name__ == "__main__":
    main()
