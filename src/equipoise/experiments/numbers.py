"""From repetitions to numbers: means with intervals, the paper's value beside ours, and a verdict with its reason."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

__all__ = ["Claim", "Number", "Numbers", "Printed", "Row", "collect", "printed", "short", "tell"]

# One measured number: `value`, the names of its cell, and what is known about it; see `measure.row`.
Row = dict[str, float | str | None]

_KEYS = ("setting", "run", "dataset", "loss", "batch", "method", "metric")
# Agreement allows each interval to widen by this share of its value: two simulations, two sets of data.
_SLACK = 0.03
# A bias below this share of the floor cannot be seen in a chain of that length.
_HIDDEN = 0.35
# A mean up to this multiple of the floor is called at it: the floor is a root mean square, predicted to a few per cent.
_NEAR = 1.3
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Printed:
    """A number of the paper, with its 95 % interval where one is printed."""

    value: float
    low: float
    high: float


@cache
def _paper() -> dict[tuple[str, ...], Printed]:
    text = files("equipoise.experiments").joinpath("paper.csv").read_text(encoding="utf-8")
    found = {}
    for line in csv.DictReader(text.splitlines()):
        value = float(line["value"])
        key = tuple(line[k] for k in ("entry", "dataset", "loss", "batch", "method", "metric"))
        found[key] = Printed(value, float(line["low"] or value), float(line["high"] or value))
    return found


def printed(entry: str, dataset: str, loss: str, batch: str, method: str, metric: str) -> Printed | None:
    """What the paper prints in a cell, if it has that cell."""
    return _paper().get((entry, dataset, loss, batch, method, metric))


@dataclass(frozen=True)
class Number:
    """One cell: our values over the repetitions, what theory says about it, and what the paper prints.

    Attributes
    ----------
    setting, run, dataset, loss, batch, method, metric
        Which cell; `run` is "printed" for chains as long as the paper's, "long" for those that show the true bias.
    values
        One per repetition.
    floor
        What the metric is for a perfect method at this chain length.
    bias
        What it is for this method with an endless chain.
    radius
        Spectral radius; above 1 there is no stationary covariance.
    passes
        Passes over the data after burn-in.
    paper
        The paper's number.
    note
        Why there is no number.
    reason
        What explains it, where the entry itself knows.
    """

    setting: str
    run: str
    dataset: str
    loss: str
    batch: str
    method: str
    metric: str
    values: tuple[float, ...]
    floor: float | None = None
    bias: float | None = None
    radius: float | None = None
    passes: float | None = None
    paper: Printed | None = None
    note: str = ""
    reason: str = ""

    @property
    def mean(self) -> float:
        """Over the repetitions."""
        return float(np.mean(self.values)) if self.values else np.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean over the repetitions, by resampling them."""
        values = np.array(self.values)
        if len(values) < 2 or not np.isfinite(values).all():
            return self.mean, self.mean
        picks = np.random.default_rng(0).integers(len(values), size=(2000, len(values)))
        low, high = np.quantile(values[picks].mean(axis=1), [0.025, 0.975])
        return float(low), float(high)

    @property
    def predicted(self) -> float | None:
        """Root mean square of the error in theory: bias and Monte Carlo error together."""
        if self.floor is None or self.bias is None:
            return None
        return float(np.hypot(self.floor, self.bias))

    @property
    def at_floor(self) -> bool:
        """Whether the cell shows the length of the chain rather than the method."""
        if self.metric == "covariance_error" and self.floor is not None and self.bias is not None:
            return self.bias < _HIDDEN * self.floor and self.mean < _NEAR * self.floor
        return self.floor is not None and self.mean < _NEAR * self.floor

    @property
    def verdict(self) -> str:
        """Agrees, better or differs; "new" when the paper has no such number."""
        if self.note or not self.values:
            return "skipped"
        if self.paper is None:
            return "new"
        low, high = _wider(self.mean, *self.interval)
        paper_low, paper_high = _wider(self.paper.value, self.paper.low, self.paper.high)
        if np.isinf(self.mean) and np.isinf(self.paper.value):
            return "agrees"
        if _huge(self.mean) and _huge(self.paper.value):
            return "agrees"
        if low <= paper_high and paper_low <= high:
            return "agrees"
        return "better" if self.mean < self.paper.value and self.metric.endswith(("_error", "_seconds")) else "differs"

    @property
    def because(self) -> str:
        """The reason in a sentence or two."""
        if self.setting == "described" and self.verdict in {"better", "differs"}:
            return f"{self._cause} The printed table was made with the released settings, not with those of the text."
        return self._cause

    @property
    def _cause(self) -> str:
        if self.note or self.reason:
            return self.note or self.reason
        if self.radius is not None and self.radius > 1.0:
            return (
                f"This step has no stationary covariance (spectral radius {self.radius:.3g}): the chain's spread is whatever "
                "its length lets it reach."
            )
        if self.metric == "calibration_error" and self.floor is not None:
            word = "At" if self.at_floor else "Above"
            return f"{word} the score of a perfectly calibrated method, {self.floor:.3f}."
        if self.metric == "quantile_gap" and self.bias is not None:
            return f"Its own skewness and shift of the mean predict {short(self.predicted)} with the noise."
        if self.metric == "largest_skewness" and self.bias is not None:
            return f"Predicted: {short(self.bias)}."
        if self.metric == "parameter_error" and self.floor is not None:
            return f"The minimiser itself is {self.floor:.3f} away."
        if self.metric != "covariance_error" or self.floor is None or self.bias is None:
            return ""
        if self.floor == 0.0:
            return "No chain: the covariance is known exactly."
        if self.at_floor:
            passes = "" if self.passes is None else f" after {self.passes:,.0f} passes"
            return (
                f"At the Monte Carlo floor{passes}: any chain with the right covariance scores {self.floor:.2g} here."
            )
        agrees = self.predicted is not None and abs(self.mean - self.predicted) < 0.25 * self.predicted
        fit = "as" if agrees else "where"
        return f"The rule's own bias is {self.bias:.2g}; {fit} theory predicts {self.predicted:.2g} with the noise."

    def as_dict(self) -> dict[str, object]:
        """For the JSON file."""
        low, high = self.interval
        return {
            **{k: getattr(self, k) for k in _KEYS},
            "mean": self.mean, "low": low, "high": high, "values": list(self.values), "floor": self.floor, "bias": self.bias,
            "predicted": self.predicted, "spectral_radius": self.radius, "passes": self.passes,
            "paper": None if self.paper is None else vars(self.paper), "verdict": self.verdict, "because": self.because,
        }  # fmt: skip


def _wider(value: float, low: float, high: float) -> tuple[float, float]:
    return min(low, value) * (1.0 - _SLACK), max(high, value) * (1.0 + _SLACK)


def _huge(value: float) -> bool:
    """Neither number nor mean means anything once a chain is on its way out."""
    return value > 1e3


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, whether it "holds", "holds in part" or "does not hold", and the numbers that show it."""

    text: str
    verdict: str
    evidence: str


class Numbers:
    """The cells of one entry, in the order they were measured."""

    def __init__(self, cells: list[Number]) -> None:
        self.cells = cells

    def __iter__(self) -> Iterator[Number]:
        return iter(self.cells)

    def __len__(self) -> int:
        return len(self.cells)

    def where(self, **key: str) -> Numbers:
        """The cells with these names."""
        return Numbers([c for c in self.cells if all(getattr(c, k) == v for k, v in key.items())])

    def at(self, **key: str) -> Number | None:
        """The first such cell that has a number."""
        return next((c for c in self.where(**key) if c.values and not c.note), None)

    def names(self, field: str) -> list[str]:
        """The different values of a field, in order."""
        return list(dict.fromkeys(getattr(c, field) for c in self.cells))


def collect(entry: str, rows: list[Row]) -> Numbers:
    """Join the repetitions of every cell."""
    cells: dict[tuple[str, ...], list[Row]] = {}
    for found in rows:
        cells.setdefault(tuple(str(found.get(k, "")) for k in _KEYS), []).append(found)
    return Numbers([_join(entry, key, found) for key, found in cells.items()])


def _join(entry: str, key: tuple[str, ...], found: list[Row]) -> Number:
    named = dict(zip(_KEYS, key, strict=True))
    cell = {k: named[k] for k in ("dataset", "loss", "batch", "method", "metric")}
    return Number(
        **named,
        values=tuple(_numbers([f for f in found if not f.get("note")], "value")),
        floor=_average(found, "floor"),
        bias=_average(found, "bias"),
        radius=_average(found, "radius"),
        passes=_average(found, "passes"),
        # a chain of another length is another number
        paper=None if named["run"] == "long" else printed(entry, **cell),
        note=_first(found, "note"),
        reason=_first(found, "reason"),
    )


def _numbers(found: list[Row], name: str) -> list[float]:
    """Those that a row has."""
    return [float(value) for value in (f.get(name) for f in found) if value is not None]


def _average(found: list[Row], name: str) -> float | None:
    values = _numbers(found, name)
    return float(np.mean(values)) if values else None


def _first(found: list[Row], name: str) -> str:
    """The first text that is not empty."""
    return next((str(f[name]) for f in found if f.get(name)), "")


def tell(cell: Number | None) -> str:
    """A number with its interval, for a sentence."""
    if cell is None:
        return "not measured"
    low, high = cell.interval
    return f"{short(cell.mean)}" if low == high else f"{short(cell.mean)} [{short(low)}, {short(high)}]"


def short(value: float | None) -> str:
    """Three digits; large and small numbers in powers of ten."""
    if value is None or np.isnan(value):
        return "–"
    if np.isinf(value):
        return "∞"
    if value != 0.0 and not 1e-3 <= abs(value) < 1e4:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}·10{str(int(exponent)).translate(_SUPERSCRIPTS)}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.3g}"
