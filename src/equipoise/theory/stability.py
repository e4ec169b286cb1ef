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

from equipoise.arrays import Array
from equipoise.theory.equation import whitened
from equipoise.theory.modes import Modes
from equipoise.theory.proxy import Noise

__all__ = ["decay_bound", "largest_multiple", "mean_radius2", "spectral_radius"]


# Below this many unknowns a dense eigenvalue problem is faster and surer than a Krylov method.
_DENSE = 150
# Vectors that are held at once, those of them that are kept when there are so many, and applications of the map at most.
_KRYLOV, _KEPT, _APPLICATIONS = 24, 8, 960
# Relative size of the residual, and of the eigenvalue's error that follows from it, at the end; and that of a largest multiple,
# every digit of which costs passes over the data.
_RESIDUAL, _ERROR, _MULTIPLE = 1e-6, 1e-13, 1e-6


def spectral_radius(modes: Modes, noise: Noise) -> float:
    """ρ(T), T(S) = A S Aᵀ + Λ K(S) Λᵀ, or its analogue on the joint state when there is momentum."""
    spread = whitened(noise, modes)
    if spread is None:
        return mean_radius2(modes)
    if modes.momentum > 0.0:
        return _joint_radius(modes, spread)
    dim, a = modes.rates.size, 1.0 - modes.rates
    peak = _peak(modes, noise, _ERROR)
    if peak is not None:
        return float(np.mean(a)) ** 2 + peak
    keep = np.outer(a, a)

    def square(v: Array) -> Array:
        S = v.reshape(dim, dim)
        return (keep * S + spread(S)).ravel()

    return _top(square, np.eye(dim).ravel())[0]


def largest_multiple(modes: Modes, noise: Noise) -> float:
    """The c at which c·step loses its stationary covariance; smaller multiples have one."""
    if not modes.discrete:
        return np.inf
    if modes.rates[0] <= 0.0:
        return 0.0
    root = modes.first_order**-0.5
    kept = modes.second_order * root**2
    peak = _peak(modes, noise, _MULTIPLE)
    if peak is not None:
        return 1.0 / float(np.mean(kept + root**2 * peak))
    dim, spread = modes.rates.size, whitened(noise, modes)
    if spread is None:
        return float(1.0 / kept.max())

    def pencil(v: Array) -> Array:
        S = v.reshape(dim, dim)
        return (kept * S + root * spread(root * S)).ravel()

    return 1.0 / _top(pencil, np.diag(np.diag(root)).ravel(), _MULTIPLE)[0]


def _peak(modes: Modes, noise: Noise, error: float) -> float | None:
    """The largest eigenvalue of K̃ where one rate is all modes' and it is to be had from the rows; else None."""
    if not modes.alike or modes.rates.size**2 <= _DENSE:
        return None
    return noise.peak(modes.basis, error)


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
        if not low < gamma < high:
            break
        slowed = resolvent(modes, gamma)
        # so close to one that rounding leaves no decay
        if not np.all(slowed > 0.0):
            low = gamma
            continue
        inside = np.linalg.eigvalsh(S - spread / slowed)[0] >= 0.0
        low, high = (low, gamma) if inside else (gamma, high)
    return high


def mean_radius2(modes: Modes) -> float:
    """The squared spectral radius of the mean dynamics: what ρ(T) would be without curvature noise."""
    return float(np.abs(np.linalg.eigvals(modes.transition)).max() ** 2)


def _joint_radius(modes: Modes, spread: Callable[[Array], Array]) -> float:
    """The γ at which the pencil (K̃, W(γ)) has largest eigenvalue θ(γ) = 1.

    θ falls with γ. Newton's method on 1/θ, whose derivative is ⟨S, W'∘S⟩/θ at the eigenvector S with ⟨S, W∘S⟩ = 1, is
    kept inside a shrinking bracket.
    """
    dim, low, high = modes.rates.size, mean_radius2(modes), np.inf
    gamma, start = max(1.0, 1.01 * low), np.eye(dim).ravel()
    for _ in range(50):
        root = resolvent(modes, gamma) ** -0.5

        def pencil(v: Array, root: Array = root) -> Array:
            return (root * spread(root * v.reshape(dim, dim))).ravel()

        theta, start = _top(pencil, start)
        S = root * start.reshape(dim, dim)
        low, high = (gamma, high) if theta > 1.0 else (low, gamma)
        h = 1e-6 * gamma
        slope = float(np.sum(S * S * (resolvent(modes, gamma + h) - resolvent(modes, gamma - h)))) / (2.0 * h)
        change = (theta - 1.0) / slope
        if abs(change) <= 1e-11 * gamma or high - low <= 1e-14:
            break
        gamma += change
        if not low < gamma < high:
            gamma = 0.5 * (low + high)
    return gamma


def _top(apply: Callable[[Array], Array], start: Array, error: float = _ERROR) -> tuple[float, Array]:
    """Largest eigenvalue, up to a relative error, and its unit eigenvector of a symmetric map.

    Lanczos with full orthogonalisation from a start that is close: an application may be a pass over the data, and the
    eigenvalue's error is the square of the vector's, so that it ends sooner than a solver that asks for the vector. What is
    kept at a restart are the leading vectors, not the first alone: of a crowd the distance to the next would be unknown.
    """
    if start.size <= _DENSE:
        values, vectors = np.linalg.eigh(np.column_stack([apply(column) for column in np.eye(start.size)]))
        return float(values[-1]), vectors[:, -1]
    basis, within = np.empty((_KRYLOV, start.size)), np.zeros((_KRYLOV, _KRYLOV))
    vector, k = start / np.linalg.norm(start), 0
    for _ in range(_APPLICATIONS):
        basis[k] = vector
        image = apply(vector)
        within[: k + 1, k] = within[k, : k + 1] = basis[: k + 1] @ image
        for _again in range(2):
            image -= basis[: k + 1].T @ (basis[: k + 1] @ image)
        k, below = k + 1, float(np.linalg.norm(image))
        values, axes = np.linalg.eigh(within[:k, :k])
        top, residual = float(values[-1]), below * abs(float(axes[-1, -1]))
        gap = top - float(values[-2]) if k > 1 else 0.0
        small = residual <= _RESIDUAL * np.sqrt(error / _ERROR) * abs(top)
        exact = residual <= error * abs(top) or below <= np.finfo(float).eps * abs(top)
        if exact or (small and residual**2 <= error * abs(top) * gap):
            break
        vector = image / below
        if k == _KRYLOV:
            k = _KEPT
            basis[:k] = axes[:, -k:].T @ basis
            within[:k, :k] = np.diag(values[-k:])
            axes = np.eye(k)
    return top, axes[:, -1] @ basis[:k]
