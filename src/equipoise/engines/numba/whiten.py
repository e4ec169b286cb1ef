"""From a regression and a tuning to a program in whitened coordinates θ = θ̂ + L φ, Λ = L Lᵀ (theory §10)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import cholesky, eigh, solve, solve_triangular

from equipoise.arrays import Array
from equipoise.checks import one_of
from equipoise.data.arrays import Rows
from equipoise.data.source import Source
from equipoise.engines.cost import threads_per_chain
from equipoise.engines.engine import Advance, ChainState, Guard, initial_state
from equipoise.engines.lottery import UNIFORM, Lottery
from equipoise.engines.numba.linear import LinearProgram, advance, advance_coupled, lifting
from equipoise.engines.numba.table import SIDES, RowTable
from equipoise.engines.rules import coordinates
from equipoise.errors import InvalidInput
from equipoise.families.family import ScalarLoss
from equipoise.linalg import blocks, in_fixed_order

if TYPE_CHECKING:
    from equipoise.theory.tuning import Tuning

__all__ = ["LinearCoupling", "LinearEngine", "Regression", "linear_coupling", "linear_engine"]

# Part of every engine's identity: a change that alters bits gets a new one.
_VERSION = "numba 3"
# Rows are numbered by 32 bits.
_MOST = 1 << 32


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
    """

    loss: ScalarLoss
    source: Source[Rows]
    precision: Array
    mean: Array
    n: int
    gradient: Array = field(default_factory=lambda: np.empty(0))
    emphasis: Array = field(default_factory=lambda: np.empty(0))

    @property
    def identity(self) -> str:
        """A digest of all of it."""
        digest = hashlib.blake2b(f"{_VERSION} {self.loss.name} {self.n}".encode(), digest_size=16)
        for array in (self.loss.constants, self.precision, self.mean, self.emphasis):
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
        lift = lifting(self.root, self.center)
        shared = threads_per_chain(self.program.dynamics.batch_size, threads, len(states))

        def chain(state: ChainState, out: Array) -> Advance:
            return advance(self.program, state, steps, thin, out, lift, shared, pool)

        return list(pool.map(chain, states, outs))

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
    regression: Regression, tuning: Tuning, guard: Guard, storage: str = "float64", ahead: int | None = None
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

    Raises
    ------
    InvalidInput
        If the storage is neither float64 nor float32.
    """
    one_of("storage", storage, ("float64", "float32"), "leave it out")
    dynamics, center, n = tuning.dynamics, tuning.center, regression.n
    root, noise, free = coordinates(tuning.step, tuning.noise, dynamics.temperature)
    curvature = root.T @ regression.precision @ root
    if not regression.precision.any():
        curvature = np.zeros(len(center))
    elif free:
        curvature, U = eigh(curvature)
        root, curvature = np.ascontiguousarray(root @ U), np.maximum(curvature, 0.0)
    lottery = Lottery.of(regression.emphasis) if dynamics.rule.weighted else UNIFORM
    table = _whitened(regression, root, tuning, lottery, storage)
    # with control variates what all rows together pull by; else the prior alone, the rows being part of a batch
    pull = n * regression.gradient if regression.gradient.size else regression.precision @ (center - regression.mean)
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
            guard_radius2=guard.radius2,
            guard_metric=metric,
            guard_bound=float(np.linalg.eigvalsh(metric)[-1]),
            storage=storage,
            ahead=ahead,
        ),
        root,
        center,
    )


def linear_coupling(regression: Regression, tuning: Tuning, guard: Guard) -> LinearCoupling:
    """The engine beside its quadratic proxy."""
    return LinearCoupling(linear_engine(regression, tuning, guard))


def _whitened(regression: Regression, root: Array, tuning: Tuning, lottery: Lottery, storage: str) -> RowTable:
    """The table of rows Lᵀ x_n, a row for each observation, and of each its predictor at θ̂, response and weight."""
    source, center, sides = regression.source, tuning.center, SIDES[tuning.dynamics.estimator]
    if source.n >= _MOST:
        raise InvalidInput(
            "data", "fewer than 2³² observations to sample from", f"{source.n:,}",
            "sum smaller frequencies, or use sampler='gaussian'",
        )  # fmt: skip
    table, start = RowTable.blank(source.n, len(center), storage), 0
    for rows in _expanded(source):
        here = slice(start, start + rows.height)
        table.put(here, rows.x @ root)
        base = rows.x @ center if rows.offset is None else rows.x @ center + rows.offset
        weights = np.ones(rows.height) if rows.weights is None else rows.weights
        weights = weights * lottery.weights[here] if lottery.weights.size else weights
        table.sides[here] = sides(regression.loss, base, rows.y, weights)
        start += rows.height
    return table


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
