"""The linear-predictor engine: SG(L)D with momentum and a guard, compiled (theory §1, §10).

Chains run in whitened coordinates. With the step matrix Λ = L Lᵀ and θ = θ̂ + L φ the caller passes the rows
x̃_n = Lᵀ x_n and the predictors o_n = offset_n + x_nᵀ θ̂ at the minimiser. One step on the batch S is then

    g = (1/B) Σ_{n∈S} w_n ℓ'(o_n + x̃_nᵀ φ, y_n) x̃_n + a + c ∘ φ        (a, c: the prior)
    m ← κ m + g,     φ ← φ − m + s ∘ ξ,     ξ ~ N(0, I)

and an iterate outside the ellipsoid φᵀ G φ ≤ R² is pulled back onto it. Λ is gone: a step costs O(B D). With control
variates w_n ℓ' is what it is more than at φ = 0, and a has the gradient of the whole loss there. A prior that is not
diagonal in φ takes a matrix in place of c.

The loop itself is in `equipoise.engines.numba.kernel`.
"""

from __future__ import annotations

from concurrent.futures import Executor
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from equipoise.arrays import Array
from equipoise.engines.cost import SPLIT, rows_ahead
from equipoise.engines.engine import Advance, ChainState
from equipoise.engines.lottery import UNIFORM, Lottery
from equipoise.engines.numba.arguments import Chain, Clock, Ellipsoid, Lift, Reached, Recursion, Scratch, Share
from equipoise.engines.numba.compiling import MOST_CONSTANTS, kernel, unchecked
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
    fetch_nothing,
    fetch_rows,
    pull_dense,
    pull_diagonal,
)
from equipoise.engines.numba.table import RowTable, padded, side_columns
from equipoise.engines.numba.vector import LANES
from equipoise.engines.random import Permutation
from equipoise.engines.rules import DRAWINGS, IN_ORDER, QUEUEINGS, Draw, Urn, noise_of, urn_for
from equipoise.families.family import ScalarLoss, V
from equipoise.theory.dynamics import Dynamics

__all__ = ["LinearProgram", "advance", "advance_coupled", "lifting"]


_AS_THEY_ARE = Lift(np.empty(0), np.empty(0, np.int64))


@dataclass(frozen=True, eq=False)
class LinearProgram:
    """What one chain runs, in whitened coordinates. Chains may share a program.

    Attributes
    ----------
    loss
        The loss of one row; only its name, first derivative and constants are used.
    table
        x̃ (N, D), and beside each row o, its response and its weight; N < 2³².
    prior_gradient, prior_curvature
        The share a + c ∘ φ of the gradient that no batch changes: a (D,), and c (D,) or a symmetric matrix (D, D).
    dynamics
        Gradient estimator, batch size (at most N) and rule, and momentum κ.
    noise
        s: standard deviations of the injected noise, (D,).
    lottery
        What rows are drawn with when they are not drawn alike; its weights are part of the table's.
    places
        Where each row lies in the table; by default in their order.
    guard_radius2, guard_metric, guard_bound
        R² (infinite: off), G (D, D) and its largest eigenvalue, which spares the form while ‖φ‖² is small.
    ahead
        Rows to ask memory for ahead of their use; None leaves it to `equipoise.engines.cost`. It changes no bit.
    count
        Of how many rows batches are drawn; None for those of the table.
    """

    loss: ScalarLoss
    table: RowTable
    prior_gradient: Array
    prior_curvature: Array
    dynamics: Dynamics
    guard_radius2: float
    guard_metric: Array
    guard_bound: float
    noise: Array
    lottery: Lottery = UNIFORM
    places: Permutation = field(default_factory=lambda: IN_ORDER)
    ahead: int | None = None
    count: int | None = None


def advance(
    program: LinearProgram,
    state: ChainState,
    steps: int,
    thin: int | None,
    out: Array,
    lift: Lift = _AS_THEY_ARE,
    threads: int = 1,
    pool: Executor | None = None,
    queue: int | None = None,
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
    queue
        Of a table with rows in the order in which they are drawn, where the batch of step 0 would lie.

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
    chain = _chain(state, program.table.dim)
    count, dynamics = program.count or len(program.table.cells), program.dynamics
    urn = urn_for(dynamics, count, state, program.lottery, program.places, queue or 0)
    draw = DRAWINGS[dynamics.rule].draw if queue is None else QUEUEINGS[dynamics.rule].draw
    scratch, parts, call = _scratch(program), parts_of(dynamics.batch_size), _caller(program, chain, urn, lift, draw)
    every = NEVER if thin is None else thin
    written, finite, end = 0, True, state.step + steps
    while finite and state.step < end:
        if threads == 1 or pool is None or parts == 1:
            reached = call(state.step, steps, every, Share(WHOLE, 0, parts), scratch, out)
        else:
            call(state.step, 1, every, Share(DRAW, 0, 0), scratch, out)
            _sum_together(call, scratch, parts, threads, pool)
            reached = call(state.step, 1, every, Share(FINISH, 0, 0), scratch, out[written:])
        state.step, finite = reached.step, reached.finite
        state.hits += reached.hits
        written += int(reached.stored)
    dim = program.table.dim
    state.position[:], state.velocity[:] = chain.phi[:dim], chain.m[:dim]
    return Advance(written, not finite)


class _Call(Protocol):
    """The compiled loop of a program, for one chain."""

    def __call__(self, step: int, steps: int, thin: int, share: Share, scratch: Scratch, out: Array) -> Reached:
        """Take steps, or one part of a step."""
        ...


def _caller(program: LinearProgram, chain: Chain, urn: Urn, lift: Lift, draw: Draw) -> _Call:
    """What does not change from one call of the loop to the next, in its place."""
    table, loss, dynamics = program.table, program.loss, program.dynamics
    dim, width = table.dim, padded(table.dim)
    dense = program.prior_curvature.ndim == 2
    numbers, metric = np.zeros((1 + width if dense else 2, width)), np.zeros((dim, width))
    numbers[0, :dim], metric[:, :dim] = program.prior_gradient, program.guard_metric
    numbers[1 : 1 + dim if dense else 2, :dim] = program.prior_curvature
    few = len(loss.p) <= MOST_CONSTANTS
    constants = tuple(map(float, loss.p)) if few else loss.constants
    recursion = Recursion(constants, numbers, float(dynamics.momentum), np.array(program.noise, dtype=np.float64))
    guard = Ellipsoid(float(program.guard_radius2), metric, float(program.guard_bound))
    ahead = rows_ahead(len(table.cells), table.cells.strides[0]) if program.ahead is None else program.ahead
    count, storage = min(len(loss.p), MOST_CONSTANTS + 1), str(table.cells.dtype)
    shake = noise_of(program.noise).shake
    fetch, pull = fetch_rows if ahead > 0 else fetch_nothing, pull_dense if dense else pull_diagonal
    loop = checked = kernel(loss.name, loss.d1, count, storage, draw, shake, fetch, pull)

    def call(step: int, steps: int, thin: int, share: Share, scratch: Scratch, out: Array) -> Reached:
        nonlocal loop
        clock = Clock(int(step), int(steps), int(thin), int(ahead))
        rows = table.cells, table.sides
        reached = Reached(*loop(*rows, recursion, guard, chain, urn, scratch, clock, share, lift, out))
        # the first call has checked the types, which stay the same; a step shared by two threads takes four calls
        loop = unchecked(checked)
        return reached

    return call


def _chain(state: ChainState, dim: int) -> Chain:
    """The state as the loop reads it: copies of position and velocity in whole vectors, the generator itself."""
    phi, m = np.zeros((2, padded(dim)))
    phi[:dim], m[:dim] = state.position, state.velocity
    return Chain(phi, m, state.rng)


def _sum_together(call: _Call, scratch: Scratch, parts: int, threads: int, pool: Executor) -> None:
    """Sum the parts of a batch on several threads, of which this is one; each has strips of its own."""
    bounds = [parts * k // threads for k in range(threads + 1)]
    nowhere = np.empty((0, 1))

    def part(k: int) -> None:
        own = scratch._replace(work=np.zeros_like(scratch.work))
        call(0, 1, NEVER, Share(SUM, bounds[k], bounds[k + 1]), own, nowhere)

    others = [pool.submit(part, k) for k in range(1, threads)]
    part(0)
    for other in others:
        other.result()


def parts_of(batch_size: int) -> int:
    """How many parts the rows of a step are summed in; it depends on nothing else, and so do the bits."""
    return -(-batch_size // PART) if batch_size >= SPLIT else 1


def _scratch(program: LinearProgram) -> Scratch:
    """Memory for a step of the program."""
    size, width = program.dynamics.batch_size, padded(program.table.dim)
    parts = parts_of(size)
    return Scratch(
        batch=np.empty(-(-size // GROUP) * GROUP, np.uint64),
        drawn=np.zeros(1, np.int64),
        work=np.zeros(STRIPS * BLOCK),
        stage=np.zeros(2 * HELD * width),
        partials=np.zeros(parts * width if parts > 1 else 0),
    )


def lifting(root: Array, center: Array) -> Lift:
    """The map φ → θ̂ + L φ as the loop reads it; with a triangular L, half of it is not read at all."""
    dim, width = center.size, padded(center.size)
    columns = np.zeros((dim + 1, width))
    columns[:dim, :dim], columns[dim, :dim] = root.T, center
    used = columns[:dim].reshape(dim, -1, LANES).any(axis=2)
    return Lift(columns.ravel(), (used * np.arange(1, dim + 1)[:, None]).max(axis=0))


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

    The proxy replaces a row's residual by score0_n + curvature0_n x̃_nᵀψ and has no guard. What a step
    draws never depends on where a chain is, so the proxy is a second run from the generator the chain started
    with, and the chain is that of `advance`, bit for bit.

    Parameters
    ----------
    proxy_position
        ψ and its velocity, (2, D), updated in place.
    score0, curvature0
        The rows' residuals at φ = 0 (zeros with control variates) and weighted second derivatives there, (N,).
    out
        Receives the draws of the chain and of the proxy, (m, 2, D).

    Returns
    -------
    Advance
        As for `advance`; a run ends at the first step at which either of the two is not finite.
    """
    start = deepcopy(state)
    stored = advance(program, state, steps, thin, out[:, 0])
    shadow = ChainState(proxy_position[0], proxy_position[1], start.rng.copy(), start.step, 0, start.shuffle.copy())
    taken = state.step - start.step
    shadowed = advance(_proxy(program, score0, curvature0), shadow, taken, thin, out[:, 1])
    if shadow.step < state.step:
        # The proxy diverged first: bring the chain back to the same step.
        state.position[:], state.velocity[:] = start.position, start.velocity
        state.rng[:], state.shuffle[:] = start.rng, start.shuffle
        state.step, state.hits = start.step, start.hits
        advance(program, state, shadow.step - start.step, thin, out[:, 0])
    return Advance(min(stored.written, shadowed.written), stored.diverged or shadowed.diverged)


def _proxy(program: LinearProgram, score0: Array, curvature0: Array) -> LinearProgram:
    """The program with the residual score0 + curvature0 x̃ᵀψ and no guard; it shares the rows."""
    zeros = np.zeros_like(score0)
    table = replace(program.table, sides=side_columns(zeros, zeros, curvature0, score0))
    return replace(program, loss=ScalarLoss("proxy", *4 * (_identity,)), table=table, guard_radius2=np.inf)


def _identity(eta: V, y: V, p: Array) -> V:  # noqa: ARG001
    """The derivative that makes a weighted residual linear in the predictor."""
    return eta
