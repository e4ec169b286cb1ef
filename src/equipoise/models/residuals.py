"""Passes over the residuals of a linear predictor: their squares, and the median of their sizes by counting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np

from equipoise.arrays import Array
from equipoise.data.arrays import Rows
from equipoise.data.source import Source
from equipoise.models.passes import Both
from equipoise.models.sums import counted, forms, predictor, weighted

__all__ = ["MiddlePass", "MiddleSums", "Reach", "ResidualPass", "ResidualSums", "Scale", "robust_scale", "scale_beside"]

_NORMAL_MEDIAN = 0.6744897501960817  # median of |z| for a standard normal z
_SAMPLE = 20_000  # rows that tell about where a median is
_AROUND = 3.0  # by this much over the root of their number, in probability: six standard deviations
_KEPT, _NUMBERS = 50_000, 1 << 22  # rows that are kept around where a median is expected, and numbers in all of them
_SLACK = 1e-12  # relative rounding of a sum of many weights


class ResidualSums(NamedTuple):
    """Σ w r²."""

    square: float


@dataclass(frozen=True)
class ResidualPass:
    """Squared residuals at θ."""

    theta: Array

    def __call__(self, rows: Rows) -> ResidualSums:
        """The sum over one block."""
        square = weighted(rows, (rows.y - predictor(rows, self.theta)) ** 2)
        return ResidualSums(float(np.sum(counted(rows, square))))


@dataclass(frozen=True)
class Reach:
    """The rows that a short step can bring to the median of |r|: ||r| − m| ≤ length · (√(xᵀSx) + even).

    A step δ moves no residual by more than √(xᵀSx) √(δᵀS⁻¹δ), so that all others stay on their side of it.

    Attributes
    ----------
    middle
        m, where the median is expected.
    length, even
        How long a step may be, and what a row's own size is not.
    root
        R with S = R Rᵀ, lower triangular.
    """

    middle: float
    length: float
    even: float
    root: Array

    def sizes(self, rows: Rows) -> Array:
        """√(xᵀSx) + even of every row."""
        return np.sqrt(forms(rows.x, self.root @ self.root.T, self.root)) + self.even

    def covers(self, step: Array, median: float) -> bool:
        """Whether no row from outside can have come to the median after a step."""
        size = float(np.linalg.norm(np.linalg.solve(self.root, step)))
        return size <= self.length and abs(median - self.middle) <= self.length * self.even

    @staticmethod
    def of(source: Source[Rows], theta: Array, scale: float, S: Array) -> Reach:
        """Such that about 50,000 rows are inside, by a sample of them, for the median that makes this scale."""
        some = cast(Rows, source.sample(min(source.n, _SAMPLE), seed=None))
        plain = Reach(scale * _NORMAL_MEDIAN, 1.0, 0.0, np.linalg.cholesky(S).astype(np.float64))
        sizes = plain.sizes(some)
        even = float(np.mean(sizes))
        away = np.abs(np.abs(some.y - predictor(some, theta)) - plain.middle) / (sizes + even)
        share = min(_KEPT, _NUMBERS // (theta.size + 2)) / source.n
        return replace(plain, length=float(np.quantile(away, share)) if share < 1.0 else np.inf, even=even)


class MiddleSums(NamedTuple):
    """What tells a median of |r|.

    Attributes
    ----------
    total, below
        The weight of all rows, and of those below some values.
    between
        Of what lies between these: |r| and its weight.
    tilt
        Σ w x sign(r) of those.
    close, under
        r, its weight and the columns of rows within reach, and the weight of others that are below the median.
    """

    total: float
    below: float
    between: tuple[Array, ...]
    tilt: Array
    close: tuple[Array, ...]
    under: float

    def around(self, share: float) -> tuple[float, float]:
        """Values that leave this much more and less than half of the weight below; all must lie between."""
        values, weight = np.concatenate(self.between, axis=1)
        order = np.argsort(values, kind="stable")
        upto = np.cumsum(weight[order])
        ends = np.searchsorted(upto, np.clip([0.5 - share, 0.5 + share], 0.0, 1.0) * upto[-1])
        low, high = values[order[np.minimum(ends, values.size - 1)]]
        return float(low), float(high)

    def median(self) -> float | None:
        """The median of |r|; None if it does not lie between."""
        size, weight = np.concatenate(self.between, axis=1)
        return _middle(size, weight, self.below, self.total)

    def slope(self) -> Array:
        """How the median moves with θ: as the residuals next to it do, on the average."""
        return -self.tilt / max(sum(float(part[1].sum()) for part in self.between), np.finfo(np.float64).tiny)


def _middle(values: Array, weight: Array, below: float, total: float) -> float | None:
    """The value with half of the total weight on either side, `below` being less than all; None if it is not among them."""
    order = np.argsort(values, kind="stable")
    values, upto = values[order], below + np.cumsum(weight[order])
    # where the counts reach exactly half, two values share the middle, and rounding must not choose between them
    half = 0.5 * total
    if not below < half * (1.0 - _SLACK) or not upto.size or not half * (1.0 + _SLACK) < upto[-1]:
        return None
    first = np.searchsorted(upto, half * (1.0 - _SLACK), side="left")
    last = np.searchsorted(upto, half * (1.0 + _SLACK), side="right")
    return float(0.5 * (values[first] + values[last]))


@dataclass(frozen=True)
class MiddlePass:
    """Residuals at θ whose size is from `low` to `high`, and the rows within reach of their median."""

    theta: Array
    low: float = 0.0
    high: float = np.inf
    reach: Reach | None = None

    def __call__(self, rows: Rows) -> MiddleSums:
        """Of one block."""
        away, weight = rows.y - predictor(rows, self.theta), weighted(rows, rows.counts)
        size = np.abs(away)
        near = np.flatnonzero((size >= self.low) & (size <= self.high))
        between = np.stack([size[near], weight[near]])
        tilt = (weight[near] * np.sign(away[near])) @ rows.x[near]
        below, close, under = float(weight[size < self.low].sum()), np.zeros((2 + self.theta.size, 0)), 0.0
        if self.reach is not None:
            inside = np.abs(size - self.reach.middle) <= self.reach.length * self.reach.sizes(rows)
            close = np.vstack([away[inside], weight[inside], rows.x[inside].T])
            under = float(weight[~inside & (size < self.reach.middle)].sum())
        return MiddleSums(float(weight.sum()), below, (between,), tilt, (close,), under)


@dataclass(frozen=True)
class Scale:
    """The normal-consistent scale of residuals at θ, median |r| / 0.6745, and what is known of it close by.

    Attributes
    ----------
    value, slope
        The scale, and how it moves with θ on the average: it has corners.
    reach
        Which rows were kept.
    total, under
        The weight of all rows, and of others than these that are below the median.
    close
        r, its weight and the columns of the rows that were kept.
    """

    value: float
    slope: Array
    reach: Reach
    total: float
    under: float
    close: Array

    def after(self, step: Array) -> float:
        """The scale at θ + step, exactly where that is certain."""
        median = _middle(np.abs(self.close[0] - step @ self.close[2:]), self.close[1], self.under, self.total)
        if median is not None and self.certain(step, median / _NORMAL_MEDIAN):
            return median / _NORMAL_MEDIAN
        return self.value + float(self.slope @ step)

    def certain(self, step: Array, scale: float) -> bool:
        """Whether no row that was not kept can have come to the median that makes this scale."""
        return self.reach.covers(step, scale * _NORMAL_MEDIAN)


def scale_beside(source: Source[Rows], theta: Array, reach: Reach, f: Callable[[Rows], Any]) -> tuple[Any, Scale]:
    """What a pass sums up, and in the same reading of the rows the scale of residuals at θ."""
    middle = replace(middle_pass(source, theta), reach=reach)
    others, sums = source.reduce(Both(f, middle))
    median = sums.median()
    if median is None:
        sums = source.reduce(MiddlePass(theta, reach=reach))
        median = sums.median()
        assert median is not None  # between zero and infinity lie all
    close = np.concatenate(sums.close, axis=1)
    value, slope = median / _NORMAL_MEDIAN, sums.slope() / _NORMAL_MEDIAN
    return others, Scale(value, slope, reach, sums.total, sums.under, close)


def middle_pass(source: Source[Rows], theta: Array) -> MiddlePass:
    """The pass that finds the median of |r|: a sample tells between which values it lies, but for a case in a billion."""
    if source.n <= 2 * _SAMPLE:
        return MiddlePass(theta)
    some = source.sample(_SAMPLE, seed=None)
    return MiddlePass(theta, *some.reduce(MiddlePass(theta)).around(_AROUND / np.sqrt(_SAMPLE)))


def robust_scale(source: Source[Rows], theta: Array) -> float:
    """The median of |r| over that of a standard normal, each counted as often as its weight and frequency say.

    One pass counts what is below the values between which it lies and collects what is between.
    """
    found = source.reduce(middle_pass(source, theta)).median()
    if found is None:
        found = source.reduce(MiddlePass(theta)).median()
    assert found is not None  # between zero and infinity lie all
    return found / _NORMAL_MEDIAN
