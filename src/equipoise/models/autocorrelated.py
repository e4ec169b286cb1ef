"""Covariances of a time series: products of scores with those of the recent past, summed over blocks in the order of time.

A block keeps the scores at its ends, and two blocks that follow each other add the products across their border: so they can
be summed side by side, in the same reading as anything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from equipoise.arrays import Array
from equipoise.errors import InvalidInput, warn
from equipoise.models.covariance import folded
from equipoise.models.passes import Beside
from equipoise.models.problem import Block, Problem, Rowwise
from equipoise.theory.moments import Moments

__all__ = ["Series", "SeriesSums", "series_pass", "smoothed"]


class Series:
    """Σ_t s_t (½ s_t + Σ_l k(l) s_{t−l})ᵀ of rows that follow each other, with Bartlett's k(l) = 1 − l/(L+1), l ≤ L.

    `head` and `tail` are the first and last scores, L of them or all, and `total` the sum of all. `told` are the number of
    rows, the first and the last time, the rows with the time of the one before, and the place of the first row that is earlier
    than the one before (−1: none).
    """

    def __init__(self, products: Array, head: Array, tail: Array, total: Array, told: Array, lags: int = 0) -> None:
        self.products, self.head, self.tail, self.total, self.told, self.lags = products, head, tail, total, told, lags

    @property
    def arrays(self) -> tuple[Array, ...]:
        """What it is made of, and made again from."""
        return self.products, self.head, self.tail, self.total, self.told

    @staticmethod
    def of(scores: Array, time: Array | None, lags: int) -> Series:
        """That of one block."""
        past = 0.5 * scores
        for lag in range(1, min(lags, len(scores) - 1) + 1):
            past[lag:] += _bartlett(lag, lags) * scores[:-lag]
        count, first = float(len(scores)), max(0, len(scores) - lags)
        told = np.array([count, np.nan, np.nan, 0.0, -1.0])
        if time is not None and len(time):
            steps = np.diff(time)
            early = float(np.argmax(steps < 0.0)) + 1.0 if np.any(steps < 0.0) else -1.0
            told = np.array([count, time[0], time[-1], float(np.sum(steps == 0.0)), early])
        return Series(scores.T @ past, scores[:lags].copy(), scores[first:].copy(), scores.sum(axis=0), told, lags)

    def __add__(self, other: Series) -> Series:
        here, there = len(self.tail), other.head
        past = np.zeros_like(there)
        for lag in range(1, self.lags + 1):
            # the first rows there reach back to the last rows here
            first, end = max(0, lag - here), min(lag, len(there))
            if first < end:
                past[first:end] += _bartlett(lag, self.lags) * self.tail[here + first - lag : here + end - lag]
        head = np.concatenate([self.head, there])[: self.lags]
        tail = np.concatenate([self.tail, other.tail])
        return Series(
            self.products + other.products + there.T @ past, head, tail[max(0, len(tail) - self.lags) :],
            self.total + other.total, self._told(other), self.lags,
        )  # fmt: skip

    def _told(self, other: Series) -> Array:
        """What is told of rows and times, across the border too."""
        (count, first, last, ties, early), (more, begin, end, others, later) = self.told, other.told
        if not count or not more:
            return other.told if more else self.told
        if early < 0.0 and (begin < last or later >= 0.0):
            early = count if begin < last else count + later
        return np.array([count + more, first, end, ties + others + float(begin == last), early])

    def middle(self, mean: Array, along: Array | None) -> Array:
        """Σ_l k(l) (Γ_l + Γ_lᵀ) of scores less their mean, folded over a constant that is free."""
        products = folded(folded(self.products, along).T, along).T
        head, tail, total = (folded(scores, along) for scores in (self.head, self.tail, self.total))
        for lag in range(min(self.lags, int(self.told[0]) - 1) + 1):
            k = 0.5 if lag == 0 else _bartlett(lag, self.lags)
            later, before = total - head[:lag].sum(axis=0), total - tail[len(tail) - lag :].sum(axis=0)
            products = products - k * (
                np.outer(later, mean) + np.outer(mean, before) - (self.told[0] - lag) * np.outer(mean, mean)
            )
        return np.asarray(products + products.T)


def _bartlett(lag: int, lags: int) -> float:
    return 1.0 - lag / (lags + 1.0)


class SeriesSums(NamedTuple):
    """The sums of a time series."""

    series: Series


@dataclass(frozen=True)
class _SeriesPass:
    """Products of scores with those up to `lags` rows before."""

    rowwise: Rowwise
    lags: int

    def __call__(self, block: Block) -> SeriesSums:
        """The sums over one block."""
        time = None if block.marks is None else block.marks.time
        return SeriesSums(Series.of(self.rowwise.scores(block), time, self.lags))


def series_pass(problem: Problem, rowwise: Rowwise, lags: int) -> Beside:
    """The sums of HAC over the rows in the order of time."""
    return Beside(problem.source.by_time(), _SeriesPass(rowwise, lags), 2 * len(problem.names))


def smoothed(
    problem: Problem, rowwise: Rowwise, moments: Moments, along: Array | None, lags: int, known: SeriesSums | None
) -> Array:
    """Σ_l k(l) (Γ_l + Γ_lᵀ) with Bartlett's k; `known` is what `series_pass` summed up, where that was done before."""
    made = series_pass(problem, rowwise, lags)
    series = (known or made.source.reduce(made.f, made.width)).series
    series.lags = lags  # sums that were kept on disk do not know it
    _require_order(series, made.source)
    return series.middle(moments.mean_score, along)


def _require_order(series: Series, source: Any) -> None:
    """Times must not fall, which they do only in files; of equal ones people should know."""
    ties, early = int(series.told[3]), int(series.told[4])
    if early >= 0:
        raise InvalidInput(
            "time", "such that rows are already in its order, where they cannot be sorted in memory",
            f"{source.row_name(early)}, which is earlier than the one before", "sort the files by it",
        )  # fmt: skip
    if ties:
        warn(
            f"HAC: {ties} rows have the time of the row before them; they were taken in the order of the table, each as "
            "a time of its own. For several units observed over time use clusters."
        )
