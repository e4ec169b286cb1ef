"""The loop of the linear engine, as the compiler sees it: see `equipoise.engines.numba.linear` for the recursion.

It is written once, as `run`, for a loss named `derivative`, a batch rule `draw`, a prior `pull` and a noise `shake`;
`equipoise.engines.numba.compiling` puts others in their place. All sums are spelled out in the operations of
`equipoise.engines.numba.vector`, so that no choice made for speed changes a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from equipoise.arrays import Array, Words
from equipoise.engines.numba.arguments import Chain, Clock, Ellipsoid, Lift, Recursion, Scratch, Share
from equipoise.engines.numba.table import Cells
from equipoise.engines.numba.vector import (
    LANES,
    Vector,
    add,
    entry,
    fetch,
    fma,
    load,
    load_row,
    spread,
    store,
    store_row,
    sum1,
    sums4,
    transpose4,
    zeros,
)
from equipoise.engines.random import Function, jit
from equipoise.engines.rules import Urn

__all__ = [
    "BLOCK",
    "DRAW",
    "EXACT",
    "FINISH",
    "GROUP",
    "HELD",
    "NEVER",
    "PART",
    "STRIPS",
    "SUM",
    "WHOLE",
    "Fetch",
    "Pull",
    "draw",
    "fetch_nothing",
    "fetch_rows",
    "lift_rows",
    "pull_dense",
    "pull_diagonal",
    "run",
    "shake",
]

# (rows, batch, start, stop): asks memory for the rows batch[start:stop].
Fetch = Callable[[Cells, Words, int, int], None]
# (m, φ, numbers, momentum, width): sets m to κ m plus the share of the gradient that no batch changes.
Pull = Callable[[Array, Array, Array, float, int], None]

# Rows handled at once. A sum of products waits four cycles for its predecessor and two can start per cycle.
GROUP = 8
# Rows whose predictors wait for their contributions to be added: few enough to be in L1 on the second pass.
BLOCK = 16
# Numbers per row of a block: predictor (then residual), response, weight, shift.
STRIPS = 4
# Rows summed apart from the others in a large batch, whoever sums them: so no bit depends on the number of threads.
PART = 1024
# What a call does: whole steps, or one of their parts, so that several threads can share the second.
WHOLE, DRAW, SUM, FINISH = range(4)
# Stored iterates mapped back to parameters together: the map is read once for all of them.
HELD = 8
# The thinning of a run that stores nothing.
NEVER = 0
_LINE = 64

# No fast-math flag: the order of operations is the one written. Only Python calls the result, not C.
EXACT: Mapping[str, object] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
_INTERNAL = {**EXACT, "no_cpython_wrapper": True}


def _inlined(function: Function) -> Function:
    """Compile as part of the caller: vectors then stay in registers."""
    return jit(function, {**_INTERNAL, "forceinline": True})


def _separate(function: Function) -> Function:
    """Compile on its own: for what is rare."""
    return jit(function, _INTERNAL)


def derivative(eta: float, y: float, p: tuple[float, ...] | Array) -> float:  # noqa: ARG001
    """The name the loop knows the loss's first derivative by."""
    raise RuntimeError("the loop runs only once a loss is bound into it")


def fetch_ahead(cells: Cells, batch: Words, start: int, stop: int) -> None:  # noqa: ARG001
    """The name the loop knows by what it asks memory for rows ahead of their use."""
    raise RuntimeError("the loop runs only once a way to fetch is bound into it")


def draw(rng: Words, step: int, urn: Urn, batch: Words) -> int:  # noqa: ARG001
    """The name the loop knows the way rows are drawn by."""
    raise RuntimeError("the loop runs only once a way to draw is bound into it")


def shake(rng: Words, noise: Array, phi: Array, dim: int) -> None:  # noqa: ARG001
    """The name the loop knows the injected noise by."""
    raise RuntimeError("the loop runs only once a noise is bound into it")


def pull(m: Array, phi: Array, numbers: Array, momentum: float, width: int) -> None:  # noqa: ARG001
    """The name the loop knows by what a step begins with: momentum, and the prior's share."""
    raise RuntimeError("the loop runs only once a prior is bound into it")


@_inlined
def fetch_nothing(cells: Cells, batch: Words, start: int, stop: int) -> None:
    """In place of `fetch_rows`, for a table that needs no help."""


@_inlined
def fetch_rows(cells: Cells, batch: Words, start: int, stop: int) -> None:
    """Ask for the rows batch[start:stop] ahead of their use: three cache lines, after which the processor guesses."""
    stride = cells.strides[0]
    for k in range(start, min(stop, batch.size)):
        row = entry(batch, k)
        fetch(cells, row, 0)
        if stride > _LINE:
            fetch(cells, row, _LINE)
        if stride > 2 * _LINE:
            fetch(cells, row, 2 * _LINE)


@_inlined
def _eight_predictors(cells: Cells, phi: Array, batch: Words, at: int, width: int) -> tuple[Vector, Vector]:
    """x̃ᵀφ for the eight rows batch[at:at + 8], as two vectors."""
    i0, i1, i2, i3 = entry(batch, at), entry(batch, at + 1), entry(batch, at + 2), entry(batch, at + 3)
    i4, i5, i6, i7 = entry(batch, at + 4), entry(batch, at + 5), entry(batch, at + 6), entry(batch, at + 7)
    a0, a1, a2, a3, a4, a5, a6, a7 = zeros(), zeros(), zeros(), zeros(), zeros(), zeros(), zeros(), zeros()
    for j in range(0, width, LANES):
        p = load(phi, j)
        a0 = fma(load_row(cells, i0, j), p, a0)
        a1 = fma(load_row(cells, i1, j), p, a1)
        a2 = fma(load_row(cells, i2, j), p, a2)
        a3 = fma(load_row(cells, i3, j), p, a3)
        a4 = fma(load_row(cells, i4, j), p, a4)
        a5 = fma(load_row(cells, i5, j), p, a5)
        a6 = fma(load_row(cells, i6, j), p, a6)
        a7 = fma(load_row(cells, i7, j), p, a7)
    return sums4(a0, a1, a2, a3), sums4(a4, a5, a6, a7)


@_inlined
def _place(sides: Array, batch: Words, at: int, dot: Vector, k: int, work: Array) -> None:
    """Lay out predictor, response, weight and shift of four rows in the four strips of `work`."""
    base, y, weight, shift = transpose4(
        load_row(sides, entry(batch, at), 0),
        load_row(sides, entry(batch, at + 1), 0),
        load_row(sides, entry(batch, at + 2), 0),
        load_row(sides, entry(batch, at + 3), 0),
    )
    store(work, k, add(base, dot))
    store(work, BLOCK + k, y)
    store(work, 2 * BLOCK + k, weight)
    store(work, 3 * BLOCK + k, shift)


@_inlined
def _copies(array: Array, at: int) -> Vector:
    """array[at], four times."""
    return spread(entry(array, at))


@_inlined
def _collect(cells: Cells, batch: Words, at: int, k: int, width: int, work: Array, total: Array) -> None:
    """Add to `total` the eight rows batch[at:at + 8], times work[k:k + 8], one after the other."""
    i0, i1, i2, i3 = entry(batch, at), entry(batch, at + 1), entry(batch, at + 2), entry(batch, at + 3)
    i4, i5, i6, i7 = entry(batch, at + 4), entry(batch, at + 5), entry(batch, at + 6), entry(batch, at + 7)
    r0, r1, r2, r3 = _copies(work, k), _copies(work, k + 1), _copies(work, k + 2), _copies(work, k + 3)
    r4, r5, r6, r7 = _copies(work, k + 4), _copies(work, k + 5), _copies(work, k + 6), _copies(work, k + 7)
    for j in range(0, width, LANES):
        t = fma(r0, load_row(cells, i0, j), load(total, j))
        t = fma(r1, load_row(cells, i1, j), t)
        t = fma(r2, load_row(cells, i2, j), t)
        t = fma(r3, load_row(cells, i3, j), t)
        t = fma(r4, load_row(cells, i4, j), t)
        t = fma(r5, load_row(cells, i5, j), t)
        t = fma(r6, load_row(cells, i6, j), t)
        store(total, j, fma(r7, load_row(cells, i7, j), t))


@_inlined
def pull_diagonal(m: Array, phi: Array, numbers: Array, momentum: float, width: int) -> None:
    """Set m = κ m + a + c ∘ φ."""
    kappa = spread(momentum)
    for j in range(0, width, LANES):
        store(m, j, fma(load_row(numbers, 1, j), load(phi, j), fma(kappa, load(m, j), load_row(numbers, 0, j))))


@_inlined
def pull_dense(m: Array, phi: Array, numbers: Array, momentum: float, width: int) -> None:
    """Set m = κ m + a + C φ, four columns of C after the other."""
    kappa = spread(momentum)
    for j in range(0, width, LANES):
        store(m, j, fma(kappa, load(m, j), load_row(numbers, 0, j)))
    for i in range(0, width, LANES):
        p0, p1, p2, p3 = _copies(phi, i), _copies(phi, i + 1), _copies(phi, i + 2), _copies(phi, i + 3)
        for j in range(0, width, LANES):
            t = fma(p0, load_row(numbers, i + 1, j), load(m, j))
            t = fma(p1, load_row(numbers, i + 2, j), t)
            t = fma(p2, load_row(numbers, i + 3, j), t)
            store(m, j, fma(p3, load_row(numbers, i + 4, j), t))


@_inlined
def _add_parts(m: Array, partials: Array, width: int) -> None:
    """Add the sums of all parts, one after the other."""
    one = spread(1.0)
    for start in range(0, partials.size, width):
        for j in range(0, width, LANES):
            store(m, j, fma(one, load(partials, start + j), load(m, j)))


@_inlined
def _move(phi: Array, m: Array, width: int) -> float:
    """Set φ = φ − m; returns ‖φ‖²."""
    square, minus = zeros(), spread(-1.0)
    for j in range(0, width, LANES):
        p = fma(minus, load(m, j), load(phi, j))
        square = fma(p, p, square)
        store(phi, j, p)
    norm2: float = sum1(square)
    return norm2


@_separate
def _pull_back(phi: Array, metric: Array, radius2: float) -> int:
    """Project φ onto the ellipsoid φᵀGφ ≤ R², radially, if it is outside; returns 1 if it was."""
    dim, form = metric.shape[0], 0.0
    for i in range(dim):
        row = zeros()
        for j in range(0, phi.size, LANES):
            row = fma(load_row(metric, i, j), load(phi, j), row)
        form += phi[i] * sum1(row)
    if form <= radius2:
        return 0
    shrink = np.sqrt(radius2 / form)
    for j in range(dim):
        phi[j] *= shrink
    return 1


@_separate
def _lift(stage: Array, lift: Lift, width: int) -> None:
    """Set the second half of `stage` to θ̂ + L φ for the positions φ in the first."""
    columns, last = lift.columns, lift.columns.size - width
    for j in range(0, width, LANES):
        t0 = t1 = t2 = t3 = t4 = t5 = t6 = t7 = load(columns, last + j)
        for i in range(entry(lift.reach, j // LANES)):
            column = load(columns, i * width + j)
            t0 = fma(_copies(stage, i), column, t0)
            t1 = fma(_copies(stage, width + i), column, t1)
            t2 = fma(_copies(stage, 2 * width + i), column, t2)
            t3 = fma(_copies(stage, 3 * width + i), column, t3)
            t4 = fma(_copies(stage, 4 * width + i), column, t4)
            t5 = fma(_copies(stage, 5 * width + i), column, t5)
            t6 = fma(_copies(stage, 6 * width + i), column, t6)
            t7 = fma(_copies(stage, 7 * width + i), column, t7)
        lifted = HELD * width + j
        store(stage, lifted, t0)
        store(stage, lifted + width, t1)
        store(stage, lifted + 2 * width, t2)
        store(stage, lifted + 3 * width, t3)
        store(stage, lifted + 4 * width, t4)
        store(stage, lifted + 5 * width, t5)
        store(stage, lifted + 6 * width, t6)
        store(stage, lifted + 7 * width, t7)


@_separate
def _release(stage: Array, lift: Lift, held: int, out: Array, stored: int) -> int:
    """Write the held positions, or what they are lifted to; returns how many iterates are stored then."""
    dim, width, first = out.shape[1], stage.size // (2 * HELD), 0
    if lift.columns.size > 0:
        _lift(stage, lift, width)
        first = HELD * width
    whole = dim - dim % LANES
    for k in range(held):
        at = first + k * width
        for j in range(0, whole, LANES):
            store_row(out, stored + k, j, load(stage, at + j))
        for j in range(whole, dim):
            out[stored + k, j] = stage[at + j]
    return stored + held


def lift_rows(positions: Array, lift: Lift, out: Array) -> None:
    """Map positions back to parameters, with the bits that `run` would have stored."""
    width = lift.columns.size // (positions.shape[1] + 1)
    stage = np.zeros(2 * HELD * width)
    for start in range(0, positions.shape[0], HELD):
        held = min(HELD, positions.shape[0] - start)
        for k in range(held):
            for j in range(positions.shape[1]):
                stage[k * width + j] = positions[start + k, j]
        _release(stage, lift, held, out, start)


def run(
    cells: Cells,
    sides: Array,
    recursion: Recursion,
    guard: Ellipsoid,
    chain: Chain,
    urn: Urn,
    scratch: Scratch,
    clock: Clock,
    share: Share,
    lift: Lift,
    out: Array,
) -> tuple[int, int, int, bool]:
    """The loop; returns the fields of `Reached`, which takes Numba 40 µs to make."""
    phi, m, rng = chain.phi, chain.m, chain.rng
    batch, work, stage, partials = scratch.batch, scratch.work, scratch.stage, scratch.partials
    step, thin, ahead, phase = clock.step, clock.thin, clock.ahead, share.phase
    width, dim = phi.size, guard.metric.shape[0]
    # taken out here, since each costs a count of references where it is
    places, some, drawn = urn.places, batch[: urn.swaps.size], scratch.drawn
    numbers, noise, constants, momentum = recursion.pull, recursion.noise, recursion.constants, recursion.momentum
    metric, bound, radius2 = guard.metric, guard.bound, guard.radius2
    whole, first, last = 1.0 / some.size, share.first, share.last
    # not literals, with which a helper would be compiled once more
    hits = held = stored = 0 * step
    finite, end, size = True, step + clock.steps, drawn[0]
    until_stored = clock.steps + 1 if thin == NEVER else thin - step % thin
    while step < end and finite:
        if phase in (WHOLE, DRAW):
            size = draw(rng, step, urn, some)
            drawn[0] = size
            if places.size > 0:
                for k in range(size):
                    batch[k] = places[batch[k]]
            # what the batch lacks to whole groups: copies of its last row, which count for nothing
            for k in range(size, batch.size):
                batch[k] = batch[size - 1]
        scale = whole if size == some.size else 1.0 / size
        grouped = -(-size // GROUP) * GROUP
        if phase in (WHOLE, FINISH):
            pull(m, phi, numbers, momentum, width)
        for part in range(first, last):
            total, begin, until = m, 0, grouped
            if partials.size > 0:
                begin, until = part * PART, min((part + 1) * PART, grouped)
                total = partials[part * width : (part + 1) * width]
                total[:] = 0.0
            fetch_ahead(cells, batch, begin, begin + ahead)
            for start in range(begin, until, BLOCK):
                stop = min(BLOCK, until - start)
                for k in range(0, stop, GROUP):
                    at = start + k
                    fetch_ahead(cells, batch, at + ahead, at + ahead + GROUP)
                    low, high = _eight_predictors(cells, phi, batch, at, width)
                    _place(sides, batch, at, low, k, work)
                    _place(sides, batch, at + LANES, high, k + LANES, work)
                for k in range(size - start, stop):
                    work[2 * BLOCK + k] = work[3 * BLOCK + k] = 0.0
                for k in range(BLOCK):
                    slope = derivative(work[k], work[BLOCK + k], constants)
                    work[k] = scale * (work[3 * BLOCK + k] + work[2 * BLOCK + k] * slope)
                for k in range(0, stop, GROUP):
                    _collect(cells, batch, start + k, k, width, work, total)
        if phase in (DRAW, SUM):
            return step, 0, 0, True
        step += 1
        _add_parts(m, partials, width)
        shake(rng, noise, phi, dim)
        norm2 = _move(phi, m, width)
        finite = bool(np.isfinite(norm2))
        if finite and norm2 * bound > radius2:
            hits += _pull_back(phi, metric, radius2)
        until_stored -= 1
        if until_stored == 0 and finite:
            for j in range(0, width, LANES):
                store(stage, held * width + j, load(phi, j))
            held += 1
            until_stored = thin
        if held == HELD or (held > 0 and (step == end or not finite)):
            stored = _release(stage, lift, held, out, stored)
            held = 0
    return step, hits, stored, finite
