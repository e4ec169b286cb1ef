"""Passes over the residuals of a linear predictor: their squares, and the median of their sizes by counting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from equipoise.arrays import Array
from equipoise.data.arrays import Rows
from equipoise.data.source import Source
from equipoise.models.sums import counted, predictor, weighted

__all__ = ["MiddlePass", "MiddleSums", "ResidualPass", "ResidualSums", "Scale", "middle_pass", "robust_scale"]

_NORMAL_MEDIAN = 0.6744897501960817  # median of |z| for a standard normal z
_SAMPLE = 20_000  # rows that tell about where a median is
_AROUND = 3.0  # by this much over the root of their number, in probability: six standard deviations
_CLOSE = 2e-3  # relative distance from where a median is expected, within which rows are kept
_KEPT = 200_000  # rows that are kept, at about one for each relative distance of 1/N
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
    close
        r, its weight and the columns of rows closest to where the median is expected.
    """

    total: float
    below: float
    between: tuple[Array, ...]
    tilt: Array
    close: tuple[Array, ...]

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
    """Residuals at θ whose size is from `low` to `high`; of those in the window the rows besides."""

    theta: Array
    low: float = 0.0
    high: float = np.inf
    window: tuple[float, float] = (np.inf, -np.inf)

    def __call__(self, rows: Rows) -> MiddleSums:
        """Of one block."""
        away, weight = rows.y - predictor(rows, self.theta), weighted(rows, rows.counts)
        size = np.abs(away)
        near = np.flatnonzero((size >= self.low) & (size <= self.high))
        between = np.stack([size[near], weight[near]])
        tilt = (weight[near] * np.sign(away[near])) @ rows.x[near]
        kept = near[(between[0] >= self.window[0]) & (between[0] <= self.window[1])]
        close = np.vstack([away[kept], weight[kept], rows.x[kept].T])
        return MiddleSums(float(weight.sum()), float(weight[size < self.low].sum()), (between,), tilt, (close,))


@dataclass(frozen=True)
class Scale:
    """The normal-consistent scale of residuals at θ, median |r| / 0.6745, and what is known of it close by.

    Attributes
    ----------
    value, slope
        The scale, and how it moves with θ on the average: it has corners.
    window
        Sizes of residuals between which rows were kept.
    total, below
        The weight of all rows, and of those with smaller residuals than these.
    close
        r, its weight and the columns of the rows that were kept.
    """

    value: float
    slope: Array
    window: tuple[float, float]
    total: float
    below: float
    close: Array

    def after(self, step: Array) -> float:
        """The scale at θ + step: where no row can have come from outside the window to the median, with every corner."""
        moved = step @ self.close[2:]
        median = _middle(np.abs(self.close[0] - moved), self.close[1], self.below, self.total)
        if median is not None:
            low, high = self.window
            if np.max(np.abs(moved)) < min(median - low, high - median):
                return median / _NORMAL_MEDIAN
        return self.value + float(self.slope @ step)

    @staticmethod
    def of(sums: MiddleSums, window: tuple[float, float]) -> Scale | None:
        """What a pass found; None if the median is elsewhere."""
        median = sums.median()
        if median is None:
            return None
        less = sum(float(np.sum(weight[size < window[0]])) for size, weight in sums.between)
        close = np.concatenate(sums.close, axis=1)
        return Scale(
            median / _NORMAL_MEDIAN, sums.slope() / _NORMAL_MEDIAN, window, sums.total, sums.below + less, close
        )


def middle_pass(source: Source[Rows], theta: Array, scale: float | None = None) -> MiddlePass:
    """The pass that finds the median of |r|: a sample tells between which values it lies, but for a case in a billion.

    With the scale that is expected, it keeps the rows that the median may move to.
    """
    width = min(_CLOSE, _KEPT / source.n)
    middle = np.inf if scale is None else scale * _NORMAL_MEDIAN
    window = (middle, -np.inf) if scale is None else (middle * (1.0 - width), middle * (1.0 + width))
    if source.n <= 2 * _SAMPLE:
        return MiddlePass(theta, window=window)
    some = source.sample(_SAMPLE, seed=None)
    return MiddlePass(theta, *some.reduce(MiddlePass(theta)).around(_AROUND / np.sqrt(_SAMPLE)), window)


def robust_scale(source: Source[Rows], theta: Array) -> float:
    """The median of |r| over that of a standard normal, each counted as often as its weight and frequency say.

    One pass counts what is below the values between which it lies and collects what is between.
    """
    found = source.reduce(middle_pass(source, theta)).median()
    if found is None:
        found = source.reduce(MiddlePass(theta)).median()
    assert found is not None  # between zero and infinity lie all
    return found / _NORMAL_MEDIAN
