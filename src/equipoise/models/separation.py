"""Separated data: a direction along which the loss of no row ever rises, decided by signs (theory §1).

Far out, a convex loss of one row falls or levels off towards η → ±∞ exactly where its slope there is zero. So a direction
d has no minimiser along it if and only if no row moves, with the sign of x_nᵀd, towards an end where its loss rises.
Nothing of this depends on the units of X, y or θ; the only tolerance is the rounding of x_nᵀd itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from equipoise.arrays import Array, Mask
from equipoise.data.arrays import Rows
from equipoise.errors import FitFailed
from equipoise.linalg import symmetric

if TYPE_CHECKING:
    from equipoise.families.family import ScalarLoss
    from equipoise.models.linear import LinearProblem

__all__ = ["recession", "separated"]

_EPS = float(np.finfo(np.float64).eps)
_FEW = 1000  # rows that nearly always tell whether a loss rises
_NEARLY = 1e-6  # of a row's size: rows that move less may stand still along a direction close by
_LEFT = 1e-4  # of a direction: a smaller part of it that stands still on some rows is rounding


class _Signs(NamedTuple):
    """Rows whose loss rises, rows that move, and over the former Σ x xᵀ/|x|² and Σ x (xᵀd)/|x|²."""

    wrong: float
    moved: float
    gram: Array
    push: Array


@dataclass(frozen=True)
class _SignPass:
    """Which way every row moves along a direction, both in columns of unit norm."""

    loss: ScalarLoss
    direction: Array
    norms: Array

    def moves(self, rows: Rows, slack: float) -> tuple[Array, Mask, Mask]:
        """The rows' xᵀd/|x|, whether it is more than `slack` of |d|, and whether the loss then rises far out."""
        move = rows.x @ (self.direction / self.norms)
        size = np.sqrt((rows.x**2) @ self.norms**-2.0)
        moved = np.abs(move) > slack * np.linalg.norm(self.direction) * size
        low, high = self.loss.far_slopes(rows.y)
        return move / np.where(size > 0.0, size, 1.0), moved, moved & np.where(move > 0.0, high > 0.0, low < 0.0)

    def __call__(self, rows: Rows) -> _Signs:
        """Sums over one block."""
        move, moved, wrong = self.moves(rows, 4.0 * (rows.dim + 4) * _EPS)
        x = rows.x[wrong] / self.norms
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
        return _Signs(float(wrong.sum()), float(moved.sum()), x.T @ x, move[wrong] @ x)


class _Columns(NamedTuple):
    rows: float
    total: Array
    square: Array

    @staticmethod
    def of(rows: Rows) -> _Columns:
        """Sums over one block."""
        return _Columns(float(rows.n), rows.counts @ rows.x, rows.counts @ rows.x**2)


def recession(problem: LinearProblem, candidate: Array) -> Array | None:
    """A direction close to `candidate` along which neither the loss of any row nor the prior ever rises; None without.

    Newton's steps on separated data come ever closer to one, with an error on the rows that should stand still. Those
    that move the wrong way are held: what is left of the candidate when they stand still is tried, and so on.
    """
    norms = np.sqrt(problem.source.reduce(_Columns.of).square)
    if not np.isfinite(candidate).all() or not np.all(norms > 0.0):
        return None
    loss, given = problem.model.loss, candidate * norms
    held = problem.precision / np.outer(norms, norms)
    held = held / (np.diag(held).max() or 1.0)
    direction = _standing_still(held, given, np.zeros(problem.dim))
    if any(_SignPass(loss, direction, norms).moves(rows, _NEARLY)[2].any() for rows in _parts(problem)):
        return None
    for _ in range(problem.dim + 3):
        if np.linalg.norm(direction) <= _LEFT * np.linalg.norm(given):
            return None
        found = problem.source.reduce(_SignPass(loss, direction, norms))
        if not found.wrong:
            return direction / norms if found.moved else None
        held = held + symmetric(found.gram)
        direction = _standing_still(held, direction, found.push)
    return None


def _parts(problem: LinearProblem) -> Iterator[Rows]:
    """The rows in blocks, a few first."""
    for block, rows in enumerate(problem.source.blocks()):
        if block == 0:
            yield rows.take(slice(0, _FEW))
        yield rows.take(slice(_FEW, None)) if block == 0 else rows


def _standing_still(held: Array, direction: Array, push: Array) -> Array:
    """The part of a direction along which the quadratic form `held` vanishes.

    `push` is the form's gradient along the direction, summed from the rows: unlike the form, whose small eigenvalues are
    rounded, it tells the last digits of what has to go.
    """
    values, axes = np.linalg.eigh(held)
    taken = values > 10.0 * len(values) * _EPS * values[-1]
    axes, values = axes[:, taken], values[taken]
    direction = direction - axes @ ((axes.T @ push) / values)
    along = axes.T @ direction
    large = np.abs(along) > 1e-9 * np.linalg.norm(direction)
    return direction - axes[:, large] @ along[large]


def separated(problem: LinearProblem, direction: Array) -> FitFailed:
    """What to say of data whose loss never rises along `direction`."""
    constant = _constant_response(problem)
    rows, total, square = problem.source.reduce(_Columns.of)
    variance, mean_square = square / rows - (total / rows) ** 2, square / rows
    # of an intercept the variance is rounding: it only balances the others
    spread = np.sqrt(np.where(variance > 1e-12 * mean_square, variance, 0.0))
    if constant is not None:
        return _constant_failure(problem, constant, direction * np.where(spread > 0.0, 0.0, np.sqrt(mean_square)))
    weight = np.abs(direction) * spread
    weight = weight if weight.any() else np.abs(direction)
    columns = tuple(name for name, w in zip(problem.names, weight, strict=True) if w > 0.1 * weight.max())
    return FitFailed(
        f"the loss has no finite minimiser: the data are separated by {', '.join(columns)}, whose coefficients "
        "grow without bound. To fix: drop or merge those columns, or add a prior (prior_precision=...).",
        columns,
    )


def _constant_response(problem: LinearProblem) -> float | None:
    """The response, if it is the same in every row."""
    first = float(next(iter(problem.source.blocks())).y[0])
    return first if all(bool(np.all(rows.y == first)) for rows in problem.source.blocks()) else None


def _constant_failure(problem: LinearProblem, y: float, level: Array) -> FitFailed:
    """What to say of a response that is the same in every row; `level` is the direction in the constant columns."""
    chosen = int(np.abs(level).argmax())
    response, end = problem.source.response, "∞" if y > 0.0 else "−∞"
    columns = (problem.names[chosen],) if level.any() else ()
    where = f"the intercept {columns[0]} goes to {end}" if columns else f"the predictor goes to {end} in every row"
    return FitFailed(
        f"the loss has no finite minimiser: the response {response} is {y:g} everywhere, so that {where}. To fix: check "
        "how the response is coded, or add a prior (prior_precision=...).",
        columns,
    )
