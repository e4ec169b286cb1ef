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

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular

from equipoise.arrays import Array, Words
from equipoise.engines.cost import pays_to_project
from equipoise.engines.engine import Advance, ChainState, Guard, initial_state
from equipoise.engines.jax.projection import Projection, find_projection
from equipoise.engines.numba.compiling import lifter
from equipoise.engines.numba.kernel import Lift
from equipoise.engines.numba.linear import lifting
from equipoise.engines.random import add_normals, compiled, distinct_rows, rows_with_replacement
from equipoise.linalg import blocks, in_fixed_order, symmetric

if TYPE_CHECKING:
    from equipoise.theory.tuning import Tuning

__all__ = ["AutodiffEngine", "Loss", "Task", "autodiff_engine"]

# Part of every engine's identity: a change that alters bits gets a new one.
_VERSION = "jax 2"
# Row numbers drawn ahead for one call of the compiled loop (4 bytes each).
_AHEAD = 1 << 20
# Steps in one call, at most.
_STEPS = 2048
# Rows whose loss tells one loss from another.
_TRIED = 1000

# A tree of arrays, traced or not: only JAX looks inside.
Tree = object
Traced = jax.Array


@dataclass(frozen=True, eq=False)
class Loss:
    """A loss as the engine sees it; the same object for the same model, so that its loop is compiled once.

    Attributes
    ----------
    row
        `row(theta, observation) -> scalar`.
    penalty
        R(θ).
    flat, quadratic
        Whether R is zero, or at most quadratic.
    dim
        Number of parameters.
    """

    row: Callable[[Traced, Tree], Traced]
    penalty: Callable[[Traced], Traced]
    flat: bool
    quadratic: bool
    dim: int


@dataclass(frozen=True, eq=False)
class Task:
    """A loss with the rows it is to be sampled on: arrays in a tree, N of them, and a digest of all that."""

    loss: Loss
    data: Tree
    n: int
    identity: str

    @property
    def leaves(self) -> list[Traced]:
        """The arrays of the data."""
        return jax.tree.leaves(self.data)


class _Constants(NamedTuple):
    """What the compiled loop reads besides rows: the step's matrices (none in whitened coordinates) and the rest."""

    matrices: tuple[Array, ...]
    noise: float
    metric: Array
    origin: Array
    radius2: float
    momentum: float


_Carry = tuple[Traced, Traced, Traced, Traced, Traced]


class _Drawn(NamedTuple):
    """Batches and normals drawn for one call."""

    batches: NDArray[np.int32]
    normals: Array


class _Pull(NamedTuple):
    """Gradient and curvature of the prior in φ, over N; empty without a prior or a projection."""

    gradient: Array
    curvature: Array


@dataclass(frozen=True)
class AutodiffEngine:
    """Runs chains of a general problem; positions are φ with a projection, and else θ.

    Attributes
    ----------
    data
        What the loop reads: the task's data, after the rows A_n L and the combinations at θ̂ with a projection.
    origin, metric
        The guard's centre and metric, in the coordinates of the chain.
    """

    task: Task
    tuning: Tuning
    radius2: float
    root: Array
    lift: Lift
    projection: Projection | None
    data: Tree
    pull: _Pull
    origin: Array
    metric: Array

    def start(self, theta: Array, seed: np.random.SeedSequence) -> ChainState:
        """A chain at θ, at rest."""
        if self.projection is None:
            return initial_state(theta, seed)
        return initial_state(solve_triangular(self.root, theta - self.tuning.center, lower=True), seed)

    @cached_property
    def identity(self) -> str:
        """A digest of rows and loss; a loss has no bytes, so that its value and slope near θ̂ stand for it."""
        digest = hashlib.blake2b(f"{_VERSION} {self.task.identity}".encode(), digest_size=16)
        near = self.tuning.center + 0.1 * np.sqrt(np.diag(self.tuning.expected))
        some = jax.tree.map(lambda a: a[:_TRIED], self.task.data)
        with jax.enable_x64(True):
            mean = lambda theta: jnp.mean(jax.vmap(self.task.loss.row, (None, 0))(theta, some))  # noqa: E731
            at = jnp.asarray(near)
            value, slope = jax.jit(jax.value_and_grad(mean))(at)
            for array in (value, slope, self.task.loss.penalty(at)):
                digest.update(np.asarray(array).tobytes())
        return digest.hexdigest()

    def advance(
        self,
        states: Sequence[ChainState],
        steps: int,
        thin: int | None,
        outs: Sequence[Array],
        pool: Executor,
        threads: int = 1,
    ) -> list[Advance]:
        """Run every chain, each on a thread of its own."""
        del threads  # a step is not shared
        return list(pool.map(lambda state, out: self._chain(state, steps, thin, out), states, outs))

    def compile(self) -> None:
        """Take no step, which compiles the loop."""
        self._call(self.start(self.tuning.center, np.random.SeedSequence(0)), 0)

    def _chain(self, state: ChainState, steps: int, thin: int | None, out: Array) -> Advance:
        written, last, finite = 0, state.step + steps, True
        while finite and state.step < last:
            first = state.step
            path, finite = self._call(state, last - first)
            # iterates whose number, from 1, is a multiple of the thinning
            kept = path[:0] if thin is None else path[-(first + 1) % thin :: thin]
            self._store(kept, out[written : written + len(kept)])
            written += len(kept)
        return Advance(written, not finite)

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

    def _loop(self, state: ChainState, drawn: _Drawn, count: int) -> tuple[Array, Array, Array, Array]:
        dynamics = self.tuning.dynamics
        options = not dynamics.injected.silent, bool(np.isfinite(self.radius2)), dynamics.momentum > 0.0
        loop = _loop(self.task.loss, self.projection, *options)
        noise = float(np.sqrt(2.0 * dynamics.injected.temperature))
        matrices = () if self.projection else (self.tuning.step, noise * self.root)
        constants = _Constants(matrices, noise, self.metric, self.origin, self.radius2, dynamics.momentum)
        with jax.enable_x64(True):
            result = loop(self.data, constants, self.pull, self.task.n, state.position, state.velocity, drawn, count)
            position, velocity, path, hits = (np.asarray(r) for r in result)
        return position, velocity, path, hits

    def _draw(self, rng: Words, size: int, count: int) -> _Drawn:
        dynamics, dim = self.tuning.dynamics, self.tuning.dim
        batches = np.zeros((size, dynamics.batch_size), dtype=np.int32)
        noisy = not dynamics.injected.silent
        normals = np.zeros((size if noisy else 1, dim))
        order = np.arange(0 if dynamics.replacement else self.task.n, dtype=np.uint32)
        _fill(rng, self.task.n, order, batches[:count], normals if noisy else normals[:0])
        return _Drawn(batches, normals)


@in_fixed_order
def autodiff_engine(task: Task, tuning: Tuning, guard: Guard, whiten: bool | None = None) -> AutodiffEngine:
    """The engine of a general problem for a step matrix, compiled: chains would otherwise all compile it at once.

    Parameters
    ----------
    task, tuning, guard
        What to sample, the step matrix, and the guard's ellipsoid.
    whiten
        Whether to use a projection where there is one; None does if its rows do not need much more memory than the data.
    """
    root, center = cholesky(tuning.step, lower=True), tuning.center
    lift = lifting(root, center)
    metric = cho_solve((cholesky(guard.cov, lower=True), True), np.eye(tuning.dim))
    projection = None if whiten is False else _projection(task, whiten is True)
    data, pull, origin = task.data, _Pull(np.empty(0), np.empty((0, 0))), center
    if projection is not None:
        data, pull = _whitened(task, projection, root, center)
        metric, origin = symmetric(root.T @ metric @ root), np.zeros(tuning.dim)
    engine = AutodiffEngine(task, tuning, guard.radius2, root, lift, projection, data, pull, origin, metric)
    engine.compile()
    return engine


def _first_lost(path: Array) -> int | None:
    """The first iterate whose square is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.vdot(path, path)):
            return None
        lost = ~np.isfinite(np.einsum("ti,ti->t", path, path))
    return int(np.argmax(lost)) if lost.any() else None


def _projection(task: Task, always: bool) -> Projection | None:
    """The projection of a loss whose regulariser is quadratic, if its rows are not too large."""
    if not task.loss.quadratic:
        return None
    held = sum(a.size for a in task.leaves) / task.n
    shapes = tuple((a.shape[1:], str(a.dtype)) for a in task.leaves)
    found = _split(task.loss, jax.tree.structure(task.data), *shapes)
    return found if found and (always or pays_to_project(found.rank, task.loss.dim, held)) else None


@lru_cache(maxsize=32)
def _split(loss: Loss, structure: jax.tree_util.PyTreeDef, *shapes: tuple[tuple[int, ...], str]) -> Projection | None:
    """The projection of a loss for rows of given shapes: the same object for the same loss, and so the same loop."""
    with jax.enable_x64(True):
        row = jax.tree.unflatten(structure, [np.zeros(*shape) for shape in shapes])
        return find_projection(loss.row, np.zeros(loss.dim), row)


def _whitened(task: Task, projection: Projection, root: Array, center: Array) -> tuple[Tree, _Pull]:
    """Data with rows A_n L, (N, rank · D), and combinations at θ̂ before them; and the prior in φ."""
    slopes = jax.jit(jax.vmap(jax.jacobian(projection.combine), (None, 0)))
    values = jax.jit(jax.vmap(projection.combine, (None, 0)))
    n, dim, penalty = task.n, center.size, task.loss.penalty
    rows = np.empty((n, projection.rank, dim))
    with jax.enable_x64(True):
        for block in blocks(n, projection.rank * dim):
            rows[block] = np.asarray(slopes(center, jax.tree.map(lambda a, b=block: a[b], task.data))) @ root
        data = jnp.asarray(rows.reshape(n, -1)), values(center, task.data), task.data
        gradient, curvature = (np.asarray(d(penalty)(center)) for d in (jax.grad, jax.hessian))
    if not curvature.any():
        return data, _Pull(np.empty(0), np.empty((0, 0)))
    return data, _Pull(root.T @ gradient / n, root.T @ curvature @ root / n)


@compiled
def _fill(rng: Words, rows: int, order: NDArray[np.uint32], batches: NDArray[np.int32], normals: Array) -> None:
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


def _gradient(loss: Loss, projection: Projection | None, pull: _Pull, n: int) -> Callable[[Traced, Tree], Traced]:
    """The gradient of the regularised mean loss over a batch."""
    if projection is None:
        mean = jax.grad(lambda theta, block: jnp.mean(jax.vmap(loss.row, (None, 0))(theta, block)))
        push = jax.grad(loss.penalty)
        return mean if loss.flat else lambda theta, block: mean(theta, block) + push(theta) / n
    slope = jax.vmap(jax.grad(projection.outer))

    def gradient(phi: Traced, block: Tree) -> Traced:
        rows, base, others = cast(tuple[Traced, Traced, Tree], block)
        rows = rows.reshape(-1, phi.size)
        residual = slope(base + (rows @ phi).reshape(base.shape), others) / len(base)
        total = residual.reshape(-1) @ rows
        return total if loss.flat else total + pull.gradient + pull.curvature @ phi

    return gradient


@lru_cache(maxsize=32)
def _loop(
    loss: Loss, projection: Projection | None, noisy: bool, guarded: bool, moving: bool
) -> Callable[..., tuple[Traced, Traced, Traced, Traced]]:
    """Compile the loop for one loss; its number of steps is an argument, so nothing is compiled twice."""

    def chain(
        data: Tree, c: _Constants, pull: _Pull, n: int, theta: Traced, m: Traced, drawn: _Drawn, count: int
    ) -> tuple[Traced, Traced, Traced, Traced]:
        slope = _gradient(loss, projection, pull, n)

        def body(carry: _Carry) -> _Carry:
            theta, m, path, hits, t = carry
            batch = jax.lax.dynamic_index_in_dim(drawn.batches, t, keepdims=False)
            g = slope(theta, jax.tree.map(lambda a: a.at[batch].get(mode="promise_in_bounds"), data))
            m = c.momentum * m + g if moving else m
            move = m if moving else g
            theta = theta - (c.matrices[0] @ move if c.matrices else move)
            if noisy:
                normal = drawn.normals[t]
                theta = theta + (c.matrices[1] @ normal if c.matrices else c.noise * normal)
            if guarded:
                e = theta - c.origin
                form = e @ c.metric @ e
                out = jnp.isfinite(jnp.sum(theta * theta)) & (form > c.radius2)
                theta = jnp.where(out, c.origin + e * jnp.sqrt(c.radius2 / form), theta)
                hits = hits + out
            return theta, m, jax.lax.dynamic_update_index_in_dim(path, theta, t, 0), hits, t + 1

        path = jnp.zeros((drawn.batches.shape[0], theta.size))
        start = theta, m, path, jnp.zeros((), jnp.int64), jnp.zeros((), jnp.uint32)
        theta, m, path, hits, _ = jax.lax.while_loop(lambda carry: carry[4] < count, body, start)
        return theta, m, path, hits

    return jax.jit(chain)
