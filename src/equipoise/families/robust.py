"""Robust M-estimation losses: Huber, Student's t and smoothed quantiles of a linear predictor (theory §1).

Each is ρ(r) of the residual r = (y − η)/s in units of the scale s, with the role of a divergence: it takes the place of
the gaussian family's squared loss. None of them is a likelihood that the data must follow; the sandwich is the
covariance that goes with them.

The constants: p[0] is s, then the loss's own. The functions are written in z = (η − y)/s = −r, which rises with η.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from equipoise.arrays import Array
from equipoise.checks import checked_fields, is_number
from equipoise.errors import InvalidInput
from equipoise.families.family import Family, ScalarLoss, V, bernoulli_d1, bernoulli_d2, bernoulli_d3, bernoulli_value

__all__ = ["Huber", "Pinball", "StudentT"]


@checked_fields
@dataclass(frozen=True)
class Huber:
    """Squared loss for small residuals, absolute loss for large ones: ρ(r) = r²/2 up to |r| = c, then c|r| − c²/2.

    An outlier pulls with the force of a residual of c scales, never more. ρ'' jumps at ±c, and ρ''' is zero everywhere
    else, so that a predicted mean bias knows nothing of the jumps.

    Attributes
    ----------
    threshold
        c, positive; 1.345 keeps 95 % of the efficiency of least squares on normal data whose standard deviation is s.

    Raises
    ------
    InvalidInput
        If the threshold is not positive and finite.

    Examples
    --------
    >>> from equipoise.families.family import FAMILIES
    >>> loss = Huber(1.5).loss(FAMILIES["gaussian"], 2.0)
    >>> [float(loss.d1(0.0, y, loss.constants)) for y in (-1.0, -4.0, -40.0)]
    [0.25, 0.75, 0.75]
    """

    threshold: float = 1.345
    convex: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require("Huber(threshold)", self.threshold, "leave divergence out for the squared loss, or try 1.345")

    def loss(self, family: Family, constant: float | None) -> ScalarLoss:
        """The loss of one observation; see `_scale` for what is required of the arguments."""
        p = (_scale("Huber", family, constant), float(self.threshold))
        return ScalarLoss("gaussian-huber", huber_value, huber_d1, huber_d2, huber_d3, p)


@checked_fields
@dataclass(frozen=True)
class StudentT:
    """Minus the log density of Student's t: ρ(r) = ((ν+1)/2) log(1 + r²/ν), with the scale held fixed.

    Redescending: the pull of a residual is largest at |r| = √ν and falls to nothing far out. Beyond √ν the loss is
    concave, so several minima are possible, and a fit is only as good as its start. ν → ∞ is the squared loss.

    Attributes
    ----------
    degrees
        ν, positive; 4 is common, 1 is the Cauchy density.

    Raises
    ------
    InvalidInput
        If the degrees are not positive and finite.

    Examples
    --------
    >>> from equipoise.families.family import FAMILIES
    >>> loss = StudentT(4.0).loss(FAMILIES["gaussian"], 1.0)
    >>> [round(float(loss.d1(0.0, y, loss.constants)), 3) for y in (-1.0, -2.0, -40.0)]
    [1.0, 1.25, 0.125]
    """

    degrees: float = 4.0
    convex: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _require("StudentT(degrees)", self.degrees, "leave divergence out for the squared loss, or try 4")

    def loss(self, family: Family, constant: float | None) -> ScalarLoss:
        """The loss of one observation; see `_scale` for what is required of the arguments."""
        p = (_scale("StudentT", family, constant), float(self.degrees))
        return ScalarLoss("gaussian-student", student_value, student_d1, student_d2, student_d3, p)


@checked_fields
@dataclass(frozen=True)
class Pinball:
    """Quantile regression, made smooth: ρ(r) = q r + h log(1 + e^(−r/h)), which is q r₊ + (1−q) r₋ for h → 0.

    It is h times the logistic loss of the response q at the predictor −r/h: convex and infinitely often
    differentiable. The price is a bias, known exactly: what is estimated is the q-quantile, not of y but of y + h s ξ
    with ξ standard logistic, whose standard deviation is π/√3 = 1.81. For a density f of y that is, with Q its quantile,

        estimate − Q = −(π²/6) (h s)² f'(Q)/f(Q) + O(h⁴),

    zero for the median of a symmetric density, and towards the tail for the outer quantiles of a bell-shaped one. A
    smaller h has less bias, but measures the curvature by fewer rows near the line, effectively 6 h s f(Q) N of them,
    and is further from a quadratic at the scale of the standard errors: keep h s above them.

    Attributes
    ----------
    quantile
        q, between 0 and 1.
    smoothing
        h, positive, in units of the scale s.

    Raises
    ------
    InvalidInput
        If one of them is out of range.

    Examples
    --------
    >>> from equipoise.families.family import FAMILIES
    >>> loss = Pinball(0.9, smoothing=0.05).loss(FAMILIES["gaussian"], 1.0)
    >>> [round(float(loss.d1(0.0, y, loss.constants)), 3) for y in (-1.0, 1.0)]
    [0.1, -0.9]
    """

    quantile: float = 0.5
    smoothing: float = 0.1
    convex: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require("Pinball(smoothing)", self.smoothing, "try 0.1: the limit 0 has no second derivative")
        if not is_number(self.quantile) or not 0.0 < self.quantile < 1.0:
            raise InvalidInput("divergence", "Pinball(quantile) between 0 and 1", self.quantile, "0.5 is the median")

    def loss(self, family: Family, constant: float | None) -> ScalarLoss:
        """The loss of one observation; see `_scale` for what is required of the arguments."""
        p = (_scale("Pinball", family, constant), float(self.quantile), float(self.smoothing))
        return ScalarLoss("gaussian-pinball", pinball_value, pinball_d1, pinball_d2, pinball_d3, p)


def _require(what: str, value: object, remedy: str) -> None:
    if not is_number(value) or not 0.0 < value < np.inf:
        raise InvalidInput("divergence", f"{what} positive and finite", value, remedy)


def _scale(name: str, family: Family, constant: float | None) -> float:
    """The positive scale s of a gaussian family, and of no other; a model without one estimates it before it has a loss."""
    if family.name != "gaussian":
        remedy = "use eq.glm('gaussian', ...), or divergence=eq.Beta(1.5) for this family"
        raise InvalidInput("family", f"gaussian with divergence={name}", family.name, remedy)
    if constant is None or not is_number(constant) or not 0.0 < constant < np.inf:
        remedy = "pass scale=, for example 1.48 times the median absolute residual of a first fit"
        raise InvalidInput("scale", f"a positive number with divergence={name}", constant, remedy)
    return float(constant)


# huber: p = (s, c)


def huber_value(eta: V, y: V, p: Array) -> V:
    """k (z − k/2) with k = z cut off at ±c."""
    z = (eta - y) / p[0]
    k = np.minimum(np.maximum(z, -p[1]), p[1])
    return k * (z - 0.5 * k)


def huber_d1(eta: V, y: V, p: Array) -> V:
    """First derivative."""
    return np.minimum(np.maximum((eta - y) / p[0], -p[1]), p[1]) / p[0]


def huber_d2(eta: V, y: V, p: Array) -> V:
    """Second derivative; at ±c that from inside."""
    return (np.abs((eta - y) / p[0]) <= p[1]) / (p[0] * p[0])


def huber_d3(eta: V, y: V, p: Array) -> V:  # noqa: ARG001
    """Third derivative: zero almost everywhere."""
    return 0.0 * (eta + y)


# student: p = (s, ν). Products are ordered so that none overflows before z² does.


def student_value(eta: V, y: V, p: Array) -> V:
    """((ν+1)/2) log(1 + z²/ν)."""
    z = (eta - y) / p[0]
    return 0.5 * (p[1] + 1.0) * np.log1p(z * z / p[1])


def student_d1(eta: V, y: V, p: Array) -> V:
    """First derivative."""
    z = (eta - y) / p[0]
    return (p[1] + 1.0) / (p[1] + z * z) * z / p[0]


def student_d2(eta: V, y: V, p: Array) -> V:
    """Second derivative."""
    z = (eta - y) / p[0]
    spread = p[1] + z * z
    return (p[1] + 1.0) / spread * ((p[1] - z * z) / spread) / (p[0] * p[0])


def student_d3(eta: V, y: V, p: Array) -> V:
    """Third derivative."""
    z = (eta - y) / p[0]
    spread = p[1] + z * z
    return (p[1] + 1.0) / spread * (2.0 * z / spread) * ((z * z - 3.0 * p[1]) / spread) / (p[0] * p[0] * p[0])


# pinball: p = (s, q, h). With u = z/h the loss is h (log(1 + e^u) − q u), h times that of the bernoulli family.


def pinball_value(eta: V, y: V, p: Array) -> V:
    """h (log(1 + e^u) − q u)."""
    return p[2] * bernoulli_value((eta - y) / (p[0] * p[2]), p[1], p)


def pinball_d1(eta: V, y: V, p: Array) -> V:
    """First derivative."""
    return bernoulli_d1((eta - y) / (p[0] * p[2]), p[1], p) / p[0]


def pinball_d2(eta: V, y: V, p: Array) -> V:
    """Second derivative."""
    return bernoulli_d2((eta - y) / (p[0] * p[2]), p[1], p) / (p[0] * p[0] * p[2])


def pinball_d3(eta: V, y: V, p: Array) -> V:
    """Third derivative."""
    return bernoulli_d3((eta - y) / (p[0] * p[2]), p[1], p) / (p[0] * p[2]) ** 2 / p[0]
