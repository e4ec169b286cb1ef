"""From a problem and a tuning to a program in whitened coordinates θ = θ̂ + L φ, Λ = L Lᵀ (theory §10)."""

from __future__ import annotations

import hashlib
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, eigh, solve, solve_triangular

from equipoise.arrays import Array
from equipoise.engines.cost import threads_per_chain
from equipoise.engines.numba.linear import ChainState, LinearProgram, advance, initial_state, lifting
from equipoise.engines.numba.table import RowTable
from equipoise.errors import InvalidInput
from equipoise.linalg import blocks

if TYPE_CHECKING:
    from equipoise.models.linear import LinearProblem
    from equipoise.theory.tuning import Tuning

__all__ = ["LinearEngine", "linear_engine"]


@dataclass(frozen=True)
class LinearEngine:
    """Runs chains of a linear-predictor problem; positions are φ, and `parameters` maps them back to θ."""

    program: LinearProgram
    root: Array
    center: Array

    def start(self, theta: Array, seed: np.random.SeedSequence) -> ChainState:
        """A chain at θ, at rest."""
        return initial_state(solve(self.root, theta - self.center), seed)

    def advance(
        self, states: list[ChainState], steps: int, thin: int, outs: list[Array], pool: Executor, threads: int = 1
    ) -> list[int]:
        """Run every chain, each on a thread of its own or several, and store parameters; see `linear.advance`."""
        lift = lifting(self.root, self.center)
        shared = threads_per_chain(self.program.batch_size, threads, len(states))

        def chain(state: ChainState, out: Array) -> int:
            return advance(self.program, state, steps, thin, out, lift, shared, pool)

        return list(pool.map(chain, states, outs))

    def identity(self) -> tuple[NDArray[Any], ...]:
        """The arrays that, with the step and the options, determine a run; of the rows, a digest."""
        program = self.program
        name = np.frombuffer(program.loss.name.encode(), dtype=np.uint8).astype(np.float64)
        constants = program.loss.constants
        return (
            name,
            constants,
            _digest(program.table),
            program.base,
            program.y,
            program.weights,
            program.prior_gradient,
            program.prior_curvature,
        )

    def parameters(self, positions: Array) -> Array:
        """θ̂ + L φ for many φ."""
        return positions @ self.root.T + self.center


def _digest(table: RowTable) -> NDArray[np.uint8]:
    """32 bytes that change with any row; the rows, which padding separates, are not copied as a whole."""
    digest = hashlib.blake2b(str(table.cells.dtype).encode(), digest_size=32)
    for block in blocks(*table.rows.shape):
        digest.update(np.ascontiguousarray(table.rows[block]).data)
    return np.frombuffer(digest.digest(), dtype=np.uint8)


def linear_engine(
    problem: LinearProblem, tuning: Tuning, radius2: float, storage: str = "float64", ahead: int | None = None
) -> LinearEngine:
    """Whiten a problem for a step matrix.

    Of all roots of Λ the one that makes the prior diagonal is taken, so that a step costs O(B D) with any prior; without
    one that is the triangular root, which halves the cost of a stored draw.
    The whitened rows are written straight to where the engine reads them: data apart, they are the only copy.

    Parameters
    ----------
    problem, tuning, radius2
        What to sample, the step matrix, and the guard's squared radius.
    storage, ahead
        How the rows are held and fetched; see `equipoise.engines.numba.linear.LinearProgram`.

    Raises
    ------
    InvalidInput
        If the storage is neither float64 nor float32.
    """
    if storage not in ("float64", "float32"):
        raise InvalidInput("storage", "float64 or float32", repr(storage), "leave it out")
    rows, dynamics, center = problem.rows, tuning.dynamics, tuning.center
    C = cholesky(tuning.step, lower=True)
    curvature, U = eigh(C.T @ problem.precision @ C)
    root = np.ascontiguousarray(C @ U) if problem.precision.any() else C
    table = RowTable.blank(rows.n, rows.dim, storage)
    for block in blocks(*rows.x.shape):
        table.rows[block] = rows.x[block] @ root
    half = solve_triangular(cholesky(tuning.predicted.cov, lower=True), root, lower=True)
    metric = half.T @ half
    return LinearEngine(
        LinearProgram(
            loss=problem.loss_at(center),
            rows=table,
            base=problem.predictor(center),
            y=rows.y,
            weights=np.empty(0) if rows.weights is None else rows.weights,
            prior_gradient=root.T @ (problem.precision @ (center - problem.mean)) / problem.n,
            prior_curvature=np.maximum(curvature, 0.0) / problem.n,
            batch_size=dynamics.batch_size,
            replacement=dynamics.replacement,
            momentum=dynamics.momentum,
            noise_scale=float(np.sqrt(2.0 * dynamics.temperature)),
            guard_radius2=radius2,
            guard_metric=metric,
            guard_bound=float(np.linalg.eigvalsh(metric)[-1]),
            storage=storage,
            ahead=ahead,
        ),
        root,
        center,
    )
