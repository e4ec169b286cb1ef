"""Steps per second of every contender on the same chain, and a check that they do run the same chain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.suite.contenders import Run
from benchmarks.suite.measure import Settings, guarded, interleave, say, timed
from benchmarks.suite.peers import CONTENDERS
from benchmarks.suite.workloads import WORKLOADS, Cell, Prepared, make_cell, prepare, smaller

__all__ = ["check_contenders", "measure_workload", "rate_of"]

# Contenders that a large workload or a float32 one leaves out, as they add nothing there.
_SMALL_ONLY = {"equipoise SGLD", "equipoise JAX engine"}
_FLOAT32 = ("equipoise", "JAX scan, by hand", "BlackJAX in a scan")
# A smoke run compiles the JAX contenders once, for the checks, and leaves them out here.
_SMOKE = {"equipoise", "equipoise SGLD", "posteriors", "NumPy loop", "NumPy loop, tightened"}
# Steps in one call, at most: the stored iterates stay small beside the caches' next level.
_MOST = 50_000


def measure_workload(prepared: Prepared, settings: Settings) -> dict[str, Any]:
    """Rates of all contenders at every batch size, in float64 and in float32 storage."""
    cells: dict[str, Any] = {}
    for dtype in ("float64", "float32"):
        for batch in prepared.workload.batches:
            cell = make_cell(prepared, batch, dtype)
            say(f"{cell.label}: preparing")
            cells[cell.label] = _cell(cell, settings)
    return {"cells": cells}


def _names(cell: Cell, smoke: bool) -> list[str]:
    """The contenders of a cell."""
    names = list(CONTENDERS if cell.dtype == "float64" else _FLOAT32)
    large = cell.prepared.workload.rows > 100_000
    return [name for name in names if not (large and name in _SMALL_ONLY) and (name in _SMOKE or not smoke)]


def _cell(cell: Cell, settings: Settings) -> dict[str, Any]:
    results: dict[str, dict[str, Any]] = {}
    runs: dict[str, tuple[Run, int]] = {}
    for name in _names(cell, settings.smoke):
        results[name] = guarded(lambda n=name: _ready(cell, n, settings, runs))  # type: ignore[misc]
    seconds = interleave({name: _work(run, steps) for name, (run, steps) in runs.items()}, settings.repeats)
    for name, measured in seconds.items():
        results[name] |= rate_of(runs[name][1], measured)
        say(f"{cell.label}: {name} {results[name]['rate']:,.0f} steps/s (spread {results[name]['spread']:.0%})")
    for name, result in results.items():
        if name not in seconds:
            say(f"{cell.label}: {name} — {result}")
    return results


def _ready(cell: Cell, name: str, settings: Settings, runs: dict[str, tuple[Run, int]]) -> dict[str, Any]:
    """Set a contender up, compile it, and choose its number of steps by what a short run takes."""
    run = CONTENDERS[name](cell)
    probe = 4 * cell.thin
    run(probe, 0)
    pace = timed(lambda: run(probe, 1)) / probe
    if not settings.smoke:
        # a call's fixed cost is in the first estimate: a longer run corrects it
        probe = _steps(0.2 * settings.seconds / pace, cell.thin)
        run(probe, 0)
        pace = timed(lambda: run(probe, 1)) / probe
    steps = probe if settings.smoke else _steps(settings.seconds / pace, cell.thin)
    if run(steps, 2).shape != (steps // cell.thin, cell.tuning.dim):
        raise AssertionError("the stored iterates have the wrong shape")
    runs[name] = run, steps
    return {}


def _steps(wanted: float, thin: int) -> int:
    return max(2, int(min(wanted, _MOST) // thin)) * thin


def _work(run: Run, steps: int) -> Callable[[], Any]:
    return lambda: run(steps, 3)


def rate_of(steps: int, seconds: list[float]) -> dict[str, Any]:
    """Steps per second at the smallest time, with all repeats and how much longer the median one took."""
    best = min(seconds)
    return {"steps": steps, "seconds": seconds, "rate": steps / best, "spread": float(np.median(seconds)) / best - 1.0}


def check_contenders(settings: Settings) -> dict[str, Any]:
    """Every contender's covariance against the target, on small problems: tr(target⁻¹ observed)/D is 1 if all is well."""
    effective = 400 if settings.smoke else 2000
    results: dict[str, Any] = {}
    for workload in map(smaller, WORKLOADS):
        cell = make_cell(prepare(workload), workload.batches[0])
        steps = effective * workload.rows // cell.batch // cell.thin * cell.thin
        for name, contender in CONTENDERS.items():
            outcome = guarded(lambda c=contender, k=cell, n=steps: _check(c(k), k, n))  # type: ignore[misc]
            results[f"{workload.name} {name}"] = outcome
            say(f"check {workload.name} {name}: {outcome}")
    return {"checks": results, "effective_draws": effective}


def _check(run: Run, cell: Cell, steps: int) -> dict[str, Any]:
    draws = run(steps, 5)
    if draws.shape != (steps // cell.thin, cell.tuning.dim) or not np.isfinite(draws).all():
        raise AssertionError(f"draws of shape {draws.shape}, finite: {np.isfinite(draws).all()}")
    observed = np.cov(draws, rowvar=False)
    ratio = float(np.trace(np.linalg.solve(cell.tuning.target, observed))) / cell.tuning.dim
    # of D·n effective squares, each of relative variance 2; five standard errors, and the guess at n is rough
    tolerance = 5.0 * np.sqrt(2.0 * 1.5 / (steps * cell.batch / cell.prepared.workload.rows) / cell.tuning.dim)
    return {"variance_ratio": ratio, "tolerance": float(tolerance), "passed": bool(abs(ratio - 1.0) < tolerance)}
