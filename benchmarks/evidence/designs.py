"""Simulated regressions with four coefficients: right, with a wrong variance, and dependent within clusters.

The mean is right in all of them, so that the coefficients are what every family estimates. What differs is the law around it.
A uniform number per row, through the quantile function of that law, is the response; uniforms that depend on each other
within a cluster (a Gaussian copula) leave every row's own law as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.special import expit, ndtr, ndtri

from equipoise.arrays import Array

__all__ = ["BETA", "CLUSTERS", "DESIGNS", "FAMILIES", "SIZES", "Simulated", "covariates", "respond", "simulate"]

FAMILIES = ("gaussian", "bernoulli", "poisson", "gamma", "negative-binomial")
SIZES = (50, 200, 1000, 5000)
CLUSTERS = {50: 10, 200: 20, 1000: 50, 5000: 100}
DESIGNS = ("right", "wrong variance", "clustered")
BETA = np.array([0.5, 0.4, -0.3, 0.2])
SHAPE, SIZE = 2.0, 2.0  # of the gamma law, and of the negative binomial one (dispersion 1/2)
_CORRELATION = 0.3  # of the copula, within a cluster
_EDGE = 1e-12  # a uniform number of exactly 0 or 1 has no quantile


@dataclass(frozen=True)
class Simulated:
    """One data set; `clusters` is None where rows are independent."""

    x: Array
    y: Array
    clusters: np.ndarray | None = None


def simulate(design: str, family: str, rows: int, replicate: int) -> Simulated:
    """The data set of a number: the same whenever and in whatever order it is asked for."""
    rng = np.random.default_rng([replicate, rows, FAMILIES.index(family), DESIGNS.index(design)])
    if design == "clustered":
        cluster, z = _dependent(rng, rows)
        x = covariates(rng, rows)
        # the second coefficient is of something that varies between clusters alone, the case that is hard
        x[:, 1] = rng.normal(size=CLUSTERS[rows])[cluster]
        return Simulated(x, respond(family, x, BETA, ndtr(z)), cluster)
    x = covariates(rng, rows)
    if design == "wrong variance" and family != "bernoulli":  # of a response of 0 or 1 the mean is the whole law
        return Simulated(x, _wrong(family, x, rng))
    return Simulated(x, respond(family, x, BETA, rng.random(rows)))


def covariates(rng: np.random.Generator, rows: int) -> Array:
    """An intercept, a normal covariate, one that is 0 or 1, and a skewed one."""
    return np.column_stack(
        [np.ones(rows), rng.normal(size=rows), rng.random(rows) < 0.4, rng.exponential(size=rows) - 1.0]
    )


def _dependent(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, Array]:
    """Clusters of unequal sizes, none of them empty, and normal numbers that are correlated within them."""
    count = CLUSTERS[rows]
    share = rng.dirichlet(np.full(count, 4.0))
    cluster = np.concatenate([np.arange(count), rng.choice(count, rows - count, p=share)])
    common = rng.normal(size=count)[cluster]
    return cluster, np.sqrt(_CORRELATION) * common + np.sqrt(1.0 - _CORRELATION) * rng.normal(size=rows)


def respond(family: str, x: Array, beta: Array, uniform: Array) -> Array:
    """Responses of the family's own law: scale 1, shape 2, dispersion 1/2."""
    eta, u = x @ beta, np.clip(uniform, _EDGE, 1.0 - _EDGE)
    laws: dict[str, Callable[[], Array]] = {
        "gaussian": lambda: eta + ndtri(u),
        "bernoulli": lambda: (u < expit(eta)).astype(np.float64),
        "poisson": lambda: stats.poisson.ppf(u, np.exp(eta)),
        "gamma": lambda: stats.gamma.ppf(u, SHAPE, scale=np.exp(eta) / SHAPE),
        "negative-binomial": lambda: stats.nbinom.ppf(u, SIZE, SIZE / (SIZE + np.exp(eta))),
    }
    return np.asarray(laws[family](), dtype=np.float64)


def _wrong(family: str, x: Array, rng: np.random.Generator) -> Array:
    """Responses with the family's mean and another variance: one that grows with the size of the second covariate."""
    eta, z = x @ BETA, rng.normal(size=len(x))
    if family == "gaussian":
        return np.asarray(eta + (0.5 + np.abs(x[:, 1])) * z, dtype=np.float64)
    width = 0.3 + 0.6 * np.abs(x[:, 1])
    mean = np.exp(eta + width * z - 0.5 * width**2)  # log-normal with the mean exp(eta)
    return mean if family == "gamma" else rng.poisson(mean).astype(np.float64)
