"""The linear-predictor engine: SG(L)D with momentum and a guard, compiled (theory §1, §10).

Chains run in whitened coordinates. With the step matrix Λ = L Lᵀ and θ = θ̂ + L φ the caller passes the rows
x̃_n = Lᵀ x_n and the predictors o_n = offset_n + x_nᵀ θ̂ at the minimiser. One step on the batch S is then

    g = (1/B) Σ_{n∈S} w_n ℓ'(o_n + x̃_nᵀ φ, y_n) x̃_n + a + c ∘ φ        (a, c: the prior)
    m ← κ m + g,     φ ← φ − m + s ξ,     ξ ~ N(0, I)

and an iterate outside the ellipsoid φᵀ G φ ≤ R² is pulled back onto it. Λ is gone: a step costs O(B D).

The loop is written once, as `_run`; `_kernel` binds a loss into a copy of it and compiles that.
"""

from __future__ import annotations

import hashlib
import re
from copy import copy, deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from types import CellType, CodeType, FunctionType
from typing import Any, cast

import numba
import numpy as np
from numba.core.registry import cpu_target
from numpy.typing import NDArray

from equipoise.engines.random import JIT, add_normals, compiled, distinct_rows, rows_with_replacement
from equipoise.models.family import ScalarFunction, ScalarLoss

__all__ = ["ChainState", "LinearProgram", "advance", "advance_coupled", "initial_state"]

Array = NDArray[np.float64]
Model = tuple[Array, Array, Array, Array]
Guard = tuple[float, Array, float]
Batch = NDArray[np.uint64]
Scratch = tuple[Batch, NDArray[np.uint32], Batch, Array]

# Float64 per cache line. Rows are padded with zeros to whole lines: vector loops then have no remainder.
_LINE = 8
# Rows whose predictors wait for their contributions to be added: few enough to be in L1 on the second pass.
_BLOCK = 32


@dataclass(frozen=True, eq=False)
class LinearProgram:
    """What one chain runs, in whitened coordinates. Chains may share a program.

    The rows are copied once, padded to cache lines, and `rows` becomes a view of the copy.

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
    """

    loss: ScalarLoss
    rows: Array
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
    model: Model = field(init=False, repr=False)

    def __post_init__(self) -> None:
        count, dim = self.rows.shape
        table = _aligned(count, dim)
        table[:, :dim] = self.rows
        prior = np.zeros((2, table.shape[1]))
        prior[:, :dim] = self.prior_gradient, self.prior_curvature
        weights = self.weights if self.weights.size else np.ones(count)
        sides = _sides(self.base, self.y, weights, np.zeros(count))
        object.__setattr__(self, "rows", table[:, :dim])
        object.__setattr__(self, "model", (table, sides, self.loss.constants, prior))


@dataclass
class ChainState:
    """Where a chain stands: all it needs to resume bit for bit.

    Arrays are updated in place; `step` counts from 1; `hits` counts the steps on which the guard acted.
    """

    position: Array  # φ, (D,)
    velocity: Array  # m, (D,)
    rng: NDArray[np.uint64]  # the four words of the generator
    step: int = 0
    hits: int = 0


def initial_state(position: Array, seed: np.random.SeedSequence) -> ChainState:
    """A chain at rest at `position`, with a generator of its own drawn from `seed`."""
    start = np.array(position, dtype=np.float64)
    return ChainState(start, np.zeros_like(start), seed.generate_state(4, np.uint64).astype(np.uint64))


def advance(program: LinearProgram, state: ChainState, steps: int, thin: int, out: Array) -> int:
    """Run `steps` steps in place and store every `thin`-th iterate; no bit depends on how a run is split.

    Parameters
    ----------
    thin
        φ is stored after each step whose number `state.step` (from 1) is a multiple of it; 0 stores nothing.
    out
        Receives the draws, (m, D), in any memory layout.

    Returns
    -------
    int
        The number of rows written, or −1 minus that number if an iterate was not finite. The state then
        stands at that iterate, `state.step` is its number, and the rows written before it are valid.

    Raises
    ------
    ValueError
        If `out` has too few rows.
    """
    if thin > 0 and (state.step + steps) // thin - state.step // thin > len(out):
        # The compiled loop does not check its bounds.
        raise ValueError(f"out has {len(out)} rows, too few for {steps} steps thinned by {thin}")
    (count, dim), size = program.rows.shape, program.batch_size
    phi, m = _aligned(2, dim)
    phi[:dim], m[:dim] = state.position, state.velocity
    metric = np.array(program.guard_metric, dtype=np.float64, order="C")
    guard = float(program.guard_radius2), metric, float(program.guard_bound)
    rates = float(program.momentum), float(program.noise_scale)
    order = np.arange(0 if program.replacement else count, dtype=np.uint32)
    scratch = np.empty(size, np.uint64), order, np.empty(size, np.uint64), np.empty(_BLOCK)
    kernel = _kernel(program.loss.name, program.loss.d1)
    clock = state.step, steps, thin
    state.step, hits, stored, finite = kernel(program.model, guard, rates, phi, m, state.rng, scratch, clock, out)
    state.position[:], state.velocity[:] = phi[:dim], m[:dim]
    state.hits += hits
    return int(stored) if finite else -1 - int(stored)


def advance_coupled(
    program: LinearProgram,
    state: ChainState,
    proxy_position: Array,
    score0: Array,
    curvature0: Array,
    steps: int,
    thin: int,
    out: Array,
) -> int:
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
    int
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
    # max(k, −1 − k) is the number of rows behind a return value k.
    fewest = min(max(stored, -1 - stored), max(shadowed, -1 - shadowed))
    return fewest if min(stored, shadowed) >= 0 else -1 - fewest


def _proxy(program: LinearProgram, score0: Array, curvature0: Array) -> LinearProgram:
    """The program with the residual score0 + curvature0 x̃ᵀψ and no guard; it shares the rows."""
    (table, _, _, prior), zeros = program.model, np.zeros_like(score0)
    proxy = copy(program)
    object.__setattr__(proxy, "loss", ScalarLoss("proxy", *4 * (_identity,)))
    object.__setattr__(proxy, "model", (table, _sides(zeros, zeros, curvature0, score0), np.zeros(0), prior))
    object.__setattr__(proxy, "guard_radius2", np.inf)
    return proxy


def _identity(eta: float, y: float, p: Array) -> float:  # noqa: ARG001
    """The derivative that makes a weighted residual linear in the predictor."""
    return eta


def _aligned(count: int, dim: int) -> Array:
    """Zeros of shape (count, dim rounded up to whole cache lines), each row starting on a line."""
    width = -(-dim // _LINE) * _LINE
    buffer = np.zeros(count * width + _LINE)
    first = -(buffer.ctypes.data // buffer.itemsize) % _LINE
    return buffer[first : first + count * width].reshape(count, width)


def _sides(base: Array, y: Array, weights: Array, shift: Array) -> Array:
    """What a row's residual, shift + weight ℓ'(base + x̃ᵀφ, y), needs besides the row, in one access."""
    return np.stack([base, y, weights, shift], axis=1).astype(np.float64, order="C")


@compiled
def _predict(rows: Array, phi: Array, batch: Batch, start: int, stop: int, values: Array) -> None:
    """Set values[k] = x̃ᵀφ for the rows batch[start:stop], four rows per pass over φ."""
    fours = start + (stop - start) // 4 * 4
    for k in range(start, fours, 4):
        i0, i1, i2, i3 = batch[k], batch[k + 1], batch[k + 2], batch[k + 3]
        a0, a1, a2, a3 = 0.0, 0.0, 0.0, 0.0
        for j in range(rows.shape[1]):
            a0 += rows[i0, j] * phi[j]
            a1 += rows[i1, j] * phi[j]
            a2 += rows[i2, j] * phi[j]
            a3 += rows[i3, j] * phi[j]
        at = k - start
        values[at], values[at + 1], values[at + 2], values[at + 3] = a0, a1, a2, a3
    for k in range(fours, stop):
        i0, a0 = batch[k], 0.0
        for j in range(rows.shape[1]):
            a0 += rows[i0, j] * phi[j]
        values[k - start] = a0


@compiled
def _collect(rows: Array, batch: Batch, start: int, stop: int, values: Array, total: Array) -> None:
    """Add Σ values[k] x̃ over the rows batch[start:stop] to `total`, four rows per pass over it."""
    fours = start + (stop - start) // 4 * 4
    for k in range(start, fours, 4):
        i0, i1, i2, i3 = batch[k], batch[k + 1], batch[k + 2], batch[k + 3]
        at = k - start
        r0, r1, r2, r3 = values[at], values[at + 1], values[at + 2], values[at + 3]
        for j in range(rows.shape[1]):
            total[j] += r0 * rows[i0, j] + r1 * rows[i1, j] + r2 * rows[i2, j] + r3 * rows[i3, j]
    for k in range(fours, stop):
        i0, r0 = batch[k], values[k - start]
        for j in range(rows.shape[1]):
            total[j] += r0 * rows[i0, j]


@compiled
def _pull_back(phi: Array, metric: Array, radius2: float) -> int:
    """Project φ onto the ellipsoid φᵀGφ ≤ R², radially, if it is outside; returns 1 if it was."""
    dim, form = metric.shape[0], 0.0
    for i in range(dim):
        for j in range(dim):
            form += phi[i] * metric[i, j] * phi[j]
    if form <= radius2:
        return 0
    shrink = np.sqrt(radius2 / form)
    for j in range(dim):
        phi[j] *= shrink
    return 1


def _derivative(eta: float, y: float, p: Array) -> float:  # noqa: ARG001
    """The name the loop knows the loss's first derivative by; `_bind` puts a loss in its place."""
    raise RuntimeError("the loop runs only once a loss is bound into it")


# Argument types of `_run`, fixed so that a loss is compiled once whatever the layout of the caller's arrays.
_SIGNATURE = (
    "Tuple((int64, int64, int64, boolean))(Tuple((float64[:, ::1], float64[:, ::1], float64[::1],"
    " float64[:, ::1])), Tuple((float64, float64[:, ::1], float64)), UniTuple(float64, 2),"
    " float64[::1], float64[::1], uint64[::1], Tuple((uint64[::1], uint32[::1], uint64[::1], float64[::1])),"
    " UniTuple(int64, 3), float64[:, :])"
)


def _run(
    model: Model,
    guard: Guard,
    rates: tuple[float, float],
    phi: Array,
    m: Array,
    rng: NDArray[np.uint64],
    scratch: Scratch,
    clock: tuple[int, int, int],
    out: Array,
) -> tuple[int, int, int, bool]:
    """The loop; returns the step reached, guard hits, draws stored, and whether every iterate was finite."""
    rows, sides, constants, prior = model
    radius2, metric, bound = guard
    momentum, noise = rates
    batch, order, swaps, values = scratch
    step, steps, thin = clock
    count, width = rows.shape
    dim, size, scale = metric.shape[0], batch.size, 1.0 / batch.size
    hits, stored, finite, last = 0, 0, True, step + steps
    until_stored = thin - step % thin if thin > 0 else steps + 1
    while step < last and finite:
        step += 1
        if order.size == 0:
            rows_with_replacement(rng, np.uint64(count), batch)
        else:
            distinct_rows(rng, order, swaps, batch)
        for j in range(width):
            m[j] = momentum * m[j] + prior[0, j] + prior[1, j] * phi[j]
        for start in range(0, size, _BLOCK):
            stop = min(start + _BLOCK, size)
            _predict(rows, phi, batch, start, stop, values)
            for k in range(stop - start):
                i = batch[start + k]
                slope = _derivative(sides[i, 0] + values[k], sides[i, 1], constants)
                values[k] = scale * (sides[i, 3] + sides[i, 2] * slope)
            _collect(rows, batch, start, stop, values, m)
        if noise != 0.0:
            add_normals(rng, noise, phi, dim)
        norm2 = 0.0
        for j in range(width):
            phi[j] -= m[j]
            norm2 += phi[j] * phi[j]
        finite = bool(np.isfinite(norm2))
        if finite and norm2 * bound > radius2:
            hits += _pull_back(phi, metric, radius2)
        until_stored -= 1
        if until_stored == 0 and finite:
            for j in range(dim):
                out[stored, j] = phi[j]
            stored += 1
            until_stored = thin
    return step, hits, stored, finite


def _bind(function: Any, **names: Any) -> FunctionType:
    """A copy of the function in which globals `names` have other values and plain functions are compiled."""
    cells = tuple(CellType(_compile_helper(cell.cell_contents)) for cell in function.__closure__ or ())
    scope = {**function.__globals__, **names}
    scope |= {name: _compile_helper(scope[name]) for name in function.__code__.co_names if name in scope}
    return FunctionType(function.__code__, scope, function.__name__, function.__defaults__, cells)


def _compile_helper(value: Any) -> Any:
    """Compile a plain Python function with all it calls, which Numba would refuse; leave the rest alone."""
    return compiled(cast(Any, _bind(value))) if isinstance(value, FunctionType) else value


def _feed(digest: Any, item: Any) -> None:
    """Add to the digest what the compiled form of `item` depends on: code, constants, globals it names."""
    item = getattr(item, "py_func", item)
    if isinstance(item, FunctionType):
        cells = [cell.cell_contents for cell in item.__closure__ or ()]
        for part in [item.__code__, *map(item.__globals__.get, item.__code__.co_names), *cells]:
            _feed(digest, part)
    elif isinstance(item, CodeType):
        digest.update(item.co_code)
        for part in [item.co_names, item.co_varnames, *item.co_consts]:
            _feed(digest, part)
    elif isinstance(item, np.ndarray):
        digest.update(item.tobytes())
    else:
        digest.update(f"{type(item)} {getattr(item, '__name__', item)}".encode())


@lru_cache(maxsize=64)
def _kernel(name: str, derivative: ScalarFunction) -> Any:
    """Compile `_run` for one loss, or load it from Numba's cache on disk.

    Numba names a cache file after the function and numbers the versions inside: two processes that compile
    different losses at once can take one number and later load each other's code, and a change in a function
    that is called goes unnoticed. So the name holds a digest of all that the machine code depends on.
    """
    run = _bind(_run, _derivative=derivative)
    processor = cpu_target.target_context.codegen().magic_tuple()
    digest = hashlib.sha256(f"{numba.__version__} {processor} {sorted(JIT['fastmath'])}".encode())
    _feed(digest, run)
    run.__name__ = run.__qualname__ = f"run_{re.sub('[^a-z]', '_', name)}_{digest.hexdigest()[:20]}"
    try:
        return numba.njit(_SIGNATURE, cache=True, **JIT)(run)
    except RuntimeError:  # nowhere to write the cache, neither beside this file nor in the user's home
        return numba.njit(_SIGNATURE, **JIT)(run)
