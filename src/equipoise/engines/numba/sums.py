"""Sums over a block of rows whose columns lie one after the other, each made while some of the rows are in cache.

What BLAS and NumPy make of few columns in several readings is made in one: for eleven columns, in a third of the time.
Operations are written down one by one (`equipoise.engines.numba.vector`), so that bits depend on the rows alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any, cast

import numba
import numpy as np

from equipoise.arrays import Array, Index
from equipoise.engines.numba.compiling import MOST_CONSTANTS, TYPES, bound, on_disk
from equipoise.engines.numba.vector import add, fma, load, load_row, spread, store, store_row, sums4, zeros
from equipoise.families.family import ScalarFunction, ScalarLoss

__all__ = ["add_by_group", "derived", "forms", "gram_and_sum"]

# Rows of which a product is made at a time, and of which predictors are.
_STRIPE = 128
# One at a time: threads would compile the same.
_COMPILING = threading.Lock()


def _gram(x: Array, weight: Array, score: Array) -> Array:
    """Σ w x xᵀ of the rows (D, n), in the lower triangle of a transpose, and Σ s x beside: (≥ D, ≥ D + 1).

    Products are made in tiles of three by four columns, which fill the registers.
    """
    dim, n = x.shape
    tall, none = 4 * (dim // 4 + 1), zeros()
    wide = 3 * ((tall + 2) // 3)
    made, held, scaled = np.zeros((wide, tall)), np.zeros((wide, _STRIPE)), np.zeros((tall, _STRIPE))
    for start in range(0, n, _STRIPE):
        size = min(_STRIPE, n - start)
        full = size - size % 4
        for s in range(0, full, 4):
            w = load(weight, start + s)
            for j in range(dim):
                v = load_row(x, j, start + s)
                store_row(held, j, s, v)
                store_row(scaled, j, s, fma(w, v, none))
            store_row(scaled, dim, s, load(score, start + s))
        if size > full:
            for j in range(dim):
                held[j, full : full + 4] = 0.0
                scaled[j, full : full + 4] = 0.0
            scaled[dim, full : full + 4] = 0.0
            for s in range(full, size):
                for j in range(dim):
                    held[j, s] = x[j, start + s]
                    scaled[j, s] = weight[start + s] * x[j, start + s]
                scaled[dim, s] = score[start + s]
        for j in range(0, tall, 4):
            for k in range(0, min(j + 4, wide), 3):
                a0, a1, a2, a3, b0, b1 = zeros(), zeros(), zeros(), zeros(), zeros(), zeros()
                b2, b3, c0, c1, c2, c3 = zeros(), zeros(), zeros(), zeros(), zeros(), zeros()
                for s in range(0, size, 4):
                    u, v, w = load_row(held, k, s), load_row(held, k + 1, s), load_row(held, k + 2, s)
                    t = load_row(scaled, j, s)
                    a0, b0, c0 = fma(t, u, a0), fma(t, v, b0), fma(t, w, c0)
                    t = load_row(scaled, j + 1, s)
                    a1, b1, c1 = fma(t, u, a1), fma(t, v, b1), fma(t, w, c1)
                    t = load_row(scaled, j + 2, s)
                    a2, b2, c2 = fma(t, u, a2), fma(t, v, b2), fma(t, w, c2)
                    t = load_row(scaled, j + 3, s)
                    a3, b3, c3 = fma(t, u, a3), fma(t, v, b3), fma(t, w, c3)
                store_row(made, k, j, add(load_row(made, k, j), sums4(a0, a1, a2, a3)))
                store_row(made, k + 1, j, add(load_row(made, k + 1, j), sums4(b0, b1, b2, b3)))
                store_row(made, k + 2, j, add(load_row(made, k + 2, j), sums4(c0, c1, c2, c3)))
    return made


def first(eta: float, y: float, p: Array) -> float:  # noqa: ARG001
    """Stands for a function of a row that is bound when a loop is compiled."""
    return 0.0


second = third = first


def _derived(x: Array, theta: Array, offset: Array, y: Array, p: Array, made: Array) -> None:
    """Three functions of every row of (D, n)."""
    dim, n = x.shape
    eta = np.empty(_STRIPE)
    for start in range(0, n, _STRIPE):
        size = min(_STRIPE, n - start)
        end, full = start + size, size - size % 16
        if offset.size:
            eta[:size] = offset[start:end]
        else:
            eta[:size] = 0.0
        for s in range(0, full, 16):
            at = start + s
            a, b, c, d = load(eta, s), load(eta, s + 4), load(eta, s + 8), load(eta, s + 12)
            for j in range(dim):
                t = spread(theta[j])
                a, b = fma(t, load_row(x, j, at), a), fma(t, load_row(x, j, at + 4), b)
                c, d = fma(t, load_row(x, j, at + 8), c), fma(t, load_row(x, j, at + 12), d)
            store(eta, s, a)
            store(eta, s + 4, b)
            store(eta, s + 8, c)
            store(eta, s + 12, d)
        for s in range(full, size):
            for j in range(dim):
                eta[s] += theta[j] * x[j, start + s]
        # slices start at zero, which lets the compiler take four rows at a time
        here, response = eta[:size], y[start:end]
        one, two, three = made[0, start:end], made[1, start:end], made[2, start:end]
        for s in range(size):
            one[s] = first(here[s], response[s], p)
            two[s] = second(here[s], response[s], p)
            three[s] = third(here[s], response[s], p)


def _forms(x: Array, lower: Array, square: bool, made: Array) -> None:
    """‖Lᵀx‖² of the rows (D, n), or 2 xᵀLx."""
    dim, n = x.shape
    full = n - n % 8
    for s in range(0, full, 8):
        p, q = zeros(), zeros()
        for k in range(dim):
            a, b = zeros(), zeros()
            for j in range(k, dim):
                t = spread(lower[j, k])
                a, b = fma(t, load_row(x, j, s), a), fma(t, load_row(x, j, s + 4), b)
            if square:
                p, q = fma(a, a, p), fma(b, b, q)
            else:
                p, q = fma(a, load_row(x, k, s), p), fma(b, load_row(x, k, s + 4), q)
        store(made, s, p)
        store(made, s + 4, q)
    for s in range(full, n):
        total = 0.0
        for k in range(dim):
            a0 = 0.0
            for j in range(k, dim):
                a0 += lower[j, k] * x[j, s]
            total += a0 * a0 if square else a0 * x[k, s]
        made[s] = total
    if not square:
        made *= 2.0


def _grouped(x: Array, score: Array, count: Array, which: Index, made: Array) -> None:
    """Adds to row `which` of a table, for every row of (D, n), how often it counts and its score times its columns."""
    dim, n = x.shape
    for s in range(n):
        row = made[which[s]]
        row[0] += count[s]
        for j in range(dim):
            row[j + 1] += score[s] * x[j, s]


def _array(dimensions: int, kind: object = None) -> Any:
    """Numbers that may be someone else's to change."""
    return TYPES.Array(kind or TYPES.float64, dimensions, "C", readonly=True)


def _compiled(function: Callable[..., Any], signature: object, **names: object) -> Any:
    with _COMPILING:
        loop = bound(cast(FunctionType, function), **names)
        return on_disk(loop, cast(FunctionType, function).__name__.strip("_"), signature)


@lru_cache(maxsize=1)
def _gram_loop() -> Any:
    return _compiled(_gram, TYPES.float64[:, ::1](_array(2), _array(1), _array(1)))


@lru_cache(maxsize=2)
def _forms_loop() -> Any:
    return _compiled(_forms, TYPES.void(_array(2), _array(2), TYPES.boolean, TYPES.float64[::1]))


@lru_cache(maxsize=1)
def _grouped_loop() -> Any:
    whole = _array(1, TYPES.int64)
    return _compiled(_grouped, TYPES.void(_array(2), _array(1), _array(1), whole, TYPES.float64[:, ::1]))


@lru_cache(maxsize=32)
def _derived_loop(functions: tuple[ScalarFunction, ...], constants: int) -> Any:
    """None where they are not written so that they can be compiled."""
    few = TYPES.UniTuple(TYPES.float64, constants) if constants else TYPES.Tuple(())
    signature = TYPES.void(_array(2), _array(1), _array(1), _array(1), few, TYPES.float64[:, ::1])
    names = dict(zip(("first", "second", "third"), functions, strict=True))
    try:
        return _compiled(_derived, signature, **names)
    except numba.core.errors.NumbaError:
        return None


def derived(
    loss: ScalarLoss, orders: tuple[int, ...], x: Array, theta: Array, offset: Array | None, y: Array
) -> tuple[Array, ...] | None:
    """Derivatives of a loss, of orders up to 2 or from 1 on, of the rows (D, n); None where it cannot be compiled."""
    if len(loss.p) > MOST_CONSTANTS:
        return None
    # two loops for all passes: to compile takes a second
    least = max(0, max(orders) - 2)
    loop = _derived_loop((loss.value, loss.d1, loss.d2, loss.d3)[least : least + 3], len(loss.p))
    if loop is None or min(orders) < least:
        return None
    made = np.empty((3, x.shape[1]))
    loop(x, theta, np.empty(0) if offset is None else _held(offset), _held(y), tuple(map(float, loss.p)), made)
    return tuple(made[order - least] for order in orders)


def gram_and_sum(x: Array, weight: Array, score: Array) -> tuple[Array, Array]:
    """Σ w x xᵀ and Σ s x over the rows (D, n)."""
    made, dim = _gram_loop()(x, _held(weight), _held(score)), len(x)
    half = np.tril(made[:dim, :dim].T)
    return half + np.tril(half, -1).T, made[:dim, dim].copy()


def forms(x: Array, lower: Array, square: bool) -> Array:
    """‖Lᵀx‖², or 2 xᵀLx, of the rows (D, n) for a lower triangular L."""
    made = np.empty(x.shape[1])
    _forms_loop()(x, np.ascontiguousarray(lower), square, made)
    return made


def add_by_group(x: Array, score: Array, count: Array, which: Index, groups: int) -> Array:
    """Σ c and Σ s x over the rows (D, n) of every group: (groups, 1 + D)."""
    made = np.zeros((groups, 1 + len(x)))
    _grouped_loop()(x, _held(score), _held(count), which, made)
    return made


def _held(numbers: Array) -> Array:
    return np.ascontiguousarray(numbers, dtype=np.float64)
