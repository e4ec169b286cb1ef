"""Quantiles of a posterior without any chain: importance sampling from a multivariate t at the mode, four parameters.

Where the chain's intervals do not cover, this says whether the sampler or the posterior is the reason.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

import equipoise as eq
from benchmarks.evidence.designs import Simulated
from equipoise.arrays import Array

__all__ = ["EXACT", "exact_intervals", "weighted_quantiles"]

EXACT = ("bernoulli", "poisson")  # families without a constant that would have to be estimated
_DRAWS, _DEGREES, _WIDER = 20_000, 4.0, 1.3


def exact_intervals(family: str, data: Simulated, level: float, seed: int) -> pd.DataFrame:
    """Ends of the central intervals of a flat prior's posterior; columns lower and upper."""
    model = eq.glm(family)
    fit = eq.fit(model, (data.x, data.y))
    root = _WIDER * np.linalg.cholesky(eq.posterior(eq.moments(model, (data.x, data.y), fit)))
    rng = np.random.default_rng([seed, len(data.y)])
    t = rng.standard_normal((_DRAWS, len(root))) / np.sqrt(rng.chisquare(_DEGREES, (_DRAWS, 1)) / _DEGREES)
    draws = fit.params + t @ root.T
    eta = draws @ data.x.T
    fitted = np.logaddexp(0.0, eta) if family == "bernoulli" else np.exp(eta)
    # log likelihood less the log density of the t law, each up to a constant
    excess = (eta * data.y - fitted).sum(axis=1) + 0.5 * (_DEGREES + len(root)) * np.log1p(
        (t**2).sum(axis=1) / _DEGREES
    )
    weights = np.exp(excess - excess.max())
    beyond = 0.5 * (1.0 - level)
    ends = np.array([weighted_quantiles(column, weights, (beyond, 1.0 - beyond)) for column in draws.T])
    return pd.DataFrame(ends, columns=["lower", "upper"])


def weighted_quantiles(values: Array, weights: Array, probabilities: tuple[float, ...]) -> Array:
    """The smallest values with at least that share of the weight at or below them."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return np.asarray(values[order][np.searchsorted(reached, probabilities)])
