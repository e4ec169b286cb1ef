"""Separated data: a direction along which the loss of no row ever rises, decided by signs (theory §1).

Far out, a convex loss of one row falls or levels off towards η → ±∞ exactly where its slope there is zero. So a direction
d has no minimiser along it if and only if no row moves, with the sign of x_nᵀd, towards an end where its loss rises.
Nothing of this depends on the units of X, y or θ; the only tolerance is the rounding of x_nᵀd itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from equipoise.arrays import Array, Mask
from equipoise.data.arrays import Rows
from equipoise.data.wording import named
from equipoise.errors import FitFailed
from equipoise.models.sums import predictor, weighted

if TYPE_CHECKING:
    from equipoise.families.family import ScalarLoss
    from equipoise.models.linear import LinearProblem

__all__ = ["recession", "separated"]

_EPS = float(np.finfo(np.float64).eps)
_FEW = 1000  # rows that nearly always tell whether a loss rises
_MORE = 100_000  # the same of files, of which a sample is at hand and all rows are a pass
_LEFT = 1e-4  # of a direction: a smaller part of it that stands still on some rows is rounding


@dataclass(frozen=True)
class _Signs:
    """Which way rows move along a direction; that and the rows are in columns of unit norm."""

    loss: ScalarLoss
    direction: Array
    norms: Array

    def moved(self, rows: Rows, slack: float) -> tuple[Mask, Mask]:
        """Whether |xᵀd| is more than `slack` of |x| |d|, and whether the loss then rises far out."""
        move = rows.x @ (self.direction / self.norms)
        size = np.sqrt((rows.x**2) @ self.norms**-2.0)
        moved = np.abs(move) > slack * np.linalg.norm(self.direction) * size
        low, high = self.loss.far_slopes(rows.y)
        return moved, moved & np.where(move > 0.0, high > 0.0, low < 0.0)


class _Columns(NamedTuple):
    rows: float
    total: Array
    square: Array

    @staticmethod
    def of(rows: Rows) -> _Columns:
        """Sums over one block."""
        return _Columns(float(rows.n), rows.counts @ rows.x, rows.counts @ rows.x**2)


def recession(problem: LinearProblem, candidates: Sequence[Array], theta: Array, norm: float) -> Array | None:
    """A direction close to θ or a candidate along which neither the loss of any row nor the prior ever rises."""
    if problem.precision.ndim == 1 and problem.precision.all():
        return None  # the prior holds every direction
    if problem.dim > _FEW // 4 and _held_back(problem, theta, norm):
        return None  # a few rows would not tell, and all of them take long
    candidates = [candidates[0], theta, *candidates[1:]]
    # random ones: the first rows of sorted data are like no others
    source = problem.source
    few = source.sample(min(_FEW if source.in_memory else _MORE, source.n), seed=None)
    # of columns that only others have, they tell nothing
    likely = [d for d in candidates if _purified(problem, d, few.blocks, every=False) is not None]
    found = (_purified(problem, d, source.blocks) for d in likely)
    return next((direction for direction in found if direction is not None), None)


def _held_back(problem: LinearProblem, theta: Array, norm: float) -> bool:
    """Whether the rows' slopes at θ, a distance from the minimiser, rule out a direction d along which no loss rises.

    Along one, every row that moves has a slope against it: Σ|g_n||x_nᵀd| = N|∇Lᵀd|, which is at most the distance times
    √(Σ h_n (x_nᵀd)²). With c the largest h_n/|g_n|, the row that moves furthest then has |g_n| at most c times the distance
    squared.
    """
    least, ratio, loss = np.inf, 0.0, problem.model.loss
    for rows in problem.source.blocks():
        eta = predictor(rows, theta)
        low, high = loss.far_slopes(rows.y)
        moving = ~((low < 0.0) & (high > 0.0))
        g, h = (np.abs(weighted(rows, d(eta, rows.y, loss.constants)))[moving] for d in (loss.d1, loss.d2))
        if not g.size:
            continue
        least = min(least, float(g.min()))
        if not least > 0.0:
            return False
        ratio = max(ratio, float((h / g).max()))
    return bool(least > 10.0 * ratio * norm**2) if np.isfinite(norm) else least == np.inf


def _purified(
    problem: LinearProblem, candidate: Array, parts: Callable[[], Iterator[Rows]], every: bool = True
) -> Array | None:
    """What is left of a candidate when rows that move the wrong way are made to stand still, if no others do then.

    None where no row moves at all, if these are all rows.

    Newton's steps on separated data come ever closer to such a direction, with an error on the rows that should stand
    still and on those that are fitted so well that they have no more say.
    """
    norms = np.sqrt(sum((rows.x**2).sum(axis=0) for rows in parts()))
    norms = np.where(norms > 0.0, norms, 1.0)
    given = candidate * norms
    held = _held(problem.precision, norms)
    for _ in range(problem.dim + 3):
        direction = _standing_still(held, given)
        if not np.linalg.norm(direction) > _LEFT * np.linalg.norm(given):
            return None
        signs, moves, stray = _Signs(problem.model.loss, direction, norms), False, False
        for rows in parts():
            moved, wrong = signs.moved(rows, 4.0 * (rows.dim + 4) * _EPS)
            moves, stray = moves or bool(moved.any()), stray or bool(wrong.any())
            held = _joined(held, rows.x[wrong] / norms)
        if not stray:
            return direction / norms if moves or not every else None
    return None


def _joined(held: Array, x: Array) -> Array:
    """A triangle whose rows span the same space as those of both, the new ones at unit length."""
    if not len(x):
        return held
    return np.linalg.qr(np.vstack([held, x / np.linalg.norm(x, axis=1, keepdims=True)])).R


def _standing_still(held: Array, direction: Array) -> Array:
    """The part of a direction that is orthogonal to all rows of a matrix."""
    if not len(held):
        return direction
    _, sizes, axes = np.linalg.svd(held, full_matrices=False)
    taken = axes[sizes > 10.0 * len(direction) * _EPS * sizes[0]]
    return direction - (taken @ direction) @ taken


def _held(precision: Array, norms: Array) -> Array:
    """Rows that span what a prior holds, in columns of these norms."""
    if precision.ndim == 2:
        return _root(precision / np.outer(norms, norms))
    form = np.sqrt(np.maximum(precision, 0.0)) / norms
    form = form / (form.max() or 1.0)
    return np.diag(form)[form > np.sqrt(100.0 * len(form) * _EPS)]


def _root(form: Array) -> Array:
    """R with RᵀR = the positive semi-definite form, up to a factor."""
    values, axes = np.linalg.eigh(form)
    values = np.where(values > 100.0 * len(values) * _EPS * values[-1], values, 0.0)
    return (axes * np.sqrt(values / (values[-1] or 1.0))).T


def separated(problem: LinearProblem, direction: Array) -> FitFailed:
    """What to say of data whose loss never rises along `direction`."""
    rows, total, square = problem.source.reduce(_Columns.of)
    variance, mean_square = square / rows - (total / rows) ** 2, square / rows
    # of an intercept the variance is rounding: it only balances the others
    spread = np.sqrt(np.where(variance > 1e-12 * mean_square, variance, 0.0))
    y = float(next(iter(problem.source.blocks())).y[0])
    if all(bool(np.all(part.y == y)) for part in problem.source.blocks()):
        return _constant_response(problem, y, np.where(spread > 0.0, 0.0, total))
    weight = np.abs(direction) * spread
    weight = weight if weight.any() else np.abs(direction)
    columns = tuple(name for name, w in zip(problem.names, weight, strict=True) if w > 0.1 * weight.max())
    return FitFailed(
        f"the loss has no finite minimiser: the data are separated by {named(columns)}, whose coefficients "
        "grow without bound. To fix: drop or merge those columns, or add a prior (prior_precision=...).",
        columns,
        directions=direction[None],
    )


def _constant_response(problem: LinearProblem, y: float, constant: Array) -> FitFailed:
    """What to say of a response that is y in every row; `constant` has the sums of the columns that do not vary."""
    chosen = int(np.abs(constant).argmax())
    end = "∞" if (y > 0.0) == (constant[chosen] >= 0.0) else "−∞"
    columns = (problem.names[chosen],) if constant.any() else ()
    where = f"the intercept {columns[0]} goes to {end}" if columns else f"the predictor goes to {end} in every row"
    return FitFailed(
        f"the loss has no finite minimiser: the response {problem.source.response} is {y:g} everywhere, so that {where}. To "
        "fix: check how the response is coded, or add a prior (prior_precision=...).",
        columns,
    )
