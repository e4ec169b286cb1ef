"""Choosing the step of SGLD: the covariance of a guessed step beside that of a tuned one, with BlackJAX's own kernel.

A logistic regression of 2,000 rows, whose two columns have different scales. BlackJAX's `sgld` runs with a guessed step size,
with the tuned one, and Equipoise's kernel with the tuned matrix; all with batches of 50 rows. The figure shows draws, the
ellipse that holds 95 % of the posterior, and the one that was predicted before the first step.

Run it with `python examples/sgld_step.py [figure.svg]`: half a minute.
"""

from __future__ import annotations

import sys
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np

import equipoise as eq
from equipoise.interop import blackjax as eqb
from equipoise.report.palette import BLACK, BLUE, VERMILION

mpl.use("Agg")
import matplotlib.pyplot as plt

N, BATCH, PRECISION, CHAINS, STEPS = 2000, 50, 1.0, 40, 4000
GUESS = 1e-4  # a step size that looks cautious: two digits below one over the number of rows would be 5e-6


def loss(params: Any, row: Any) -> Any:
    """Negative log-likelihood of one row."""
    eta = row["x"] @ params
    return jnp.logaddexp(0.0, eta) - row["y"] * eta


def rows() -> dict[str, Any]:
    """Two columns, one with a fifth of the other's spread, that lean the same way."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 2)) @ np.array([[2.0, 0.3], [0.0, 0.25]])
    return {"x": x, "y": (rng.random(N) < 1.0 / (1.0 + np.exp(-x @ [0.7, -1.0]))).astype(float)}


def run(step: Any, first: Any, position: Any, data: Any) -> Any:
    """Draws (chains, steps, 2) of a kernel, every batch drawn from all rows."""
    held = jax.tree.map(jnp.asarray, data)

    def chain(key: Any) -> Any:
        def one(state: Any, key: Any) -> Any:
            now, batch = jax.random.split(key)
            index = jax.random.randint(batch, (BATCH,), 0, N)
            state = step(now, state, jax.tree.map(lambda a: a[index], held))
            return state, position(state)

        return jax.lax.scan(one, first, jax.random.split(key, STEPS))[1]

    return np.asarray(jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(1), CHAINS)), float)[:, 500:]


def ellipse(cov: Any, center: Any) -> Any:
    """The border of the region that holds 95 % of a normal law."""
    angle = np.linspace(0.0, 2.0 * np.pi, 200)
    return center + np.sqrt(5.991) * np.column_stack([np.cos(angle), np.sin(angle)]) @ np.linalg.cholesky(cov).T


def main(path: str) -> None:
    """Three chains, one figure, one line each."""
    data, model = rows(), eq.Model(loss, init=np.zeros(2), prior_precision=PRECISION)
    moments = eq.moments(model, data, eq.fit(model, data))
    dynamics, target = eq.Dynamics(batch_size=BATCH, inverse_temperature=N), eq.posterior(moments)
    guessed = eq.Tuning.at(moments, GUESS * N, dynamics)
    scalar = eq.tune(moments, target, eq.Dynamics(batch_size=BATCH), structure="scalar")
    full = eq.tune(moments, target, eq.Dynamics(batch_size=BATCH))

    estimator = blackjax.sgmcmc.gradients.grad_estimator(
        lambda p: -0.5 * PRECISION * p @ p, lambda p, row: -loss(p, row), N
    )
    theirs, first = blackjax.sgld(estimator), jnp.asarray(moments.params, jnp.float32)
    ours = eqb.sgmcmc(full, model)
    kernels = {
        f"a guess: step_size={GUESS:g}": (guessed, lambda k, s, b: theirs.step(k, s, b, *eqb.sgld(guessed)), None),
        "the best scalar": (scalar, lambda k, s, b: theirs.step(k, s, b, *eqb.sgld(scalar)), None),
        "the tuned matrix": (full, ours.step, ours.init(first)),
    }
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.6), sharex=True, sharey=True, layout="constrained")
    for axis, (name, (tuning, step, state)) in zip(axes, kernels.items(), strict=True):
        position = (lambda s: s) if state is None else (lambda s: s.position)
        draws = run(step, first if state is None else state, position, data)
        cov, law = np.cov(draws.reshape(-1, 2).T), tuning.predicted
        ratio, expected = (np.sqrt(np.diag(c) / np.diag(target)) for c in (cov, law.cov))
        print(
            f"{name:<26} sd over the posterior's: {ratio[0]:.2f}, {ratio[1]:.2f} (predicted {expected[0]:.2f}, "
            f"{expected[1]:.2f}); autocorrelation time {law.iact():.0f} steps"
        )
        some = draws[:, ::350].reshape(-1, 2)
        axis.plot(*some.T, ".", color=BLUE, markersize=2.5, alpha=0.35, label="draws")
        axis.plot(*ellipse(law.cov, moments.params).T, color=VERMILION, linewidth=2.0, label="predicted")
        axis.plot(*ellipse(target, moments.params).T, color=BLACK, linestyle="--", label="posterior")
        axis.set_title(f"{name}\nsd {ratio[0]:.2f} and {ratio[1]:.2f} of the posterior's", fontsize=10)
        axis.set_xlabel("first coefficient")
    axes[0].set_ylabel("second coefficient")
    axes[0].legend(fontsize=8, loc="lower left")
    figure.savefig(path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "sgld.svg")
