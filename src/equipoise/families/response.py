"""The law of a response around its mean: what the loss leaves out, distribution functions, deviances.

A loss drops every term free of the predictor. What is reported of a fit, and what is predicted of a new observation,
needs the whole law; nothing here enters a chain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import betainc, gammainc, gammaincc, gammaincinv, gammaln, ndtr, ndtri, xlogy

from equipoise.arrays import Array
from equipoise.errors import InvalidInput
from equipoise.families.family import Family

__all__ = ["LAWS", "Law", "law_of"]


@dataclass(frozen=True)
class Law:
    """A family's response, given its mean μ and the constants p.

    Attributes
    ----------
    left_out
        −log f less the family's loss: the terms in `y` and `p` alone.
    deviance
        Twice the log-likelihood that a perfect fit of one observation would gain, for a constant of one where that
        is only a factor.
    cdf
        P(Y ≤ y).
    quantile
        Where a continuous law reaches a probability; None for counts.
    """

    left_out: Callable[[Array, Array], Array]
    deviance: Callable[[Array, Array, Array], Array]
    cdf: Callable[[Array, Array, Array], Array]
    quantile: Callable[[float, Array, Array], Array] | None = None


def _binomial_deviance(y: Array, mu: Array, p: Array) -> Array:  # noqa: ARG001
    return np.asarray(2.0 * (xlogy(y, y / mu) + xlogy(1.0 - y, (1.0 - y) / (1.0 - mu))), dtype=np.float64)


def _negative_binomial_left_out(y: Array, p: Array) -> Array:
    # the loss is log(1 + aμ)/a + y log((1 + aμ)/(aμ)), that is −log f up to binomials
    r = 1.0 / p[0]
    return gammaln(y + 1.0) + gammaln(r) - gammaln(y + r)


def _negative_binomial_deviance(y: Array, mu: Array, p: Array) -> Array:
    a = p[0]
    return 2.0 * (xlogy(y, y / mu) - (y + 1.0 / a) * np.log((1.0 + a * y) / (1.0 + a * mu)))


LAWS: dict[str, Law] = {
    "gaussian": Law(
        left_out=lambda y, p: np.full_like(y, 0.5 * np.log(2.0 * np.pi) + np.log(p[0])),
        deviance=lambda y, mu, p: (y - mu) ** 2,  # noqa: ARG005
        cdf=lambda y, mu, p: ndtr((y - mu) / p[0]),
        quantile=lambda q, mu, p: mu + p[0] * ndtri(q),
    ),
    "bernoulli": Law(
        left_out=lambda y, p: np.zeros_like(y),  # noqa: ARG005
        deviance=_binomial_deviance,
        cdf=lambda y, mu, p: np.where(y < 0.0, 0.0, np.where(y < 1.0, 1.0 - mu, 1.0)),  # noqa: ARG005
    ),
    "poisson": Law(
        left_out=lambda y, p: gammaln(y + 1.0),  # noqa: ARG005
        deviance=lambda y, mu, p: 2.0 * (xlogy(y, y / mu) - (y - mu)),  # noqa: ARG005
        cdf=lambda y, mu, p: np.where(y < 0.0, 0.0, gammaincc(np.floor(np.maximum(y, 0.0)) + 1.0, mu)),  # noqa: ARG005
    ),
    "gamma": Law(
        left_out=lambda y, p: gammaln(p[0]) - p[0] * np.log(p[0]) - (p[0] - 1.0) * np.log(y),
        deviance=lambda y, mu, p: 2.0 * ((y - mu) / mu - np.log(y / mu)),  # noqa: ARG005
        cdf=lambda y, mu, p: gammainc(p[0], p[0] * np.maximum(y, 0.0) / mu),
        quantile=lambda q, mu, p: mu * gammaincinv(p[0], q) / p[0],
    ),
    "negative-binomial": Law(
        left_out=_negative_binomial_left_out,
        deviance=_negative_binomial_deviance,
        cdf=lambda y, mu, p: np.where(
            y < 0.0, 0.0, betainc(1.0 / p[0], np.floor(np.maximum(y, 0.0)) + 1.0, 1.0 / (1.0 + p[0] * mu))
        ),
    ),
}


def law_of(family: Family) -> Law:
    """The law of a family's response; refused if a family of one's own came without."""
    if family.law not in LAWS:
        raise InvalidInput(
            "model", "of a family whose response has a known law", family.name, "register it with law=..."
        )
    return LAWS[family.law]
