"""Constants of largest likelihood at given means: the gamma's shape, the negative binomial's dispersion.

With the fit repeated until both agree, they are those of the joint likelihood.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.special import digamma, gammaln, polygamma

from equipoise.arrays import Array
from equipoise.data.arrays import Rows
from equipoise.data.source import Source
from equipoise.errors import FitFailed, warn
from equipoise.linalg import Total
from equipoise.models.sums import counted, predictor, weighted

__all__ = [
    "LEAST", "NARROW", "ConstantTerms", "constant_terms", "narrow", "profiled", "require_inside", "rising_factorial",
]  # fmt: skip

_ROUNDS = 60
_SETTLED = 1e-14  # change of a logarithm
LEAST = 1e-7  # dispersion, below which counts vary as Poisson's
_LEAST, _MOST = np.log(LEAST), np.log(1e7)
_SMALL, _LARGE = 1e-3, 1e2  # a dispersion within reason
NARROW = 1e3  # shape from which on what tells it is far smaller than what that is made of
_EXACT = 1e12  # shape from which residuals are rounding
_LONGEST = 2.0  # step of a logarithm
_SERIES = 30.0  # from which on digamma is its series, powers and factors of which follow, but for rounding
_TERMS = ((1.0, 1 / 2), (2.0, 1 / 12), (4.0, -1 / 120), (6.0, 1 / 252), (8.0, -1 / 240), (10.0, 1 / 132))
_STRAIGHT, _ODD = 0.1, 13  # up to which log(1 + x) − x is a series, and the last power of it
_DIGITS = 1e-18  # shares that do not count


def profiled(family: str, source: Source[Rows], theta: Array, near: float | None = None) -> float:
    """The constant of largest likelihood, given the means at θ; at the end of its range where there is none.

    One that is near, from a sample or a θ close by, saves passes.
    """
    return _shape(source, theta) if family == "gamma" else _dispersion(source, theta, near)


def require_inside(parameter: str, constant: float, response: str) -> None:
    """Say so where a constant is at the end of its range, towards which the likelihood rises.

    `FitFailed` for a shape without end: the response is fitted exactly. A dispersion of zero is Poisson's, and only a
    warning.
    """
    if parameter == "dispersion" and np.log(constant) < _LEAST + 0.01:
        warn(
            f"the counts {response} vary no more than Poisson's around their means: the dispersion of largest likelihood is "
            f"zero, and {np.exp(_LEAST):g} was taken, which is Poisson's. To be free of this: use eq.glm('poisson'), or pass "
            "dispersion=."
        )
    if parameter == "shape" and constant > _EXACT:
        raise FitFailed(
            f"the columns fit the response {response} exactly: no shape can be estimated. To fix: pass shape=, or leave out "
            "the columns that define the response."
        )


class ConstantTerms(NamedTuple):
    """Derivatives of each row's −log f by the logarithm of the constant: first, second, and that of ℓ' by it."""

    score: Array
    bend: Array
    cross: Array


def constant_terms(family: str, constant: float, rows: Rows, theta: Array) -> ConstantTerms:
    """What each row says of the constant, weights left out."""
    eta, y = predictor(rows, theta), rows.y
    if family == "gamma":
        k, ratio = constant, np.exp(np.log(y) - eta)
        if k > NARROW:
            score = k * (_excess(y, eta) - _log_over_digamma(k))
            more = sum(factor * power * k ** (1.0 - power) for power, factor in _TERMS)
            return ConstantTerms(score, score + more, -k * np.expm1(np.log(y) - eta))
        score = k * (ratio + eta - np.log(y) + digamma(k) - np.log(k) - 1.0)
        return ConstantTerms(score, score + k * k * polygamma(1, k) - k, k * (1.0 - ratio))
    r, mu = 1.0 / constant, np.exp(eta)
    slope, bend = _by_size(y, mu, r) if r < _SERIES else _by_large_size(y, mu, r)
    # by log a = −log r: −r d/dr, and its square
    return ConstantTerms(r * slope, -r * slope - r * r * bend, -mu * (mu - y) * r / (r + mu) ** 2)


def _shape_sums(theta: Array, rows: Rows) -> Total:
    """Σ w and Σ w (y/μ − 1 − log(y/μ)) over one block."""
    eta = predictor(rows, theta)
    times = weighted(rows, rows.counts)
    return Total(np.array([times.sum(), times @ _excess(rows.y, eta)]))


def _excess(y: Array, eta: Array) -> Array:
    """y/μ − 1 − log(y/μ)."""
    away = np.log(y) - eta
    return np.asarray(np.expm1(away) - away)


def narrow(y: Array, eta: Array, k: float) -> Array:
    """A gamma's −log f of large shape but for log y, free of what cancels: log Γ(k) − k log k + k by Stirling's series."""
    rest = 0.5 * np.log(2.0 * np.pi / k) + sum(
        factor / (power - 1.0) * k ** (1.0 - power) for power, factor in _TERMS[1:]
    )
    return k * _excess(y, eta) + rest


def _log_over_digamma(k: float) -> float:
    """log k − ψ(k), which for large k is far smaller than both."""
    return sum(factor * k**-power for power, factor in _TERMS) if k > NARROW else float(np.log(k) - digamma(k))


def _shape(source: Source[Rows], theta: Array) -> float:
    """k with log k − ψ(k) = mean of y/μ − 1 − log(y/μ): one pass, then Newton's method in log k."""
    weight, excess = source.reduce(partial(_shape_sums, theta)).total.tolist()
    wanted = excess / weight
    if not np.isfinite(wanted):
        return 1.0  # far from any fit: the parameters move first
    wanted = max(wanted, 0.25 / _EXACT)
    # the two leading terms for large and for small k
    log_k = float(np.log((0.5 + np.sqrt(0.25 + wanted / 3.0)) / (2.0 * wanted)))
    for _ in range(_ROUNDS):
        k = np.exp(log_k)
        gap = _log_over_digamma(k) - wanted
        step = gap / (k * polygamma(1, k) - 1.0)
        log_k += float(np.clip(step, -_LONGEST, _LONGEST))
        if abs(step) < _SETTLED * 10.0:
            break
    return float(np.exp(log_k))


def _dispersion_sums(theta: Array, log_a: float, rows: Rows) -> Total:
    """The log-likelihood's slope and bend by the logarithm of the dispersion, over one block."""
    terms = constant_terms("negative-binomial", float(np.exp(log_a)), rows, theta)
    times = weighted(rows, rows.counts)
    return Total(-np.array([times @ terms.score, times @ terms.bend]))


def _by_size(y: Array, mu: Array, r: float) -> tuple[Array, Array]:
    """Slope and bend of log f by r = 1/a."""
    slope = np.asarray(digamma(y + r) - digamma(r)) - np.log1p(mu / r) + (mu - y) / (r + mu)
    bend = polygamma(1, y + r) - polygamma(1, r) + mu / (r * (r + mu)) - (mu - y) / (r + mu) ** 2
    return slope, bend


def _by_large_size(y: Array, mu: Array, r: float) -> tuple[Array, Array]:
    """The same for large r, where both are far smaller than what they are made of: by what is left of that.

    ψ(x) = log x − 1/(2x) − 1/(12x²) + 1/(120x⁴) − …, each term's difference by itself: x⁻ᵖ = r⁻ᵖ e^(−p log(x/r)); the
    logarithms together are that of 1 + d.
    """
    away, d = np.log1p(y / r), (y - mu) / (r + mu)
    slope, bend = _log_rest(d), d**2 / (y + r)
    for power, factor in _counting(r):
        slope = slope - factor * r**-power * np.expm1(-power * away)
        bend = bend + factor * power * r ** -(power + 1.0) * np.expm1(-(power + 1.0) * away)
    return slope, bend


def _counting(r: float) -> list[tuple[float, float]]:
    """The terms of the series that count beside the first."""
    return [(power, factor) for power, factor in _TERMS if abs(factor) * power * r ** (1.0 - power) > _DIGITS]


def _log_rest(x: Array) -> Array:
    """log(1 + x) − x, with all its digits: log(1 + x) = 2 artanh s, s = x/(2 + x)."""
    s = x / (2.0 + x)
    square, series = s * s, np.zeros_like(x)
    for k in range(_ODD, 1, -2):
        series = (series + 1.0 / k) * square
    found = s * (2.0 * series - x)
    far = np.abs(x) > _STRAIGHT
    found[far] = np.log1p(x[far]) - x[far]
    return found


def rising_factorial(y: Array, r: float) -> Array:
    """log Γ(y + r) − log Γ(r)."""
    if r < _SERIES:
        return np.asarray(gammaln(y + r) - gammaln(r))
    # Stirling's series, whose terms are those of ψ integrated
    u = y / r
    away = np.log1p(u)
    found = y * np.log(r) + r * ((1.0 + u) * _log_rest(u) + u**2) - 0.5 * away
    for power, factor in _counting(r)[1:]:
        found = found + factor / (power - 1.0) * r ** (1.0 - power) * np.expm1((1.0 - power) * away)
    return np.asarray(found)


def _dispersion(source: Source[Rows], theta: Array, near: float | None) -> float:
    """Newton's method in log a between bounds that close in; a pass over the rows for each step."""
    # at the ends of its range the likelihood is flat, and nothing leads away from there
    inside = near is not None and _SMALL < near < _LARGE
    log_a, low, high = float(np.log(near or 1.0)) if inside else _start(source, theta), float(_LEAST), float(_MOST)
    for _ in range(_ROUNDS):
        slope, bend = source.reduce(partial(_dispersion_sums, theta, log_a)).total.tolist()
        if not np.isfinite(slope):
            return 1.0  # far from any fit: the parameters move first
        low, high = (log_a, high) if slope > 0.0 else (low, log_a)
        step = -slope / bend if bend < 0.0 else np.copysign(_LONGEST, slope)
        moved = log_a + float(np.clip(step, -_LONGEST, _LONGEST))
        if not low < moved < high:
            moved = 0.5 * (low + high)
        if abs(moved - log_a) < 10.0 * _SETTLED or high - low < 1e-13:
            log_a = moved
            break
        log_a = moved
    return float(np.exp(log_a))


def _start_sums(theta: Array, rows: Rows) -> Total:
    """Σ w ((y − μ)² − y) and Σ w μ² over one block."""
    mu = np.exp(np.minimum(predictor(rows, theta), 300.0))
    terms = ((rows.y - mu) ** 2 - rows.y, mu**2)
    return Total(np.array([counted(rows, weighted(rows, term)).sum() for term in terms]))


def _start(source: Source[Rows], theta: Array) -> float:
    """The moments' dispersion, within reason."""
    excess, square = source.reduce(partial(_start_sums, theta)).total.tolist()
    ratio = excess / square if 0.0 < square < np.inf else 1.0
    return float(np.log(np.clip(np.nan_to_num(ratio, nan=1.0), _SMALL, _LARGE)))
