"""Where the minimum of a generalised linear model may be, and how to tell that there is none."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from equipoise.arrays import Array
from equipoise.data.arrays import Rows
from equipoise.linalg import symmetric, weighted_gram
from equipoise.models.passes import counted, predictor, weighted
from equipoise.models.problem import Relaxation

if TYPE_CHECKING:
    from equipoise.families.family import Family
    from equipoise.models.linear import LinearProblem

__all__ = ["LinearSearch"]

_SHARES = (0.9, 0.75, 0.5)  # of the rows, kept by those that look for a robust minimum
_ROUNDS = 10  # of trimming and fitting
_SAMPLE = 20_000  # rows that robust starts are looked for on
_FEW = 1000  # rows that nearly always tell whether a loss rises


class _StartSums(NamedTuple):
    gram: Array
    right: Array


class _Mean(NamedTuple):
    weight: float
    total: float


@dataclass(frozen=True)
class _StartPass:
    """One weighted least-squares step from predictors matched to the response."""

    family: Family
    center: float

    def __call__(self, rows: Rows) -> _StartSums:
        middle = 0.25 + 0.5 * rows.y if self.family.name == "bernoulli" else 0.5 * (rows.y + self.center)
        with np.errstate(all="ignore"):
            eta = self.family.link(middle)
        eta = np.where(np.isfinite(eta), eta, 0.0) - (0.0 if rows.offset is None else rows.offset)
        w = weighted(rows, rows.counts)
        return _StartSums(weighted_gram(rows.x, w), (w * eta) @ rows.x)


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
    def exhaustive(self) -> bool:
        """All starts are tried: they are few and cheap."""
        return True

    def starts(self) -> list[Array]:
        """One weighted least-squares step from predictors matched to the response, and zero."""
        problem = self.problem
        mean = problem.source.reduce(_mean_response)
        sums = problem.source.reduce(_StartPass(problem.model.family, mean.total / mean.weight))
        gram = symmetric(sums.gram) + problem.precision
        gram[np.diag_indices(problem.dim)] *= 1.0 + 1e-8
        right = sums.right + problem.precision @ problem.mean
        warm = np.linalg.lstsq(gram, right, rcond=None)[0].astype(np.float64)
        return [warm, np.zeros(problem.dim)]

    def relaxations(self) -> Sequence[Relaxation]:
        """The log loss on all rows, then on shares of them that it fits best: outliers leave one by one."""
        if self.convex:
            return ()
        problem = self.problem
        part = problem if problem.source.n <= _SAMPLE else problem.subsample(_SAMPLE, seed=0)
        relaxed = replace(part, model=replace(problem.model, divergence=None))
        return [partial(_trimming, relaxed, share) for share in (1.0, *_SHARES)]

    def explain(self, theta: Array, direction: Array) -> tuple[str, ...] | None:
        """Name the columns along which the loss never rises: separated data."""
        problem = self.problem
        if problem.model.divergence is not None:
            return None  # a bounded loss levels off everywhere: that proves nothing
        if np.any(np.abs(problem.precision @ direction) > 1e-12 * np.abs(direction).max()):
            return None
        reach = max(float(np.abs(rows.x @ direction).max()) for rows in problem.source.blocks())
        if reach == 0.0 or any(self._rises(rows, theta, direction / reach) for rows in self._parts()):
            return None
        spread = _Spread.over(problem)
        weight = np.abs(direction) * spread
        # an intercept has no spread of its own: it only balances the others
        weight = weight if weight.any() else np.abs(direction)
        return tuple(name for name, w in zip(problem.names, weight, strict=True) if w > 0.1 * weight.max())

    def _parts(self) -> list[Rows]:
        """The rows in blocks, a few first."""
        first, *others = list(self.problem.source.blocks())
        return [first.take(slice(0, _FEW)), first.take(slice(_FEW, None)), *others]

    def _rises(self, rows: Rows, theta: Array, direction: Array) -> bool:
        """Whether the loss of any row rises along `direction`."""
        y, unit = rows.y, rows.x @ direction
        loss, eta = self.problem.model.loss, predictor(rows, theta)
        p = loss.constants
        with np.errstate(over="ignore", invalid="ignore"):
            rise = loss.value(eta + 20.0 * unit, y, p) - loss.value(eta, y, p)
            # far out as well: from a bad start every row may first fall on its way to the minimiser
            slant = loss.d1(eta + 500.0 * unit, y, p) * unit
        return bool(np.any(~(np.maximum(rise, slant) <= 1e-6 * (1.0 + np.abs(y)))))


def _mean_response(rows: Rows) -> _Mean:
    w = weighted(rows, rows.counts)
    return _Mean(float(w.sum()), float(w @ rows.y))


class _Spread(NamedTuple):
    rows: float
    total: Array
    square: Array

    @staticmethod
    def of(rows: Rows) -> _Spread:
        return _Spread(float(rows.n), rows.counts @ rows.x, rows.counts @ rows.x**2)

    @staticmethod
    def over(problem: LinearProblem) -> Array:
        """Standard deviation of every column."""
        rows, total, square = problem.source.reduce(_Spread.of)
        mean = total / rows
        rounding = 1e-12 * square / rows
        return np.sqrt(np.where(square / rows - mean**2 > rounding, square / rows - mean**2, 0.0))


def _trimming(problem: LinearProblem, share: float, start: Array | None) -> Generator[LinearProblem, Array, None]:
    """The problem on the share of rows it fits best, again and again, until the rest agree."""
    if share == 1.0 or start is None:
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
    return family.link(np.clip(y, 1e-3, 1.0 - 1e-3) if family.name == "bernoulli" else np.maximum(y, floor))
