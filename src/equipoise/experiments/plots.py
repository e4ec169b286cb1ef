"""How the figures look: colours, lines with bands, ellipses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from equipoise.arrays import Array
from equipoise.experiments.numbers import Number
from equipoise.report import palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["COLOURS", "ellipse", "floor_line", "lines"]


COLOURS = {
    "dq-exact": palette.BLUE,
    "ct": palette.VERMILION,
    "lr-ws": palette.GREEN,
    "dq-const": palette.PURPLE,
    "dq-const-literal": palette.ORANGE,
    "ct-hessian": palette.SILVER,
    "dq-exact-epochs": palette.ORANGE,
    "observed": palette.BLACK,
    "target": palette.BLACK,
    "floor": palette.GREY,
}


def lines(axis: Axes, x: Sequence[float], cells: Sequence[Number], label: str, colour: str, marker: str = "o") -> None:
    """Means against x with their 95 % intervals as a band; values without a finite mean leave a gap."""
    finite = [c.mean if np.isfinite(c.mean) else np.nan for c in cells]
    low, high = np.array([c.interval if np.isfinite(c.mean) else (np.nan, np.nan) for c in cells]).T
    axis.plot(x, finite, marker=marker, markersize=4, color=colour, label=label)
    axis.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)


def floor_line(axis: Axes, x: Sequence[float], cells: Iterable[Number]) -> None:
    """What a chain with the right covariance scores at its length."""
    floor = [np.nan if c.floor is None else c.floor for c in cells]
    axis.plot(x, floor, ":", color=COLOURS["floor"], label="Monte Carlo floor")


def ellipse(axis: Axes, center: Array, cov: Array, label: str, colour: str, style: str) -> None:
    """The 3σ ellipse of two parameters."""
    angle = np.linspace(0.0, 2.0 * np.pi, 200)
    values, vectors = np.linalg.eigh(cov[:2, :2])
    circle = np.stack([np.cos(angle), np.sin(angle)])
    path = center[:2, None] + 3.0 * vectors @ (np.sqrt(np.maximum(values, 0.0))[:, None] * circle)
    axis.plot(*path, style, color=colour, label=label, linewidth=1.6)
