"""How the figures look: colours, lines with bands, ellipses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from equipoise.arrays import Array
from equipoise.experiments.numbers import Number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["COLOURS", "ellipse", "lines"]


COLOURS = {
    "dq-exact": "#0072B2",
    "ct": "#D55E00",
    "lr-ws": "#009E73",
    "dq-const": "#CC79A7",
    "dq-const-literal": "#E69F00",
    "observed": "#222222",
    "target": "#222222",
}


def lines(axis: Axes, x: Sequence[float], cells: Sequence[Number], label: str, colour: str, marker: str = "o") -> None:
    """Means against x with their 95 % intervals as a band; values without a finite mean leave a gap."""
    finite = [c.mean if np.isfinite(c.mean) else np.nan for c in cells]
    low, high = np.array([c.interval if np.isfinite(c.mean) else (np.nan, np.nan) for c in cells]).T
    axis.plot(x, finite, marker=marker, markersize=4, color=colour, label=label)
    axis.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)


def ellipse(axis: Axes, center: Array, cov: Array, label: str, colour: str, style: str = "-") -> None:
    """The 3σ ellipse of two parameters."""
    angle = np.linspace(0.0, 2.0 * np.pi, 200)
    values, vectors = np.linalg.eigh(cov[:2, :2])
    circle = np.stack([np.cos(angle), np.sin(angle)])
    path = center[:2, None] + 3.0 * vectors @ (np.sqrt(np.maximum(values, 0.0))[:, None] * circle)
    axis.plot(*path, style, color=colour, label=label, linewidth=1.6)
