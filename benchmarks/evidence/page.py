"""Tables and figures of both studies, and the page that shows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

from benchmarks.evidence.coverage import COLUMNS, CONTROLS
from benchmarks.evidence.designs import FAMILIES, SIZES
from benchmarks.evidence.ledger import cell_name
from benchmarks.evidence.ranks import KEPT, QUANTITIES, ROWS, SAMPLERS, departure, uniformity
from benchmarks.suite.report import table, write_block
from equipoise.report.palette import BLACK, BLUE, GREY, VERMILION

__all__ = ["band", "control_table", "coverage_table", "failures", "rank_table", "share", "write"]

plt.rcParams["svg.hashsalt"] = "equipoise"  # the same figures give the same file
_ORANGE, _GREEN, _PINK = "#E69F00", "#009E73", "#CC79A7"
_COLOURS = dict(zip(COLUMNS, (GREY, BLUE, _ORANGE, _GREEN, _PINK), strict=True))
_SIMULATIONS = 4000


def write(results: Path, docs: Path) -> list[Path]:
    """The tables between the page's marks, and the figures beside it; what was not measured is left as it is."""
    written = []
    for name, blocks, draw in (
        ("coverage", {"coverage": coverage_table, "coverage-controls": control_table}, _draw_coverage),
        ("ranks", {"ranks": rank_table}, _draw_ranks),
    ):
        if not (results / f"{name}.json").exists():
            continue
        cells = json.loads((results / f"{name}.json").read_text(encoding="utf-8"))["cells"]
        figure = draw(cells)
        figure.savefig(docs / "figures" / f"{name}.svg", metadata={"Date": None})
        plt.close(figure)
        written.append(docs / "figures" / f"{name}.svg")
        pages = sorted(docs.rglob("evidence.md"))
        written += [page for page in pages for mark, make in blocks.items() if write_block(page, make(cells), mark)]
    return list(dict.fromkeys(written))


def share(cell: dict[str, Any], name: str) -> tuple[float, float]:
    """Coverage and its standard error.

    Coefficients of one data set are dependent: the error is that of the share of its intervals that hit, between data sets.
    """
    found = cell[name]
    n, mean = found["intervals"], found["share"] / found["intervals"]
    return mean, float(np.sqrt(max(found["share squared"] / n - mean**2, 0.0) / max(n - 1, 1)))


def _cell(cell: dict[str, Any], name: str) -> str:
    if name not in cell:
        return "–"
    mean, error = share(cell, name)
    return f"{100 * mean:.1f} ± {100 * error:.1f}"


def coverage_table(cells: dict[str, Any]) -> str:
    """Coverage in per cent with standard errors, by family and rows."""
    rows = [
        [f"{family}, {n:,}", *(_cell(cell, name) for name in COLUMNS), f"{cell['data sets']:,}"]
        for family in FAMILIES
        for n in SIZES
        if (cell := cells.get(cell_name(family, n)))
    ]
    return table(["family, rows", *COLUMNS, "data sets"], rows) + "\n"


def control_table(cells: dict[str, Any]) -> str:
    """The same for what is compared with it, and what went otherwise than well."""
    rows = [
        [f"{family}, {n:,}", *(_cell(cell, name) for name in CONTROLS),
         f"{100 * cell['quantiles chosen'] / cell['posterior']['intervals']:.0f} %", str(cell["flagged"]), failures(cell)]
        for family in FAMILIES
        for n in SIZES
        if (cell := cells.get(cell_name(family, n)))
    ]  # fmt: skip
    head = [
        "family, rows",
        *CONTROLS,
        "posterior by quantiles",
        "flagged",
        "no fit: wrong variance / clustered / right",
    ]
    return table(head, rows) + "\n"


def failures(cell: dict[str, Any]) -> str:
    """Data sets without an interval, by design."""
    designs = ("wrong variance", "clustered", "right")
    counts = [sum(k for why, k in cell["failed"].items() if why.startswith(design)) for design in designs]
    return " / ".join(map(str, counts)) if any(counts) else "none"


def rank_table(cells: dict[str, Any]) -> str:
    """p-values of uniform ranks, χ² and of the distribution function, by family, rows, sampler and quantity."""
    rows = []
    for sampler in SAMPLERS:
        for family in FAMILIES:
            for n in ROWS:
                if not (cell := cells.get(f"{family}, {n}")):
                    continue
                found = [uniformity(cell["ranks"][sampler][q], _SIMULATIONS) for q in QUANTITIES]
                shown = [f"{_p(f['chi2'])} / {_p(f['ecdf'])}" for f in found]
                gone = sum(k for why, k in cell["failed"].items() if why.startswith(sampler))
                rows.append([f"{sampler}: {family}, {n}", *shown, f"{cell['data sets'] - gone:,}"])
    return table(["p of χ² / of the distribution function", *QUANTITIES, "data sets"], rows) + "\n"


def _p(value: float) -> str:
    return f"{value:.2f}" if value >= 0.005 else "**< 0.005**" if value >= 0.0005 else "**< 0.0005**"


def _draw_coverage(cells: dict[str, Any]) -> Any:
    """One panel per family: coverage against rows, one line per covariance, bars of two standard errors."""
    figure, axes = plt.subplots(1, len(FAMILIES), figsize=(11, 2.9), layout="constrained", sharey=True)
    for axis, family in zip(axes, FAMILIES, strict=True):
        axis.axhline(95.0, color=BLACK, lw=0.8)
        for k, name in enumerate(COLUMNS):
            sizes = [n for n in SIZES if name in cells.get(cell_name(family, n), {})]
            shares = [share(cells[cell_name(family, n)], name) for n in sizes]
            moved = [n * 1.07 ** (k - 2) for n in sizes]
            axis.errorbar(
                moved, [100 * m for m, _ in shares], yerr=[200 * e for _, e in shares], fmt="o-", ms=3, lw=1,
                color=_COLOURS[name], capsize=2, label=name,
            )  # fmt: skip
        axis.set_xscale("log")
        axis.set_xticks(SIZES, [f"{n:,}" for n in SIZES], fontsize=7)
        axis.minorticks_off()
        axis.set_title(family, fontsize=9, loc="left")
        axis.tick_params(labelsize=7)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    axes[0].set_ylabel("coverage of 95 % intervals, %", fontsize=8)
    figure.supxlabel("rows", fontsize=8)
    axes[-1].legend(fontsize=7, frameon=False, loc="lower right")
    return figure


def _draw_ranks(cells: dict[str, Any]) -> Any:
    """Distribution functions of the ranks less the diagonal, in the 95 % band of uniform ranks."""
    figure, axes = plt.subplots(
        len(ROWS), len(FAMILIES), figsize=(11, 2.3 * len(ROWS)), layout="constrained", sharey=True, squeeze=False
    )
    points = np.arange(1, KEPT + 2) / (KEPT + 1)
    for line, n in zip(axes, ROWS, strict=True):
        for axis, family in zip(line, FAMILIES, strict=True):
            cell = cells.get(f"{family}, {n}")
            if not cell:
                continue
            low, high = band(int(np.sum(cell["ranks"]["chain"]["intercept"])))
            axis.fill_between(points[:-1], low, high, color=GREY, alpha=0.25, lw=0)
            for sampler, colour in zip(SAMPLERS, (BLUE, VERMILION), strict=True):
                for k, quantity in enumerate(QUANTITIES):
                    counts = np.array(cell["ranks"][sampler][quantity])
                    away = np.cumsum(counts) / counts.sum() - points
                    label = sampler if k == 0 else None
                    axis.plot(points, away, color=colour, lw=0.8, ls="--" if k == 4 else "-", label=label)
            axis.set_title(f"{family}, {n} rows", fontsize=8, loc="left")
            axis.tick_params(labelsize=7)
            for side in ("top", "right"):
                axis.spines[side].set_visible(False)
    axes[0][-1].legend(fontsize=7, frameon=False)
    figure.supxlabel("rank of the truth among 99 draws, over 100", fontsize=8)
    figure.supylabel("share of lower ranks, less the diagonal", fontsize=8)
    return figure


def band(total: int, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Where the distribution function of so many uniform ranks lies at all points together, less the diagonal."""
    uniform = np.full(KEPT + 1, 1.0 / (KEPT + 1))
    least = np.quantile(departure(np.random.default_rng(0).multinomial(total, uniform, _SIMULATIONS)), 1.0 - level)
    points = np.arange(1, KEPT + 1) / (KEPT + 1)
    low, high = stats.binom.ppf(least / 2, total, points), stats.binom.isf(least / 2, total, points)
    return low / total - points, high / total - points
