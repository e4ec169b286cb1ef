"""Mean-square stability: when a finite stationary covariance exists (theory §5).

In the coordinates of `Modes` every question is a symmetric eigenproblem on matrices. The largest multiple c of the step
for which E − c (F + K̃) stays positive is 1 / max eig of the pencil (F + K̃, E): no bisection is needed. Without momentum
the spectral radius is that of T(S) = A S A + K̃(S). With momentum, eliminating m̃ from T(P) = γP leaves

    W(γ) ∘ S = K̃(S),   W(γ) = γ (E' − F'),

where E', F' are E, F at κ' = κ/γ and d' = 1 + κ' − (1 − d + κ)/√γ: dividing each step of the mean dynamics by √γ gives a
dynamics of the same form. W grows with γ, so the radius is where the largest eigenvalue of the pencil (K̃, W) passes 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh

from equipoise.theory.equation import whitened
from equipoise.theory.modes import Modes
from equipoise.theory.proxy import Noise

__all__ = ["decay_bound", "largest_multiple", "mean_radius2", "spectral_radius"]

Array = NDArray[np.float64]

# Below this many unknowns a dense eigenvalue problem is faster and surer than a Krylov method.
_DENSE = 150


def spectral_radius(modes: Modes, noise: Noise) -> float:
    """ρ(T), T(S) = A S Aᵀ + Λ K(S) Λᵀ, or its analogue on the joint state when there is momentum."""
    spread = whitened(noise, modes)
    if spread is None:
        return mean_radius2(modes)
    if modes.momentum > 0.0:
        return _joint_radius(modes, spread)
    dim, a = modes.rates.size, 1.0 - modes.rates
    keep = np.outer(a, a)

    def square(v: Array) -> Array:
        S = v.reshape(dim, dim)
        return (keep * S + spread(S)).ravel()

    return _largest_symmetric(square, np.eye(dim).ravel())


def largest_multiple(modes: Modes, noise: Noise) -> float:
    """The c at which c·step loses its stationary covariance; smaller multiples have one."""
    if not modes.discrete:
        return np.inf
    if modes.rates[0] <= 0.0:
        return 0.0
    dim, spread = modes.rates.size, whitened(noise, modes)
    root = modes.first_order**-0.5
    kept = modes.second_order * root**2
    if spread is None:
        return float(1.0 / kept.max())

    def pencil(v: Array) -> Array:
        S = v.reshape(dim, dim)
        return (kept * S + root * spread(root * S)).ravel()

    return 1.0 / _largest_symmetric(pencil, np.diag(np.diag(root)).ravel())


def _largest_symmetric(apply: Callable[[Array], Array], start: Array) -> float:
    size = start.size
    if size <= _DENSE:
        return float(np.linalg.eigvalsh(_dense(apply, size))[-1])
    operator = LinearOperator((size, size), matvec=apply, dtype=np.float64)
    return float(eigsh(operator, k=1, which="LA", v0=start, tol=1e-10, return_eigenvectors=False)[0])


def resolvent(modes: Modes, gamma: float) -> Array:
    """W(γ); its entrywise inverse is the covariance response of the mean dynamics slowed by √γ."""
    k = modes.momentum / gamma
    rates = 1.0 + k - (1.0 - modes.rates + modes.momentum) / np.sqrt(gamma)
    slowed = replace(modes, rates=rates, momentum=k)
    return gamma * (slowed.first_order - slowed.second_order)


def decay_bound(modes: Modes, S: Array, spread: Array) -> float:
    """An upper bound on ρ(T) from the stationary S and K̃(S) alone, without applying the noise operator.

    S ↦ W(γ)⁻¹ ∘ K̃(S) preserves positive matrices; if it maps S below itself its radius is at most 1 (Collatz–Wielandt),
    that is ρ(T) ≤ γ. The smallest such γ is found by bisection.
    """
    low, high = mean_radius2(modes), 1.0
    for _ in range(40):
        gamma = 0.5 * (low + high)
        inside = np.linalg.eigvalsh(S - spread / resolvent(modes, gamma))[0] >= 0.0
        low, high = (low, gamma) if inside else (gamma, high)
    return high


def mean_radius2(modes: Modes) -> float:
    """The squared spectral radius of the mean dynamics: what ρ(T) would be without curvature noise."""
    return float(np.abs(np.linalg.eigvals(modes.transition)).max() ** 2)


def _joint_radius(modes: Modes, spread: Callable[[Array], Array]) -> float:
    """The γ at which the pencil (K̃, W(γ)) has largest eigenvalue 1, by Rayleigh-quotient iteration on γ."""
    dim, floor = modes.rates.size, mean_radius2(modes) * (1.0 + 1e-12)
    gamma, vector = max(1.0, 1.01 * floor), np.eye(dim)
    for _ in range(30):
        root = resolvent(modes, gamma) ** -0.5

        def pencil(v: Array, root: Array = root) -> Array:
            S = v.reshape(dim, dim)
            return (root * spread(root * S)).ravel()

        S = root * _top_vector(pencil, vector.ravel()).reshape(dim, dim)
        vector, force = S / root, float(np.sum(S * spread(S)))
        previous, gamma = (
            gamma,
            _crossing(lambda g, S=S, f=force: float(np.sum(S * S * resolvent(modes, g))) - f, floor),
        )
        if abs(gamma - previous) <= 1e-10 * gamma:
            break
    return gamma


def _crossing(rises: Callable[[float], float], floor: float) -> float:
    """Where an increasing function passes zero above `floor`; `floor` itself if it is positive from the start."""
    if rises(floor) >= 0.0:
        return floor
    high = max(1.0, 2.0 * floor)
    while rises(high) < 0.0:
        high *= 2.0
    low = floor
    while high - low > 1e-15 * high:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if rises(middle) < 0.0 else (low, middle)
    return high


def _top_vector(apply: Callable[[Array], Array], start: Array) -> Array:
    size = start.size
    if size <= _DENSE:
        return np.linalg.eigh(_dense(apply, size))[1][:, -1]
    operator = LinearOperator((size, size), matvec=apply, dtype=np.float64)
    return eigsh(operator, k=1, which="LA", v0=start, tol=1e-7)[1][:, 0]


def _dense(apply: Callable[[Array], Array], size: int) -> Array:
    return np.column_stack([apply(column) for column in np.eye(size)])
