"""Plots of a run as inline SVG: what was predicted in orange, what was observed in blue.

Nothing is computed here: the numbers come from `calibration.findings`, `calibration.curves` and the diagnosis. Figures
are made through matplotlib's objects, never through pyplot, so no global state is left behind. Colours are written as
CSS variables and text as text, so that a page's own fonts and its dark mode reach into the plots.
"""

from __future__ import annotations

import io
import re
import warnings
from html import escape
from typing import TYPE_CHECKING, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from equipoise.arrays import Array, Index
from equipoise.calibration import curves
from equipoise.report.palette import THEME

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from equipoise.calibration.calibration import Calibration
    from equipoise.calibration.rowfacts import Side

__all__ = [
    "autocorrelation",
    "covariance_entries",
    "density",
    "mean_shift",
    "side",
    "skewness",
    "spread",
    "trace",
]

INK, MUTED, LINE, OBSERVED, PREDICTED, THIRD, FOURTH = (light for light, _ in THEME.values())

_WIDTH = 480.0  # points; the page shows one point as one pixel, two plots side by side
_TRACE_POINTS = 1200  # over all chains of one plot: more cannot be told apart at this width
_TRACE_CHAINS = 6
_LABEL = 26  # characters of a parameter's name that fit beside a plot


def side(found: Side) -> str:
    """Mean responses against mean predictions, in groups of rows, each with two standard errors to either side."""
    fig, ax = _axes(300.0)
    ends = (found.predicted.min(), found.predicted.max())
    ax.plot(ends, ends, color=PREDICTED, lw=1.6, label="where they agree")
    ax.vlines(found.predicted, found.observed - 2 * found.observed_error, found.observed + 2 * found.observed_error,
              color=OBSERVED, lw=1.8)  # fmt: skip
    ax.hlines(found.observed, found.predicted - 2 * found.predicted_error, found.predicted + 2 * found.predicted_error,
              color=OBSERVED, lw=1.8, alpha=0.55)  # fmt: skip
    ax.plot(found.predicted, found.observed, "o", color=OBSERVED, ms=5.5, label="groups of rows, ± 2 standard errors")
    ax.set_xlabel("mean prediction")
    ax.set_ylabel("mean response")
    low, high = found.predicted.min(), found.predicted.max()
    words = f"{len(found.size)} groups of rows: mean responses against mean predictions from {low:.3g} to {high:.3g}"
    return _svg(fig, "side", words, legend=ax)


def spread(calibration: Calibration, at: Index) -> str:
    """Observed over predicted standard deviation with its Monte Carlo error, by parameter."""
    d = calibration.diagnosis
    words = "observed / predicted standard deviation"
    return _dots(calibration, (d.sd_ratio, np.ones_like(d.sd_ratio), d.spread_error), at, "spread", words, 1.0)


def mean_shift(calibration: Calibration, at: Index) -> str:
    """Mean of the draws minus the estimate, in standard deviations: observed with its error, and predicted."""
    d = calibration.diagnosis
    words = "mean of the draws − estimate, in standard deviations"
    return _dots(calibration, (d.shift, d.predicted_shift, d.shift_error), at, "shift", words, 0.0)


def skewness(calibration: Calibration, at: Index) -> str:
    """Skewness of the draws with its Monte Carlo error; a normal law has none."""
    d = calibration.diagnosis
    normal = np.zeros_like(d.skewness)
    return _dots(calibration, (d.skewness, normal, d.skewness_error), at, "skewness", "skewness of the draws", 0.0)


def covariance_entries(calibration: Calibration) -> str:
    """Observed against predicted covariances, divided by the predicted standard deviations; empty for one parameter."""
    found = curves.covariance_entries(calibration)
    if found is None:
        return ""
    fig, ax = _axes(300.0)
    grid, band = found.grid, 2 * found.error
    ax.fill_between(grid, grid - band, grid + band, color=PREDICTED, alpha=0.16, lw=0)
    ax.plot(grid, grid, color=PREDICTED, lw=1.4, label="predicted, ± 2 Monte Carlo errors")
    ax.plot(found.predicted, found.observed, "o", color=OBSERVED, ms=4.5, alpha=0.75, mew=0, label="observed")
    ax.set_xlim(grid[0], grid[-1])
    ax.set_xlabel("predicted covariance, in correlation units")
    ax.set_ylabel("observed")
    return _svg(fig, "entries", "Observed against predicted covariances", legend=ax)


def autocorrelation(calibration: Calibration, j: int) -> str:
    """Autocorrelation of one parameter, averaged over the chains, against the predicted curve."""
    found = curves.autocorrelation(calibration, j)
    steps, predicted, band = found.lags, found.predicted, 2 * found.error
    fig, ax = _axes(210.0)
    ax.axhline(0.0, color=LINE, lw=1.0)
    ax.fill_between(steps, predicted - band, predicted + band, color=PREDICTED, alpha=0.16, lw=0)
    ax.plot(steps, predicted, color=PREDICTED, lw=1.8, label="predicted, ± 2 Monte Carlo errors")
    ax.plot(steps, found.observed, "o", color=OBSERVED, ms=3.8, mew=0, label="observed")
    ax.set_xlabel("lag, in steps")
    ax.set_ylim(min(-0.15, 1.1 * found.observed.min()), 1.05)
    return _svg(fig, f"acf{j}", f"Autocorrelation of {calibration.names[j]}", legend=ax)


def trace(calibration: Calibration, j: int) -> str:
    """Every chain's path of one parameter, with its marginal density beside N(estimate, target)."""
    draws = calibration.draws[:_TRACE_CHAINS, :, j]
    fig, (ax, side) = _pair(190.0)
    points = max(50, _TRACE_POINTS // len(draws))
    kept = np.unique(np.linspace(0, draws.shape[1] - 1, points).astype(int))
    for chain, colour in zip(draws, (OBSERVED, THIRD, FOURTH, MUTED, OBSERVED, THIRD), strict=False):
        ax.plot(kept + 1, chain[kept], color=colour, lw=0.7, alpha=0.8)
    ax.set_xlim(1, draws.shape[1])
    ax.set_xlabel("stored draw")
    found = curves.density(calibration, j)
    _marginal(side, found, "horizontal")
    side.set_ylim(found.grid[0], found.grid[-1])
    return _svg(fig, f"trace{j}", f"Trace and density of {calibration.names[j]}")


def density(calibration: Calibration, j: int) -> str:
    """The marginal density of one parameter's draws beside N(estimate, target)."""
    fig, ax = _axes(170.0)
    _marginal(ax, curves.density(calibration, j), "vertical")
    ax.set_yticks([])
    ax.set_xlabel("coefficient")
    return _svg(fig, f"density{j}", f"Density of {calibration.names[j]}")


def _marginal(ax: Axes, found: curves.Density, orientation: Literal["vertical", "horizontal"]) -> None:
    """Histogram and normal density, upright or lying on its side."""
    ax.stairs(found.heights, found.edges, fill=True, color=OBSERVED, alpha=0.35, orientation=orientation)
    line = (found.grid, found.normal) if orientation == "vertical" else (found.normal, found.grid)
    ax.plot(*line, color=PREDICTED, lw=1.8)


def _dots(
    calibration: Calibration, found: tuple[Array, Array, Array], at: Index, name: str, words: str, zero: float
) -> str:
    """Observed dots with two Monte Carlo errors to each side, and predicted diamonds; `found` has all three."""
    observed, predicted, error = (values[at] for values in found)
    fig, ax = _rows([calibration.names[j] for j in at])
    y = np.arange(len(at))
    ax.axvline(zero, color=LINE, lw=1.4)
    ax.hlines(y - 0.08, observed - 2 * error, observed + 2 * error, color=OBSERVED, lw=2.0)
    ax.plot(observed, y - 0.08, "o", color=OBSERVED, ms=6, label="observed, ± 2 Monte Carlo errors")
    ax.plot(predicted, y + 0.16, "D", color=PREDICTED, ms=4.6, label="predicted")
    ax.set_xlabel(words)
    return _svg(fig, name, words, legend=ax)


def _figure(height: float) -> Figure:
    fig = Figure(figsize=(_WIDTH / 72.0, height / 72.0), layout="constrained")
    FigureCanvasSVG(fig)
    fig.patch.set_visible(False)
    return fig


def _axes(height: float) -> tuple[Figure, Axes]:
    fig = _figure(height)
    return fig, _plain(fig.add_subplot())


def _pair(height: float) -> tuple[Figure, tuple[Axes, Axes]]:
    """A wide plot and a narrow one that share their vertical axis."""
    fig = _figure(height)
    grid = fig.add_gridspec(1, 2, width_ratios=(3.2, 1.0), wspace=0.02)
    left = _plain(fig.add_subplot(grid[0]))
    right = _plain(fig.add_subplot(grid[1], sharey=left))
    right.tick_params(labelleft=False, left=False)
    right.set_xticks([])
    right.spines["bottom"].set_visible(False)
    return fig, (left, right)


def _rows(names: list[str]) -> tuple[Figure, Axes]:
    """Axes with one named row per parameter, the first on top."""
    fig, ax = _axes(92.0 + 25.0 * len(names))
    labels = [name if len(name) <= _LABEL else f"{name[: _LABEL - 9]}…{name[-8:]}" for name in names]
    ax.set_yticks(range(len(names)), labels=labels, parse_math=False, color=INK)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color=LINE, lw=0.7)
    return fig, ax


def _plain(ax: Axes) -> Axes:
    ax.set_facecolor("none")
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(LINE)
    ax.tick_params(colors=MUTED, labelsize=12, length=3)
    ax.xaxis.label.set(color=MUTED, fontsize=12.5)
    ax.yaxis.label.set(color=MUTED, fontsize=12.5)
    ax.locator_params(nbins=6)
    return ax


def _svg(fig: Figure, name: str, label: str, legend: Axes | None = None) -> str:
    """The figure as an SVG element for the inside of an HTML page."""
    if legend is not None:
        fig.legend(*legend.get_legend_handles_labels(), loc="outside upper left", ncols=2, frameon=False, fontsize=12,
                   labelcolor=MUTED, handlelength=1.4, borderaxespad=0.0, columnspacing=1.4)  # fmt: skip
    out = io.StringIO()
    # its own salt keeps the ids of one figure apart from the next one's, and the same from run to run
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}), warnings.catch_warnings():
        # the text is drawn by the browser's fonts: a glyph that matplotlib's own font lacks is no loss
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")
        fig.savefig(out, format="svg", metadata={"Date": None})
    return _inline(out.getvalue(), label)


def _inline(text: str, label: str) -> str:
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", text, flags=re.S)
    box = re.search(r'viewBox="[^"]+"', text)
    opening = f'<svg {box.group() if box else ""} role="img" aria-label="{escape(label)}">'
    text = opening + text[text.index(">") + 1 :].replace("xlink:href", "href")
    # groups are named anew in every figure, and nothing refers to them
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", text)
    # two decimals of a pixel are enough, and halve the file
    text = re.sub(r' d="[^"]*"', lambda m: re.sub(r"(\.\d\d)\d+", r"\1", m.group()), text)
    text = re.sub(r"<use [^>]*>", lambda m: re.sub(r"(\.\d\d)\d+", r"\1", m.group()), text)
    for key, (light, _) in THEME.items():
        text = text.replace(light, f"var(--{key})")
    return re.sub(r"\s*\n\s*", "\n", text).strip()
