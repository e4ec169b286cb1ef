"""The general engine: SG(L)D with momentum on any JAX loss, one compiled loop over steps (theory §1).

Batches and normals are drawn outside the loop by the same generator as the linear engine's, step by step, so that no
bit depends on how a run is split. Chains run on threads, one per call: vectorised over chains, the compiler's order of
summation would depend on their number. Data are arguments of the compiled loop, never constants in it.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky

from equipoise.engines.linear import ChainState, initial_state
from equipoise.engines.random import add_normals, compiled, distinct_rows, rows_with_replacement

if TYPE_CHECKING:
    from equipoise.models.general import GeneralProblem, Model
    from equipoise.tuning import Tuning

__all__ = ["AutodiffEngine", "autodiff_engine"]

Array = NDArray[np.float64]

# Row numbers drawn ahead for one call of the compiled loop (4 bytes each).
_AHEAD = 1 << 20
# Steps in one call, at most.
_STEPS = 1024


@dataclass(frozen=True)
class AutodiffEngine:
    """Runs chains of a general problem in its own coordinates; positions are θ."""

    problem: GeneralProblem
    step: Array
    root: Array
    metric: Array
    center: Array
    tuning: Tuning
    radius2: float

    def start(self, theta: Array, seed: np.random.SeedSequence) -> ChainState:
        """A chain at θ, at rest."""
        return initial_state(theta, seed)

    def identity(self) -> tuple[Array, ...]:
        """The arrays that, with the step and the options, determine a run; a loss has no bytes, its value at θ̂ has."""
        scores = self.problem.gradient(self.center + 0.1 * np.sqrt(np.diag(self.tuning.predicted.cov)))
        return (np.array(scores[0]), scores[1], *(np.asarray(a) for a in jax.tree.leaves(self.problem.data)))

    def advance(self, states: list[ChainState], steps: int, thin: int, outs: list[Array], pool: Executor) -> list[int]:
        """Run every chain, each on a thread of its own; rows written to each, or −1 minus that number on divergence."""
        return list(pool.map(lambda state, out: self._chain(state, steps, thin, out), states, outs))

    def compile(self) -> None:
        """Take no step, which compiles the loop."""
        self._call(self.start(self.center, np.random.SeedSequence(0)), 0)

    def _chain(self, state: ChainState, steps: int, thin: int, out: Array) -> int:
        written, last, finite = 0, state.step + steps, True
        while finite and state.step < last:
            first = state.step
            path, finite = self._call(state, last - first)
            # iterates whose number, from 1, is a multiple of the thinning
            kept = path[-(first + 1) % thin :: thin] if thin > 0 else path[:0]
            out[written : written + len(kept)] = kept
            written += len(kept)
        return written if finite else -1 - written

    def _call(self, state: ChainState, steps: int) -> tuple[Array, bool]:
        """At most `steps` steps in one call of the compiled loop, in place: the finite iterates, and whether all are."""
        # the same for every call of a run: another size would be compiled anew
        size = max(1, min(_STEPS, _AHEAD // self.tuning.dynamics.batch_size))
        count = min(size, steps)
        batches, normals = self._draw(state.rng, size, count)
        loop = _loop(self.problem.model, self.tuning.dynamics.temperature > 0.0, bool(np.isfinite(self.radius2)))
        constants = (self.step, self.root, self.metric, self.center, self.radius2, self.tuning.dynamics.momentum)
        with jax.enable_x64(True):
            result = loop(
                self.problem.data, constants, self.problem.n, state.position, state.velocity, batches, normals, count
            )
            state.position[:], state.velocity[:], path, hits, taken, finite = (np.asarray(r) for r in result)
        state.step += int(taken)
        state.hits += int(hits)
        return path[: int(taken) if finite else int(taken) - 1], bool(finite)

    def _draw(self, rng: NDArray[np.uint64], size: int, count: int) -> tuple[NDArray[np.int32], Array]:
        dynamics, dim = self.tuning.dynamics, self.center.size
        batches = np.zeros((size, dynamics.batch_size), dtype=np.int32)
        noisy = dynamics.temperature > 0.0
        normals = np.zeros((size if noisy else 1, dim))
        order = np.arange(0 if dynamics.replacement else self.problem.n, dtype=np.uint32)
        _fill(rng, self.problem.n, order, batches[:count], normals if noisy else normals[:0])
        return batches, normals


def autodiff_engine(problem: GeneralProblem, tuning: Tuning, radius2: float) -> AutodiffEngine:
    """The engine of a general problem for a step matrix, compiled: chains would otherwise all compile it at once."""
    root = np.sqrt(2.0 * tuning.dynamics.temperature) * cholesky(tuning.step, lower=True)
    metric = cho_solve((cholesky(tuning.predicted.cov, lower=True), True), np.eye(tuning.dim))
    engine = AutodiffEngine(problem, tuning.step, root, metric, tuning.center, tuning, radius2)
    engine.compile()
    return engine


@compiled
def _fill(rng: Any, rows: int, order: Any, batches: Any, normals: Any) -> None:
    """What each step draws, in the order in which it draws it: a batch, then normals."""
    batch, swaps = np.empty(batches.shape[1], np.uint64), np.empty(batches.shape[1], np.uint64)
    for t in range(batches.shape[0]):
        if order.size == 0:
            rows_with_replacement(rng, np.uint64(rows), batch)
        else:
            distinct_rows(rng, order, swaps, batch)
        for k in range(batch.size):
            batches[t, k] = batch[k]
        if normals.shape[0] > 0:
            add_normals(rng, 1.0, normals[t], normals.shape[1])


@lru_cache(maxsize=32)
def _loop(model: Model, noisy: bool, guarded: bool) -> Any:
    """Compile the loop for one model; its number of steps is an argument, so nothing is compiled twice."""
    functions = model.functions
    slope = jax.grad(lambda theta, block: jnp.mean(jax.vmap(functions.row, (None, 0))(theta, block)))
    push = jax.grad(functions.penalty)

    def chain(data: Any, constants: Any, n: Any, theta: Any, m: Any, batches: Any, normals: Any, count: Any) -> Any:
        step, root, metric, center, radius2, momentum = constants

        def body(carry: Any) -> Any:
            theta, m, path, hits, t, _ = carry
            block = jax.tree.map(lambda a: a[batches[t]], data)
            m = momentum * m + slope(theta, block) + push(theta) / n
            theta = theta - step @ m
            if noisy:
                theta = theta + root @ normals[t]
            finite = jnp.isfinite(jnp.sum(theta * theta))
            if guarded:
                e = theta - center
                form = e @ metric @ e
                out = finite & (form > radius2)
                theta = jnp.where(out, center + e * jnp.sqrt(radius2 / form), theta)
                hits = hits + out
            return theta, m, path.at[t].set(theta), hits, t + 1, finite

        zero = jnp.zeros((), jnp.int64)
        start = (theta, m, jnp.zeros((batches.shape[0], theta.size)), zero, zero, jnp.array(True))
        return jax.lax.while_loop(lambda carry: (carry[4] < count) & carry[5], body, start)

    return jax.jit(chain)
