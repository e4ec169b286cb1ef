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
from typing import Any

import numpy as np
from numpy.polynomial.chebyshev import chebpts1
from scipy.special import erfc, gammaln

from equipoise.arrays import Array
from equipoise.checks import checked_fields, is_number
from equipoise.errors import InvalidInput
from equipoise.families.family import Family, ScalarFunction, ScalarLoss, exp

__all__ = ["Beta"]


_LARGEST_B = 5.0  # an observation two standard deviations out has lost its weight by then
_DISPERSION = (1e-4, 1e3)  # below, sums lose digits like dispersion^(−3/2); above, all counts are zero or huge
_LARGEST_ETA = 650.0  # with a log link: beyond, exp(eta) times a response may overflow
_STEEPEST = 1e100  # keeps the cube of u' finite where the weight e^(−(b−1)u) is zero, so that their product is zero
_NODES = 14  # Chebyshev nodes per cell for the third derivative of I
_COEFFICIENTS = _NODES + 3  # it is integrated three times
_LEFT_OUT, _TABLE = 18, 19  # places in p: the truncation error of a table, and its first coefficient


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

    def tail_error(self, family: Family, constant: float | None) -> float:
        """A bound on the share of I that truncating its sum leaves out; zero where I is in closed form.

        Beyond T the sum is at most f(T)^b / (1 − ρ^b), with ρ ≥ f(t+1)/f(t) for t ≥ T; the largest over the grid.
        """
        tabulated = self._form(family, constant)[0].integral is tabulated_integral
        return self.loss(family, constant).p[_LEFT_OUT] if tabulated else 0.0

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


# u, u1, u2, u3 are −log f and its derivatives; c is b − 1 for the loss and b for I.


def bounded(slope: Any) -> Any:
    """A derivative of u, kept where its cube is finite."""
    return np.minimum(np.maximum(slope, -_STEEPEST), _STEEPEST)


def turn2(c: Any, u1: Any, u2: Any) -> Any:
    """The second derivative of −e^(−cu)/c, without the factor e^(−cu)."""
    return u2 - c * u1 * u1


def turn3(c: Any, u1: Any, u2: Any, u3: Any) -> Any:
    """The third derivative of −e^(−cu)/c, without the factor e^(−cu)."""
    return u3 - 3.0 * c * u1 * u2 + c * c * u1 * u1 * u1


@lru_cache(maxsize=16)
def _functions(family: Family) -> tuple[ScalarFunction, ScalarFunction, ScalarFunction, ScalarFunction]:
    """Value and derivatives for one family; the engines compile them once, whatever b and the constant are."""
    integral, normaliser = _FORMS[family.name].integral, _FORMS[family.name].normaliser
    s0, s1, s2, s3 = family.loss.value, family.loss.d1, family.loss.d2, family.loss.d3
    limit = _LARGEST_ETA if family.exponential_mean else np.inf

    def exponent(eta: Any, y: Any, p: Any) -> Any:
        # a density may be large, but not so large that its power overflows
        return np.minimum((1.0 - p[1]) * (s0(eta, y, p) + normaliser(y, p)), 600.0)

    def value(eta: Any, y: Any, p: Any) -> Any:
        at = np.minimum(np.maximum(eta, -limit), limit)
        return np.expm1(exponent(at, y, p)) / (1.0 - p[1]) + (integral(eta, p, 0) - 1.0) / p[1]

    def d1(eta: Any, y: Any, p: Any) -> Any:
        at = np.minimum(np.maximum(eta, -limit), limit)
        return exp(exponent(at, y, p)) * bounded(s1(at, y, p)) + integral(eta, p, 1) / p[1]

    def d2(eta: Any, y: Any, p: Any) -> Any:
        at = np.minimum(np.maximum(eta, -limit), limit)
        bend = turn2(p[1] - 1.0, bounded(s1(at, y, p)), bounded(s2(at, y, p)))
        return exp(exponent(at, y, p)) * bend + integral(eta, p, 2) / p[1]

    def d3(eta: Any, y: Any, p: Any) -> Any:
        at = np.minimum(np.maximum(eta, -limit), limit)
        bend = turn3(p[1] - 1.0, bounded(s1(at, y, p)), bounded(s2(at, y, p)), bounded(s3(at, y, p)))
        return exp(exponent(at, y, p)) * bend + integral(eta, p, 3) / p[1]

    return value, d1, d2, d3


# A normaliser is −log f minus the family's loss; an integral is I, or its derivative of the order given.


def constant_normaliser(y: Any, p: Any) -> Any:
    """Gaussian: ½ log(2π s²), in p[3]. Bernoulli: zero."""
    return 0.0 * y + p[3]


def gamma_normaliser(y: Any, p: Any) -> Any:
    """log Γ(k) − k log k − (k−1) log y; the first two in p[3]."""
    return p[3] - (p[0] - 1.0) * np.log(y)


def poisson_normaliser(y: Any, p: Any) -> Any:  # noqa: ARG001
    """log y!"""
    return log_rising(y, 1.0)


def negative_binomial_normaliser(y: Any, p: Any) -> Any:
    """log y! − log (1/a)(1/a + 1)…(1/a + y − 1)."""
    return log_rising(y, 1.0) - log_rising(y, 1.0 / p[0])


def log_rising(y: Any, r: Any) -> Any:
    """log Γ(y+r) − log Γ(r) for y ≥ 0, r > 0, exactly zero at y = 0; log y! for r = 1.

    Stirling's series for both at an argument larger by 8, where it is exact to 2e-16, and its difference in closed
    form, so that nothing cancels when r is large. Relative error below 1e-14, and 1e-14 in absolute terms near a zero.
    """
    upper, lower, big = r + y, r, r + 8.0
    for i in range(1, 8):
        upper, lower = upper * (r + i + y), lower * (r + i)
    bulk = (y + big - 0.5) * np.log1p(y / big) - y + y * np.log(big)
    return bulk + stirling(y + big) - stirling(big) - np.log(upper / lower)


def stirling(x: Any) -> Any:
    """log Γ(x) − [(x − ½) log x − x + ½ log 2π], for x ≥ 8."""
    s = 1.0 / (x * x)
    series = 1.0 / 1188.0 - s * (691.0 / 360360.0 - s * (1.0 / 156.0 - s * 3617.0 / 122400.0))
    series = 1.0 / 1260.0 - s * (1.0 / 1680.0 - s * series)
    return (1.0 / 12.0 - s * (1.0 / 360.0 - s * series)) / x


def gaussian_integral(eta: Any, p: Any, order: int) -> Any:
    """(2π s²)^((1−b)/2) / √b, in p[2]: free of eta."""
    return 0.0 * eta + p[2] * (order == 0)


def gamma_integral(eta: Any, p: Any, order: int) -> Any:
    """C exp((1−b) eta), with log C in p[2]."""
    rate = 1.0 - p[1]
    return rate**order * exp(np.minimum(p[2] + rate * eta, 600.0))


def bernoulli_integral(eta: Any, p: Any, order: int) -> Any:
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


def tabulated_integral(eta: Any, p: Any, order: int) -> Any:
    """A polynomial in each cell of the grid, and continuations e^(m g) Σ_i A_i e^(i k g) at distance g outside.

    p[2:6] holds the grid's ends, the cells per unit, and the last cell's middle in cells; each continuation is
    (m, k, A_0, …, A_3). `fmax` sends NaN to the first cell: an index must be valid whatever the chain has done.
    """
    inside = np.fmin(np.fmax(eta, p[2]), p[3])
    place = (inside - p[2]) * p[4]
    cell = np.int64(np.fmin(place, p[5]))
    x, first = 2.0 * (place - cell) - 1.0, _TABLE + _COEFFICIENTS * cell
    total = 0.0 * x
    for k in range(_COEFFICIENTS - 1, order - 1, -1):
        factor = 1.0
        for j in range(order):
            factor *= k - j
        total = total * x + factor * p[first + k]
    gap = eta - inside
    side = 6 + 6 * np.int64(gap > 0.0)
    m, k1 = p[side], p[side + 1]
    decay = exp(k1 * gap)
    tail = p[side + 5] * (m + 3.0 * k1) ** order
    for i in range(2, -1, -1):
        tail = tail * decay + p[side + 2 + i] * (m + i * k1) ** order
    out = gap != 0.0
    return (1.0 - out) * total * (2.0 * p[4]) ** order + out * exp(m * gap) * tail


def _gaussian_numbers(b: float, scale: float) -> tuple[float, ...]:
    """What `gaussian_integral` and `constant_normaliser` find in p[2:]."""
    half_log = 0.5 * math.log(2.0 * math.pi) + math.log(scale)
    return math.exp((1.0 - b) * half_log) / math.sqrt(b), half_log


def _gamma_numbers(b: float, shape: float) -> tuple[float, ...]:
    """log C = b (k log k − log Γ(k)) + log Γ(s) − s log(b k), s = b (k−1) + 1."""
    s, normaliser = b * (shape - 1.0) + 1.0, float(gammaln(shape)) - shape * math.log(shape)
    return float(gammaln(s)) - s * math.log(b * shape) - b * normaliser, normaliser


@lru_cache(maxsize=64)
def _table(b: float, dispersion: float) -> tuple[float, ...]:
    """The grid, the continuations, the truncation error and the polynomials of a sum over counts.

    In each cell I''' is interpolated at Chebyshev nodes and integrated three times from the middle: the derivatives
    are then as accurate as the sums, where differentiating a fit of I would lose six digits. The cells shrink with b
    because the nearest zeros of I in the complex plane are at a distance π/b.
    """
    # where the continuations are exact to 1e-9: small means, and large ones (Poisson) or gamma-like (otherwise)
    low = -22.0 - math.log1p(dispersion)
    high = 6.0 if dispersion == 0.0 else 20.0 - math.log(dispersion)
    cells = math.ceil((high - low) * b / 1.5)
    half = 0.5 * (high - low) / cells
    nodes = np.append(chebpts1(_NODES), 0.0)
    eta = (low + half * (2.0 * np.arange(cells)[:, None] + 1.0 + nodes)).ravel()
    sums, left_out = _count_sums(np.append(eta, [low, high]), b, dispersion)
    ends, grid = sums[:, -2:], sums[:, :-2].reshape(4, cells, -1)
    third = np.linalg.solve(np.vander(nodes[:-1], increasing=True), grid[3, :, :-1].T).T
    k = np.arange(_NODES)
    lowest = grid[:3, :, -1].T * np.array([1.0, half, half**2 / 2.0])
    table = np.hstack([lowest, third * half**3 / ((k + 1.0) * (k + 2.0) * (k + 3.0))])
    # leading rates of I: (1−b)/2 and one less (Poisson), 1−b and −b/a (negative binomial, by the mass at zero)
    slow, fast = ((b - 1.0) / 2.0, (b + 1.0) / 2.0) if dispersion == 0.0 else sorted((b - 1.0, b / dispersion))
    gap = min(max(fast - slow, 0.01), 1.0)
    below, above = _continuation(0.0, 1.0, ends[:, 0]), _continuation(-slow, -gap, ends[:, 1])
    return (low, high, 0.5 / half, cells - 0.5, *below, *above, left_out, *table.ravel().tolist())


def _continuation(m: float, k: float, derivatives: Array) -> list[float]:
    """(m, k, A) such that Σ_i A_i e^((m + i k) g) has the given value and three derivatives at g = 0."""
    powers = (m + k * np.arange(4.0)) ** np.arange(4.0)[:, None]
    return [m, k, *np.linalg.solve(powers, derivatives).tolist()]


def _count_sums(eta: Array, b: float, a: float) -> tuple[Array, float]:
    """Σ_t f(t)^b with three derivatives, (4, len(eta)), and a bound on the share left out; a = 0 is Poisson.

    Term by term for small t, and for large t as an integral over log t, which the trapezoidal rule does with an error
    e^(−40). A smooth window hands over from one to the other near t = 64: a sum and an integral of a function
    that is smooth on the scale of 1 differ by exponentially little.
    """
    mu = np.exp(eta)[:, None]
    reach = (1.0 + a * mu) / b
    last = mu + 12.0 * np.sqrt(mu * reach) + 60.0 * reach
    width, middle = 0.3, math.log(64.0)
    t = np.arange(412.0)[None, :]  # 6.2 widths beyond the middle
    total = _powers(t, t - mu, mu, b, a, 0.5 * erfc((np.log(np.maximum(t, 0.5)) - middle) / width))
    # left of the mode, t f^b falls like a power of t, or not at all
    fall = np.maximum(mu / reach - b + 1.0, 1e-3)
    start = np.maximum(math.log(10.0) - eta[:, None], -12.0 / np.sqrt(fall) - 45.0 / fall)
    far = (last > 15.0).ravel()
    # log(t/μ): near a narrow peak, t itself would round off the spacing of the nodes
    grid = np.linspace(start[far], np.log(last / mu)[far], 192, axis=1)[:, :, 0]
    t = mu[far] * np.exp(grid)
    share = t * (grid[:, 1:2] - grid[:, :1]) * 0.5 * erfc((middle - eta[far, None] - grid) / width)
    total[:, far] += _powers(t, mu[far] * np.expm1(grid), mu[far], b, a, share)
    end = np.where(far[:, None], last, 411.0)
    ratio = mu / (1.0 + a * mu) * np.maximum(a, (1.0 + a * end) / (1.0 + end))
    beyond = _powers(end, end - mu, mu, b, a, -1.0 / np.expm1(b * np.log(ratio)))[0]
    return total, float(np.max(beyond / total[0]))


def _powers(t: Array, off: Array, mu: Array, b: float, a: float, share: Array) -> Array:
    """Σ_t share(t) f(t)^b and its derivatives in log μ; `off` is t − μ, and each row of `t` is for one row of `mu`.

    log f falls from its peak at μ = t by two terms without sign changes, in the manner of Loader (2000): the
    derivatives of I are what cancellations leave over, and those magnify an error in log f by its variance^(3/2).
    """
    level, x = 1.0 + a * mu, np.maximum(t, 1e-300)
    fall = x * _excess(-off / (x * level), mu * (1.0 + a * x) / (x * level))
    if a > 0.0:
        fall += _excess(a * off / level, (1.0 + a * x) / level) / a
    density = np.exp(b * (_log_peak(t, mu, a) - fall)) * share * (2.0 * math.pi * mu * level) ** (-0.5 * b)
    u1, u2 = -off / level, mu * (1.0 + a * t) / level**2
    slopes = u1, turn2(b, u1, u2), turn3(b, u1, u2, u2 * (1.0 - a * mu) / level)
    return np.stack([np.sum(density, axis=1), *(-b * np.sum(density * slope, axis=1) for slope in slopes)])


def _excess(z: Array, above: Array) -> Array:
    """z − log(1 + z) without cancellation, from log(1 + z) = 2 artanh s; `above` is 1 + z, for z near −1."""
    s = np.where(np.abs(z) < 0.2, z / (2.0 + z), 0.0)
    series = np.zeros_like(s)
    for k in range(17, 1, -2):
        series = series * s * s + 2.0 / k
    return np.where(np.abs(z) < 0.2, z * s - s**3 * series, z - np.log(above))


def _log_peak(t: Array, mu: Array, a: float) -> Array:
    """log f(t) at the mean t, plus ½ log(2π μ (1 + a μ)), which leaves a small number where f is large."""
    x, level = np.maximum(t, 0.5), 1.0 + a * mu
    peak = -0.5 * np.log(x / mu * ((1.0 + a * x) / level)) - _remainder(x)
    if a > 0.0:
        peak += _remainder(x + 1.0 / a) - _remainder(np.array(1.0 / a))
    return np.where(t == 0.0, 0.5 * np.log(2.0 * math.pi * mu * level), peak)


def _remainder(x: Array) -> Array:
    """`stirling` for every x > 0."""
    near = np.minimum(x, 16.0)
    small = gammaln(near) - (near - 0.5) * np.log(near) + near - 0.5 * math.log(2.0 * math.pi)
    return np.where(x < 16.0, small, stirling(np.maximum(x, 16.0)))


@dataclass(frozen=True)
class _Form:
    """A family's I(eta, p, order), its log normaliser (y, p), and, from (b, constant), the numbers both find in p."""

    integral: Callable[[Any, Any, int], Any]
    normaliser: Callable[[Any, Any], Any]
    numbers: Callable[[float, float], tuple[float, ...]]


_FORMS = {
    "gaussian": _Form(gaussian_integral, constant_normaliser, _gaussian_numbers),
    "bernoulli": _Form(bernoulli_integral, constant_normaliser, lambda *_: (0.0, 0.0)),
    "poisson": _Form(tabulated_integral, poisson_normaliser, _table),
    "gamma": _Form(gamma_integral, gamma_normaliser, _gamma_numbers),
    "negative-binomial": _Form(tabulated_integral, negative_binomial_normaliser, _table),
}
