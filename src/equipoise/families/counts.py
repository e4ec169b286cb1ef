"""Sums of powers of count densities, Σ_t f(t|η)^b, with three derivatives: tabulated once, as polynomials (theory §9).

In `p`, p[1] is b, p[2:18] holds the grid and the continuations of the table, p[LEFT_OUT] its truncation error, and the
coefficients of its polynomials follow. u, u1, u2, u3 are −log f and its derivatives; c is b − 1 for a loss and b for I.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.polynomial.chebyshev import chebpts1
from scipy.special import erfc, gammaln

from equipoise.arrays import Array
from equipoise.families.family import V, exp

__all__ = ["LEFT_OUT", "count_table", "log_rising", "stirling", "tabulated_integral", "turn2", "turn3"]

_NODES = 14  # Chebyshev nodes per cell for the third derivative of I
_COEFFICIENTS = _NODES + 3  # it is integrated three times
LEFT_OUT, _TABLE = 18, 19  # places in p: the truncation error of a table, and its first coefficient


def turn2(c: float, u1: V, u2: V) -> V:
    """The second derivative of −e^(−cu)/c, without the factor e^(−cu)."""
    return u2 - c * u1 * u1


def turn3(c: float, u1: V, u2: V, u3: V) -> V:
    """The third derivative of −e^(−cu)/c, without the factor e^(−cu)."""
    return u3 - 3.0 * c * u1 * u2 + c * c * u1 * u1 * u1


def log_rising(y: V, r: float) -> V:
    """log Γ(y+r) − log Γ(r) for y ≥ 0, r > 0, exactly zero at y = 0; log y! for r = 1.

    Stirling's series for both at an argument larger by 8, where it is exact to 2e-16, and its difference in closed
    form, so that nothing cancels when r is large. Relative error below 1e-14, and 1e-14 in absolute terms near a zero.
    """
    upper, lower, big = r + y, r, r + 8.0
    for i in range(1, 8):
        upper, lower = upper * (r + i + y), lower * (r + i)
    bulk = (y + big - 0.5) * np.log1p(y / big) - y + y * np.log(big)
    return bulk + stirling(y + big) - stirling(big) - np.log(upper / lower)


def stirling(x: V) -> V:
    """log Γ(x) − [(x − ½) log x − x + ½ log 2π], for x ≥ 8."""
    s = 1.0 / (x * x)
    series = 1.0 / 1188.0 - s * (691.0 / 360360.0 - s * (1.0 / 156.0 - s * 3617.0 / 122400.0))
    series = 1.0 / 1260.0 - s * (1.0 / 1680.0 - s * series)
    return (1.0 / 12.0 - s * (1.0 / 360.0 - s * series)) / x


def tabulated_integral(eta: V, p: Array, order: int) -> V:
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


@lru_cache(maxsize=64)
def count_table(b: float, dispersion: float) -> tuple[float, ...]:
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
    # beyond T the sum is at most f(T)^b / (1 − ρ^b), with ρ ≥ f(t+1)/f(t) for t ≥ T
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
