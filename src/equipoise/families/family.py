"""Families: the loss of one observation as a scalar function of its linear predictor (theory §1).

A family is four functions of `(eta, y, p)`: the loss and its first three derivatives in `eta`. `p` holds the family's
fixed constants. Everything else (scores, Hessians, noise, bias, kernels) is derived from them. They are written with
NumPy functions alone and without branches, so that the same text runs on arrays and, compiled, inside an engine.
Terms free of `eta` are dropped from the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from equipoise.arrays import Array, Mask
from equipoise.cards import Card

__all__ = ["FAMILIES", "Family", "ScalarFunction", "ScalarLoss", "V", "exp", "family_named", "log1p"]

# One row's number, or those of many: the same text runs on both.
V = TypeVar("V", float, Array)


class ScalarFunction(Protocol):
    """A function of a row's predictor and response, and of the loss's constants, elementwise."""

    def __call__(self, eta: V, y: V, p: Array, /) -> V:
        """Its value; inside the engines' loops `p` may be a tuple."""
        ...

    def __hash__(self) -> int:
        """What is compiled for it is kept under it."""
        ...


@dataclass(frozen=True)
class ScalarLoss:
    """A loss of the linear predictor with its derivatives, and the constants `p` it is evaluated with."""

    name: str
    value: ScalarFunction
    d1: ScalarFunction
    d2: ScalarFunction
    d3: ScalarFunction
    p: tuple[float, ...] = ()

    @property
    def constants(self) -> Array:
        """The constants as an array: what the functions take as `p`."""
        return np.array(self.p, dtype=np.float64)

    def far_slopes(self, y: Array) -> tuple[Array, Array]:
        """ℓ' for eta → −∞ and eta → +∞: a convex loss never rises towards an end where this is zero (theory §1).

        Examples
        --------
        >>> FAMILIES["poisson"].loss.far_slopes(np.array([0.0, 2.0]))
        (array([ 0., -2.]), array([inf, inf]))
        """
        with np.errstate(over="ignore", invalid="ignore"):
            low, high = (self.d1(np.full(y.shape, end), y, self.constants) for end in (-np.inf, np.inf))
        return low, high


@dataclass(frozen=True, repr=False)
class Family(Card):
    """A likelihood with its link.

    Attributes
    ----------
    loss
        The negative log-likelihood as a function of the linear predictor, without constants.
    parameter
        The name of the one fixed constant `p[0]` (`scale`, `shape`, `dispersion`), or None.
    mean, slope
        The inverse link and its derivative.
    variance
        The response's variance as a function of its mean and `p`.
    link
        The link, applied to a mean.
    requirement, valid
        The range of the response, in words and as a test.
    second_bound, third_bound
        `sup d2` and `sup |d3|` over the real line as functions of `(y, p)`, or None where they are infinite.
    exponential_mean
        Whether the loss grows exponentially, so that chains are guarded by default (theory §10).
    law
        The law of the response, whatever the link: the name of the family with the usual one.
    """

    name: str
    loss: ScalarLoss
    parameter: str | None
    mean: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    variance: Callable[[Array, Array], Array]
    link: Callable[[Array], Array]
    requirement: str
    valid: Callable[[Array], Mask]
    second_bound: Callable[[Array, Array], Array] | None
    third_bound: Callable[[Array, Array], Array] | None
    exponential_mean: bool
    law: str

    def _facts(self) -> dict[str, str | None]:
        return {"name": self.name, "law": self.law, "parameter": self.parameter}

    def __reduce__(self) -> tuple[Callable[[str], Family], tuple[str]]:
        # families are known by name: their functions need not travel
        return family_named, (self.name,)


def family_named(name: str) -> Family:
    """The family of that name, whatever its link."""
    if name in FAMILIES:
        return FAMILIES[name]
    from equipoise.families.links import LINKS  # which is made from this

    return next(family for links in LINKS.values() for family in links.values() if family.name == name)


def exp(x: V) -> V:
    """The exponential. The engines put one in its place that the compiler can compute four at a time."""
    return np.exp(x)


def log1p(x: V) -> V:
    """log(1 + x) for x from 0 to 1. The engines put one in its place that the compiler can compute four at a time."""
    return np.log1p(x)


def sigmoid(eta: V) -> V:
    """1 / (1 + exp(−eta)), accurate in both tails: the exponent is never positive."""
    e = exp(-np.abs(eta))
    return np.maximum(e, eta >= 0.0) / (1.0 + e)


def softplus(eta: V) -> V:
    """log(1 + exp(eta)) without overflow."""
    return np.maximum(eta, 0.0) + log1p(exp(-np.abs(eta)))


# gaussian: p = (scale,)


def gaussian_value(eta: V, y: V, p: Array) -> V:
    """(y − eta)² / (2 s²)."""
    return 0.5 * ((eta - y) / p[0]) ** 2


def gaussian_d1(eta: V, y: V, p: Array) -> V:
    """First derivative."""
    return (eta - y) / (p[0] * p[0])


def gaussian_d2(eta: V, y: V, p: Array) -> V:
    """Second derivative."""
    return 0.0 * (eta + y) + 1.0 / (p[0] * p[0])


def gaussian_d3(eta: V, y: V, p: Array) -> V:  # noqa: ARG001
    """Third derivative: zero."""
    return 0.0 * (eta + y)


# bernoulli, logit link: p = ()


def bernoulli_value(eta: V, y: V | float, p: Array) -> V:  # noqa: ARG001
    """log(1 + exp(eta)) − y eta."""
    return softplus(eta) - y * eta


def bernoulli_d1(eta: V, y: V | float, p: Array) -> V:  # noqa: ARG001
    """First derivative."""
    e = exp(-np.abs(eta))
    # maximum instead of where: the compiled engines run it twenty times faster
    return np.maximum(e, eta >= 0.0) / (1.0 + e) - y


def bernoulli_d2(eta: V, y: V | float, p: Array) -> V:  # noqa: ARG001
    """Second derivative."""
    e = exp(-np.abs(eta))
    return e / ((1.0 + e) * (1.0 + e)) + 0.0 * y


def bernoulli_d3(eta: V, y: V | float, p: Array) -> V:
    """Third derivative."""
    return -bernoulli_d2(eta, y, p) * np.tanh(0.5 * eta)


# poisson, log link: p = ()


def poisson_value(eta: V, y: V, p: Array) -> V:  # noqa: ARG001
    """exp(eta) − y eta."""
    return exp(eta) - y * eta


def poisson_d1(eta: V, y: V, p: Array) -> V:  # noqa: ARG001
    """First derivative."""
    return exp(eta) - y


def poisson_d2(eta: V, y: V, p: Array) -> V:  # noqa: ARG001
    """Second derivative."""
    return exp(eta) + 0.0 * y


poisson_d3 = poisson_d2


# gamma, log link: p = (shape,)


def gamma_value(eta: V, y: V, p: Array) -> V:
    """shape · (y exp(−eta) + eta)."""
    return p[0] * (y * exp(-eta) + eta)


def gamma_d1(eta: V, y: V, p: Array) -> V:
    """First derivative."""
    return p[0] * (1.0 - y * exp(-eta))


def gamma_d2(eta: V, y: V, p: Array) -> V:
    """Second derivative."""
    return p[0] * y * exp(-eta)


def gamma_d3(eta: V, y: V, p: Array) -> V:
    """Third derivative."""
    return -p[0] * y * exp(-eta)


# negative binomial, log link, variance mu + a mu²: p = (dispersion a,)


def negative_binomial_value(eta: V, y: V, p: Array) -> V:
    """(1/a) log(1 + exp(z)) + y log(1 + exp(−z)), z = eta + log a: nothing cancels when y is large."""
    z = eta + np.log(p[0])
    return softplus(z) / p[0] + y * softplus(-z)


def negative_binomial_d1(eta: V, y: V, p: Array) -> V:
    """First derivative."""
    z = eta + np.log(p[0])
    e = exp(-np.abs(z))
    return (np.maximum(e, z >= 0.0) / p[0] - y * np.maximum(e, z < 0.0)) / (1.0 + e)


def negative_binomial_d2(eta: V, y: V, p: Array) -> V:
    """Second derivative."""
    e = exp(-np.abs(eta + np.log(p[0])))
    return (y + 1.0 / p[0]) * e / ((1.0 + e) * (1.0 + e))


def negative_binomial_d3(eta: V, y: V, p: Array) -> V:
    """Third derivative."""
    return -negative_binomial_d2(eta, y, p) * np.tanh(0.5 * (eta + np.log(p[0])))


FAMILIES: dict[str, Family] = {
    "gaussian": Family(
        name="gaussian",
        loss=ScalarLoss("gaussian", gaussian_value, gaussian_d1, gaussian_d2, gaussian_d3),
        parameter="scale",
        mean=lambda eta: eta,
        slope=np.ones_like,
        variance=lambda mu, p: np.full_like(mu, p[0] ** 2),
        link=lambda mu: mu,
        requirement="finite numbers",
        valid=lambda y: np.ones(y.shape, dtype=bool),
        second_bound=lambda y, p: np.full_like(y, p[0] ** -2),
        third_bound=lambda y, p: np.zeros_like(y),  # noqa: ARG005
        exponential_mean=False,
        law="gaussian",
    ),
    "bernoulli": Family(
        name="bernoulli",
        loss=ScalarLoss("bernoulli", bernoulli_value, bernoulli_d1, bernoulli_d2, bernoulli_d3),
        parameter=None,
        mean=sigmoid,
        slope=lambda eta: sigmoid(eta) * sigmoid(-eta),
        variance=lambda mu, p: mu * (1.0 - mu),  # noqa: ARG005
        link=lambda mu: np.log(mu / (1.0 - mu)),
        requirement="between 0 and 1",
        valid=lambda y: (y >= 0.0) & (y <= 1.0),
        # |s(1−s)(1−2s)| is largest at s = 1/2 ± 1/(2√3)
        second_bound=lambda y, p: np.full_like(y, 0.25),  # noqa: ARG005
        third_bound=lambda y, p: np.full_like(y, 1.0 / (6.0 * 3.0**0.5)),  # noqa: ARG005
        exponential_mean=False,
        law="bernoulli",
    ),
    "poisson": Family(
        name="poisson",
        loss=ScalarLoss("poisson", poisson_value, poisson_d1, poisson_d2, poisson_d3),
        parameter=None,
        mean=np.exp,
        slope=np.exp,
        variance=lambda mu, p: mu,  # noqa: ARG005
        link=np.log,
        requirement="zero or positive",
        valid=lambda y: y >= 0.0,
        second_bound=None,
        third_bound=None,
        exponential_mean=True,
        law="poisson",
    ),
    "gamma": Family(
        name="gamma",
        loss=ScalarLoss("gamma", gamma_value, gamma_d1, gamma_d2, gamma_d3),
        parameter="shape",
        mean=np.exp,
        slope=np.exp,
        variance=lambda mu, p: mu**2 / p[0],
        link=np.log,
        requirement="positive",
        valid=lambda y: y > 0.0,
        second_bound=None,
        third_bound=None,
        exponential_mean=True,
        law="gamma",
    ),
    "negative-binomial": Family(
        name="negative-binomial",
        loss=ScalarLoss(
            "negative-binomial",
            negative_binomial_value,
            negative_binomial_d1,
            negative_binomial_d2,
            negative_binomial_d3,
        ),
        parameter="dispersion",
        mean=np.exp,
        slope=np.exp,
        variance=lambda mu, p: mu + p[0] * mu**2,
        link=np.log,
        requirement="zero or positive",
        valid=lambda y: y >= 0.0,
        # a logistic curve of height y + 1/a
        second_bound=lambda y, p: 0.25 * (y + 1.0 / p[0]),
        third_bound=lambda y, p: (y + 1.0 / p[0]) / (6.0 * 3.0**0.5),
        exponential_mean=True,
        law="negative-binomial",
    ),
}
