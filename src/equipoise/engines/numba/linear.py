"""The linear-predictor engine: SG(L)D with momentum and a guard, compiled (theory §1, §10).

Chains run in whitened coordinates. With the step matrix Λ = L Lᵀ and θ = θ̂ + L φ the caller passes the rows
x̃_n = Lᵀ x_n and the predictors o_n = offset_n + x_nᵀ θ̂ at the minimiser. One step on the batch S is then

    g = (1/B) Σ_{n∈S} w_n ℓ'(o_n + x̃_nᵀ φ, y_n) x̃_n + a + c ∘ φ        (a, c: the prior)
    m ← κ m + g,     φ ← φ − m + s ξ,     ξ ~ N(0, I)

and an iterate outside the ellipsoid φᵀ G φ ≤ R² is pulled back onto it. Λ is gone: a step costs O(B D).

The loop itself is in `equipoise.engines.numba.kernel`.
"""

from __future__ import annotations

from concurrent.futures import Executor
from copy import copy, deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import Array
from equipoise.engines.cost import SPLIT, rows_ahead
from equipoise.engines.engine import Advance, ChainState
from equipoise.engines.numba.compiling import MOST_CONSTANTS, kernel
from equipoise.engines.numba.compiling import compile_helper as _compile_helper  # noqa: F401  (tests compile losses with it)
from equipoise.engines.numba.kernel import (
    BLOCK,
    DRAW,
    FINISH,
    GROUP,
    HELD,
    NEVER,
    PART,
    STRIPS,
    SUM,
    WHOLE,
    Lift,
    Scratch,
)
from equipoise.engines.numba.table import RowTable, padded, side_columns
from equipoise.engines.numba.vector import LANES
from equipoise.families.family import ScalarLoss

__all__ = ["LinearProgram", "advance", "advance_coupled", "lifting"]


_AS_THEY_ARE: Lift = np.empty(0), np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class LinearProgram:
    """What one chain runs, in whitened coordinates. Chains may share a program.

    Rows are copied once into a `RowTable`, and `rows` becomes a view of it; a table that the caller made and filled is
    taken over instead, and must not serve another program.

    Attributes
    ----------
    loss
        The loss of one row; only its name, first derivative and constants are used.
    rows, base, y, weights
        x̃ (N, D), o (N,), responses (N,), and weights (N,) or of length zero for all ones; N < 2³².
    prior_gradient, prior_curvature
        The prior's share a + c ∘ φ of the gradient, each (D,).
    batch_size, replacement
        B rows per step, drawn independently or distinct (then B ≤ N).
    momentum, noise_scale
        κ and s; s = 0 is SGD and draws no normals.
    guard_radius2, guard_metric, guard_bound
        R² (infinite: off), G (D, D) and its largest eigenvalue, which spares the form while ‖φ‖² is small.
    storage
        The type rows are held in: float64, or float32 for half the memory. Sums are float64 either way.
    ahead
        Rows to ask memory for ahead of their use; None leaves it to `equipoise.engines.cost`. It changes no bit.
    """

    loss: ScalarLoss
    rows: NDArray[Any] | RowTable
    base: Array
    y: Array
    weights: Array
    prior_gradient: Array
    prior_curvature: Array
    batch_size: int
    replacement: bool
    momentum: float
    noise_scale: float
    guard_radius2: float
    guard_metric: Array
    guard_bound: float
    storage: str = "float64"
    ahead: int | None = None
    table: RowTable = field(init=False, repr=False)

    def __post_init__(self) -> None:
        table = self.rows if isinstance(self.rows, RowTable) else RowTable.filled(self.rows, self.storage)
        weights = self.weights if self.weights.size else np.ones(len(self.y))
        table.sides[:] = side_columns(self.base, self.y, weights, np.zeros(len(self.y)))
        object.__setattr__(self, "table", table)
        object.__setattr__(self, "rows", table.rows)


def advance(
    program: LinearProgram,
    state: ChainState,
    steps: int,
    thin: int | None,
    out: Array,
    lift: Lift = _AS_THEY_ARE,
    threads: int = 1,
    pool: Executor | None = None,
) -> Advance:
    """Run `steps` steps in place and store every `thin`-th iterate; no bit depends on how a run is split.

    Parameters
    ----------
    thin
        φ is stored after each step whose number `state.step` (from 1) is a multiple of it; None stores nothing.
    out
        Receives the draws, (m, D), each in one piece of memory.
    lift
        What draws are stored as: the map made by `lifting`, or nothing for φ itself.
    threads, pool
        How many threads share a step on a large batch, and where all but this one are; no bit depends on it.

    Returns
    -------
    Advance
        The number of rows written, and whether an iterate was not finite.

    Raises
    ------
    ValueError
        If `out` has too few rows, or rows that are not in one piece.
    """
    if thin is not None and (state.step + steps) // thin - state.step // thin > len(out):
        # The compiled loop does not check its bounds.
        raise ValueError(f"out has {len(out)} rows, too few for {steps} steps thinned by {thin}")
    if out.size > len(out) and out.strides[1] != out.itemsize:
        raise ValueError("the rows of out must be contiguous")
    table, loss = program.table, program.loss
    dim, width = table.dim, padded(table.dim)
    phi, m = np.zeros((2, width))
    phi[:dim], m[:dim] = state.position, state.velocity
    prior, metric = np.zeros((2, width)), np.zeros((dim, width))
    prior[:, :dim], metric[:, :dim] = (program.prior_gradient, program.prior_curvature), program.guard_metric
    few = len(loss.p) <= MOST_CONSTANTS
    model = table.cells, table.sides, tuple(map(float, loss.p)) if few else loss.constants, prior
    guard = float(program.guard_radius2), metric, float(program.guard_bound)
    rates = float(program.momentum), float(program.noise_scale)
    ahead = rows_ahead(len(table.cells), table.cells.strides[0]) if program.ahead is None else program.ahead
    count, storage = min(len(loss.p), MOST_CONSTANTS + 1), str(table.cells.dtype)
    loop = kernel(loss.name, loss.d1, count, storage, program.replacement, program.noise_scale != 0.0, ahead > 0)
    scratch, parts = _scratch(program), parts_of(program.batch_size)

    def call(phase: int, first: int, last: int, steps: int, out: Array, scratch: Scratch = scratch) -> Any:
        clock = state.step, steps, NEVER if thin is None else thin, ahead
        return loop(model, guard, rates, phi, m, state.rng, scratch, clock, (phase, first, last), lift, out)

    written, finite, end = 0, True, state.step + steps
    while finite and state.step < end:
        if threads == 1 or pool is None or parts == 1:
            state.step, hits, stored, finite = call(WHOLE, 0, parts, steps, out)
        else:
            call(DRAW, 0, 0, 1, out)
            _sum_together(call, scratch, parts, threads, pool)
            state.step, hits, stored, finite = call(FINISH, 0, 0, 1, out[written:])
        state.hits += hits
        written += int(stored)
    state.position[:], state.velocity[:] = phi[:dim], m[:dim]
    return Advance(written, not finite)


def _sum_together(call: Any, scratch: Scratch, parts: int, threads: int, pool: Executor) -> None:
    """Sum the parts of a batch on several threads, of which this is one; each has strips of its own."""
    bounds = [parts * k // threads for k in range(threads + 1)]
    batch, order, swaps, work, stage, partials = scratch
    nowhere = np.empty((0, 1))

    def part(k: int) -> None:
        own = batch, order, swaps, np.zeros_like(work), stage, partials
        call(SUM, bounds[k], bounds[k + 1], 1, nowhere, own)

    others = [pool.submit(part, k) for k in range(1, threads)]
    part(0)
    for other in others:
        other.result()


def parts_of(batch_size: int) -> int:
    """How many parts the rows of a step are summed in; it depends on nothing else, and so do the bits."""
    return -(-batch_size // PART) if batch_size >= SPLIT else 1


def _scratch(program: LinearProgram) -> Scratch:
    """Memory for a step: the batch in whole groups, the permutation it is drawn from, its swaps, a block's strips.

    Then the iterates that wait to be stored, before and after they are lifted, and the sums of parts.
    """
    size, width = program.batch_size, padded(program.table.dim)
    order = np.arange(0 if program.replacement else len(program.table.cells), dtype=np.uint32)
    batch, swaps = np.empty(-(-size // GROUP) * GROUP, np.uint64), np.empty(size, np.uint64)
    parts = parts_of(size)
    partials = np.zeros(parts * width if parts > 1 else 0)
    return batch, order, swaps, np.zeros(STRIPS * BLOCK), np.zeros(2 * HELD * width), partials


def lifting(root: Array, center: Array) -> Lift:
    """The map φ → θ̂ + L φ as the loop reads it; with a triangular L, half of it is not read at all."""
    dim, width = center.size, padded(center.size)
    columns = np.zeros((dim + 1, width))
    columns[:dim, :dim], columns[dim, :dim] = root.T, center
    used = columns[:dim].reshape(dim, -1, LANES).any(axis=2)
    return columns.ravel(), (used * np.arange(1, dim + 1)[:, None]).max(axis=0)


def advance_coupled(
    program: LinearProgram,
    state: ChainState,
    proxy_position: Array,
    score0: Array,
    curvature0: Array,
    steps: int,
    thin: int | None,
    out: Array,
) -> Advance:
    """Run the chain and its quadratic proxy ψ on the same minibatches and the same noise (theory §8).

    The proxy replaces w ℓ'(o_n + x̃_nᵀφ, y_n) by score0_n + curvature0_n x̃_nᵀψ and has no guard. What a step
    draws never depends on where a chain is, so the proxy is a second run from the generator the chain started
    with, and the chain is that of `advance`, bit for bit.

    Parameters
    ----------
    proxy_position
        ψ and its velocity, (2, D), updated in place.
    score0, curvature0
        Weighted first and second derivatives of the rows' losses at φ = 0, (N,).
    out
        Receives the draws of the chain and of the proxy, (m, 2, D).

    Returns
    -------
    Advance
        As for `advance`; a run ends at the first step at which either of the two is not finite.
    """
    start = deepcopy(state)
    stored = advance(program, state, steps, thin, out[:, 0])
    shadow = ChainState(proxy_position[0], proxy_position[1], start.rng.copy(), start.step)
    taken = state.step - start.step
    shadowed = advance(_proxy(program, score0, curvature0), shadow, taken, thin, out[:, 1])
    if shadow.step < state.step:
        # The proxy diverged first: bring the chain back to the same step.
        state.position[:], state.velocity[:], state.rng[:] = start.position, start.velocity, start.rng
        state.step, state.hits = start.step, start.hits
        advance(program, state, shadow.step - start.step, thin, out[:, 0])
    return Advance(min(stored.written, shadowed.written), stored.diverged or shadowed.diverged)


def _proxy(program: LinearProgram, score0: Array, curvature0: Array) -> LinearProgram:
    """The program with the residual score0 + curvature0 x̃ᵀψ and no guard; it shares the rows."""
    table, zeros = program.table, np.zeros_like(score0)
    proxy = copy(program)
    object.__setattr__(proxy, "loss", ScalarLoss("proxy", *4 * (_identity,)))
    sides = side_columns(zeros, zeros, curvature0, score0)
    object.__setattr__(proxy, "table", RowTable(table.cells, sides, table.dim))
    object.__setattr__(proxy, "guard_radius2", np.inf)
    return proxy


def _identity(eta: float, y: float, p: Array) -> float:  # noqa: ARG001
    """The derivative that makes a weighted residual linear in the predictor."""
    return eta
