"""Derivatives of the rows of a block, and sums of them: by NumPy, or compiled where the columns lie one after the other.

Rows lie so where they are read from files and are many (`equipoise.data.encoding`): there a pass is as fast as its sums.
"""

from __future__ import annotations

import numpy as np

from equipoise.arrays import Array, Index
from equipoise.data.arrays import Rows
from equipoise.families.family import ScalarLoss
from equipoise.linalg import by_columns, quadratic_forms, weighted_gram

__all__ = ["added_by_group", "counted", "derivatives", "forms", "gram", "gram_and_sum", "predictor", "weighted"]

# Columns up to which sums are compiled: BLAS is as fast from there on.
_WIDEST = 40


def _apart(x: Array) -> bool:
    """Whether the compiled sums are the faster ones."""
    return by_columns(x) and x.shape[1] <= _WIDEST


def predictor(rows: Rows, theta: Array) -> Array:
    """η = X θ + offset."""
    eta = rows.x @ theta
    return eta if rows.offset is None else eta + rows.offset


def weighted(rows: Rows, terms: Array) -> Array:
    """Terms of each row times its weight: what an observation's loss is multiplied by, its derivatives with it."""
    return terms if rows.weights is None else terms * rows.weights


def counted(rows: Rows, terms: Array) -> Array:
    """Terms of each row times its frequency: of a sum over observations, the last factor."""
    return terms if rows.frequency is None else terms * rows.frequency


def derivatives(loss: ScalarLoss, rows: Rows, theta: Array, *orders: int) -> list[Array]:
    """Derivatives of every row's loss at θ, of orders up to 2 or from 1 on, times its weight."""
    found: tuple[Array, ...] | None = None
    if _apart(rows.x):
        from equipoise.engines.numba.sums import derived

        found = derived(loss, orders, rows.x.T, theta, rows.offset, rows.y)
    if found is None:
        eta, every = predictor(rows, theta), (loss.value, loss.d1, loss.d2, loss.d3)
        found = tuple(every[order](eta, rows.y, loss.constants) for order in orders)
    return [weighted(rows, terms) for terms in found]


def gram_and_sum(x: Array, weight: Array, score: Array) -> tuple[Array, Array]:
    """Σ w x xᵀ and Σ s x."""
    if not _apart(x):
        return weighted_gram(x, weight), score @ x
    from equipoise.engines.numba.sums import gram_and_sum as compiled

    return compiled(x.T, weight, score)


def gram(x: Array, weight: Array) -> Array:
    """Σ w x xᵀ."""
    return gram_and_sum(x, weight, weight)[0] if _apart(x) else weighted_gram(x, weight)


def forms(x: Array, S: Array, root: Array | None) -> Array:
    """x_nᵀ S x_n for every row of a symmetric S; with a lower triangular root S = L Lᵀ, which is read in its place."""
    if not _apart(x):
        return quadratic_forms(x, S, root)
    from equipoise.engines.numba.sums import forms as compiled

    lower = np.tril(S, -1) + np.diag(0.5 * np.diag(S)) if root is None else root
    return compiled(x.T, lower, root is not None)


def added_by_group(x: Array, score: Array, count: Array, which: Index, groups: int) -> Array:
    """Σ c and Σ s x of every group: (groups, 1 + D)."""
    if _apart(x):
        from equipoise.engines.numba.sums import add_by_group

        return add_by_group(x.T, score, count, which, groups)
    columns = (count, *(score * column for column in x.T))
    return np.stack([np.bincount(which, column, groups) for column in columns], axis=1).astype(np.float64)
