"""Our own engines, and the two loops anyone could write: NumPy in the style of the paper's scripts, and a JAX scan."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import equipoise as eq
from benchmarks.suite.workloads import Array, Cell, Prepared

__all__ = [
    "Run",
    "autodiff_run",
    "compiled_run",
    "engine_for",
    "engine_run",
    "jax_engine",
    "jax_functions",
    "jax_scan_run",
    "linear_run",
    "numba_engine",
    "numpy_run",
    "scan",
]

# steps, seed → the stored iterates as parameters, (steps // thin, D)
Run = Callable[[int, int], Array]


def numba_engine(prepared: Prepared, tuning: eq.Tuning, dtype: str = "float64") -> Any:
    """Our linear engine on a workload, with its default guard; all rows are whitened when it is made."""
    from equipoise.sampling.run import resolve_guard

    problem = eq.bind(prepared.model, (prepared.x, prepared.y))
    return problem.engine(tuning, resolve_guard(problem, tuning, "auto"), dtype)


def jax_engine(prepared: Prepared, tuning: eq.Tuning) -> Any:
    """Our JAX engine: the same loss written as a function of one row."""
    from equipoise.sampling.run import resolve_guard

    loss, _ = jax_functions(prepared)
    model = eq.Model(lambda p, row: -loss(p, (row["x"], row["y"])), init=np.zeros(prepared.workload.dim))
    problem = eq.bind(model, {"x": prepared.x, "y": prepared.y})
    return problem.engine(tuning, resolve_guard(problem, tuning, None))


def engine_for(cell: Cell, tuning: eq.Tuning | None = None) -> Any:
    """The linear engine on a cell's problem."""
    return numba_engine(cell.prepared, cell.tuning if tuning is None else tuning, cell.dtype)


def engine_run(engine: Any, tuning: eq.Tuning, thin: int) -> Run:
    """One chain of an engine on one thread, started from its predicted law."""
    pool, root = ThreadPoolExecutor(1), np.linalg.cholesky(tuning.predicted.cov)

    def run(steps: int, seed: int) -> Array:
        away = root @ np.random.default_rng(seed).standard_normal(tuning.dim)
        state = engine.start(tuning.center + away, np.random.SeedSequence(seed))
        out = np.empty((steps // thin, tuning.dim))
        engine.advance([state], steps, thin, [out], pool)
        return out

    return run


def linear_run(cell: Cell, langevin: bool = False) -> Run:
    """Our linear engine; as SGLD, with injected noise, on request."""
    tuning = cell.tuning
    if langevin:
        # the edge of feasibility is near β = N (theory eq. 3.3): four times that leaves room for gradient noise
        tuning = cell.prepared.tune(cell.batch, inverse_temperature=4.0 * cell.prepared.workload.rows)
    return engine_run(engine_for(cell, tuning), tuning, cell.thin)


def autodiff_run(cell: Cell) -> Run:
    """Our JAX engine."""
    return engine_run(jax_engine(cell.prepared, cell.tuning), cell.tuning, cell.thin)


def numpy_run(cell: Cell, tight: bool = False) -> Run:
    """The paper's scripts: draw a batch, average the scores of its rows, multiply by the step matrix, check, store.

    With `tight` as NumPy does it best: the newer generator, the average as a product, no check.
    """
    x, y, step, thin = cell.prepared.x, cell.prepared.y, cell.tuning.step, cell.thin
    size, count, variance = cell.batch, len(y), cell.prepared.scale**2
    mean: dict[str, Callable[[Array], Array]] = {
        "gaussian": lambda eta: eta,
        "poisson": np.exp,
        "bernoulli": lambda eta: 1.0 / (1.0 + np.exp(-eta)),
    }
    inverse_link = mean[cell.family]

    def run(steps: int, seed: int) -> Array:
        fast, slow = np.random.default_rng(seed), np.random.RandomState(seed)
        theta, out = cell.tuning.center.copy(), np.empty((steps // thin, cell.tuning.dim))
        for t in range(steps // thin):
            for _ in range(thin):
                batch = fast.integers(0, count, size) if tight else slow.randint(0, count, size)
                rows = x[batch]
                score = (y[batch] - inverse_link(rows @ theta)) / variance
                gradient = score @ rows / size if tight else (score[:, None] * rows).mean(axis=0)
                theta = theta + step @ gradient
                if not tight and not np.isfinite(theta).all():
                    raise ArithmeticError("the chain diverged")
            out[t] = theta
        return out

    return run


def jax_functions(prepared: Prepared) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """Log likelihood of one row, up to a constant, and its derivative in the predictor: (y − μ)/σ²."""
    import jax
    import jax.numpy as jnp

    precision = 1.0 / prepared.scale**2
    total: Callable[[Any, Any], Any]
    mean: Callable[[Any], Any]
    if prepared.workload.family == "gaussian":
        total, mean = (lambda eta, y: -0.5 * precision * (y - eta) ** 2), (lambda eta: eta)
    elif prepared.workload.family == "poisson":
        total, mean = (lambda eta, y: y * eta - jnp.exp(eta)), jnp.exp
    else:
        total, mean = (lambda eta, y: y * eta - jax.nn.softplus(eta)), jax.nn.sigmoid
    return (lambda p, row: total(row[0] @ p, row[1])), (lambda eta, y: precision * (y - mean(eta)))


def scan(one: Callable[[Any, Any], Any], phi: Any, draws: Any, thin: int) -> Any:
    """Stored iterates of a chain of `one(phi, draw)`.

    Not unrolled: in JAX 0.10 that makes the loop by hand 15 % slower at small batches, and BlackJAX no faster.
    """
    import jax

    def stored(phi: Any, draw: Any) -> Any:
        phi = one(phi, draw)
        return phi, phi

    if thin == 1:
        return jax.lax.scan(stored, phi, draws)[1]
    groups = jax.tree.map(lambda a: a.reshape(-1, thin, *a.shape[1:]), draws)

    def group(phi: Any, draws: Any) -> Any:
        phi, _ = jax.lax.scan(lambda p, draw: (one(p, draw), None), phi, draws)
        return phi, phi

    return jax.lax.scan(group, phi, groups)[1]


def jax_scan_run(cell: Cell) -> Run:
    """A scan written by hand: gradient by hand, whitened rows, batches drawn in bulk."""
    import jax
    import jax.numpy as jnp

    _, slope = jax_functions(cell.prepared)
    size = cell.batch

    def chain(x: Any, y: Any, phi: Any, key: Any, steps: int) -> Any:
        def one(phi: Any, batch: Any) -> Any:
            rows = x[batch]
            return phi + slope(rows @ phi, y[batch]) @ rows / size

        return scan(one, phi, jax.random.randint(key, (steps, size), 0, len(y), dtype=jnp.int32), cell.thin)

    return compiled_run(cell, chain)


def compiled_run(cell: Cell, chain: Callable[[Any, Any, Any, Any, int], Any]) -> Run:
    """Compile `chain(rows, y, phi, key, steps)` and run it in the cell's precision, data as arguments."""
    import jax
    import jax.numpy as jnp

    compiled, white, y = jax.jit(chain, static_argnums=4), jnp.asarray(cell.white), jnp.asarray(cell.y)

    def run(steps: int, seed: int) -> Array:
        # libraries draw their noise in the default type, which is float32 for whoever wants a float32 chain
        with jax.enable_x64(cell.dtype == "float64"):
            return cell.parameters(np.asarray(compiled(white, y, cell.start, jax.random.key(seed), steps)))

    return run
