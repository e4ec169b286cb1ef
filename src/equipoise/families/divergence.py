"""The β-divergence: a loss that gives improbable observations little weight (theory §9).

    ℓ(η, y) = −f(y|η)^(b−1) / (b−1) + (1/b) I(η),     I(η) = ∫ f(t|η)^b dt   (a sum for counts)

With u = −log f, the family's loss plus the log of its normalising constant, the first term is −e^(−(b−1)u)/(b−1), and
its derivatives follow from those of u, which the family has. I is in closed form except for counts. There the sum is
tabulated once per (family, constant, b), as polynomials in η whose coefficients travel in `p`; all four functions
evaluate the same polynomials, so that they are derivatives of one another to rounding error.

The constants: p[0] is the family's (0 where it has none), p[1] is b, the rest belongs to I and the normaliser.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from scipy.special import gammaln

from equipoise.arrays import Array
from equipoise.checks import checked_fields, is_number
from equipoise.errors import InvalidInput
from equipoise.families.counts import count_table, log_rising, tabulated_integral, turn2, turn3
from equipoise.families.family import Family, ScalarFunction, ScalarLoss, V, exp

__all__ = ["Beta"]


_LARGEST_B = 5.0  # an observation two standard deviations out has lost its weight by then
_DISPERSION = (1e-4, 1e3)  # below, sums lose digits like dispersion^(−3/2); above, all counts are zero or huge
_LARGEST_ETA = 650.0  # with a log link: beyond, exp(eta) times a response may overflow
_STEEPEST = 1e100  # keeps the cube of u' finite where the weight e^(−(b−1)u) is zero, so that their product is zero


@checked_fields
@dataclass(frozen=True)
class Beta:
    """The β-divergence with power `b`; larger is more robust and less efficient, and b → 1 is the log loss.

    Attributes
    ----------
    b
        The power, above 1 and at most 5, else `InvalidInput`; 1.1 to 1.5 are common.

    Examples
    --------
    >>> from equipoise.families.family import FAMILIES
    >>> loss = Beta(1.5).loss(FAMILIES["gaussian"], 1.0)
    >>> [round(float(loss.d1(0.0, y, loss.constants)), 4) for y in (-1.0, -3.0, -9.0)]  # an outlier pulls less
    [0.4919, 0.1997, 0.0]
    """

    b: float

    def __post_init__(self) -> None:
        if not is_number(self.b) or not 1.0 < self.b <= _LARGEST_B:
            remedy = "leave divergence out, for the log loss" if self.b == 1 else "try 1.2"
            raise InvalidInput("divergence", f"Beta(b) with b above 1 and at most {_LARGEST_B:g}", self.b, remedy)

    @property
    def convex(self) -> bool:
        """It is not: far from an observation the loss levels off."""
        return False

    def loss(self, family: Family, constant: float | None) -> ScalarLoss:
        """The loss of one observation, with 1/(b−1) − 1/b added: as b → 1 it tends to −log f(y|η).

        Parameters
        ----------
        family
            The likelihood f. A fractional count or binary response stands for the continuous extension of f.
        constant
            Its scale, shape or dispersion; None for a family that has none.

        Returns
        -------
        ScalarLoss
            For counts, I and its derivatives err by less than 1e-9 I (1e-8 I for the third derivative if the dispersion
            is below 1e-3) on the grid, and by 1e-6 I close to it. The relative error of f^(b−1) is that of rounding the
            terms of u, for counts about 1e-16 y log y.

        Raises
        ------
        InvalidInput
            If the constant is missing or I does not exist for it.
        """
        form, fixed = self._form(family, constant)
        numbers = fixed, float(self.b), *form.numbers(float(self.b), fixed)
        return ScalarLoss(f"{family.name}-beta", *_functions(family), numbers)

    def _form(self, family: Family, constant: float | None) -> tuple[_Form, float]:
        name, fixed, (low, high) = family.parameter, 0.0 if constant is None else float(constant), _DISPERSION
        if family.name not in _FORMS:
            raise InvalidInput("family", f"one of {', '.join(_FORMS)} for a divergence", family.name, "use log loss")
        if name is not None and not 0.0 < fixed < np.inf:
            raise InvalidInput(name, "a positive number with a divergence", constant, f"pass {name}=")
        if name == "shape" and self.b * (fixed - 1.0) + 1.0 <= 0.0:
            need = f"above 1 − 1/b = {1.0 - 1.0 / self.b:g}, where the integral of f^b exists"
            raise InvalidInput(name, need, constant, f"use b below {1.0 / (1.0 - fixed):g} or a larger shape")
        if name == "dispersion" and not low <= fixed <= high:
            remedy = "use the poisson family" if fixed < low else "use the log loss"
            raise InvalidInput(name, f"between {low:g} and {high:g} with a divergence", constant, remedy)
        return _FORMS[family.name], fixed


# u, u1, u2, u3 are −log f and its derivatives.


def bounded(slope: V) -> V:
    """A derivative of u, kept where its cube is finite."""
    return np.minimum(np.maximum(slope, -_STEEPEST), _STEEPEST)


@lru_cache(maxsize=16)
def _functions(family: Family) -> tuple[ScalarFunction, ScalarFunction, ScalarFunction, ScalarFunction]:
    """Value and derivatives for one family; the engines compile them once, whatever b and the constant are."""
    integral, normaliser = _FORMS[family.name].integral, _FORMS[family.name].normaliser
    s0, s1, s2, s3 = family.loss.value, family.loss.d1, family.loss.d2, family.loss.d3
    limit = _LARGEST_ETA if family.exponential_mean else np.inf

    def exponent(eta: V, y: V, p: Array) -> V:
        # a density may be large, but not so large that its power overflows
        return np.minimum((1.0 - p[1]) * (s0(eta, y, p) + normaliser(y, p)), 600.0)

    def value(eta: V, y: V, p: Array) -> V:
        at = np.minimum(np.maximum(eta, -limit), limit)
        return np.expm1(exponent(at, y, p)) / (1.0 - p[1]) + (integral(eta, p, 0) - 1.0) / p[1]

    def d1(eta: V, y: V, p: Array) -> V:
        at = np.minimum(np.maximum(eta, -limit), limit)
        return exp(exponent(at, y, p)) * bounded(s1(at, y, p)) + integral(eta, p, 1) / p[1]

    def d2(eta: V, y: V, p: Array) -> V:
        at = np.minimum(np.maximum(eta, -limit), limit)
        bend = turn2(p[1] - 1.0, bounded(s1(at, y, p)), bounded(s2(at, y, p)))
        return exp(exponent(at, y, p)) * bend + integral(eta, p, 2) / p[1]

    def d3(eta: V, y: V, p: Array) -> V:
        at = np.minimum(np.maximum(eta, -limit), limit)
        bend = turn3(p[1] - 1.0, bounded(s1(at, y, p)), bounded(s2(at, y, p)), bounded(s3(at, y, p)))
        return exp(exponent(at, y, p)) * bend + integral(eta, p, 3) / p[1]

    return value, d1, d2, d3


# A normaliser is −log f minus the family's loss; an integral is I, or its derivative of the order given.


def constant_normaliser(y: V, p: Array) -> V:
    """Gaussian: ½ log(2π s²), in p[3]. Bernoulli: zero."""
    return 0.0 * y + p[3]


def gamma_normaliser(y: V, p: Array) -> V:
    """log Γ(k) − k log k − (k−1) log y; the first two in p[3]."""
    return p[3] - (p[0] - 1.0) * np.log(y)


def poisson_normaliser(y: V, p: Array) -> V:  # noqa: ARG001
    """log y!"""
    return log_rising(y, 1.0)


def negative_binomial_normaliser(y: V, p: Array) -> V:
    """log y! − log (1/a)(1/a + 1)…(1/a + y − 1)."""
    return log_rising(y, 1.0) - log_rising(y, 1.0 / p[0])


def gaussian_integral(eta: V, p: Array, order: int) -> V:
    """(2π s²)^((1−b)/2) / √b, in p[2]: free of eta."""
    return 0.0 * eta + p[2] * (order == 0)


def gamma_integral(eta: V, p: Array, order: int) -> V:
    """C exp((1−b) eta), with log C in p[2]."""
    rate = 1.0 - p[1]
    return rate**order * exp(np.minimum(p[2] + rate * eta, 600.0))


def bernoulli_integral(eta: V, p: Array, order: int) -> V:
    """μ^b + (1−μ)^b."""
    b, e = p[1], exp(-np.abs(eta))
    small, large = e / (1.0 + e), 1.0 / (1.0 + e)
    mu, rest, least = np.maximum(small, (eta >= 0.0) * large), np.maximum(small, (eta < 0.0) * large), np.log1p(e)
    one, zero = exp(-b * (np.maximum(-eta, 0.0) + least)), exp(-b * (np.maximum(eta, 0.0) + least))
    if order == 0:
        return one + zero
    v2, v3 = mu * rest, mu * rest * (rest - mu)
    if order == 1:
        return b * (one * rest - zero * mu)
    if order == 2:
        return -b * (one * turn2(b, -rest, v2) + zero * turn2(b, mu, v2))
    return -b * (one * turn3(b, -rest, v2, v3) + zero * turn3(b, mu, v2, v3))


def _gaussian_numbers(b: float, scale: float) -> tuple[float, ...]:
    """What `gaussian_integral` and `constant_normaliser` find in p[2:]."""
    half_log = 0.5 * math.log(2.0 * math.pi) + math.log(scale)
    return math.exp((1.0 - b) * half_log) / math.sqrt(b), half_log


def _gamma_numbers(b: float, shape: float) -> tuple[float, ...]:
    """log C = b (k log k − log Γ(k)) + log Γ(s) − s log(b k), s = b (k−1) + 1."""
    s, normaliser = b * (shape - 1.0) + 1.0, float(gammaln(shape)) - shape * math.log(shape)
    return float(gammaln(s)) - s * math.log(b * shape) - b * normaliser, normaliser


class _Integral(Protocol):
    def __call__(self, eta: V, p: Array, order: int, /) -> V: ...


class _Normaliser(Protocol):
    def __call__(self, y: V, p: Array, /) -> V: ...


@dataclass(frozen=True)
class _Form:
    """A family's I(eta, p, order), its log normaliser (y, p), and, from (b, constant), the numbers both find in p."""

    integral: _Integral
    normaliser: _Normaliser
    numbers: Callable[[float, float], tuple[float, ...]]


_FORMS = {
    "gaussian": _Form(gaussian_integral, constant_normaliser, _gaussian_numbers),
    "bernoulli": _Form(bernoulli_integral, constant_normaliser, lambda *_: (0.0, 0.0)),
    "poisson": _Form(tabulated_integral, poisson_normaliser, count_table),
    "gamma": _Form(gamma_integral, gamma_normaliser, _gamma_numbers),
    "negative-binomial": _Form(tabulated_integral, negative_binomial_normaliser, count_table),
}
