"""Where the minimum of a generalised linear model may be, and how to tell that there is none.

Nothing here has a unit: another unit for the response or a column, or another origin for a column next to an intercept,
leads to the same minimum in the new units.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from equipoise.arrays import Array
from equipoise.data.arrays import Rows
from equipoise.errors import FitFailed
from equipoise.linalg import Total, added_form, symmetric
from equipoise.models.problem import Relaxation, Scaled, Yardstick
from equipoise.models.profile import require_inside
from equipoise.models.residuals import ResidualPass
from equipoise.models.separation import recession, separated
from equipoise.models.sums import counted, gram, predictor, weighted
from equipoise.models.units import in_unit

if TYPE_CHECKING:
    from equipoise.families.family import Family
    from equipoise.models.glm import GLM
    from equipoise.models.linear import LinearProblem

__all__ = ["LinearSearch"]

_SHARES = (0.9, 0.75, 0.5)  # of the rows, kept by those that look for a robust minimum
_ROUNDS = 10  # of trimming and fitting
_WIDE, _NARROWER = 16.0, 4.0  # times the residuals' size is the first of the scales that lead to one, and to the next
_MANY = 400  # columns from which on products with vectors give the start
_ABOUT, _PRODUCTS = 1e-3, 50  # error of the start, of its right-hand side, and how many it may take
_SAMPLE = 20_000  # rows that robust starts are looked for on
_EPS = float(np.finfo(np.float64).eps)
_SMALL = float(np.finfo(np.float64).tiny) / _EPS  # sums of squares below have lost digits


class _Response(NamedTuple):
    weight: float
    total: float
    square: float

    @staticmethod
    def of(rows: Rows) -> _Response:
        """Sums over one block."""
        w = weighted(rows, rows.counts)
        with np.errstate(over="ignore"):
            return _Response(float(w.sum()), float(w @ rows.y), float(w @ rows.y**2))


class _StartSums(NamedTuple):
    gram: Array
    near: Array
    level: Array


@dataclass(frozen=True)
class _StartPass:
    """Least squares for predictors matched to the response, and for its mean's in every row."""

    family: Family
    center: float
    thin: bool = False

    def matched(self, y: Array) -> Array:
        """A predictor close to each response, kept off the ends of the link."""
        if self.family.name == "gaussian":
            return y
        with np.errstate(all="ignore"):
            eta = self.family.link(0.25 + 0.5 * y if self.family.law == "bernoulli" else 0.5 * (y + self.center))
        return np.where(np.isfinite(eta), eta, 0.0)

    def __call__(self, rows: Rows) -> _StartSums:
        """Sums over one block; of many columns, of the matrix its diagonal alone."""
        w = weighted(rows, rows.counts)
        shift = 0.0 if rows.offset is None else rows.offset
        near, level = self.matched(rows.y) - shift, self.matched(np.full(rows.height, self.center)) - shift
        with np.errstate(over="ignore", invalid="ignore"):
            square = w @ rows.x**2 if self.thin else gram(rows.x, w)
            return _StartSums(square, (w * near) @ rows.x, (w * level) @ rows.x)


@dataclass(frozen=True)
class _GramPass:
    """Σ w (xᵀv) x."""

    vector: Array

    def __call__(self, rows: Rows) -> Total:
        """Sums over one block."""
        return Total((weighted(rows, rows.counts) * (rows.x @ self.vector)) @ rows.x)


class _SpreadSums(NamedTuple):
    second: float
    square: float
    rounding: float


@dataclass(frozen=True)
class _SpreadPass:
    """Σ h, Σ g² and the squared rounding errors of g."""

    model: GLM
    theta: Array

    def __call__(self, rows: Rows) -> _SpreadSums:
        """Sums over one block."""
        loss, eta = self.model.loss, predictor(rows, self.theta)
        # a predictor is as uncertain as the terms it is a sum of, and its exponential by one unit in the last place
        size = np.abs(rows.x) @ np.abs(self.theta) + (0.0 if self.model.family.parameter == "scale" else 1.0)
        size = size if rows.offset is None else size + np.abs(rows.offset)
        with np.errstate(all="ignore"):
            g, h = (np.abs(weighted(rows, d(eta, rows.y, loss.constants))) for d in (loss.d1, loss.d2))
            rounding = np.nan_to_num(_EPS * (g + h * size))
        return _SpreadSums(*(float(counted(rows, terms).sum()) for terms in (h, g**2, rounding**2)))


@dataclass(frozen=True)
class LinearSearch:
    """The search for a GLM's minimum."""

    problem: LinearProblem

    @property
    def convex(self) -> bool:
        """The log loss of every family is convex in the linear predictor; a robust loss need not be."""
        divergence = self.problem.model.divergence
        return divergence is None or divergence.convex

    @property
    def dear(self) -> bool:
        """A Hessian of few columns is one pass."""
        return False

    @property
    def exhaustive(self) -> bool:
        """All starts are tried: they are few and cheap."""
        return True

    @property
    def proportional(self) -> float | None:
        """Squared loss without a prior is divided by the square of its scale, a gamma's multiplied by its shape."""
        model = self.problem.model
        if model.divergence is not None or self.problem.precision.any():
            return None
        return {"gaussian": -2.0, "gamma": 1.0}.get(model.family.name)

    def starts(self) -> list[Array]:
        """Least squares for predictors matched to the response (the minimiser, of squared loss), and for their level."""
        problem = self.problem
        self._require_rows()
        mean = self._mean()
        thin = problem.dim > _MANY
        sums = problem.source.reduce(_StartPass(problem.model.family, mean, thin))
        scale = _column_scale(problem, sums.gram if thin else np.diag(sums.gram))
        # with no more rows than columns, the first would leave no residuals
        rights = [sums.near, sums.level] if problem.source.n > problem.dim else [sums.level]
        if thin:
            return [self._roughly(scale, right / scale) / scale for right in rights]
        unit = symmetric(sums.gram) / scale / scale[:, None]
        return [np.linalg.lstsq(unit, right / scale, rcond=None)[0] / scale for right in rights]

    def _roughly(self, scale: Array, right: Array) -> Array:
        """Least squares in units of the columns, by products: a start need not be exact, and a matrix costs more."""
        from scipy.sparse.linalg import LinearOperator, cg  # slow to import, and few columns do without

        source = self.problem.source
        form = LinearOperator(
            (scale.size, scale.size), lambda v: source.reduce(_GramPass(v / scale)).total / scale, dtype=np.float64
        )
        return np.asarray(cg(form, right, rtol=_ABOUT, maxiter=_PRODUCTS)[0])

    def relaxations(self) -> Sequence[Relaxation]:
        """The log loss on all rows, then on shares of them that it fits best: outliers leave one by one.

        A convex robust loss with a scale far below the residuals hardly bends at its start: larger scales lead there.
        """
        problem = self.problem
        if self.convex:
            return () if problem.model.divergence is None else [partial(_narrowing, problem)]
        part = problem if problem.source.n <= _SAMPLE else problem.subsample(_SAMPLE, seed=None)
        relaxed = replace(part, model=replace(problem.model, divergence=None))
        return [partial(_trimming, relaxed, share) for share in (1.0, *_SHARES)]

    def yardstick(self, theta: Array) -> Yardstick:
        """The rows' scores and their rounding errors against their curvature at θ."""
        second, square, rounding = self.problem.source.reduce(_SpreadPass(self.problem.model, theta))
        second = max(second, np.finfo(np.float64).tiny)
        return Yardstick(float(np.sqrt(square / second)), float(np.sqrt(rounding / second)))

    def metric(self) -> Array:
        """The Hessian of the log loss where all rows have the response's mean."""
        problem, mean = self.problem, self._mean()
        start = _StartPass(problem.model.family, mean)
        loss = replace(problem.model, divergence=None).loss
        level = np.array([mean])
        bend = float(loss.d2(start.matched(level), level, loss.constants)[0])
        gram = symmetric(problem.source.reduce(start).gram)
        return added_form(bend * gram / problem.source.n, problem.precision / problem.n)

    def scaled(self) -> Scaled | None:
        """In units of the scale, for a gaussian response, or of the mean, for gamma; counts and classes have none."""
        problem = self.problem
        parameter = problem.model.family.parameter
        if parameter not in {"scale", "shape"}:
            return None
        scale = self._mean() if parameter == "shape" else problem.settled(self.starts()[0]).constant
        found = in_unit(problem, float(scale or 1.0))
        if not 0.0 < found.loss < np.inf:
            raise _beyond(problem)
        return found

    def require_constant(self, constant: float) -> None:
        """Say so of a dispersion of zero, or a shape without end."""
        family = self.problem.model.family
        require_inside(family.parameter or "", constant, self.problem.source.response)

    def explain(self, candidates: Sequence[Array], theta: Array, norm: float) -> FitFailed | None:
        """Separated data, where they are; squared loss has a minimiser, and that a bounded loss levels off proves nothing."""
        if self.problem.quadratic or not self.convex:
            return None
        found = recession(self.problem, candidates, theta, norm)
        return None if found is None else separated(self.problem, found)

    def _mean(self) -> float:
        """The mean response."""
        family = self.problem.model.family
        weight, total, square = self.problem.source.reduce(_Response.of)
        beyond = not np.isfinite(square) or (0.0 < square < _SMALL) or (square == 0.0 and total != 0.0)
        if not np.isfinite(total) or (family.parameter == "scale" and beyond):
            raise _beyond(self.problem)
        return total / weight

    def _require_rows(self) -> None:
        """Raise `FitFailed` where there are too few rows for the columns, and no prior."""
        problem = self.problem
        rows, columns = problem.source.n, problem.dim
        if problem.precision.any() or rows > columns or (rows == columns and not problem.model.open):
            return
        if rows < columns:
            raise FitFailed(
                f"there are fewer rows than columns, {rows} and {columns}: the coefficients are not determined. To fix: "
                "use more rows or fewer columns, or add a prior (prior_precision=...) and use target='posterior'."
            )
        raise FitFailed(
            f"{columns} columns fit {rows} rows exactly: no residual is left to estimate the scale from. To fix: use more "
            "rows or fewer columns, or pass scale=."
        )


def _beyond(problem: LinearProblem) -> FitFailed:
    """What to say of a response in an impossible unit."""
    return FitFailed(
        f"the response {problem.source.response} is too large or too small for floating point to square it. To fix: choose "
        "another unit for it."
    )


def _column_scale(problem: LinearProblem, square: Array) -> Array:
    """√Σ w x² of every column; raises `FitFailed` for columns whose squares are beyond floating point."""
    small = square < _SMALL
    if small.any():  # zero columns are named later, with others that are not determined
        small &= np.any([rows.x.any(axis=0) for rows in problem.source.blocks()], axis=0)
    wrong = small | ~np.isfinite(square)
    if wrong.any():
        columns = tuple(name for name, bad in zip(problem.names, wrong, strict=True) if bad)
        many = "" if len(columns) <= 5 else f" and {len(columns) - 5} more"
        raise FitFailed(
            f"the squares of columns {', '.join(columns[:5])}{many} are too large or too small for floating point. To fix: "
            "rescale the columns of X to about unit size.",
            columns,
        )
    return np.sqrt(np.where(square > 0.0, square, 1.0))


def _narrowing(problem: LinearProblem, start: Array) -> Generator[LinearProblem, Array, None]:
    """The problem with scales from above that of the residuals down to its own."""
    square = problem.source.reduce(ResidualPass(start)).square
    scale = _WIDE * float(np.sqrt(square / problem.source.n))
    while scale > (problem.constant or np.inf):
        yield problem.at_constant(scale)
        scale /= _NARROWER


def _trimming(problem: LinearProblem, share: float, start: Array) -> Generator[LinearProblem, Array, None]:
    """The problem on the share of rows it fits best, again and again, until the rest agree."""
    if share == 1.0:
        yield problem
        return
    theta = start
    for _ in range(_ROUNDS):
        theta = yield _trimmed(problem, share, theta)


def _trimmed(problem: LinearProblem, share: float, theta: Array) -> LinearProblem:
    """The problem on the share of rows whose log loss at θ is smallest: the others may be outliers."""
    here = problem.settled(theta)
    loss, family = here.model.loss, problem.model.family
    parts = list(problem.source.blocks())
    floor = 1e-3 * max(sum(float(counted(rows, np.abs(rows.y)).sum()) for rows in parts) / problem.source.n, 1e-3)
    surprise = np.concatenate(
        [
            loss.value(predictor(rows, theta), rows.y, loss.constants)
            - loss.value(_saturated(family, rows.y, floor), rows.y, loss.constants)
            for rows in parts
        ]
    )
    order, counts = np.argsort(surprise), np.concatenate([rows.counts for rows in parts])
    room = max(problem.dim + 1, int(share * problem.source.n))
    times = np.empty(surprise.size)
    times[order] = np.clip(room - (np.cumsum(counts[order]) - counts[order]), 0.0, counts[order])
    starts = np.cumsum([0, *(rows.height for rows in parts)])
    kept = [rows.counted(times[a:b]) for rows, a, b in zip(parts, starts[:-1], starts[1:], strict=True)]
    return replace(problem, source=Rows.joined(kept))


def _saturated(family: Family, y: Array, floor: float) -> Array:
    """The predictor that fits each row by itself, kept off the ends of the link."""
    if family.name == "gaussian":
        return y
    return family.link(np.clip(y, 1e-3, 1.0 - 1e-3) if family.law == "bernoulli" else np.maximum(y, floor))
