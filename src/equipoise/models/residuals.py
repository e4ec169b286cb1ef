"""Passes over the residuals of a linear predictor: their squares, and the median of their sizes by counting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from equipoise.arrays import Array
from equipoise.data.arrays import Rows
from equipoise.data.source import Source
from equipoise.models.sums import counted, predictor, weighted

__all__ = ["MiddlePass", "MiddleSums", "ResidualPass", "ResidualSums", "median_residual", "middle_pass"]

_SAMPLE = 20_000  # rows that tell about where a median is
_AROUND = 3.0  # by this much over the root of their number, in probability: six standard deviations
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
    """The weight of all rows and of those below some values; of what lies between |r| and its weight, and Σ w x sign(r)."""

    total: float
    below: float
    between: tuple[Array, ...]
    tilt: Array

    def around(self, share: float) -> tuple[float, float]:
        """Values that leave this much more and less than half of the weight below; all must lie between."""
        values, upto = self._sorted()
        ends = np.searchsorted(upto, np.clip([0.5 - share, 0.5 + share], 0.0, 1.0) * upto[-1])
        low, high = values[np.minimum(ends, values.size - 1)]
        return float(low), float(high)

    def median(self) -> float | None:
        """The median of |r|; None if it does not lie between."""
        values, upto = self._sorted()
        # where the counts reach exactly half, two values share the middle, and rounding must not choose between them
        half = 0.5 * self.total
        if not self.below < half * (1.0 - _SLACK) or not upto.size or not half * (1.0 + _SLACK) < upto[-1]:
            return None
        first = np.searchsorted(upto, half * (1.0 - _SLACK), side="left")
        last = np.searchsorted(upto, half * (1.0 + _SLACK), side="right")
        return float(0.5 * (values[first] + values[last]))

    def slope(self) -> Array:
        """How the median moves with θ: as the residuals next to it do, on the average."""
        return -self.tilt / max(sum(float(part[1].sum()) for part in self.between), np.finfo(np.float64).tiny)

    def _sorted(self) -> tuple[Array, Array]:
        """The values between, ascending, and the weight up to each."""
        values, weight = np.concatenate(self.between, axis=1)
        order = np.argsort(values, kind="stable")
        return values[order], self.below + np.cumsum(weight[order])


@dataclass(frozen=True)
class MiddlePass:
    """Residuals at θ whose size is from `low` to `high`."""

    theta: Array
    low: float
    high: float

    def __call__(self, rows: Rows) -> MiddleSums:
        """Of one block."""
        away, weight = rows.y - predictor(rows, self.theta), weighted(rows, rows.counts)
        size = np.abs(away)
        near = np.flatnonzero((size >= self.low) & (size <= self.high))
        between = np.stack([size[near], weight[near]])
        tilt = (weight[near] * np.sign(away[near])) @ rows.x[near]
        return MiddleSums(float(weight.sum()), float(weight[size < self.low].sum()), (between,), tilt)


def middle_pass(source: Source[Rows], theta: Array) -> MiddlePass:
    """The pass that finds the median of |r|: a sample tells between which values it lies, but for a case in a billion."""
    if source.n <= 2 * _SAMPLE:
        return MiddlePass(theta, 0.0, np.inf)
    some = source.sample(_SAMPLE, seed=None)
    low, high = some.reduce(MiddlePass(theta, 0.0, np.inf)).around(_AROUND / np.sqrt(_SAMPLE))
    return MiddlePass(theta, low, high)


def median_residual(source: Source[Rows], theta: Array) -> float:
    """The median of |r|, each counted as often as its weight and frequency say.

    One pass counts what is below the values between which it lies and collects what is between.
    """
    found = source.reduce(middle_pass(source, theta)).median()
    if found is None:
        found = source.reduce(MiddlePass(theta, 0.0, np.inf)).median()
    assert found is not None  # between zero and infinity lie all
    return found
