"""SGLD as BlackJAX has it, tuned by hand: a grid of step sizes and batch sizes, plain and with control variates.

What is tuned is what its users can tune: one number for the step, and the batch. A setting counts as good when the standard
deviations of its draws are the posterior's within 10 % on average; the best is the one of those with the most effective draws
per second. The grid's own cost is not counted.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import equipoise as eq
from benchmarks.suite.contenders import jax_functions, scan
from benchmarks.suite.effective import effective_draws
from benchmarks.suite.measure import Settings, guarded, say, timed
from benchmarks.suite.peers import require
from benchmarks.suite.workloads import Array, Prepared

__all__ = ["ALLOWED", "best_of", "tuned_sgld"]

ALLOWED = 0.1
_STEPS, _STEPS_SMOKE = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0), (0.03, 0.3)  # over the largest stable full-batch step
_BATCHES, _BATCHES_SMOKE = ((50, 100_000), (500, 40_000)), ((20, 2000),)  # each with its number of steps
_THIN = 10


def tuned_sgld(workloads: list[Prepared], settings: Settings) -> dict[str, Any]:
    """The grid on every workload, and its best."""
    return {p.workload.name: guarded(lambda p=p: _grid(p, settings)) for p in workloads}  # type: ignore[misc]


def _grid(prepared: Prepared, settings: Settings) -> dict[str, Any]:
    moments = prepared.moments
    spread = np.sqrt(np.diag(eq.posterior(moments)))
    # SGLD moves by ε N H per step: 2/λ is the edge of stability without gradient noise
    edge = 2.0 / (moments.n * float(np.linalg.eigvalsh(moments.hessian)[-1]))
    settings_of_grid = [
        (kind, batch, steps, share)
        for kind in ("plain", "control variates")
        for batch, steps in (_BATCHES_SMOKE if settings.smoke else _BATCHES)
        for share in (_STEPS_SMOKE if settings.smoke else _STEPS)
    ]
    grid = []
    for kind, batch, steps, share in settings_of_grid:
        made = guarded(partial(_measure, prepared, kind == "control variates", batch, steps, share * edge, spread))
        grid.append({"gradient": kind, "batch_size": batch, "step": share, **made})
    best = {kind: best_of([g for g in grid if g["gradient"] == kind]) for kind in ("plain", "control variates")}
    say(f"SGLD tuned by hand {prepared.workload.name}: {best}")
    return {"grid": grid, "best": best, "allowed": ALLOWED}


def best_of(grid: list[dict[str, Any]]) -> dict[str, Any]:
    """The setting with the most effective draws per second of those that sample the posterior's spread."""
    good = [g for g in grid if abs(g.get("sd_ratio", np.inf) - 1.0) <= ALLOWED]
    if good:
        return max(good, key=lambda g: float(g["ess_per_second"]))
    missing = next((g["not_installed"] for g in grid if "not_installed" in g), None)
    return {"not_installed": missing} if missing else {"none_right": True}


def _measure(
    prepared: Prepared, controlled: bool, batch: int, steps: int, step: float, spread: Array
) -> dict[str, Any]:
    """One setting: its rate, compiled before, and the spread of its draws over the posterior's."""
    run = _sgld(prepared, controlled, batch)
    held: dict[str, Array] = {"draws": run(steps, step, 0)}
    seconds = timed(lambda: held.update(draws=run(steps, step, 1)))
    draws = held["draws"][len(held["draws"]) // 10 :]
    if not np.isfinite(draws).all():
        return {"diverged": True}
    ess = effective_draws(draws[None])
    return {
        "sd_ratio": float(np.mean(draws.std(axis=0) / spread)),
        "mean_ess": float(ess.mean()),
        "ess_per_second": float(ess.mean()) / seconds,
        "seconds": seconds,
    }


_COMPILED: dict[tuple[str, bool, int, int], Any] = {}


def _sgld(prepared: Prepared, controlled: bool, batch: int) -> Any:
    """BlackJAX's SGLD in one scan, batches and keys drawn in bulk; every thirtieth of the grid is compiled once."""
    blackjax, gradients = require("blackjax"), require("blackjax.sgmcmc.gradients")
    import jax
    import jax.numpy as jnp

    likelihood, _ = jax_functions(prepared)
    rows, start = (jnp.asarray(prepared.x), jnp.asarray(prepared.y)), jnp.asarray(prepared.moments.params)

    def chain(x: Any, y: Any, start: Any, step: Any, key: Any, steps: int) -> Any:
        estimate = gradients.grad_estimator(lambda _: 0.0, likelihood, len(y))
        if controlled:
            estimate = gradients.control_variates(estimate, start, (x, y))
        sgld, (first, second) = blackjax.sgld(estimate), jax.random.split(key)
        batches = jax.random.randint(first, (steps, batch), 0, len(y), dtype=jnp.int32)

        def one(theta: Any, draw: Any) -> Any:
            key, which = draw
            return sgld.step(key, theta, (x[which], y[which]), step)

        return scan(one, start, (jax.random.split(second, steps), batches), _THIN)

    name = (prepared.workload.name, controlled, batch, len(rows[1]))
    compiled = _COMPILED.setdefault(name, jax.jit(chain, static_argnums=5))
    return lambda steps, step, seed: np.asarray(
        compiled(*rows, start, step, jax.random.key(seed), steps), dtype=np.float64
    )
