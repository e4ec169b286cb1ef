"""From a regression and a tuning to a program in whitened coordinates θ = θ̂ + L φ, Λ = L Lᵀ (theory §10)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
from scipy.linalg import cholesky, solve, solve_triangular

from equipoise.arrays import Array
from equipoise.checks import one_of
from equipoise.data.arrays import Rows
from equipoise.data.scanned import Scan
from equipoise.data.source import Source
from equipoise.engines.cost import row_stride, threads_per_chain
from equipoise.engines.engine import Advance, ChainState, Guard, initial_state
from equipoise.engines.lottery import UNIFORM, Lottery
from equipoise.engines.numba.linear import LinearProgram, advance, advance_coupled, lifting
from equipoise.engines.numba.supply import Supply, Whitener
from equipoise.engines.pooling import pool_rows
from equipoise.engines.queue import Queue, queued, require_queue
from equipoise.engines.rules import IN_ORDER, QUEUEINGS, coordinates
from equipoise.families.family import ScalarLoss
from equipoise.linalg import form_times, in_fixed_order, signed_axes

if TYPE_CHECKING:
    from equipoise.theory.tuning import Tuning

__all__ = ["LinearCoupling", "LinearEngine", "Regression", "RowWeight", "linear_coupling", "linear_engine"]

# Part of every engine's identity: a change that alters bits gets a new one.
_VERSION = "numba 5"
# Only the rows that are needed are whitened where tables have so many numbers and at most this share of rows is drawn.
_LARGE, _SHARE = 1 << 20, 0.5


class RowWeight(Protocol):
    """What rows are drawn in proportion to; it travels to where they are."""

    @property
    def numbers(self) -> Array:
        """All that it depends on."""
        ...

    def __call__(self, rows: Rows) -> Array:
        """Of each row."""
        ...


@dataclass(frozen=True)
class Regression:
    """What the engine needs to know of a problem: L(θ) = (1/N) [Σ w_n ℓ(x_nᵀθ + o_n, y_n) + ½ (θ−m)ᵀ Γ (θ−m)].

    `gradient` is ∇L at the point chains move around, for control variates; `emphasis` is 1/(N p_n) of every observation
    when rows are drawn by leverage, up to a common factor; both are else empty. `weight` is a function of rows that those
    of a scan are drawn in proportion to, instead.
    """

    loss: ScalarLoss
    source: Source[Rows]
    precision: Array
    mean: Array
    n: int
    gradient: Array = field(default_factory=lambda: np.empty(0))
    emphasis: Array = field(default_factory=lambda: np.empty(0))
    weight: RowWeight | None = None

    @property
    def identity(self) -> str:
        """A digest of all of it."""
        digest = hashlib.blake2b(f"{_VERSION} {self.loss.name} {self.n}".encode(), digest_size=16)
        drawn = self.emphasis if self.weight is None else self.weight.numbers
        for array in (self.loss.constants, self.precision, self.mean, drawn):
            digest.update(np.ascontiguousarray(array).data)
        digest.update(self.source.fingerprint().encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class LinearEngine:
    """Runs chains of a linear-predictor problem; positions are φ, and `parameters` maps them back to θ."""

    regression: Regression
    program: LinearProgram
    root: Array
    center: Array
    supply: Supply | None = None
    queue: Queue | None = None

    def start(self, theta: Array, seed: np.random.SeedSequence) -> ChainState:
        """A chain at θ, at rest."""
        return initial_state(solve(self.root, theta - self.center), seed)

    def advance(
        self,
        states: Sequence[ChainState],
        steps: int,
        thin: int | None,
        outs: Sequence[Array],
        pool: Executor,
        threads: int = 1,
    ) -> list[Advance]:
        """Run every chain, each on a thread of its own or several, and store parameters; see `linear.advance`."""
        if self.supply is not None:
            self.supply.bring(self.program, states, steps)
        lift = lifting(self.root, self.center)
        shared = threads_per_chain(self.program.dynamics.batch_size, threads, len(states))

        def chain(state: ChainState, out: Array, count: int = steps, queue: int | None = None) -> Advance:
            return advance(self.program, state, count, thin, out, lift, shared, pool, queue)

        if self.queue is None:
            return list(pool.map(chain, states, outs))
        return queued(self.queue, chain, states, steps, outs, pool)

    @cached_property
    def identity(self) -> str:
        """A digest of rows, loss, prior and how rows are held."""
        return f"{self.regression.identity} {self.program.table.cells.dtype}"

    def parameters(self, positions: Array) -> Array:
        """θ̂ + L φ for many φ."""
        return positions @ self.root.T + self.center


@dataclass(frozen=True)
class LinearCoupling:
    """A chain and its quadratic proxy on the same batches and noise (theory §8)."""

    engine: LinearEngine

    def run(self, seed: np.random.SeedSequence, burn_in: int, steps: int, thin: int) -> tuple[Array, int | None]:
        """Pairs (m, 2, D) of parameters, chain first; and the step at which one of them diverged, or None."""
        program, dim = self.engine.program, len(self.engine.center)
        base, y, weights, shift = program.table.sides.T
        slope, curvature = (weights * d(base, y, program.loss.constants) for d in (program.loss.d1, program.loss.d2))
        score = slope + shift
        state = self.engine.start(self.engine.center, seed)
        shadow, pairs = np.zeros((2, dim)), np.empty((steps // thin + 1, 2, dim))
        done = advance_coupled(program, state, shadow, score, curvature, burn_in, None, pairs)
        if not done.diverged:
            done = advance_coupled(program, state, shadow, score, curvature, steps, thin, pairs)
        found = self.engine.parameters(pairs[: done.written])
        return found, state.step if done.diverged else None


@in_fixed_order
def linear_engine(
    regression: Regression,
    tuning: Tuning,
    guard: Guard,
    storage: str = "float64",
    ahead: int | None = None,
    touched: float = np.inf,
) -> LinearEngine:
    """Whiten a regression for a step matrix.

    Of all roots of Λ that make the injected noise diagonal the one that makes the prior diagonal is taken, so that a step
    costs O(B D) with any prior; without one that is the triangular root, which halves the cost of a stored draw. Noise
    that is neither absent nor Langevin's leaves no choice, and a prior then costs O(D²) a step.

    The whitened rows are written straight to where the engine reads them: data apart, they are the only copy. They are
    float64, or float32 for half the memory (`storage`); sums are float64 either way. Of many more rows than the chains
    are expected to touch (`touched`), only those they do touch are whitened, which changes no bit.
    """
    one_of("storage", storage, ("float64", "float32"), "leave it out")
    dynamics, center, n = tuning.dynamics, tuning.center, regression.n
    root, noise, curvature = _whitening(regression, tuning)
    source, supply, queue, places = regression.source, None, None, IN_ORDER
    lottery = Lottery.of(regression.emphasis) if regression.emphasis.size else UNIFORM
    stored = isinstance(source, Scan) and not _held(source, tuning, storage, touched)
    height = _waiting(cast("Scan[Rows]", source), tuning, storage, touched) if stored else source.n
    whitener = Whitener.of(regression.loss, root, tuning, lottery, storage, height)
    if stored:
        queue = Queue(cast("Scan[Rows]", source), dynamics, noise, height, touched, whitener.put, regression.weight)
    elif _few(source, touched):
        supply = Supply(whitener, cast(Rows, source))
        places = supply.places
    else:
        whitener.put_all(source)
    # with control variates what all rows together pull by; else the prior alone, the rows being part of a batch
    prior = form_times(regression.precision, center - regression.mean)
    pull = n * regression.gradient if regression.gradient.size else prior
    half = solve_triangular(cholesky(guard.cov, lower=True), root, lower=True)
    metric = half.T @ half
    program = LinearProgram(
        loss=regression.loss,
        table=whitener.table,
        prior_gradient=root.T @ pull / n,
        prior_curvature=curvature / n,
        dynamics=dynamics,
        noise=noise,
        lottery=lottery,
        places=places,
        guard_radius2=guard.radius2,
        guard_metric=metric,
        guard_bound=float(np.linalg.eigvalsh(metric)[-1]),
        ahead=ahead,
        count=source.n,
    )
    return LinearEngine(regression, program, root, center, supply, queue)


def _whitening(regression: Regression, tuning: Tuning) -> tuple[Array, Array, Array]:
    """A root of Λ, and in its coordinates the scales of the injected noise and the prior's curvature."""
    root, noise, free = coordinates(tuning.step, tuning.noise, tuning.dynamics.temperature)
    if not regression.precision.any():
        return root, noise, np.zeros(len(root))
    curvature = form_times(regression.precision, root).T @ root
    if not free:
        return root, noise, curvature
    values, U = signed_axes(curvature)
    return np.ascontiguousarray(root @ U), noise, np.maximum(values, 0.0)


def linear_coupling(regression: Regression, tuning: Tuning, guard: Guard) -> LinearCoupling:
    """The engine beside its quadratic proxy."""
    return LinearCoupling(linear_engine(regression, tuning, guard))


def _held(source: Scan[Rows], tuning: Tuning, storage: str, touched: float) -> bool:
    """Whether the rows of a scan are read once for all: where they fit, and most of them are touched."""
    size = source.n * row_stride(tuning.dim, storage)
    rule = tuning.dynamics.rule
    if rule in QUEUEINGS and (rule.weighted or touched < _SHARE * source.n):
        return False
    if size <= source.memory:
        return True
    require_queue(tuning.dynamics, size, source.memory)
    return False


def _waiting(source: Scan[Rows], tuning: Tuning, storage: str, touched: float) -> int:
    """How many rows of a scan wait for their step."""
    most = pool_rows(source.memory, row_stride(tuning.dim, storage), tuning.dynamics.batch_size)
    return int(min(most, max(touched, 1.0)))


def _few(source: Source[Rows], touched: float) -> bool:
    """Whether so few rows of a large table in memory will be touched that the others are better left alone."""
    return (
        isinstance(source, Rows)
        and source.frequency is None
        and source.x.size >= _LARGE
        and touched < _SHARE * source.n
    )
