"""Mean-square stability: when a finite stationary covariance exists (theory §5).

In the coordinates of `Modes` both questions are symmetric eigenproblems on matrices: the spectral radius of
T(S) = A S A + K̃(S), and the largest multiple c of the step for which E − c (F + K̃) stays positive, which is
1 / max eig of the pencil (F + K̃, E): no bisection is needed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigs, eigsh

from equipoise.theory.equation import whitened
from equipoise.theory.modes import Modes
from equipoise.theory.proxy import Noise

__all__ = ["largest_multiple", "spectral_radius"]

Array = NDArray[np.float64]

# Below this many unknowns a dense eigenvalue problem is faster and surer than a Krylov method.
_DENSE = 150


def spectral_radius(modes: Modes, noise: Noise) -> float:
    """ρ(T), T(S) = A S Aᵀ + Λ K(S) Λᵀ, or its analogue on the joint state when there is momentum."""
    M, spread = modes.transition, whitened(noise, modes)
    if spread is None:
        return float(np.abs(np.linalg.eigvals(M)).max() ** 2)
    dim = modes.rates.size
    if modes.momentum == 0.0:
        a = M[:, 0, 0]
        keep = np.outer(a, a)

        def square(v: Array) -> Array:
            S = v.reshape(dim, dim)
            return (keep * S + spread(S)).ravel()

        return _largest_symmetric(square, dim * dim, np.eye(dim).ravel())
    return _joint_radius(M, spread)


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

    return 1.0 / _largest_symmetric(pencil, dim * dim, np.diag(np.diag(root)).ravel())


def _largest_symmetric(apply: Callable[[Array], Array], size: int, start: Array) -> float:
    if size <= _DENSE:
        return float(np.linalg.eigvalsh(_dense(apply, size))[-1])
    operator = LinearOperator((size, size), matvec=apply, dtype=np.float64)
    return float(eigsh(operator, k=1, which="LA", v0=start, tol=1e-10, return_eigenvectors=False)[0])


def _joint_radius(M: Array, spread: Callable[[Array], Array]) -> float:
    """Spectral radius of P ↦ 𝒜 P 𝒜ᵀ + 𝒢 K̃(P₁₁) 𝒢ᵀ on the joint state; P is stored as (2, 2, D, D)."""
    dim = M.shape[0]
    push = np.array([[1.0, -1.0], [-1.0, 1.0]])[:, :, None, None]

    def step(v: Array) -> Array:
        P = v.reshape(2, 2, dim, dim)
        moved = np.einsum("iac,cdij,jbd->abij", M, P, M, optimize=True)
        return (moved + push * spread(0.5 * (P[0, 0] + P[0, 0].T))).ravel()

    size = 4 * dim * dim
    if size <= _DENSE:
        return float(np.abs(np.linalg.eigvals(_dense(step, size))).max())
    start = np.zeros((2, 2, dim, dim))
    start[0, 0] = start[1, 1] = np.eye(dim)
    operator = LinearOperator((size, size), matvec=step, dtype=np.float64)
    # several eigenvalues share nearly the largest modulus (oscillating pairs): ask for a few
    found = eigs(operator, k=4, which="LM", v0=start.ravel(), tol=1e-9, ncv=40, return_eigenvectors=False)
    return float(np.abs(found).max())


def _dense(apply: Callable[[Array], Array], size: int) -> Array:
    return np.column_stack([apply(column) for column in np.eye(size)])
