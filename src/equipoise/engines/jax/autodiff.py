"""The general engine: SG(L)D with momentum on any JAX loss, one compiled loop over steps (theory §1).

Batches and normals are drawn outside the loop by the same generator as the linear engine's, step by step, so that no
bit depends on how a run is split. Chains run on threads, one per call: vectorised over chains, the compiler's order of
summation would depend on their number. Data are arguments of the compiled loop, never constants in it.

Where the loss sees θ through few combinations A_n θ of each row's own (`equipoise.engines.jax.projection`) chains run in the
linear engine's coordinates θ = θ̂ + L φ, Λ = L Lᵀ, on the rows A_n L: a step is then free of products with Λ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular

from equipoise.arrays import Array, Words
from equipoise.engines.cost import pays_to_project
from equipoise.engines.engine import Advance, ChainState, Guard, initial_state
from equipoise.engines.jax.loop import GRADIENTS, SHAKES, Constants, Drawn, Loss, Pull, compiled_loop
from equipoise.engines.jax.projection import Projection, Traced, Tree, find_projection
from equipoise.engines.numba.arguments import Lift
from equipoise.engines.numba.compiling import lifter
from equipoise.engines.numba.linear import lifting
from equipoise.engines.random import Permutation, compiled
from equipoise.engines.rules import DRAWINGS, Draw, Shake, noise_of
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
    pull: Pull
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

    def _loop(self, state: ChainState, drawn: Drawn, count: int) -> tuple[Array, Array, Array, Array]:
        dynamics = self.tuning.dynamics
        noise, scale = noise_of(dynamics.temperature)
        parts = GRADIENTS[dynamics.estimator], SHAKES[noise.shake]
        options = bool(np.isfinite(self.radius2)), dynamics.momentum > 0.0
        loop = compiled_loop(self.task.loss, self.projection, *parts, *options)
        matrices = () if self.projection else (self.tuning.step, scale * self.root)
        constants = Constants(matrices, scale, self.metric, self.origin, self.radius2, dynamics.momentum)
        with jax.enable_x64(True):
            result = loop(self.data, constants, self.pull, self.task.n, state.position, state.velocity, drawn, count)
            position, velocity, path, hits = (np.asarray(r) for r in result)
        return position, velocity, path, hits

    def _draw(self, rng: Words, size: int, count: int) -> Drawn:
        dynamics, dim = self.tuning.dynamics, self.tuning.dim
        drawing, (noise, _) = DRAWINGS[dynamics.rule], noise_of(dynamics.temperature)
        batches = np.zeros((size, dynamics.batch_size), dtype=np.int32)
        normals = np.zeros((size if noise.drawn else 1, dim))
        _fill(drawing.draw, noise.shake, rng, self.task.n, drawing.order(self.task.n), batches[:count], normals)
        return Drawn(batches, normals)


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
    data, pull, origin = task.data, Pull(np.empty(0), np.empty((0, 0))), center
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


def _whitened(task: Task, projection: Projection, root: Array, center: Array) -> tuple[Tree, Pull]:
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
        return data, Pull(np.empty(0), np.empty((0, 0)))
    return data, Pull(root.T @ gradient / n, root.T @ curvature @ root / n)


@compiled
def _fill(
    draw: Draw,
    shake: Shake,
    rng: Words,
    rows: int,
    order: Permutation,
    batches: NDArray[np.int32],
    normals: Array,
) -> None:
    """What each step draws, in the order in which it draws it: a batch, then normals (in one row, if there are none)."""
    batch, swaps = np.empty(batches.shape[1], np.uint64), np.empty(batches.shape[1], np.uint64)
    for t in range(batches.shape[0]):
        draw(rng, rows, order, swaps, batch)
        for k in range(batch.size):
            batches[t, k] = batch[k]
        shake(rng, 1.0, normals[min(t, normals.shape[0] - 1)], normals.shape[1])
