"""The plots of a run: steps per second of every contender in every cell; effective draws, rows and columns."""

from __future__ import annotations

from math import floor, log10
from pathlib import Path
from typing import Any

from benchmarks.suite.report import sampler_rates

__all__ = ["plots"]

_OURS, _OTHERS, _LIMIT = "#0072B2", "#999999", "#009E73"
_WORKLOADS = {"W1": "linear, 5000 × 50", "W2": "Poisson, 5000 × 50", "W3": "logistic, 10⁶ × 100"}


def plots(data: dict[str, Any], path: Path) -> list[Path]:
    """Write the figures of what a run has (SVG or PNG, by the ending): `path`, and one whose name ends in `-scaling`."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "equipoise"  # the same figures give the same file
    other = path.with_name(f"{path.stem}-scaling{path.suffix}")
    return [place for place, draw in ((path, _speeds), (other, _scaling)) if draw(data, place)]


def _speeds(data: dict[str, Any], path: Path) -> bool:
    """Steps per second; False when the run has none to show."""
    cells = {
        label: {name: result["rate"] for name, result in cell.items() if "rate" in result}
        for name in ("W1", "W2", "W3")
        for label, cell in data["sections"].get(name, {}).get("cells", {}).items()
        if "float32" not in label
    }
    cells = {label: rates for label, rates in cells.items() if rates}
    if not cells:
        return False
    import matplotlib.pyplot as plt

    columns = min(3, len(cells))
    lines = -(-len(cells) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(3.6 * columns, 2.4 * lines), layout="constrained", squeeze=False
    )
    figure.get_layout_engine().set(hspace=0.08)
    figure.suptitle("steps per second", fontsize=9)
    for axis in axes.ravel()[len(cells) :]:
        axis.set_visible(False)
    for axis, (label, rates) in zip(axes.T.ravel() if lines * columns == len(cells) else axes.ravel(), cells.items()):  # noqa: B905
        workload, _, batch = label.partition(" B=")
        _panel(axis, f"{_WORKLOADS[workload]}, batches of {batch}", rates)
    _save(figure, path)
    return True


def _save(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=160)
    plt.close(figure)


def _scaling(data: dict[str, Any], path: Path) -> bool:
    """Effective draws per second of all samplers, and whole runs by rows and by columns; False unless all are there."""
    import matplotlib.pyplot as plt

    sections = data["sections"]
    series = {
        "rows of a Parquet file": sections.get("rows", {}).get("runs", {}),
        "columns of 20,000 rows": sections.get("columns", {}).get("runs", {}),
    }
    series = {name: {int(n): r for n, r in runs.items() if "seconds" in r} for name, runs in series.items()}
    rates = _sampler_rates(sections)
    if not rates or not all(series.values()):
        return False
    figure, axes = plt.subplots(1, 3, figsize=(10.8, 3.0), layout="constrained", width_ratios=[1.5, 1, 1])
    _panel(axes[0], f"{_WORKLOADS['W2']}: effective draws per second", rates)
    for axis, (name, runs) in zip(axes[1:], series.items(), strict=True):
        _growth(axis, name, runs)
    _save(figure, path)
    return True


def _sampler_rates(sections: dict[str, Any]) -> dict[str, float]:
    rates = sampler_rates(sections.get("second_law", {}).get("W2", {}))
    best = sampler_rates(sections.get("tuned", {}).get("W2", {}).get("best", {}))
    return rates | {f"BlackJAX SGLD, {kind}, best": rate for kind, rate in best.items()}


def _growth(axis: Any, name: str, runs: dict[int, dict[str, Any]]) -> None:
    """Seconds to the left, on log scales, and peak memory to the right, from zero."""
    sizes = sorted(runs)
    axis.plot(sizes, [runs[n]["seconds"] for n in sizes], "o-", color="#0072B2", ms=4)
    axis.set(xscale="log", yscale="log")
    axis.set_title("whole run: seconds (blue), peak MB (orange)", fontsize=8, loc="left")
    axis.set_xlabel(name, fontsize=7)
    beside = axis.twinx()
    beside.plot(sizes, [runs[n]["peak MB"] for n in sizes], "s--", color="#D55E00", ms=4)
    beside.set_ylim(bottom=0.0)
    for side in (axis, beside):
        side.tick_params(labelsize=7)
        side.spines["top"].set_visible(False)


def _panel(axis: Any, title: str, rates: dict[str, float]) -> None:
    names = sorted(rates, key=rates.__getitem__)
    axis.barh(names, [rates[n] for n in names], color=[_colour(n) for n in names])
    for row, name in enumerate(names):
        axis.annotate(f" {rates[name]:,.0f}", (rates[name], row), va="center", fontsize=6)
    axis.set_xscale("log")
    axis.set_xlim(10.0 ** floor(log10(min(rates.values())) - 0.2), 6.0 * max(rates.values()))
    axis.xaxis.set_minor_formatter("")
    axis.set_title(title, fontsize=8, loc="left")
    axis.tick_params(labelsize=7)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _colour(name: str) -> str:
    """Blue for ours, green for what no chain can exceed, grey for others."""
    if name.startswith(("equipoise", "control variates")):
        return _OURS
    return _LIMIT if name == "independent Gaussian draws" else _OTHERS
