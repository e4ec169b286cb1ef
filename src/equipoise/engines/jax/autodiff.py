"""The general engine: SG(L)D with momentum on any JAX loss, one compiled loop over steps (theory §1).

Batches and normals are drawn outside the loop by the same generator as the linear engine's, step by step, so that no
bit depends on how a run is split. Chains run on threads, one per call: vectorised over chains, the compiler's order of
summation would depend on their number. Data are arguments of the compiled loop, never constants in it.

Where the loss sees θ through few combinations A_n θ of each row's own (`equipoise.engines.jax.projection`) chains run in the
linear engine's coordinates θ = θ̂ + L φ, Λ = L Lᵀ, on the rows A_n L: a step is then free of products with Λ.

JAX runs up to eight operations in a loop's body one after the other, and schedules a ninth and all others at twice the
cost. So the loop is kept short: it does not look for divergence, which shows in the path.
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
from scipy.linalg import cho_solve, cholesky, solve_triangular

from equipoise.arrays import Array
from equipoise.engines.cost import pays_to_project
from equipoise.engines.jax.projection import Projection, find_projection
from equipoise.engines.numba.compiling import lifter
from equipoise.engines.numba.kernel import Lift
from equipoise.engines.numba.linear import ChainState, initial_state, lifting
from equipoise.engines.random import add_normals, compiled, distinct_rows, rows_with_replacement
from equipoise.linalg import blocks

if TYPE_CHECKING:
    from equipoise.models.general import GeneralProblem, Model
    from equipoise.theory.tuning import Tuning

__all__ = ["AutodiffEngine", "autodiff_engine"]


# Row numbers drawn ahead for one call of the compiled loop (4 bytes each).
_AHEAD = 1 << 20
# Steps in one call, at most.
_STEPS = 2048


@dataclass(frozen=True)
class AutodiffEngine:
    """Runs chains of a general problem; positions are φ with a projection, and else θ.

    Attributes
    ----------
    data
        What the loop reads: the problem's data, after the rows A_n L and the combinations at θ̂ with a projection.
    pull
        Gradient and curvature of the prior in φ, over N; of length zero without a prior or a projection.
    origin, metric
        The guard's centre and metric, in the coordinates of the chain.
    """

    problem: GeneralProblem
    tuning: Tuning
    radius2: float
    root: Array
    lift: Lift
    projection: Projection | None
    data: Any
    pull: tuple[Array, Array]
    origin: Array
    metric: Array

    def start(self, theta: Array, seed: np.random.SeedSequence) -> ChainState:
        """A chain at θ, at rest."""
        if self.projection is None:
            return initial_state(theta, seed)
        return initial_state(solve_triangular(self.root, theta - self.tuning.center, lower=True), seed)

    def identity(self) -> tuple[Array, ...]:
        """The arrays that, with the step and the options, determine a run; a loss has no bytes, its value at θ̂ has."""
        scores = self.problem.gradient(self.tuning.center + 0.1 * np.sqrt(np.diag(self.tuning.predicted.cov)))
        return (np.array(scores[0]), scores[1], *(np.asarray(a) for a in jax.tree.leaves(self.problem.data)))

    def advance(
        self, states: list[ChainState], steps: int, thin: int, outs: list[Array], pool: Executor, threads: int = 1
    ) -> list[int]:
        """Run every chain, each on a thread of its own; rows written to each, or −1 minus that number on divergence."""
        del threads  # a step is not shared
        return list(pool.map(lambda state, out: self._chain(state, steps, thin, out), states, outs))

    def compile(self) -> None:
        """Take no step, which compiles the loop."""
        self._call(self.start(self.tuning.center, np.random.SeedSequence(0)), 0)

    def _chain(self, state: ChainState, steps: int, thin: int, out: Array) -> int:
        written, last, finite = 0, state.step + steps, True
        while finite and state.step < last:
            first = state.step
            path, finite = self._call(state, last - first)
            # iterates whose number, from 1, is a multiple of the thinning
            kept = path[-(first + 1) % thin :: thin] if thin > 0 else path[:0]
            self._store(kept, out[written : written + len(kept)])
            written += len(kept)
        return written if finite else -1 - written

    def _store(self, positions: Array, out: Array) -> None:
        if self.projection is None:
            out[:] = positions
        else:
            lifter()(positions, self.lift, out)

    def _call(self, state: ChainState, steps: int) -> tuple[Array, bool]:
        """At most `steps` steps in one call of the compiled loop, in place: the finite iterates, and whether all are."""
        # the same for every call of a run: another size would be compiled anew
        size = max(1, min(_STEPS, _AHEAD // self.tuning.dynamics.batch_size))
        count = min(size, steps)
        drawn = self._draw(state.rng, size, count)
        position, velocity, path, hits = self._loop(state, drawn, count)
        lost = _first_lost(path[:count])
        taken = count if lost is None else lost + 1
        if taken < count:
            # what follows a divergence is void: the same steps again, up to it
            position, velocity, path, hits = self._loop(state, drawn, taken)
        state.position[:], state.velocity[:] = position, velocity
        state.step += taken
        state.hits += int(hits)
        return path[:lost] if lost is not None else path[:count], lost is None

    def _loop(self, state: ChainState, drawn: Any, count: int) -> tuple[Array, Array, Array, Array]:
        dynamics = self.tuning.dynamics
        options = dynamics.temperature > 0.0, bool(np.isfinite(self.radius2)), dynamics.momentum > 0.0
        loop = _loop(self.problem.model, self.projection, *options)
        noise = np.sqrt(2.0 * dynamics.temperature)
        matrices = () if self.projection else (self.tuning.step, noise * self.root)
        constants = (*matrices, noise, self.metric, self.origin, self.radius2, dynamics.momentum)
        with jax.enable_x64(True):
            result = loop(self.data, constants, self.pull, self.problem.n, state.position, state.velocity, drawn, count)
            position, velocity, path, hits = (np.asarray(r) for r in result)
        return position, velocity, path, hits

    def _draw(self, rng: NDArray[np.uint64], size: int, count: int) -> tuple[NDArray[np.int32], Array]:
        dynamics, dim = self.tuning.dynamics, self.tuning.dim
        batches = np.zeros((size, dynamics.batch_size), dtype=np.int32)
        noisy = dynamics.temperature > 0.0
        normals = np.zeros((size if noisy else 1, dim))
        order = np.arange(0 if dynamics.replacement else self.problem.n, dtype=np.uint32)
        _fill(rng, self.problem.n, order, batches[:count], normals if noisy else normals[:0])
        return batches, normals


def autodiff_engine(
    problem: GeneralProblem, tuning: Tuning, radius2: float, whiten: bool | None = None
) -> AutodiffEngine:
    """The engine of a general problem for a step matrix, compiled: chains would otherwise all compile it at once.

    Parameters
    ----------
    problem, tuning, radius2
        What to sample, the step matrix, and the guard's squared radius.
    whiten
        Whether to use a projection where there is one; None does if its rows do not need much more memory than the data.
    """
    root, center = cholesky(tuning.step, lower=True), tuning.center
    lift = lifting(root, center)
    metric = cho_solve((cholesky(tuning.predicted.cov, lower=True), True), np.eye(tuning.dim))
    projection = None if whiten is False else _projection(problem, tuning, whiten is True)
    if projection is None:
        nothing = np.empty(0), np.empty((0, 0))
        engine = AutodiffEngine(problem, tuning, radius2, root, lift, None, problem.data, nothing, center, metric)
    else:
        data, pull = _whitened(problem, projection, root, center)
        white = root.T @ metric @ root
        engine = AutodiffEngine(
            problem, tuning, radius2, root, lift, projection, data, pull, np.zeros(tuning.dim), 0.5 * (white + white.T)
        )
    engine.compile()
    return engine


def _first_lost(path: Array) -> int | None:
    """The first iterate whose square is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.vdot(path, path)):
            return None
        lost = ~np.isfinite(np.einsum("ti,ti->t", path, path))
    return int(np.argmax(lost)) if lost.any() else None


def _projection(problem: GeneralProblem, tuning: Tuning, always: bool) -> Projection | None:
    """The projection of a problem whose regulariser is quadratic, if its rows are not too large."""
    if problem.model.regularizer is not None:
        return None
    held = sum(a.size for a in jax.tree.leaves(problem.data)) / problem.n
    found = _split(problem.model, jax.tree.structure(problem.data), *_shapes(problem.data))
    return found if found and (always or pays_to_project(found.rank, tuning.dim, held)) else None


def _shapes(data: Any) -> tuple[Any, ...]:
    return tuple((a.shape[1:], str(a.dtype)) for a in jax.tree.leaves(data))


@lru_cache(maxsize=32)
def _split(model: Model, structure: Any, *shapes: Any) -> Projection | None:
    """The projection of a model for rows of given shapes: the same object for the same model, and so the same loop."""
    with jax.enable_x64(True):
        row = jax.tree.unflatten(structure, [np.zeros(*shape) for shape in shapes])
        return find_projection(model.functions.row, np.zeros(model.structure.dim), row)


def _whitened(problem: GeneralProblem, projection: Projection, root: Array, center: Array) -> tuple[Any, Any]:
    """Data with rows A_n L, (N, rank · D), and combinations at θ̂ before them; and the prior in φ."""
    slopes = jax.jit(jax.vmap(jax.jacobian(projection.combine), (None, 0)))
    values = jax.jit(jax.vmap(projection.combine, (None, 0)))
    n, dim = problem.n, center.size
    rows = np.empty((n, projection.rank, dim))
    with jax.enable_x64(True):
        for block in blocks(n, projection.rank * dim):
            rows[block] = np.asarray(slopes(center, jax.tree.map(lambda a, b=block: a[b], problem.data))) @ root
        data = jnp.asarray(rows.reshape(n, -1)), values(center, problem.data), problem.data
        _, gradient, curvature = (np.asarray(p) for p in problem.model.functions.penalty_derivatives(center))
    if not curvature.any():
        return data, (np.empty(0), np.empty((0, 0)))
    return data, (root.T @ gradient / n, root.T @ curvature @ root / n)


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


def _gradient(model: Model, projection: Projection | None, pull: Any, n: Any) -> Any:
    """The gradient of the regularised mean loss over a batch."""
    functions = model.functions
    flat = model.regularizer is None and not model.prior()[0].any()
    if projection is None:
        mean = jax.grad(lambda theta, block: jnp.mean(jax.vmap(functions.row, (None, 0))(theta, block)))
        push = jax.grad(functions.penalty)
        return mean if flat else lambda theta, block: mean(theta, block) + push(theta) / n
    slope = jax.vmap(jax.grad(projection.outer))

    def gradient(phi: Any, block: Any) -> Any:
        rows, base, others = block
        rows = rows.reshape(-1, phi.size)
        residual = slope(base + (rows @ phi).reshape(base.shape), others) / len(base)
        total = residual.reshape(-1) @ rows
        return total if flat else total + pull[0] + pull[1] @ phi

    return gradient


@lru_cache(maxsize=32)
def _loop(model: Model, projection: Projection | None, noisy: bool, guarded: bool, moving: bool) -> Any:
    """Compile the loop for one model; its number of steps is an argument, so nothing is compiled twice."""

    def chain(data: Any, constants: Any, pull: Any, n: Any, theta: Any, m: Any, drawn: Any, count: Any) -> Any:
        *matrices, noise, metric, origin, radius2, momentum = constants
        batches, normals = drawn
        slope = _gradient(model, projection, pull, n)

        def body(carry: Any) -> Any:
            theta, m, path, hits, t = carry
            batch = jax.lax.dynamic_index_in_dim(batches, t, keepdims=False)
            g = slope(theta, jax.tree.map(lambda a: a.at[batch].get(mode="promise_in_bounds"), data))
            m = momentum * m + g if moving else m
            move = m if moving else g
            theta = theta - (matrices[0] @ move if matrices else move)
            if noisy:
                theta = theta + (matrices[1] @ normals[t] if matrices else noise * normals[t])
            if guarded:
                e = theta - origin
                form = e @ metric @ e
                out = jnp.isfinite(jnp.sum(theta * theta)) & (form > radius2)
                theta = jnp.where(out, origin + e * jnp.sqrt(radius2 / form), theta)
                hits = hits + out
            return theta, m, jax.lax.dynamic_update_index_in_dim(path, theta, t, 0), hits, t + 1

        start = theta, m, jnp.zeros((batches.shape[0], theta.size)), jnp.zeros((), jnp.int64), jnp.zeros((), jnp.uint32)
        return jax.lax.while_loop(lambda carry: carry[4] < count, body, start)[:4]

    return jax.jit(chain)
