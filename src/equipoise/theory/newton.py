"""The curvature noise of a step γH⁻¹ in as many unknowns as there are rows (theory §5).

Where every mode has one rate, stability asks for nothing but the largest eigenvalue μ of

    S ↦ Σ_n (y_nᵀ S y_n) y_n y_nᵀ − J S J,

one y_n for each row. Rows of high leverage crowd it with others, among which Krylov methods on matrices get lost. With
a_n = y_nᵀ S y_n and S = Σ_n (μ + P)⁻¹(y_n y_nᵀ) a_n, P(S) = J S J, it is where the matrix y_nᵀ (μ + P)⁻¹(y_m y_mᵀ) y_n
has largest eigenvalue 1. Without a prior P is the identity, and the matrix is G₀ / (μ + 1), G_k = ((y_nᵀ Jᵏ y_m)²). In general
(μ + P)⁻¹ is expanded about the middle p of P's eigenvalues, q = μ + p:

    q = λ_max( G₀ − (G₁ − p G₀)/q ),   up to a share (δ/q)² of it, δ their distance from the middle.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from equipoise.arrays import Array
from equipoise.linalg import cores, fixed_order

__all__ = ["noise_peak"]

_HEIGHT = 256  # rows of a strip of a Gram matrix
_ALONE = 1e-9  # δ/q up to which the first term of the expansion is enough
_ROUNDS = 20  # of the fixed point, each of which gains a factor q/δ


def noise_peak(y: Array, J: Array, error: float) -> float | None:
    """μ up to a relative error; None where two terms of the expansion leave more."""
    values = np.linalg.eigvalsh(J)
    # products of two eigenvalues
    low, high = min(values[0] * values[-1], values[0] ** 2, values[-1] ** 2), max(values[0] ** 2, values[-1] ** 2)
    middle, off = 0.5 * (low + high), 0.5 * (high - low)
    plain = _squared_gram(y, y)
    q, start = _largest(plain, None)
    if (off / q) ** 2 > error * (1.0 - middle / q):
        return None
    if off / q <= _ALONE:
        return q - middle
    bent = _squared_gram(y @ J, y) - middle * plain
    for _ in range(_ROUNDS):
        last, (q, start) = q, _largest(plain - bent / q, start)
        if abs(q - last) <= 0.1 * error * q:
            break
    return q - middle


def _squared_gram(left: Array, right: Array) -> Array:
    """(l_nᵀ r_m)², symmetric, in strips of a fixed height on all cores: no bit depends on how many there are."""
    made = np.empty((len(left), len(left)))

    def strip(first: int) -> None:
        here = slice(first, first + _HEIGHT)
        made[here, first:] = np.square(left[here] @ right[first:].T)
        made[first + _HEIGHT :, here] = made[here, first + _HEIGHT :].T

    with fixed_order(), ThreadPoolExecutor(cores()) as pool:
        list(pool.map(strip, range(0, len(left), _HEIGHT)))
    return made


def _largest(matrix: Array, start: Array | None) -> tuple[float, Array]:
    from scipy.sparse.linalg import eigsh  # slow to import, rarely needed

    first = np.ones(len(matrix)) if start is None else start
    values, vectors = eigsh(matrix, k=1, which="LA", v0=first, tol=1e-10, maxiter=100_000)
    return float(values[0]), vectors[:, 0]
