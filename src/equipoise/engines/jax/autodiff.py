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
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import cho_solve, cholesky, solve

from equipoise.arrays import Array
from equipoise.engines.cost import pays_to_project
from equipoise.engines.engine import Advance, ChainState, Guard, initial_state
from equipoise.engines.jax.loop import GRADIENTS, SHAKES, Constants, Drawn, Held, Loss, Pull, compiled_loop
from equipoise.engines.jax.projection import Projection, Traced, Tree, find_projection
from equipoise.engines.lottery import UNIFORM, Lottery
from equipoise.engines.numba.arguments import Lift
from equipoise.engines.numba.compiling import filler, lifter
from equipoise.engines.numba.linear import lifting
from equipoise.engines.rules import DRAWINGS, coordinates, noise_of, urn_for
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
    """A loss with the rows it is to be sampled on, and a digest of all that.

    Attributes
    ----------
    loss, data, n
        The loss, and arrays in a tree, N rows of them.
    identity
        Of the rows.
    gradient
        ∇L at the point chains move around, for control variates; empty where they are not used.
    emphasis
        1/(N p_n) of every row when they are drawn by leverage, up to a common factor; empty when they are not.
    """

    loss: Loss
    data: Tree
    n: int
    identity: str
    gradient: Array = field(default_factory=lambda: np.empty(0))
    emphasis: Array = field(default_factory=lambda: np.empty(0))

    @property
    def leaves(self) -> list[Traced]:
        """The arrays of the data."""
        return jax.tree.leaves(self.data)


@dataclass(frozen=True)
class AutodiffEngine:
    """Runs chains of a general problem; positions are φ with a projection, and else θ.

    Attributes
    ----------
    root, noise
        L, Λ = L Lᵀ, and the scales of the noise in φ.
    held, lottery
        What the loop reads of the rows, and what they are drawn with.
    origin, metric
        The guard's centre and metric, in the coordinates of the chain.
    """

    task: Task
    tuning: Tuning
    radius2: float
    root: Array
    noise: Array
    lift: Lift
    projection: Projection | None
    held: Held
    lottery: Lottery
    pull: Pull
    origin: Array
    metric: Array

    def start(self, theta: Array, seed: np.random.SeedSequence) -> ChainState:
        """A chain at θ, at rest."""
        if self.projection is None:
            return initial_state(theta, seed)
        return initial_state(solve(self.root, theta - self.tuning.center), seed)

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
            for array in (value, slope, self.task.loss.penalty(at), self.task.emphasis):
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
        drawn = self._draw(state, size, count)
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
        parts = GRADIENTS[dynamics.estimator], SHAKES[noise_of(self.noise).shake]
        options = bool(np.isfinite(self.radius2)), dynamics.momentum > 0.0
        loop = compiled_loop(self.task.loss, self.projection, *parts, *options)
        matrices = () if self.projection else (self.tuning.step, self.root * self.noise)
        constants = Constants(matrices, self.noise, self.metric, self.origin, self.radius2, dynamics.momentum)
        with jax.enable_x64(True):
            result = loop(self.held, constants, self.pull, self.task.n, state.position, state.velocity, drawn, count)
            position, velocity, path, hits = (np.asarray(r) for r in result)
        return position, velocity, path, hits

    def _draw(self, state: ChainState, size: int, count: int) -> Drawn:
        dynamics, dim = self.tuning.dynamics, self.tuning.dim
        noise = noise_of(self.noise)
        urn = urn_for(dynamics, self.task.n, state, self.lottery)
        batches, sizes = np.zeros((size, dynamics.batch_size), dtype=np.int32), np.ones(size, dtype=np.int32)
        normals = np.zeros((size if noise.drawn else 1, dim))
        fill = filler(DRAWINGS[dynamics.rule].draw, noise.shake)
        fill(state.rng, int(state.step), urn, batches[:count], sizes, normals)
        incomplete = urn.period * dynamics.batch_size > self.task.n
        return Drawn(batches, normals, sizes if incomplete else None)


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
    root, noise, _ = coordinates(tuning.step, tuning.noise, tuning.dynamics.temperature)
    center, lift = tuning.center, lifting(root, tuning.center)
    metric = cho_solve((cholesky(guard.cov, lower=True), True), np.eye(tuning.dim))
    projection = None if whiten is False else _projection(task, whiten is True)
    lottery = Lottery.of(task.emphasis) if tuning.dynamics.rule.weighted else UNIFORM
    held, pull, origin = Held(task.data, None, None), _direct_pull(task, center), center
    if projection is not None:
        held, pull = _whitened(task, projection, root, center)
        metric, origin = symmetric(root.T @ metric @ root), np.zeros(tuning.dim)
    if lottery.weights.size:
        with jax.enable_x64(True):
            held = held._replace(weights=jnp.asarray(lottery.weights))
    engine = AutodiffEngine(
        task, tuning, guard.radius2, root, noise, lift, projection, held, lottery, pull, origin, metric
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


def _direct_pull(task: Task, center: Array) -> Pull:
    """With control variates, the mean gradient of all rows at θ̂; the prior is the loop's own."""
    if not task.gradient.size:
        return Pull(np.empty(0), np.empty((0, 0)), center)
    with jax.enable_x64(True):
        push = np.asarray(jax.grad(task.loss.penalty)(center))
    return Pull(task.gradient - push / task.n, np.empty((0, 0)), center)


def _whitened(task: Task, projection: Projection, root: Array, center: Array) -> tuple[Held, Pull]:
    """The data after rows A_n L, (N, rank · D), and combinations at θ̂; for control variates residuals there; the pull in φ."""
    slopes = jax.jit(jax.vmap(jax.jacobian(projection.combine), (None, 0)))
    values = jax.jit(jax.vmap(projection.combine, (None, 0)))
    n, dim, penalty = task.n, center.size, task.loss.penalty
    rows = np.empty((n, projection.rank, dim))
    with jax.enable_x64(True):
        for block in blocks(n, projection.rank * dim):
            rows[block] = np.asarray(slopes(center, jax.tree.map(lambda a, b=block: a[b], task.data))) @ root
        base, reference = values(center, task.data), None
        if task.gradient.size:
            reference = jax.jit(jax.vmap(jax.grad(projection.outer)))(base, task.data)
        held = Held((jnp.asarray(rows.reshape(n, -1)), base, task.data), None, reference)
        gradient, curvature = (np.asarray(d(penalty)(center)) for d in (jax.grad, jax.hessian))
    bend = root.T @ curvature @ root / n if curvature.any() else np.empty((0, 0))
    if task.gradient.size:
        return held, Pull(root.T @ task.gradient, bend, center)
    return held, Pull(root.T @ gradient / n if curvature.any() else np.empty(0), bend, center)
