"""Scaling: with the numbers of rows, of columns and of rows in a batch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.suite.contenders import engine_for
from benchmarks.suite.measure import Settings, exponent, guarded, say, timed
from benchmarks.suite.workloads import Workload, make_cell, prepare

__all__ = ["growth"]

# (rows, columns, batch) along which one of the three grows
_SERIES: dict[str, list[tuple[int, int, int]]] = {
    "N": [(n, 20, 100) for n in (1000, 5000, 20_000, 100_000, 500_000)],
    "D": [(5000, d, 500) for d in (8, 16, 32, 64, 128, 256)],
    "B": [(5000, 50, b) for b in (16, 64, 256, 1024, 4096)],
}


def growth(settings: Settings) -> dict[str, Any]:
    """Time per step along N, D and B, with the exponents of a straight line on log scales."""
    results: dict[str, Any] = {}
    for axis, sizes in _SERIES.items():
        chosen = [(400, 4, 16), (800, 8, 32)] if settings.smoke else sizes
        results[axis] = guarded(lambda a=axis, s=chosen: _series(a, s, settings))  # type: ignore[misc]
        say(f"growth with {axis}: {results[axis]}")
    return results


def _series(axis: str, sizes: list[tuple[int, int, int]], settings: Settings) -> dict[str, Any]:
    at = "NDB".index(axis)
    seconds = [_seconds_per_step(*size, settings) for size in sizes]
    along = [float(size[at]) for size in sizes]
    return {axis: along, "seconds_per_step": seconds, "exponent": exponent(along, seconds)}


def _seconds_per_step(rows: int, dim: int, batch: int, settings: Settings) -> float:
    cell = make_cell(prepare(Workload("growth", "poisson", rows, dim, (batch,))), batch)
    engine, thin = engine_for(cell), 10
    with ThreadPoolExecutor(1) as pool:

        def run(steps: int) -> None:
            state = engine.start(cell.tuning.center, np.random.SeedSequence(0))
            engine.advance([state], steps, thin, [np.empty((steps // thin, dim))], pool)

        run(10)
        pace = timed(lambda: run(200)) / 200
        steps = 200 if settings.smoke else max(2, int(0.5 * settings.seconds / pace) // thin) * thin
        return min(timed(lambda: run(steps)) for _ in range(settings.repeats)) / steps
