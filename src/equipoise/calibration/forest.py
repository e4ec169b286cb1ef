"""The effects of a fit on a common axis, on several scales: where each interval begins and ends, and what it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from equipoise.arrays import Array, Index
from equipoise.calibration.findings import Coefficients, ratio_name

if TYPE_CHECKING:
    from equipoise.calibration.calibration import Calibration

__all__ = ["Axis", "Forest", "forest"]

_MARGIN = 0.04  # of an axis, at both ends
_TICKS = 5  # about so many
_NICE = (1.0, 2.0, 2.5, 5.0, 10.0)
_WIDE = 6.0  # ratio of an axis' ends from which on its ticks are 1, 2, 5, 10, ...
_DOTS = 0.01  # share of an axis below which an interval is a dot


@dataclass(frozen=True)
class Axis:
    """One scale of the effects: what it is called, and what its unit is.

    Estimates and their ends are in its unit, by shown parameter; start, middle and end are where they are in per cent of
    the axis, ticks a position and a value each. `reference` is where no effect is: at 0, or at a ratio of 1, if the
    numbers are exponentiated.
    """

    name: str
    words: str
    estimate: Array
    lower: Array
    upper: Array
    start: Array
    middle: Array
    end: Array
    ticks: tuple[tuple[float, float], ...]
    reference: float
    ratio: bool


@dataclass(frozen=True)
class Forest:
    """The effects of a fit.

    `at` are the parameters drawn: all but constants, or those that are the largest in standard errors; `aside` are the
    constants, whose size says nothing of an effect. Axes are in the columns' units, per standard deviation of a column
    (where they are known) and in standard errors; the first two also exponentiated where that makes a ratio. `first` is
    the one to begin with: the first on which most intervals are more than dots.
    """

    at: Index
    aside: Index
    axes: tuple[Axis, ...]
    first: str


def forest(cal: Calibration, found: Coefficients, most: int) -> Forest:
    """The effects of a run, at most so many, from its coefficient table as it is: not exponentiated."""
    facts = cal.row_facts
    sd = None if facts is None else facts.column_sd
    constant = np.array([name in ("Intercept", "const") for name in cal.names]) if sd is None else sd == 0.0
    aside, drawn = np.flatnonzero(constant), np.flatnonzero(~constant)
    if len(drawn) > most:
        size = np.nan_to_num(np.abs(found.statistic[drawn]))
        drawn = drawn[np.sort(np.argsort(-size, kind="stable")[:most])]
    units = {"unit": ("per unit of its column", np.ones_like(found.se))}
    if sd is not None:
        units["sd"] = ("per standard deviation of its column", sd)
    units["se"] = ("in standard errors", 1.0 / np.where(found.se > 0.0, found.se, 1.0))
    ratio = ratio_name(cal)
    made = []
    for name, (words, unit) in units.items():
        scale = unit[drawn]
        ends = (
            found.estimate[drawn] * scale, found.interval.lower[drawn] * scale, found.interval.upper[drawn] * scale,
        )  # fmt: skip
        made.append(_axis(name, f"coefficient, {words}", ends, False))
        if ratio is not None and name != "se":
            made.append(_axis(f"{name}-exp", f"{ratio}, {words}", ends, True))
    return Forest(drawn, aside, tuple(made), max((axis for axis in made if not axis.ratio), key=_readable).name)


def _readable(axis: Axis) -> int:
    """How many intervals are more than dots."""
    return int(np.sum(axis.end - axis.start > 100.0 * _DOTS))


def _axis(name: str, words: str, ends: tuple[Array, Array, Array], ratio: bool) -> Axis:
    """Positions of numbers and ticks; ratios are placed by their logarithms."""
    estimate, lower, upper = ends
    low, high = min([0.0, *lower]), max([0.0, *upper])
    span = (high - low) or 1.0
    low, high = low - _MARGIN * span, high + _MARGIN * span

    def place(value: Array) -> Array:
        return 100.0 * (value - low) / (high - low)

    if ratio:
        values = _ratios(float(np.exp(low)), float(np.exp(high)))
        marks = place(np.log(values))
        shown = (np.exp(estimate), np.exp(lower), np.exp(upper))
    else:
        values, shown = _ticks(low, high), (estimate, lower, upper)
        marks = place(values)
    ticks = tuple((float(p), float(v)) for p, v in zip(marks, values, strict=True))
    spots = (place(lower), place(estimate), place(upper))
    return Axis(name, words, *shown, *spots, ticks, -100.0 * low / (high - low), ratio)


def _ticks(low: float, high: float) -> Array:
    """Round numbers between two ends, about five."""
    size = 10.0 ** np.floor(np.log10((high - low) / _TICKS))
    step = next(size * nice for nice in _NICE if (high - low) / (size * nice) <= _TICKS)
    return np.round(np.arange(np.ceil(low / step), np.floor(high / step) + 1.0)) * step + 0.0  # no −0


def _ratios(low: float, high: float) -> Array:
    """Round ratios between two ends: evenly spaced where the ends are near each other, else 1, 2, 5, 10, ..."""
    if high / low < _WIDE:
        return _ticks(low, high)
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1.0)
    every = np.sort(np.concatenate([decades, 2.0 * decades, 5.0 * decades]))
    kept = every[(every >= low) & (every <= high)]
    return kept if len(kept) <= 2 * _TICKS else decades[(decades >= low) & (decades <= high)]
