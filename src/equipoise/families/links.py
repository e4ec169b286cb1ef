"""Other links for truth values: probit and complementary log-log, each a loss with three derivatives (theory §1).

As in `equipoise.families.family`, the text is NumPy's alone and without branches, and accurate in both tails. Identity and
inverse links are not here: their losses end where the mean does, and no chain in all of the parameters' space stays inside.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr, ndtri

from equipoise.arrays import Array
from equipoise.errors import InvalidInput
from equipoise.families.family import FAMILIES, Family, ScalarLoss, V, exp
from equipoise.families.response import LAWS, Law

__all__ = ["LINKS", "register"]

_FAR = 1e100  # predictors beyond are as good as infinite, and their squares are not
_SERIES = 50.0  # from here on, differences of the hazard from its argument are taken from its asymptotic series
_HIGHEST = 709.0  # whose exponential is still a number
_STEEPEST = 0.29571881919312310  # of the third derivative, where the predictor is ∓1.00237
_ROOT = 0.7978845608028654  # √(2/π)
# e^(x²/2) erfc(x/√2) (1 + ¾x) as a Chebyshev series in (x − 5)/(x + 5), x ≥ 0; error below 2e-16
_TAIL = np.array([
    0.77083922049027415222, -0.20774230742094533938, 0.034937028540900560959, 0.004307130062489824566,
    -0.005854748085099047502, 0.0025087528741876714144, -0.00070077783409123904954, 0.00013352610583973011878,
    -0.000014412858912978321375, -3.4676517265930518473e-7, 4.0579470867100311186e-7, -4.6414063626598229669e-8,
    -5.7672209309729418398e-9, 1.9193560884173180697e-9, 1.789870043566437895e-11, -6.2605423145745158596e-11,
    2.7693347816930466048e-12, 2.0593438099391669748e-12, -1.5911312088962817607e-13, -7.3932494865153199416e-14,
    6.6239043699900051631e-15, 2.9544413221235605138e-15, -2.3184575389177800812e-16, -1.2905931849565187635e-16,
])  # fmt: skip


def scaled_tail(a: V) -> V:
    """E(a) = 2 e^(a²/2) Φ(−a) for a ≥ 0."""
    t = (a - 5.0) / (a + 5.0)
    one, two = 0.0 * t, 0.0 * t
    for k in range(23, 0, -1):
        one, two = 2.0 * t * one - two + _TAIL[k], one
    return (t * one - two + _TAIL[0]) / (1.0 + 0.75 * a)


def size(eta: V) -> V:
    """|eta|, of which squares are finite."""
    return np.minimum(np.abs(eta), _FAR)


def far_hazard(a: V) -> V:
    """h = φ(a)/Φ(−a), the slope of −log Φ(−a): about a for large a."""
    return _ROOT / scaled_tail(a)


def far_excess(a: V) -> V:
    """h − a, without cancellation where it is about 1/a."""
    b = 1.0 / np.maximum(a, _SERIES)
    c = b * b
    series = b * (1.0 - c * (2.0 - c * (10.0 - c * (74.0 - c * (706.0 - c * 8162.0)))))
    return np.where(a > _SERIES, series, far_hazard(np.minimum(a, _SERIES)) - np.minimum(a, _SERIES))


def far_bend(a: V) -> V:
    """The derivative of h (h − a), the curvature of −log Φ(−a), by a: about 2/a³."""
    b = 1.0 / np.maximum(a, _SERIES)
    c = b * b
    series = b * c * (2.0 - c * (24.0 - c * (300.0 - c * (4144.0 - c * 63540.0))))
    near = np.minimum(a, _SERIES)
    h, r = far_hazard(near), far_excess(near)
    return np.where(a > _SERIES, series, h * (r * r + h * r - 1.0))


def near_hazard(a: V) -> V:
    """q = φ(a)/Φ(a) for a ≥ 0."""
    e = exp(-0.5 * a * a)
    return 0.5 * _ROOT * e / (1.0 - 0.5 * e * scaled_tail(a))


def far_share(eta: V, y: V | float) -> V:
    """How much of a response is on the side that the predictor speaks against."""
    positive = 1.0 * (eta >= 0.0)
    return positive * (1.0 - y) + (1.0 - positive) * y


def probit_value(eta: V, y: V | float, p: Array) -> V:  # noqa: ARG001
    """−y log Φ(eta) − (1 − y) log Φ(−eta)."""
    a = size(eta)
    tail, far = scaled_tail(a), far_share(eta, y)
    return far * (0.5 * a * a - np.log(0.5 * tail)) - (1.0 - far) * np.log1p(-0.5 * exp(-0.5 * a * a) * tail)


def probit_d1(eta: V, y: V | float, p: Array) -> V:  # noqa: ARG001
    """First derivative."""
    a, far = size(eta), far_share(eta, y)
    return np.copysign(1.0, eta) * (far * far_hazard(a) - (1.0 - far) * near_hazard(a))


def probit_d2(eta: V, y: V | float, p: Array) -> V:  # noqa: ARG001
    """Second derivative."""
    a, far = size(eta), far_share(eta, y)
    q = near_hazard(a)
    return far * far_hazard(a) * far_excess(a) + (1.0 - far) * q * (q + a)


def probit_d3(eta: V, y: V | float, p: Array) -> V:  # noqa: ARG001
    """Third derivative."""
    a, far = size(eta), far_share(eta, y)
    q = near_hazard(a)
    near = q * (1.0 - (q + a) * (2.0 * q + a))
    return np.copysign(1.0, eta) * (far * far_bend(a) + (1.0 - far) * near)


# complementary log-log: the mean is 1 − exp(−m), m = exp(eta)


def success_slope(m: V) -> V:
    """w = m / (e^m − 1), minus the slope of −log(1 − e^−m) by log m."""
    some = np.maximum(m, 1e-300)
    return some * exp(-some) / -np.expm1(-some)


def success_excess(m: V) -> V:
    """w + m − 1, without cancellation where it is about m/2."""
    s = np.minimum(m, 0.5)
    c = s * s
    tail = 1.0 / 30240.0 - c * (1.0 / 1209600.0 - c * (1.0 / 47900160.0 - c * 691.0 / 1307674368000.0))
    series = s * (0.5 + s * (1.0 / 12.0 - c * (1.0 / 720.0 - c * tail)))
    small = 1.0 * (m < 0.5)
    return small * series + (1.0 - small) * (success_slope(m) + m - 1.0)


def cloglog_value(eta: V, y: V | float, p: Array) -> V:  # noqa: ARG001
    """−y log(1 − e^−m) + (1 − y) m."""
    m = exp(np.minimum(eta, _HIGHEST))
    some = np.maximum(m, 1e-300)
    # log(1 − e^−m) is eta + log((1 − e^−m)/m), and the second term is small where m is
    gain = np.minimum(eta, np.log(some)) + np.log(-np.expm1(-some) / some)
    return (1.0 - y) * m - y * np.where(m < 1.0, gain, np.log1p(-exp(-np.maximum(some, 0.5))))


def cloglog_d1(eta: V, y: V | float, p: Array) -> V:  # noqa: ARG001
    """First derivative."""
    m = exp(np.minimum(eta, _HIGHEST))
    return (1.0 - y) * m - y * success_slope(m)


def cloglog_d2(eta: V, y: V | float, p: Array) -> V:  # noqa: ARG001
    """Second derivative."""
    m = exp(np.minimum(eta, _HIGHEST))
    return (1.0 - y) * m + y * success_slope(m) * success_excess(m)


def cloglog_d3(eta: V, y: V | float, p: Array) -> V:  # noqa: ARG001
    """Third derivative."""
    m = exp(np.minimum(eta, _HIGHEST))
    some = np.minimum(m, 1e3)  # from where on w is zero
    w, u = success_slope(some), success_excess(some)
    return (1.0 - y) * m + y * w * (some - u * u - w * u)


_LOGIT = FAMILIES["bernoulli"]
_PROBIT = Family(
    name="bernoulli-probit",
    loss=ScalarLoss("bernoulli-probit", probit_value, probit_d1, probit_d2, probit_d3),
    parameter=None,
    mean=ndtr,
    slope=lambda eta: 0.5 * _ROOT * np.exp(-0.5 * np.minimum(np.abs(eta), _FAR) ** 2),
    variance=_LOGIT.variance,
    link=ndtri,
    requirement=_LOGIT.requirement,
    valid=_LOGIT.valid,
    # suprema for 0 and 1, and for shares between them not less
    second_bound=lambda y, p: np.ones_like(y),  # noqa: ARG005
    third_bound=lambda y, p: np.full_like(y, _STEEPEST),  # noqa: ARG005
    exponential_mean=False,
    law="bernoulli",
)
_CLOGLOG = Family(
    name="bernoulli-cloglog",
    loss=ScalarLoss("bernoulli-cloglog", cloglog_value, cloglog_d1, cloglog_d2, cloglog_d3),
    parameter=None,
    mean=lambda eta: -np.expm1(-np.exp(np.minimum(eta, _HIGHEST))),
    slope=lambda eta: np.exp(np.minimum(eta, _HIGHEST) - np.exp(np.minimum(eta, _HIGHEST))),
    variance=_LOGIT.variance,
    link=lambda mu: np.log(-np.log1p(-mu)),
    requirement=_LOGIT.requirement,
    valid=_LOGIT.valid,
    second_bound=None,
    third_bound=None,
    exponential_mean=True,
    law="bernoulli",
)

# by family and link; the first link of each is the one it has by default
LINKS: dict[str, dict[str, Family]] = {
    "gaussian": {"identity": FAMILIES["gaussian"]},
    "bernoulli": {"logit": _LOGIT, "probit": _PROBIT, "cloglog": _CLOGLOG},
    **{name: {"log": FAMILIES[name]} for name in ("poisson", "gamma", "negative-binomial")},
}


def register(family: Family, link: str, law: Law | None = None) -> None:
    """Make a family of one's own known to `eq.glm` by its name, in this process and in those that call this too.

    Parameters
    ----------
    family
        The family; its loss must be convex in the linear predictor.
    link
        What its link is called.
    law
        The law of its response, for log-likelihoods and intervals of new observations; without it there are none.

    Raises
    ------
    InvalidInput
        If the name is that of a family which is there already.
    """
    if family.name in FAMILIES:
        raise InvalidInput("family", "of a name that no family has", repr(family.name), "give it another name")
    FAMILIES[family.name], LINKS[family.name] = family, {link: family}
    if law is not None:
        LAWS[family.law] = law
