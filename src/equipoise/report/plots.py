"""Plots of a run as inline SVG: what was predicted in orange, what was observed in blue (theory §6, §7).

Figures are made through matplotlib's objects, never through pyplot, so no global state is left behind. Colours are
written as CSS variables and text as text, so that a page's own fonts and its dark mode reach into the plots.
"""

from __future__ import annotations

import io
import re
import warnings
from html import escape
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from numpy.typing import NDArray

from equipoise.arrays import Array
from equipoise.calibration.diagnostics import autocorrelation_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from equipoise.calibration.calibration import Calibration

__all__ = [
    "autocorrelation",
    "covariance_entries",
    "density",
    "forest",
    "furthest",
    "mean_shift",
    "palette",
    "skewness",
    "slowest",
    "spread",
    "spread_error",
    "standard_errors",
    "trace",
]

Index = NDArray[np.intp]

# Okabe and Ito's colours, which stay apart for every common kind of colour vision. Name → hex on light, hex on dark.
_COLOURS = {
    "ink": ("#1f2430", "#e7e9ee"),
    "muted": ("#6b7280", "#9aa3b2"),
    "line": ("#d9dce3", "#363c4a"),
    "observed": ("#0072b2", "#56b4e9"),
    "predicted": ("#d55e00", "#f0894a"),
    "third": ("#009e73", "#2fc79a"),
    "fourth": ("#b0608c", "#e3a1c6"),
}
INK, MUTED, LINE, OBSERVED, PREDICTED, THIRD, FOURTH = (light for light, _ in _COLOURS.values())

_WIDTH = 480.0  # points; the page shows one point as one pixel, two plots side by side
_TRACE_POINTS = 1200  # over all chains of one plot: more cannot be told apart at this width
_TRACE_CHAINS = 6
_PAIRS = 400  # entries of the covariance shown
_LABEL = 26  # characters of a parameter's name that fit beside a plot


def palette() -> str:
    """The colours as CSS variables: light, dark where the reader prefers it, and always light on paper."""
    light = {"paper": "#f6f7f9", "card": "#ffffff", **{name: pair[0] for name, pair in _COLOURS.items()}}
    dark = {"paper": "#14171d", "card": "#1c2029", **{name: pair[1] for name, pair in _COLOURS.items()}}
    sets = ["".join(f"--{name}:{colour};" for name, colour in chosen.items()) for chosen in (light, dark)]
    return f":root{{{sets[0]}}}@media screen and (prefers-color-scheme:dark){{:root{{{sets[1]}}}}}"


def furthest(score: Array, limit: int) -> Index:
    """The positions of the `limit` largest scores, in their original order."""
    clean = np.nan_to_num(np.asarray(score, dtype=np.float64), nan=-np.inf)
    return np.sort(np.argsort(-clean, kind="stable")[:limit])


def slowest(calibration: Calibration, limit: int) -> Index:
    """The parameters with the fewest effective draws, predicted first and observed where that ties."""
    d = calibration.diagnosis
    return np.lexsort((d.ess, np.round(d.predicted_ess, -1)))[:limit]


def spread_error(calibration: Calibration) -> Array:
    """Monte Carlo error of the observed over the predicted standard deviation, by parameter.

    A variance of T draws whose autocorrelation is φ^|k| has relative variance 2 τ₂ / T with
    τ₂ = Σ φ^{2|k|} = (τ + 1/τ) / 2, τ the autocorrelation time of the draws themselves.
    """
    return np.sqrt(0.5 * _squared_time(calibration) / _stored(calibration))


def forest(
    calibration: Calibration, lower: Array, upper: Array, other: Array, words: tuple[str, str], at: Index
) -> str:
    """Estimates with their intervals, and the interval another covariance would have given.

    Parameters
    ----------
    calibration
        The run.
    lower, upper
        Interval ends from the draws.
    other
        Standard deviations of the other covariance; its interval has the same probability.
    words
        What the two intervals are called.
    at
        The parameters to show.
    """
    estimate, se = calibration.tuning.center[at], np.sqrt(np.diag(calibration.tuning.target))[at]
    width = 0.5 * (upper - lower)[at]
    span = np.ptp(np.concatenate([lower[at], upper[at], [0.0]]))
    # where most intervals would be dots on a common axis, distances from zero in standard errors say more
    unit = se if np.median(width) < 0.01 * span else np.ones_like(se)
    fig, ax = _rows([calibration.names[j] for j in at])
    y = np.arange(len(at))
    ax.axvline(0.0, color=MUTED, lw=1.0, dashes=(4, 3))
    half = other[at] * width / se
    ax.hlines(y - 0.1, lower[at] / unit, upper[at] / unit, color=OBSERVED, lw=2.4, label=words[0])
    ax.hlines(y + 0.2, (estimate - half) / unit, (estimate + half) / unit, color=PREDICTED, lw=2.4, label=words[1])
    ax.plot(estimate / unit, y - 0.1, "o", color=OBSERVED, ms=5.5)
    ax.set_xlabel("coefficient" if unit[0] == 1.0 else "coefficient, in its standard errors")
    return _svg(fig, "forest", "Estimates and intervals", legend=ax)


def standard_errors(calibration: Calibration, other: Array, at: Index) -> str:
    """Another covariance's standard errors over the target's, by parameter."""
    ratio = (other / np.sqrt(np.diag(calibration.tuning.target)))[at]
    fig, ax = _rows([calibration.names[j] for j in at])
    y = np.arange(len(at))
    ax.axvline(1.0, color=OBSERVED, lw=1.6)
    ax.hlines(y, 1.0, ratio, color=LINE, lw=2.0)
    ax.plot(ratio, y, "D", color=PREDICTED, ms=6)
    ax.set_xlim(min(0.0, ratio.min()), 1.12 * max(1.0, ratio.max()))
    ax.set_xlabel("ratio of standard errors")
    return _svg(fig, "errors", "Ratio of standard errors")


def spread(calibration: Calibration, at: Index) -> str:
    """Observed over predicted standard deviation with its Monte Carlo error, by parameter."""
    d = calibration.diagnosis
    return _dots(calibration, d.sd_ratio, np.ones_like(d.sd_ratio), spread_error(calibration), at, "spread",
                 "observed / predicted standard deviation")  # fmt: skip


def mean_shift(calibration: Calibration, at: Index) -> str:
    """Mean of the draws minus the estimate, in standard deviations: observed with its error, and predicted."""
    d = calibration.diagnosis
    return _dots(calibration, d.shift, d.predicted_shift, d.shift_error, at, "shift",
                 "mean of the draws − estimate, in standard deviations")  # fmt: skip


def skewness(calibration: Calibration, at: Index) -> str:
    """Skewness of the draws with its Monte Carlo error; a quadratic loss predicts none."""
    d = calibration.diagnosis
    error = np.sqrt(6.0 / d.ess)
    return _dots(calibration, d.skewness, np.zeros_like(error), error, at, "skewness", "skewness of the draws")


def covariance_entries(calibration: Calibration) -> str:
    """Observed against predicted covariances, divided by the predicted standard deviations; empty for one parameter."""
    law, d = calibration.tuning.predicted, calibration.diagnosis
    sd = np.sqrt(np.diag(law.cov))
    rows, columns = np.tril_indices(len(sd), -1)
    if not rows.size:
        return ""
    scale = np.outer(sd, sd)[rows, columns]
    predicted, observed = law.cov[rows, columns] / scale, d.cov[rows, columns] / scale
    kept = furthest(np.abs(observed - predicted), _PAIRS)
    fig, ax = _axes(300.0)
    low, high = _padded(np.concatenate([predicted, observed]))
    grid = np.linspace(low, high, 60)
    # Var of an entry ≈ τ₂ (1 + ρ²) / T in these units
    error = np.sqrt(np.median(_squared_time(calibration)) / _stored(calibration) * (1.0 + grid**2))
    ax.fill_between(grid, grid - 2 * error, grid + 2 * error, color=PREDICTED, alpha=0.16, lw=0)
    ax.plot(grid, grid, color=PREDICTED, lw=1.4, label="predicted, ± 2 Monte Carlo errors")
    ax.plot(predicted[kept], observed[kept], "o", color=OBSERVED, ms=4.5, alpha=0.75, mew=0, label="observed")
    ax.set_xlim(low, high)
    ax.set_xlabel("predicted covariance, in correlation units")
    ax.set_ylabel("observed")
    return _svg(fig, "entries", "Observed against predicted covariances", legend=ax)


def autocorrelation(calibration: Calibration, j: int) -> str:
    """Autocorrelation of one parameter, averaged over the chains, against the predicted curve."""
    chains, law = calibration.chains, calibration.tuning.predicted
    draws = chains.draws[:, :, j]
    tau = max(1.0, float(law.iacts()[j]) / chains.thin)
    last = int(min(draws.shape[1] // 2, max(8.0, np.ceil(3.0 * tau))))
    observed = _autocorrelations(draws, last)
    k = np.unique(np.linspace(0, last, 80).astype(int))
    predicted = np.array([law.autocovariance(int(i) * chains.thin)[j, j] for i in k]) / law.cov[j, j]
    error = _bartlett((tau - 1.0) / (tau + 1.0), k, draws.size)
    fig, ax = _axes(210.0)
    steps = k * chains.thin
    ax.axhline(0.0, color=LINE, lw=1.0)
    ax.fill_between(steps, predicted - 2 * error, predicted + 2 * error, color=PREDICTED, alpha=0.16, lw=0)
    ax.plot(steps, predicted, color=PREDICTED, lw=1.8, label="predicted, ± 2 Monte Carlo errors")
    ax.plot(steps, observed[k], "o", color=OBSERVED, ms=3.8, mew=0, label="observed")
    ax.set_xlabel("lag, in steps")
    ax.set_ylim(min(-0.15, 1.1 * float(observed.min())), 1.05)
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
    _marginal(side, calibration, j, upright=False)
    side.set_ylim(*_padded(calibration.draws[:, :, j]))
    return _svg(fig, f"trace{j}", f"Trace and density of {calibration.names[j]}")


def density(calibration: Calibration, j: int) -> str:
    """The marginal density of one parameter's draws beside N(estimate, target)."""
    fig, ax = _axes(170.0)
    _marginal(ax, calibration, j, upright=True)
    ax.set_yticks([])
    ax.set_xlabel("coefficient")
    return _svg(fig, f"density{j}", f"Density of {calibration.names[j]}")


def _marginal(ax: Axes, calibration: Calibration, j: int, *, upright: bool) -> None:
    """Histogram and normal density; lying on its side unless upright."""
    draws = calibration.draws[:, :, j].ravel()
    bins = int(np.clip(np.sqrt(draws.size), 8, 40))
    heights, edges = np.histogram(draws, bins=bins, density=True)
    center, sd = calibration.tuning.center[j], np.sqrt(calibration.tuning.target[j, j])
    low, high = _padded(np.append(draws, [center - 3 * sd, center + 3 * sd]))
    grid = np.linspace(low, high, 120)
    normal = np.exp(-0.5 * ((grid - center) / sd) ** 2) / (sd * np.sqrt(2.0 * np.pi))
    orientation: Any = "vertical" if upright else "horizontal"
    ax.stairs(heights, edges, fill=True, color=OBSERVED, alpha=0.35, orientation=orientation)
    ax.plot(*((grid, normal) if upright else (normal, grid)), color=PREDICTED, lw=1.8)


def _dots(
    calibration: Calibration, observed: Array, predicted: Array, error: Array, at: Index, name: str, words: str
) -> str:
    """Observed dots with two Monte Carlo errors to each side, and predicted diamonds."""
    fig, ax = _rows([calibration.names[j] for j in at])
    y = np.arange(len(at))
    ax.axvline(float(name == "spread"), color=LINE, lw=1.4)
    ax.hlines(y - 0.08, (observed - 2 * error)[at], (observed + 2 * error)[at], color=OBSERVED, lw=2.0)
    ax.plot(observed[at], y - 0.08, "o", color=OBSERVED, ms=6, label="observed, ± 2 Monte Carlo errors")
    ax.plot(predicted[at], y + 0.16, "D", color=PREDICTED, ms=4.6, label="predicted")
    ax.set_xlabel(words)
    return _svg(fig, name, words, legend=ax)


def _autocorrelations(draws: Array, last: int) -> Array:
    """Lags 0 to `last`, averaged over chains about their common mean."""
    centred = draws - draws.mean()
    n = draws.shape[1]
    power = np.abs(np.fft.rfft(centred, n=2 * n, axis=1)) ** 2
    acov = np.fft.irfft(power.mean(axis=0))[: last + 1] / (n - np.arange(last + 1))
    return acov / acov[0] if acov[0] > 0.0 else np.zeros(last + 1)


def _bartlett(phi: float, lag: NDArray[np.int_], draws: int) -> Array:
    """Bartlett's standard error of an autocorrelation at each lag, for autocorrelations φ^k."""
    p = phi ** (2.0 * lag)
    return np.sqrt(np.maximum((1 + phi**2) * (1 - p) / (1 - phi**2) - 2 * lag * p, 0.0) / draws)


def _squared_time(calibration: Calibration) -> Array:
    """τ₂ in stored draws, from each parameter's observed autocorrelation time."""
    tau = np.array([autocorrelation_time(calibration.draws[:, :, j]) for j in range(len(calibration.names))])
    tau = np.maximum(tau, 1.0)
    return 0.5 * (tau + 1.0 / tau)


def _stored(calibration: Calibration) -> int:
    return calibration.draws.shape[0] * calibration.draws.shape[1]


def _padded(values: Array, share: float = 0.04) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    pad = share * (high - low) or max(abs(low), 1.0) * share
    return low - pad, high + pad


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
    for key, (light, _) in _COLOURS.items():
        text = text.replace(light, f"var(--{key})")
    return re.sub(r"\s*\n\s*", "\n", text).strip()
