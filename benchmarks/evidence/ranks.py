"""Simulation-based calibration: the rank of the true parameter among posterior draws must be uniform.

A parameter is drawn from the prior, rows from the model, and the posterior sampled at fidelity 0.95; of the chain's draws 99
are kept, many autocorrelation times apart. If they are of the posterior, the rank of the truth among them is uniform on
0 … 99, for every coefficient and for the log-likelihood, which sees errors that every coefficient by itself hides. The normal
approximation at the mode (`sampler="gaussian"`) is the control: what the test finds there, it can find.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats
from scipy.special import xlogy

import equipoise as eq
from benchmarks.evidence.designs import BETA, FAMILIES, SHAPE, SIZE, covariates, respond
from equipoise.arrays import Array

__all__ = [
    "BLOCK", "CELLS", "KEPT", "QUANTITIES", "ROWS", "SAMPLERS", "SETTINGS", "departure", "log_likelihood", "study",
    "uniformity",
]  # fmt: skip

ROWS, KEPT, FIDELITY, ESS = (50, 200), 99, 0.95, 500
BLOCK = 50  # data sets between two writes
CELLS = [(family, rows) for rows in ROWS for family in FAMILIES]
SETTINGS = {"draws kept": KEPT, "fidelity": FIDELITY, "effective draws": ESS}
QUANTITIES = ("intercept", "normal", "binary", "skewed", "log-likelihood")
SAMPLERS: dict[str, dict[str, Any]] = {
    "chain": {"ess": ESS, "fidelity": FIDELITY},
    "normal approximation": {"sampler": "gaussian", "draws": KEPT, "chains": 1},
}
_BINS = 20
# A prior under which counts stay below some hundreds; constants are known, as the priors are of coefficients alone.
_SPREAD = {"gaussian": 1.0, "bernoulli": 1.0, "poisson": 0.5, "gamma": 0.5, "negative-binomial": 0.5}
_KNOWN = {"gaussian": {"scale": 1.0}, "gamma": {"shape": SHAPE}, "negative-binomial": {"dispersion": 1.0 / SIZE}}


def study(family: str, rows: int, replicates: range) -> dict[str, Any]:
    """How often each rank came up, by sampler and quantity; (ranks,) lists that can be added."""
    made: dict[str, Any] = {"data sets": len(replicates), "failed": Counter(), "flagged": 0}
    counts = {name: np.zeros((len(QUANTITIES), KEPT + 1), dtype=int) for name in SAMPLERS}
    for replicate in replicates:
        rng = np.random.default_rng([replicate, rows, FAMILIES.index(family)])
        truth, x = rng.normal(scale=_SPREAD[family], size=len(BETA)), covariates(rng, rows)
        y = respond(family, x, truth, rng.random(rows))
        model = eq.glm(family, prior_precision=_SPREAD[family] ** -2, **_KNOWN.get(family, {}))
        problem = eq.bind(model, (x, y))
        for name, options in SAMPLERS.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", eq.EquipoiseWarning)  # what becomes of it is counted
                try:
                    cal = eq.calibrate(problem, target="posterior", seed=replicate, progress=False, **options)
                except eq.EquipoiseError as error:
                    made["failed"][f"{name}: {type(error).__name__}"] += 1
                    continue
            made["flagged"] += name == "chain" and not cal.diagnosis.ok
            for row, rank in enumerate(_ranks(family, x, y, truth, cal.chains.flat())):
                counts[name][row, rank] += 1
    ranks = {name: dict(zip(QUANTITIES, found.tolist(), strict=True)) for name, found in counts.items()}
    return {**made, "failed": dict(made["failed"]), "ranks": ranks}


def _ranks(family: str, x: Array, y: Array, truth: Array, draws: Array) -> Array:
    """How many of the draws that are kept lie below the truth, by quantity."""
    kept = draws[np.linspace(0, len(draws) - 1, KEPT).astype(int)]
    of_truth = np.append(truth, log_likelihood(family, y, x @ truth))
    of_draws = np.column_stack([kept, [log_likelihood(family, y, x @ theta) for theta in kept]])
    return (of_draws < of_truth).sum(axis=0)


def log_likelihood(family: str, y: Array, eta: Array) -> float:
    """Up to what does not depend on the coefficients; written here a second time, so that no error is shared."""
    laws: dict[str, Callable[[], Array]] = {
        "gaussian": lambda: -0.5 * (y - eta) ** 2,
        "bernoulli": lambda: y * eta - np.logaddexp(0.0, eta),
        "poisson": lambda: y * eta - np.exp(eta),
        "gamma": lambda: -SHAPE * (eta + y * np.exp(-eta)),
        "negative-binomial": lambda: xlogy(y, np.exp(eta)) - (y + SIZE) * np.log(SIZE + np.exp(eta)),
    }
    return float(laws[family]().sum())


def uniformity(counts: list[int] | Array, simulations: int = 4000) -> dict[str, float]:
    """Two tests of uniform ranks.

    Parameters
    ----------
    counts
        How often each rank came up.
    simulations
        Of uniform ranks, for the law of the second statistic.

    Returns
    -------
    dict
        `chi2`, the p-value of Pearson's test in 20 bins; `ecdf`, that of the largest departure of the empirical distribution
        function from the diagonal, where every point of it is measured by its binomial tail probability (the simultaneous
        band of that level touches the function).
    """
    seen = np.asarray(counts)
    chi2 = stats.chisquare(seen.reshape(_BINS, -1).sum(axis=1)).pvalue
    rng = np.random.default_rng(0)
    null = departure(rng.multinomial(seen.sum(), np.full(len(seen), 1.0 / len(seen)), simulations))
    return {"chi2": float(chi2), "ecdf": float((1 + np.sum(null <= departure(seen[None])[0])) / (1 + simulations))}


def departure(counts: Array) -> Array:
    """The smallest two-sided tail probability over all points of the distribution function; (simulations, ranks) → each."""
    total, points = int(counts[0].sum()), np.arange(1, counts.shape[1]) / counts.shape[1]
    below = stats.binom.cdf(np.arange(total + 1)[:, None], total, points)  # (count, point)
    at_least = 1.0 - np.vstack([np.zeros(len(points)), below[:-1]])
    tail = np.minimum(1.0, 2.0 * np.minimum(below, at_least))
    reached = np.cumsum(counts, axis=1)[:, :-1]
    return np.asarray(tail[reached, np.arange(len(points))].min(axis=1))
