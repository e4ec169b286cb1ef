"""From a slope to Newton's step: Hessians in their own units, factored or met through products, and what is singular."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from equipoise.arrays import Array
from equipoise.data.wording import named
from equipoise.errors import FitFailed
from equipoise.fitting.certificate import is_level, require_bounded
from equipoise.fitting.krylov import ends
from equipoise.linalg import FLAT
from equipoise.models.problem import Minimised, Problem

__all__ = ["WIDE", "Map", "infinite", "newton_map", "require_other", "sharpened", "whitening"]

WIDE = 400  # columns from which on a matrix costs more than products with many vectors
_ROUGHLY, _SOLVED, _PRODUCTS = 0.1, 1e-5, 100  # error of a step by products, of its size, and how many it may take
_FINER = 0.3  # share of what the last step left, which is the error of the next
_TRIED = 60  # steps of Lanczos' method for an end of a spectrum
_SUSPICIOUS = 1e-12  # an estimate of the smallest eigenvalue, in units of the largest, below which all are computed


class Map(NamedTuple):
    """∇L ↦ −H⁻¹∇L, where H bends least, its condition, whether it is that of all rows, and whether it was made here.

    `solve` is v ↦ H⁻¹v by the last matrix that was made, which is H itself but for `sharpened` maps.
    """

    step: Callable[[Array], Array]
    soft: Array
    condition: float
    own: bool
    fresh: bool
    solve: Callable[[Array], Array]


class _Unit(NamedTuple):
    """A matrix scaled to a unit diagonal, by how much, and its eigenvalues and axes."""

    matrix: Array
    scale: Array
    values: Array
    axes: Array

    @property
    def singular(self) -> bool:
        """Whether some direction counts as flat."""
        return bool(self.values[0] <= FLAT * self.values[-1])


def _unit(H: Array) -> _Unit:
    """A positive semi-definite matrix in its own units."""
    unit, scale = _unit_diagonal(H)
    values, axes = np.linalg.eigh(unit)
    return _Unit(unit, scale, values, axes)


def _unit_diagonal(H: Array) -> tuple[Array, Array]:
    """A matrix scaled to a unit diagonal, and by how much."""
    diagonal = np.diag(H)
    scale = np.sqrt(np.where(diagonal > 0.0, diagonal, 1.0))
    unit = H / scale / scale[:, None]
    if not np.isfinite(unit).all():
        raise infinite()
    return unit, scale


def whitening(problem: Minimised, metric: Array) -> Array:
    """T with TᵀMT = I; raises when columns are collinear."""
    unit = _unit(metric)
    if unit.singular:
        raise _collinear(problem, unit)
    return unit.axes / np.sqrt(unit.values) / unit.scale[:, None]


def require_other(problem: Problem, part: Problem, failure: FitFailed) -> None:
    """Raise where what a part of the rows in files failed for is so of all of them, which a few passes tell.

    That is a direction along which no loss rises, or columns that are collinear.
    """
    if problem.source.in_memory:
        return
    if failure.directions is not None:
        _require_rising(problem, failure, failure.directions[0])
    if not failure.columns:
        return
    constant = part.settled(part.search.starts()[0]).constant
    metric = problem.at_constant(constant).search.metric()
    if metric is not None:
        whitening(problem, metric)


def _require_rising(problem: Problem, failure: FitFailed, along: Array) -> None:
    """Raise where the loss of all rows does not rise along the direction of a failure either."""
    if problem.search.convex:
        require_bounded(problem.settled(np.zeros_like(along)), along, np.inf, along)
    elif failure.theta is not None:
        here = problem.settled(failure.theta)
        if is_level(here, failure.theta, here.derivatives(failure.theta, 0).value, along):
            raise failure


def newton_map(problem: Minimised, H: Array, own: bool = True) -> Map:
    """The map of a Hessian; raises when it is singular."""
    quick = _quick_map(H, own) if len(H) > WIDE else None
    if quick is not None:
        return quick
    unit = _unit(H)
    matrix, scale, values, axes = unit
    if unit.singular:
        metric = problem.search.metric()
        level = unit if metric is None else _unit(metric)
        raise _collinear(problem, level) if level.singular else _level(axes[:, :1].T / scale)
    return _map_of(cho_factor(matrix), scale, axes[:, 0], float(values[-1] / values[0]), own)


def _map_of(factor: tuple[Array, bool], scale: Array, soft: Array, condition: float, own: bool) -> Map:
    """The map of a matrix in units of its diagonal, by its Cholesky factor."""

    def solve(v: Array) -> Array:
        return np.asarray(cho_solve(factor, v / scale) / scale)

    return Map(lambda g: -solve(g), soft / scale, condition, own, True, solve)


def _quick_map(H: Array, own: bool) -> Map | None:
    """The map of a large Hessian with an estimate of its condition; None where columns may be collinear.

    All eigenvalues of 5000 columns would take minutes. Lanczos' method on the inverse finds the smallest one at once.
    """
    matrix, scale = _unit_diagonal(H)
    try:
        factor = cho_factor(matrix)
    except LinAlgError:
        return None
    rng = np.random.default_rng(0)
    inverse = ends(lambda v: -cho_solve(factor, v), len(H), _TRIED, rng)
    largest = -ends(lambda v: -(matrix @ v), len(H), _TRIED, rng).value
    if not -1.0 / inverse.value > _SUSPICIOUS * largest:
        return None
    return _map_of(factor, scale, inverse.vector, -largest * inverse.value, own)


def infinite() -> FitFailed:
    """What to say of a start whose loss overflows."""
    return FitFailed(
        "the loss is not finite near its start: predictors overflow. To fix: look for rows far from all others, or rescale "
        "the columns of X to unit size."
    )


def _collinear(problem: Minimised, unit: _Unit) -> FitFailed:
    """What to say of columns that are not determined."""
    diagonal = np.diag(unit.matrix)
    blame = np.where(diagonal > 0.0, 0.0, 1.0) if np.any(diagonal <= 0.0) else np.abs(unit.axes[:, 0])
    columns = tuple(name for name, v in zip(problem.names, blame, strict=True) if v > 0.1 * blame.max())
    return FitFailed(
        f"the Hessian is singular: columns {named(columns)} are collinear (or constant zero). To fix: drop one of "
        "them, subtract its mean from a column that hardly varies, or add a prior (prior_precision=...) and use "
        "target='posterior'.",
        columns,
    )


def _level(directions: Array) -> FitFailed:
    """What to say of a loss that hardly bends where the columns do not explain it."""
    return FitFailed(
        "the loss hardly bends along some direction, though no columns are collinear: too few rows lie where it does. To "
        "fix: pass a larger scale=, for a robust loss, or add a prior (prior_precision=...).",
        directions=directions,
    )


def sharpened(problem: Problem, theta: Array, known: Map, before: float) -> Map:
    """The map of the Hessian at θ, by conjugate gradients that an older one leads: of many columns, a matrix costs more.

    `before` is how far the minimiser was, in posterior standard deviations, from where the last step was taken: the more that
    one gained, the more exact is the next.
    """

    def step(gradient: Array) -> Array:
        x, left = np.zeros_like(gradient), gradient.copy()
        near = known.solve(left)
        direction, size = near, float(left @ near)
        gained = float(np.sqrt(max(0.0, size) * problem.n)) / before
        end = min(_ROUGHLY, max(_SOLVED, _FINER * gained)) ** 2 * size
        for _ in range(_PRODUCTS):
            image = problem.product(theta, direction)
            curve = float(direction @ image)
            if not curve > 0.0:
                break
            x += size / curve * direction
            left -= size / curve * image
            near = known.solve(left)
            last, size = size, float(left @ near)
            if not size > end:
                break
            direction = near + size / last * direction
        return -x

    return known._replace(step=step, own=True, fresh=False)
