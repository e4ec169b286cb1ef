"""The plot of a run: steps per second of every contender in every cell."""

from __future__ import annotations

from math import floor, log10
from pathlib import Path
from typing import Any

__all__ = ["plot"]

_COLOURS = {
    "equipoise": "#0072B2",
    "equipoise SGLD": "#56B4E9",
    "equipoise JAX engine": "#009E73",
    "JAX scan, by hand": "#F0E442",
    "BlackJAX in a scan": "#D55E00",
    "BlackJAX jit per step": "#E69F00",
    "posteriors": "#CC79A7",
    "NumPy loop": "#999999",
    "NumPy loop, tightened": "#666666",
}


def plot(data: dict[str, Any], path: Path) -> bool:
    """Write the figure (SVG or PNG, by the ending); False when the run has no speeds to show."""
    cells = {
        label: {name: result["rate"] for name, result in cell.items() if "rate" in result}
        for name in ("W1", "W2", "W3")
        for label, cell in data["sections"].get(name, {}).get("cells", {}).items()
        if "float32" not in label
    }
    cells = {label: rates for label, rates in cells.items() if rates}
    if not cells:
        return False
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "equipoise"  # the same figures give the same file
    import matplotlib.pyplot as plt

    columns = min(3, len(cells))
    lines = -(-len(cells) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(3.6 * columns, 2.3 * lines), layout="constrained", squeeze=False
    )
    for axis in axes.ravel()[len(cells) :]:
        axis.set_visible(False)
    for axis, (label, rates) in zip(axes.T.ravel() if lines * columns == len(cells) else axes.ravel(), cells.items()):  # noqa: B905
        _panel(axis, label, rates)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=160)
    plt.close(figure)
    return True


def _panel(axis: Any, label: str, rates: dict[str, float]) -> None:
    names = sorted(rates, key=rates.__getitem__)
    axis.barh(names, [rates[n] for n in names], color=[_COLOURS.get(n, "#999999") for n in names])
    for row, name in enumerate(names):
        axis.annotate(f" {rates[name]:,.0f}", (rates[name], row), va="center", fontsize=6)
    axis.set_xscale("log")
    axis.set_xlim(10.0 ** floor(log10(min(rates.values())) - 0.2), 6.0 * max(rates.values()))
    axis.xaxis.set_minor_formatter("")
    axis.set_title(f"{label}, steps per second", fontsize=8, loc="left")
    axis.tick_params(labelsize=7)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
