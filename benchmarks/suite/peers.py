"""Other libraries on the same chain, each as its documentation has it run, at its best."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from benchmarks.suite.contenders import (
    Run,
    autodiff_run,
    compiled_run,
    jax_functions,
    jax_scan_run,
    linear_run,
    numpy_run,
    scan,
)
from benchmarks.suite.measure import NotInstalled
from benchmarks.suite.workloads import Array, Cell

__all__ = ["CONTENDERS", "PACKAGES", "blackjax_jit_run", "blackjax_scan_run", "installed", "posteriors_run", "require"]

# Whose versions a report names.
PACKAGES = (
    "numpy", "scipy", "numba", "jax", "blackjax", "numpyro", "torch", "posteriors", "statsmodels", "glum", "scikit-learn",
    "distributed", "arviz",
)  # fmt: skip


def installed() -> dict[str, str | None]:
    """Version of every package that takes part; None for those not installed."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def require(name: str) -> Any:
    """Import an optional package.

    Raises
    ------
    NotInstalled
        If it is not there.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise NotInstalled(name.partition(".")[0]) from error


def _blackjax_sgld(cell: Cell) -> Any:
    """BlackJAX's SGLD at temperature zero, since it has no SGD: it draws its noise, and multiplies it by zero.

    Its step is a number. A step matrix it can only follow in whitened coordinates, which its documentation does not
    mention: it is given the whitened rows, and its draws are mapped back as ours are.
    """
    blackjax = require("blackjax")
    likelihood, _ = jax_functions(cell.prepared)
    gradient = require("blackjax.sgmcmc.gradients").grad_estimator(lambda _: 0.0, likelihood, len(cell.y))
    return blackjax.sgld(gradient)


def blackjax_scan_run(cell: Cell) -> Run:
    """BlackJAX's step inside a scan, with batches and keys drawn in bulk."""
    sgld = _blackjax_sgld(cell)
    import jax
    import jax.numpy as jnp

    size = cell.batch

    def chain(x: Any, y: Any, phi: Any, key: Any, steps: int) -> Any:
        first, second = jax.random.split(key)
        batches = jax.random.randint(first, (steps, size), 0, len(y), dtype=jnp.int32)
        keys = jax.random.split(second, steps)

        def one(phi: Any, draw: Any) -> Any:
            key, batch = draw
            return sgld.step(key, phi, (x[batch], y[batch]), 1.0 / len(y), 0.0)

        return scan(one, phi, (keys, batches), cell.thin)

    return compiled_run(cell, chain)


def blackjax_jit_run(cell: Cell) -> Run:
    """BlackJAX as its documentation shows it: `step = jax.jit(sgld.step)`, one call and one batch per step."""
    sgld = _blackjax_sgld(cell)
    import jax

    step, white, y, thin = jax.jit(sgld.step), cell.white, cell.y, cell.thin

    def run(steps: int, seed: int) -> Array:
        rng = np.random.default_rng(seed)
        # as NumPy rows: to index an array of keys on the device costs more than the step
        keys = np.asarray(jax.random.split(jax.random.PRNGKey(seed), steps))
        phi, out, rate = cell.start, np.empty((steps // thin, cell.start.size)), 1.0 / len(y)
        for t in range(steps):
            batch = rng.integers(0, len(y), cell.batch)
            phi = step(keys[t], phi, (white[batch], y[batch]), rate, 0.0)
            if (t + 1) % thin == 0:
                out[t // thin] = phi
        return cell.parameters(out)

    return run


def posteriors_run(cell: Cell) -> Run:
    """SGLD of posteriors (torch), in place, at temperature zero, on whitened rows."""
    torch = require("torch")
    sgld = require("posteriors.sgmcmc.sgld")
    white, y, size, thin = torch.from_numpy(cell.white), torch.from_numpy(cell.y), cell.batch, cell.thin
    precision = 1.0 / cell.prepared.scale**2
    terms: dict[str, Callable[[Any, Any], Any]] = {
        "gaussian": lambda eta, y: -0.5 * precision * (y - eta) ** 2,
        "poisson": lambda eta, y: y * eta - torch.exp(eta),
        "bernoulli": lambda eta, y: y * eta - torch.nn.functional.softplus(eta),
    }
    term, nothing = terms[cell.family], torch.empty(0)

    def log_posterior(phi: Any, batch: Any) -> Any:
        rows, responses = batch
        return torch.mean(term(rows @ phi, responses)), nothing

    transform = sgld.build(log_posterior, lr=1.0, temperature=0.0)

    def run(steps: int, seed: int) -> Array:
        torch.manual_seed(seed)
        state = transform.init(torch.from_numpy(cell.start.copy()))
        out = np.empty((steps // thin, cell.start.size))
        for t in range(steps):
            batch = torch.randint(0, len(y), (size,))
            state, _ = transform.update(state, (white[batch], y[batch]), inplace=True)
            if (t + 1) % thin == 0:
                out[t // thin] = state.params.numpy()
        return cell.parameters(out)

    return run


CONTENDERS: dict[str, Callable[[Cell], Run]] = {
    "equipoise": linear_run,
    "equipoise SGLD": lambda cell: linear_run(cell, langevin=True),
    "equipoise JAX engine": autodiff_run,
    "JAX scan, by hand": jax_scan_run,
    "BlackJAX in a scan": blackjax_scan_run,
    "BlackJAX jit per step": blackjax_jit_run,
    "posteriors": posteriors_run,
    "NumPy loop": numpy_run,
    "NumPy loop, tightened": lambda cell: numpy_run(cell, tight=True),
}
