"""What comes before the chain: passes over the data, the step matrix, peak memory, and the start of a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import cholesky
from scipy.optimize import root

import equipoise as eq
from benchmarks.suite.measure import PINNED, Settings, child_environment, exponent, interleave, say, timed, unpinned
from benchmarks.suite.workloads import Array, Prepared, make_data

__all__ = ["offline_passes", "peak_memory", "start_up", "step_matrix"]


_DIMS = (20, 50, 100, 200, 500, 1000, 2000)


def offline_passes(prepared: Prepared, settings: Settings) -> dict[str, Any]:
    """Time of fit, moments and tuning, in passes over the data: X v and Xᵀ r in the same run, on the same thread."""
    x, y, workload = prepared.x, prepared.y, prepared.workload
    model, v, r = eq.glm(workload.family), np.ones(workload.dim), np.ones(workload.rows)
    made: dict[str, Any] = {}
    works: dict[str, Callable[[], Any]] = {
        "pass": lambda: (x @ v, r @ x),
        "fit": lambda: made.update(fit=eq.fit(model, (x, y))),
        "moments": lambda: made.update(moments=eq.moments(model, (x, y), made["fit"].params)),
        "tune": lambda: eq.tune(made["moments"], "sandwich", eq.Dynamics(workload.batches[0])),
    }
    stages = interleave(works, 1 if settings.smoke else 7)
    one = min(stages.pop("pass"))
    passes = {stage: min(times) / one for stage, times in stages.items()}
    say(f"offline stage: {sum(passes.values()):.1f} passes {passes}")
    return {
        "seconds_per_pass": one,
        "seconds": stages,
        "iterations": made["fit"].iterations,
        "passes": passes,
        "total_passes": sum(passes.values()),
    }


def step_matrix(settings: Settings) -> dict[str, Any]:
    """Time of `eq.tune` against D, at N = 5000 for D = 50, and against Powell's method at D = 20."""
    dims = (4, 8) if settings.smoke else _DIMS
    seconds = []
    for dim in dims:
        moments, dynamics = _moments(4 * dim, dim)
        target = eq.sandwich(moments)
        tune = partial(eq.tune, moments, target, dynamics)
        first = timed(tune)
        # about a second for each size, and no size but the largest on one repeat alone
        repeats = 0 if settings.smoke else min(50, int(1.0 / first) + (first < 5.0))
        seconds.append(min([first, *(timed(tune) for _ in range(repeats))]))
        say(f"step matrix D={dim}: {seconds[-1] * 1e3:.3g} ms")
    moments, dynamics = _moments(*((50, 4) if settings.smoke else (5000, 50)))
    target = eq.sandwich(moments)
    fifty = [timed(partial(eq.tune, moments, target, dynamics)) for _ in range(1 if settings.smoke else 50)]
    large = [k for k, dim in enumerate(dims) if dim >= 200 or settings.smoke]
    return {
        "D": list(dims),
        "seconds": seconds,
        "exponent": exponent([float(d) for d in dims], seconds),
        # below D = 200 fixed costs hide the growth
        "exponent_large": exponent([float(dims[k]) for k in large], [seconds[k] for k in large]),
        "seconds_at_5000_rows_50_columns": min(fifty),
        "powell": _powell(3 if settings.smoke else 20),
    }


def _moments(rows: int, dim: int) -> tuple[eq.Moments, eq.Dynamics]:
    """Moments of a linear regression at its minimiser; four rows per column keep every term of order D³."""
    x, y = make_data("gaussian", rows, dim)
    theta = np.linalg.solve(x.T @ x, x.T @ y)
    return eq.moments(eq.glm("gaussian", scale=1.0), (x, y), theta), eq.Dynamics(max(2, rows // 10))


def _powell(dim: int) -> dict[str, Any]:
    """The equation Λ H Σ + Σ H Λ = Λ Q Λ solved by `scipy.optimize.root`, scaled so that the target is I."""
    moments, dynamics = _moments(50 * dim, dim)
    target = eq.sandwich(moments)
    R, H = cholesky(target, lower=True), moments.hessian
    h = R.T @ H @ R
    q = R.T @ (moments.gradient_noise(target, dynamics) + H @ target @ H) @ R
    lower = np.tril_indices(dim)

    def full(values: Array) -> Array:
        step = np.zeros((dim, dim))
        step[lower] = values
        return step + np.tril(step, -1).T

    def equation(values: Array) -> Array:
        step = full(values)
        half = step @ h
        return (half + half.T - step @ q @ step)[lower]

    start = (2.0 * np.trace(h) / np.trace(q) * np.eye(dim))[lower]
    found: dict[str, Any] = {}
    powell = timed(lambda: found.update(root=root(equation, start, method="hybr")))
    closed = min(timed(lambda: found.update(tuning=eq.tune(moments, target, dynamics))) for _ in range(20))
    ours = np.linalg.solve(R, np.linalg.solve(R, found["tuning"].step).T)
    difference = float(np.abs(full(found["root"].x) - ours).max() / np.abs(ours).max())
    say(f"step matrix D={dim}: Powell {powell:.3g} s, closed form {closed:.3g} s, difference {difference:.1e}")
    return {
        "D": dim,
        "converged": bool(found["root"].success),
        "difference": difference,
        "powell_seconds": powell,
        "closed_form_seconds": closed,
        "ratio": powell / closed,
    }


def peak_memory(prepared: Prepared, settings: Settings) -> dict[str, Any]:
    """Peak resident memory of fit, moments, tuning and sampling in a process of its own, as a multiple of the data."""
    rows, dim = (2000, 5) if settings.smoke else (prepared.workload.rows, prepared.workload.dim)
    command = [sys.executable, "-m", "benchmarks.suite.memory", prepared.workload.family, str(rows), str(dim)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=child_environment())
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    say(f"peak memory: {result['ratio']:.2f} times the data")
    return result


def start_up(settings: Settings) -> dict[str, Any]:
    """Wall time of `equipoise fit` on a small table, with an empty and with a filled cache of compiled code.

    A smoke run only starts it once, with whatever the cache holds.
    """
    environment = {key: value for key, value in os.environ.items() if key not in PINNED}
    x, y = make_data("poisson", 300, 3, seed=1)
    seconds: dict[str, list[float]] = {"cold": [], "warm": []}
    with tempfile.TemporaryDirectory() as folder, unpinned():
        table = Path(folder) / "table.csv"
        lines = [f"{b:.6f},{c:.6f},{d:.0f}" for (_, b, c), d in zip(x, y, strict=True)]
        table.write_text("\n".join(["a,b,y", *lines]) + "\n")
        code = "from equipoise.cli import main; main()"
        command = [sys.executable, "-c", code, "fit", str(table), "y ~ a + b", "--family", "poisson", "--no-progress"]
        if settings.smoke:
            return {"seconds": {"any": [timed(partial(subprocess.run, command, capture_output=True, check=True))]}}
        for repeat in range(3):
            cache = {**environment, "NUMBA_CACHE_DIR": str(Path(folder) / f"cache{repeat}")}
            for kind in ("cold", "warm"):
                call = partial(subprocess.run, command, env=cache, capture_output=True, check=True)
                seconds[kind].append(timed(call))
    say(f"equipoise fit: cold {min(seconds['cold']):.2f} s, warm {min(seconds['warm']):.2f} s")
    return {"seconds": seconds, "cold": min(seconds["cold"]), "warm": min(seconds["warm"])}
