"""Coverage of the 95 % intervals that `cal.confint()` gives, over many data sets, families, sizes and covariances.

Three designs per data set number (see `designs`): with a wrong variance, the chain tuned to HC0 gives HC0 and HC3 by
`confint(kind=...)` and the quantiles of its own draws, and the posterior's closed form is the negative control; with
clusters, CRV1 and CRV3, and HC0 is the control; with the right law, the posterior of a flat prior, quantiles or closed form
as `confint()` itself chooses, and for the smallest samples of two families the same posterior without a chain (`exact`).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import equipoise as eq
from benchmarks.evidence.designs import BETA, DESIGNS, FAMILIES, SIZES, Simulated, simulate
from benchmarks.evidence.exact import EXACT, exact_intervals
from equipoise.models.problem import Problem

__all__ = ["BLOCK", "CELLS", "COLUMNS", "CONTROLS", "SETTINGS", "intervals_of", "study"]

LEVEL, ESS = 0.95, 1000
BLOCK = 25  # data sets between two writes
CELLS = [(family, rows) for rows in SIZES for family in FAMILIES]
SETTINGS = {"level": LEVEL, "effective draws": ESS, "coefficients": BETA.tolist()}
COLUMNS = ("HC0", "HC3", "CRV1", "CRV3", "posterior")
CONTROLS = ("HC0, quantiles of the chain", "posterior, wrong variance", "HC0, clusters ignored", "posterior, exact")


def study(family: str, rows: int, replicates: range, designs: tuple[str, ...] = DESIGNS) -> dict[str, Any]:
    """Totals over some data sets: hits by interval and coefficient, and what failed."""
    totals: dict[str, Any] = {"data sets": len(replicates), "failed": Counter(), "quantiles chosen": 0, "flagged": 0}
    for replicate in replicates:
        for design in designs:
            try:
                found = intervals_of(design, family, simulate(design, family, rows, replicate), replicate)
            except (eq.FitFailed, eq.InfeasibleTarget, eq.ChainDiverged) as error:
                totals["failed"][f"{design}: {type(error).__name__}"] += 1
                continue
            for name, ends in found.items():
                _count(totals, name, ends)
    return {**totals, "failed": dict(totals["failed"])}


def _count(totals: dict[str, Any], name: str, ends: Any) -> None:
    """Add the hits of one table of intervals."""
    hit = (ends["lower"].to_numpy() <= BETA) & (ends["upper"].to_numpy() >= BETA)
    before = totals.setdefault(name, {"intervals": 0, "hits": [0] * len(BETA), "share": 0.0, "share squared": 0.0})
    share = float(hit.mean())
    totals[name] = {
        "intervals": before["intervals"] + 1,
        "hits": [int(a + b) for a, b in zip(before["hits"], hit, strict=True)],
        "share": before["share"] + share,
        "share squared": before["share squared"] + share**2,
    }
    if name == "posterior":
        totals["quantiles chosen"] += "quantiles" in ends.attrs["intervals"]
        totals["flagged"] += ends.attrs["flagged"]


def intervals_of(design: str, family: str, data: Simulated, seed: int) -> dict[str, Any]:
    """Intervals by name, as `confint` gives them: one fit for all of a design."""
    source = eq.data.rows(data.x, data.y, clusters=data.clusters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", eq.EquipoiseWarning)  # of small samples: what becomes of them is counted
        found = dict(_INTERVALS[design](eq.bind(eq.glm(family), source), seed))
        if design == "right" and family in EXACT and len(data.y) <= SIZES[0]:
            found["posterior, exact"] = exact_intervals(family, data, LEVEL, seed)
        return found


def _robust(problem: Problem, seed: int) -> Iterator[tuple[str, Any]]:
    cal = eq.calibrate(problem, target="HC0", ess=ESS, seed=seed, progress=False)
    yield "HC0", cal.confint(LEVEL)
    yield "HC3", cal.confint(LEVEL, "HC3")
    yield "HC0, quantiles of the chain", cal.confint(LEVEL, method="draws")
    yield "posterior, wrong variance", cal.confint(LEVEL, "posterior")


def _clustered(problem: Problem, seed: int) -> Iterator[tuple[str, Any]]:
    # the intervals are in closed form: nothing is gained by a chain
    cal = eq.calibrate(problem, target="CRV3", sampler="gaussian", draws=2, chains=1, seed=seed, progress=False)
    yield "CRV3", cal.confint(LEVEL)
    yield "CRV1", cal.confint(LEVEL, "CRV1")
    yield "HC0, clusters ignored", cal.confint(LEVEL, "HC0")


def _posterior(problem: Problem, seed: int) -> Iterator[tuple[str, Any]]:
    cal = eq.calibrate(problem, target="posterior", ess=ESS, seed=seed, progress=False)
    ends = cal.confint(LEVEL)
    ends.attrs["flagged"] = not cal.diagnosis.ok
    yield "posterior", ends


_INTERVALS: dict[str, Callable[[Problem, int], Iterator[tuple[str, Any]]]] = {
    "wrong variance": _robust,
    "clustered": _clustered,
    "right": _posterior,
}
