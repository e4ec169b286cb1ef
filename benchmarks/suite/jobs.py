"""Whole jobs: from arrays to estimates with robust errors, beside statsmodels, glum, scikit-learn and a bootstrap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import equipoise as eq
from benchmarks.suite.measure import Settings, guarded, interleave, say, timed
from benchmarks.suite.peers import require
from benchmarks.suite.workloads import Array, Prepared

__all__ = ["REFITS", "whole_jobs"]

REFITS = 200
_LARGE = 100_000  # rows from which peers run once, and no bootstrap is waited for
_NAMES = {"bernoulli": "binomial", "poisson": "poisson", "gaussian": "gaussian"}


def whole_jobs(workloads: list[Prepared], settings: Settings) -> dict[str, Any]:
    """Seconds of every job on every workload, on one thread."""
    return {p.workload.name: guarded(lambda p=p: _jobs(p, settings)) for p in workloads}  # type: ignore[misc]


def _jobs(prepared: Prepared, settings: Settings) -> dict[str, Any]:
    """Ours in turns with a pass over the data (X v and Xᵀ r), then the others, once each where they take long."""
    x, y, workload = prepared.x, prepared.y, prepared.workload
    ess = 100 if settings.smoke else 1000

    def ours() -> None:
        str(eq.calibrate(eq.glm(workload.family), (x, y), ess=ess, progress=False, threads=1).summary())

    ours()  # compiles, or loads what was compiled before
    v, r = np.ones(workload.dim), np.ones(workload.rows)
    seconds = interleave({"pass": lambda: (x @ v, r @ x), "equipoise": ours}, 1 if settings.smoke else 5)
    found: dict[str, Any] = {
        "ess": ess,
        "passes": min(seconds["equipoise"]) / min(seconds["pass"]),
        "jobs": {"equipoise": {"seconds": min(seconds["equipoise"])}},
    }
    repeats = 1 if settings.smoke or workload.rows >= _LARGE else 3
    for name, job in _others(x, y, workload.family, workload.rows >= _LARGE, settings.smoke).items():
        found["jobs"][name] = guarded(lambda j=job: {"seconds": min(timed(j) for _ in range(repeats))})  # type: ignore[misc]
    say(f"whole jobs {workload.name}: { {n: j.get('seconds', j) for n, j in found['jobs'].items()} }")
    return found


def _others(x: Array, y: Array, family: str, large: bool, smoke: bool) -> dict[str, Callable[[], object]]:
    jobs: dict[str, Callable[[], object]] = {
        "statsmodels, HC0": lambda: _statsmodels(x, y, family).fit(cov_type="HC0").summary(),
        "glum, robust errors": lambda: _glum(x, y, family),
        "scikit-learn, estimates alone": lambda: _sklearn(x, y, family),
    }
    if not large:
        jobs[f"bootstrap, {REFITS} refits"] = lambda: _bootstrap(x, y, family, 3 if smoke else REFITS)
    return jobs


def _statsmodels(x: Array, y: Array, family: str) -> Any:
    api = require("statsmodels.api")
    return api.GLM(y, x, family=getattr(api.families, _NAMES[family].capitalize())())


def _glum(x: Array, y: Array, family: str) -> None:
    model = require("glum").GeneralizedLinearRegressor(family=_NAMES[family], alpha=0.0, fit_intercept=False)
    model.fit(x, y)
    model.std_errors(x, y, robust=True)


def _sklearn(x: Array, y: Array, family: str) -> None:
    linear = require("sklearn.linear_model")
    if family == "bernoulli":
        linear.LogisticRegression(C=np.inf, fit_intercept=False, max_iter=1000).fit(x, y)
    elif family == "poisson":
        linear.PoissonRegressor(alpha=0.0, fit_intercept=False, max_iter=1000).fit(x, y)
    else:
        linear.LinearRegression(fit_intercept=False).fit(x, y)


def _bootstrap(x: Array, y: Array, family: str, refits: int) -> None:
    """Refits of resampled rows, each started at the estimate."""
    rng, start = np.random.default_rng(0), _statsmodels(x, y, family).fit().params
    for _ in range(refits):
        rows = rng.integers(0, len(y), len(y))
        _statsmodels(x[rows], y[rows], family).fit(start_params=start)
