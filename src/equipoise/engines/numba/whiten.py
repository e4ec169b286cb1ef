"""From a regression and a tuning to a program in whitened coordinates θ = θ̂ + L φ, Λ = L Lᵀ (theory §10)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
from scipy.linalg import cholesky, eigh, solve, solve_triangular

from equipoise.arrays import Array, Index
from equipoise.checks import one_of
from equipoise.data.arrays import Rows
from equipoise.data.scanned import Scan
from equipoise.data.source import Source
from equipoise.engines.cost import row_stride, threads_per_chain
from equipoise.engines.engine import Advance, ChainState, Guard, initial_state
from equipoise.engines.lottery import UNIFORM, Lottery
from equipoise.engines.numba.compiling import foreseer
from equipoise.engines.numba.linear import LinearProgram, advance, advance_coupled, lifting
from equipoise.engines.numba.table import SIDES, RowTable
from equipoise.engines.pooling import pool_rows
from equipoise.engines.queue import Queue, queued, require_queue
from equipoise.engines.rules import DRAWINGS, IN_ORDER, NOWHERE, QUEUEINGS, coordinates, noise_of, urn_for
from equipoise.errors import InvalidInput
from equipoise.families.family import ScalarLoss
from equipoise.linalg import blocks, cores, form_times, in_fixed_order

if TYPE_CHECKING:
    from equipoise.theory.dynamics import Gradient
    from equipoise.theory.tuning import Tuning

__all__ = ["LinearCoupling", "LinearEngine", "Regression", "RowWeight", "linear_coupling", "linear_engine"]

# Part of every engine's identity: a change that alters bits gets a new one.
_VERSION = "numba 4"
# Rows are numbered by 32 bits.
_MOST = 1 << 32
# Numbers of a product, which is in cache, and what its height is a multiple of: the tiles of any BLAS.
_PRODUCT, _MULTIPLE = 1 << 15, 64
# Only the rows that are needed are whitened where tables have so many numbers and at most this share of rows is drawn.
_LARGE, _SHARE = 1 << 20, 0.5
# Rows that are taken from the data at once.
_BROUGHT = 4096


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

    Attributes
    ----------
    loss
        ℓ, with its constants.
    source
        The rows.
    precision, mean, n
        Γ, m and N.
    gradient
        ∇L at the point chains move around, for control variates; empty where they are not used.
    emphasis
        1/(N p_n) of every observation when rows are drawn by leverage, up to a common factor; empty when they are not.
    weight
        What those of a scan are drawn in proportion to: a function of rows, instead.
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
        return f"{self.regression.identity} {self.program.storage}"

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
    The whitened rows are written straight to where the engine reads them: data apart, they are the only copy.

    Parameters
    ----------
    regression, tuning, guard
        What to sample, the step matrix, and the guard's ellipsoid.
    storage, ahead
        How the rows are held and fetched; see `equipoise.engines.numba.linear.LinearProgram`.
    touched
        How many rows the chains are expected to touch: of many more, only those they do touch are whitened. It changes no bit.

    Raises
    ------
    InvalidInput
        If the storage is neither float64 nor float32.
    """
    one_of("storage", storage, ("float64", "float32"), "leave it out")
    dynamics, center, n = tuning.dynamics, tuning.center, regression.n
    root, noise, free = coordinates(tuning.step, tuning.noise, dynamics.temperature)
    curvature = form_times(regression.precision, root).T @ root
    if not regression.precision.any():
        curvature = np.zeros(len(center))
    elif free:
        curvature, U = eigh(curvature)
        root, curvature = np.ascontiguousarray(root @ U), np.maximum(curvature, 0.0)
    source, supply, queue, places = regression.source, None, None, IN_ORDER
    lottery = Lottery.of(regression.emphasis) if regression.emphasis.size else UNIFORM
    stored = isinstance(source, Scan) and not _held(source, tuning, storage, touched)
    height = _waiting(cast("Scan[Rows]", source), tuning, storage, touched) if stored else source.n
    whitener = Whitener.of(regression, root, tuning, lottery, storage, height)
    table = whitener.table
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
    base, y, weights, _ = table.sides.T
    return LinearEngine(
        regression,
        LinearProgram(
            loss=regression.loss,
            rows=table,
            base=base,
            y=y,
            weights=weights,
            prior_gradient=root.T @ pull / n,
            prior_curvature=curvature / n,
            dynamics=dynamics,
            noise=noise,
            lottery=lottery,
            places=places,
            guard_radius2=guard.radius2,
            guard_metric=metric,
            guard_bound=float(np.linalg.eigvalsh(metric)[-1]),
            storage=storage,
            ahead=ahead,
            count=source.n,
        ),
        root,
        center,
        supply,
        queue,
    )


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


@dataclass(frozen=True)
class Whitener:
    """Writes rows Lᵀ x_n into a table, and beside each its predictor at θ̂, response and weight.

    The bits of a row do not depend on which rows are whitened with it: products have one shape, whatever they are of.
    """

    loss: ScalarLoss
    estimator: Gradient
    root: Array
    center: Array
    emphasis: Array
    table: RowTable
    room: Array

    @staticmethod
    def of(regression: Regression, root: Array, tuning: Tuning, lottery: Lottery, storage: str, count: int) -> Whitener:
        """With a table for so many observations, still to be written."""
        if count >= _MOST:
            raise InvalidInput(
                "data", "fewer than 2³² observations to sample from", f"{count:,}",
                "sum smaller frequencies, or use sampler='gaussian'",
            )  # fmt: skip
        center, estimator = tuning.center, tuning.dynamics.estimator
        table = RowTable.blank(count, len(center), storage)
        height = max(_MULTIPLE, _PRODUCT // len(center) // _MULTIPLE * _MULTIPLE)
        room = np.zeros((2, height, len(center)))
        return Whitener(regression.loss, estimator, root, center, lottery.weights, table, room)

    def put(self, where: slice | Index, rows: Rows, emphasis: Array) -> None:
        """Write rows to their places; `emphasis` is 1/(N p_n) of each, or empty."""
        (block, product), base = self.room, np.empty(rows.height)
        size = len(block)
        for first in range(0, rows.height, size):
            here = slice(first, min(first + size, rows.height))
            count, x = here.stop - first, rows.x[here]
            if count < size or not x.flags.c_contiguous:
                block[:count] = x
                x = block
            base[here] = (x @ self.center)[:count]
            places = slice(where.start + first, where.start + here.stop) if isinstance(where, slice) else where[here]
            if count == size and isinstance(places, slice):
                np.matmul(x, self.root, out=self.table.room(places))
                continue
            np.matmul(x, self.root, out=product)
            self.table.put(places, product[:count])
        base = base if rows.offset is None else base + rows.offset
        weights = np.ones(rows.height) if rows.weights is None else rows.weights
        weights = weights * emphasis if emphasis.size else weights
        self.table.sides[where] = SIDES[self.estimator](self.loss, base, rows.y, weights)

    def put_all(self, source: Source[Rows]) -> None:
        """Write every observation in its own place."""
        start = 0
        for rows in _expanded(source):
            here = slice(start, start + rows.height)
            self.put(here, rows, self.emphasis[here])
            start += rows.height


class Supply:
    """Whitens rows when a chain first needs them, in the order in which it does.

    What a step draws does not depend on where a chain is, so that the rows of steps to come are known before they are run.
    """

    def __init__(self, whitener: Whitener, source: Rows) -> None:
        self.whitener, self.source = whitener, source
        self.places = np.full(source.n, NOWHERE)
        # memory that is not written is not used
        self._placed, self._count = np.empty(source.n, np.uint64), 0

    @in_fixed_order
    def bring(self, program: LinearProgram, states: Sequence[ChainState], steps: int) -> None:
        """Have in place all rows that these chains will draw in so many steps."""
        dynamics, before = program.dynamics, self._count
        foresee = foreseer(DRAWINGS[dynamics.rule].draw, noise_of(program.noise).shake)
        batch, noise = np.empty(dynamics.batch_size, np.uint64), np.array(program.noise)
        for state in map(deepcopy, states):
            urn = urn_for(dynamics, self.source.n, state, program.lottery, self.places)
            now = int(state.step), int(steps)
            self._count = int(foresee(state.rng, *now, urn, batch, noise, self._placed, self._count))
        starts = range(before, self._count, _BROUGHT)
        workers = min(cores(), len(starts))
        if workers < 2:
            self._put(self.whitener, starts)
        else:
            own = [replace(self.whitener, room=np.zeros_like(self.whitener.room)) for _ in range(workers)]
            with ThreadPoolExecutor(workers) as pool:
                list(pool.map(self._put, own, (starts[k::workers] for k in range(workers))))

    def _put(self, whitener: Whitener, starts: Iterable[int]) -> None:
        """Whiten the rows at the places from each of `starts` on."""
        emphasis = whitener.emphasis
        for first in starts:
            index = self._placed[first : min(first + _BROUGHT, self._count)].astype(np.intp)
            here = slice(first, first + index.size)
            whitener.put(here, self.source.take(index), emphasis[index] if emphasis.size else emphasis)


def _expanded(source: Source[Rows]) -> Iterator[Rows]:
    """The observations of a source, a row for each, in the blocks that a source of such rows would have."""
    size = next(blocks(source.n, len(source.names))).stop
    held: list[Rows] = []
    room = size
    for block in source.blocks():
        if block.frequency is None and not held:
            yield block
            continue
        index = np.repeat(np.arange(block.height), block.counts.astype(np.int64))
        alone = replace(block, frequency=None)
        while index.size:
            held.append(alone.take(index[:room]))
            index, room = index[room:], room - held[-1].height
            if room == 0:
                yield Rows.joined(held)
                held, room = [], size
    if held:
        yield Rows.joined(held)
