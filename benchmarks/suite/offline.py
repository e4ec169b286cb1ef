"""What comes before the chain: passes over the data, the step matrix and peak memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import equipoise as eq
from benchmarks.suite.measure import Settings, child_environment, exponent, interleave, say, timed
from benchmarks.suite.workloads import Prepared, make_data

__all__ = ["offline_passes", "peak_memory", "step_matrix"]


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
    """Time of `eq.tune` against D."""
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
    large = [k for k, dim in enumerate(dims) if dim >= 200 or settings.smoke]
    return {
        "D": list(dims),
        "seconds": seconds,
        "exponent": exponent([float(d) for d in dims], seconds),
        # below D = 200 fixed costs hide the growth
        "exponent_large": exponent([float(dims[k]) for k in large], [seconds[k] for k in large]),
    }


def _moments(rows: int, dim: int) -> tuple[eq.Moments, eq.Dynamics]:
    """Moments of a linear regression at its minimiser; four rows per column keep every term of order D³."""
    x, y = make_data("gaussian", rows, dim)
    theta = np.linalg.solve(x.T @ x, x.T @ y)
    return eq.moments(eq.glm("gaussian", scale=1.0), (x, y), theta), eq.Dynamics(max(2, rows // 10))


def peak_memory(prepared: Prepared, settings: Settings) -> dict[str, Any]:
    """Peak resident memory of fit, moments, tuning and sampling in a process of its own, as a multiple of the data."""
    rows, dim = (2000, 5) if settings.smoke else (prepared.workload.rows, prepared.workload.dim)
    command = [sys.executable, "-m", "benchmarks.suite.memory", prepared.workload.family, str(rows), str(dim)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=child_environment())
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    say(f"peak memory: {result['ratio']:.2f} times the data")
    return result
