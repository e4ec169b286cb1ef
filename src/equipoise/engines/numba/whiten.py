"""From a regression and a tuning to a program in whitened coordinates θ = θ̂ + L φ, Λ = L Lᵀ (theory §10)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
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
from equipoise.engines.numba.linear import LinearProgram, advance, advance_coupled, lifting
from equipoise.engines.numba.table import RowTable
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
    """

    loss: ScalarLoss
    source: Source[Rows]
    precision: Array
    mean: Array
    n: int

    @property
    def identity(self) -> str:
        """A digest of all of it."""
        digest = hashlib.blake2b(f"{_VERSION} {self.loss.name} {self.n}".encode(), digest_size=16)
        for array in (self.loss.constants, self.precision, self.mean):
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
        p, weights = program.loss.constants, program.table.sides[:, 2]
        score, curvature = (weights * d(program.base, program.y, p) for d in (program.loss.d1, program.loss.d2))
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

    Of all roots of Λ the one that makes the prior diagonal is taken, so that a step costs O(B D) with any prior; without
    one that is the triangular root, which halves the cost of a stored draw.
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
    center, n = tuning.center, regression.n
    C = cholesky(tuning.step, lower=True)
    curvature, U = eigh(C.T @ regression.precision @ C)
    root = np.ascontiguousarray(C @ U) if regression.precision.any() else C
    table, base, y, weights = _whitened(regression.source, root, center, storage)
    half = solve_triangular(cholesky(guard.cov, lower=True), root, lower=True)
    metric = half.T @ half
    return LinearEngine(
        regression,
        LinearProgram(
            loss=regression.loss,
            rows=table,
            base=base,
            y=y,
            weights=weights,
            prior_gradient=root.T @ (regression.precision @ (center - regression.mean)) / n,
            prior_curvature=np.maximum(curvature, 0.0) / n,
            dynamics=tuning.dynamics,
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


def _whitened(source: Source[Rows], root: Array, center: Array, storage: str) -> tuple[RowTable, Array, Array, Array]:
    """The table of rows Lᵀ x_n, a row for each observation, and of each its predictor at θ̂, response and weight."""
    if source.n >= _MOST:
        raise InvalidInput(
            "data", "fewer than 2³² observations to sample from", f"{source.n:,}",
            "sum smaller frequencies, or use sampler='gaussian'",
        )  # fmt: skip
    table = RowTable.blank(source.n, len(center), storage)
    base, y, weights, start = np.empty(source.n), np.empty(source.n), np.ones(source.n), 0
    for rows in _expanded(source):
        here = slice(start, start + rows.height)
        table.rows[here] = rows.x @ root
        base[here] = rows.x @ center if rows.offset is None else rows.x @ center + rows.offset
        y[here] = rows.y
        if rows.weights is not None:
            weights[here] = rows.weights
        start += rows.height
    return table, base, y, weights


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
