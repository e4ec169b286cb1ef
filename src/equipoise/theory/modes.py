"""Coordinates in which the mean dynamics is diagonal: the theory's equations become elementwise there (theory §4).

With Λ = L Lᵀ and Lᵀ H L = U diag(d) Uᵀ put R = L U. In z = R⁻¹ e and m̃ = Rᵀ m the mean dynamics splits into D
independent pairs

    (z, m̃) ↦ [[1 − d, −κ], [d, κ]] (z, m̃),

and every proxy's stationary equation, with or without momentum, is one symmetric equation for S = R⁻¹ Σ R⁻ᵀ:

    E ∘ S − F ∘ S − Rᵀ K(R S Rᵀ) R = Rᵀ C₀ R + G ∘ R⁻¹ M R⁻ᵀ,
    E_ij = (1−κ)(d_i + d_j),   F_ij = ((1+κ²) d_i d_j − κ (d_i² + d_j²)) / (1−κ²),
    G_ij = (1−κ)² + κ/(1+κ) (d_i + d_j),

with M the covariance of the injected noise: R⁻¹ M R⁻ᵀ = (2/β) I for Langevin noise (2/β) Λ. Continuous time drops F and
the second part of G.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cholesky, eigh, solve_triangular

from equipoise.arrays import Array
from equipoise.checks import numeric_array, shown
from equipoise.errors import InvalidInput
from equipoise.linalg import congruent, is_positive, symmetric

__all__ = ["Modes", "step_matrix"]


_ALIKE = 1e-7  # relative spread of the modes' rates up to which a step counts as a multiple of the inverse Hessian


def step_matrix(step: ArrayLike, dim: int, name: str = "step") -> Array:
    """A scalar, vector or matrix step as a symmetric matrix that fits; refused unless it is positive definite."""
    a = numeric_array(name, step, "pass a positive number, a vector or a matrix")
    if a.ndim == 0:
        a = np.full(dim, float(a))
    if a.shape not in {(dim,), (dim, dim)}:
        raise InvalidInput(
            name, f"a scalar, a vector ({dim},) or a matrix ({dim}, {dim})", f"shape {a.shape}", "match it"
        )
    if a.ndim == 1:
        a = np.diag(a)
    if not _positive(a):
        raise InvalidInput(name, "symmetric positive definite", shown(step), "use eq.tune, or a positive scalar")
    return symmetric(a)


def _positive(a: Array) -> bool:
    """Whether a matrix is symmetric and positive definite, whatever the units of its parameters."""
    diagonal = np.diag(a)
    if not (np.isfinite(a).all() and diagonal.min() > 0.0):
        return False
    root = np.sqrt(diagonal)
    unit = a / root / root[:, None]
    return bool(np.abs(unit - unit.T).max() <= 1e-8) and is_positive(unit)


@dataclass(frozen=True)
class Modes:
    """The mean dynamics of one step matrix, diagonalised: R, R⁻¹, the eigenvalues d of ΛH, and κ.

    `noise` is R⁻¹ M R⁻ᵀ, the covariance of the injected noise; `discrete` says whether time is.
    """

    basis: Array
    dual: Array
    rates: Array
    momentum: float
    noise: Array
    discrete: bool

    @classmethod
    def of(cls, step: Array, hessian: Array, momentum: float, injected: float | Array, discrete: bool) -> Modes:
        """Diagonalise the mean dynamics of a step matrix; `injected` is the temperature 1/β, or M."""
        rates, basis, dual = _diagonalised(step, hessian)
        noise = (
            symmetric(dual @ injected @ dual.T)
            if isinstance(injected, np.ndarray)
            else 2.0 * injected * np.eye(len(rates))
        )
        return cls(basis, dual, rates, momentum, noise, discrete)

    @property
    def first_order(self) -> Array:
        """E, the part of the resistance that is linear in the step."""
        return (1.0 - self.momentum) * np.add.outer(self.rates, self.rates)

    @property
    def second_order(self) -> Array:
        """F, the part of the resistance that is quadratic in the step."""
        k, d = self.momentum, self.rates
        if not self.discrete:
            return np.zeros((d.size, d.size))
        return ((1.0 + k * k) * np.outer(d, d) - k * np.add.outer(d * d, d * d)) / (1.0 - k * k)

    @property
    def response(self) -> Array:
        """G: what the injected noise counts for."""
        k, d = self.momentum, self.rates
        later = k / (1.0 + k) * np.add.outer(d, d) if self.discrete else 0.0
        return np.full((d.size, d.size), (1.0 - k) ** 2) + later

    @property
    def injected(self) -> Array:
        """G ∘ R⁻¹ M R⁻ᵀ, the source due to the injected noise."""
        return self.response * self.noise

    @property
    def mean_is_stable(self) -> bool:
        """Whether the mean converges: 0 < d < 2 (1 + κ)."""
        upper = 2.0 * (1.0 + self.momentum) if self.discrete else np.inf
        return bool(self.rates[0] > 0.0 and self.rates[-1] < upper)

    @property
    def alike(self) -> bool:
        """Whether all modes have one rate: the step is a multiple of the inverse Hessian."""
        return bool(self.rates[-1] - self.rates[0] <= _ALIKE * self.rates[-1])

    @property
    def transition(self) -> Array:
        """The 2×2 mean dynamics of each mode, (D, 2, 2)."""
        d, k = self.rates, self.momentum
        M = np.zeros((d.size, 2, 2))
        if self.discrete:
            M[:, 0, 0], M[:, 0, 1], M[:, 1, 0], M[:, 1, 1] = 1.0 - d, -k, d, k
        else:
            M[:, 0, 0] = np.exp(-d / (1.0 - k))
        return M

    def inward(self, S: Array) -> Array:
        """R⁻¹ S R⁻ᵀ: a covariance in these coordinates."""
        return congruent(self.dual, S)

    def outward(self, S: Array) -> Array:
        """R S Rᵀ: a covariance back in the parameters' coordinates."""
        return congruent(self.basis, S)

    def force(self, C: Array) -> Array:
        """Rᵀ C R: a gradient covariance in these coordinates."""
        return congruent(self.basis.T, C)


def _diagonalised(step: Array, hessian: Array) -> tuple[Array, Array, Array]:
    """The eigenvalues of ΛH, R and R⁻¹; of a diagonal step without products of matrices."""
    diagonal = np.diag(step)
    if np.count_nonzero(step) == np.count_nonzero(diagonal):
        root = np.sqrt(diagonal)
        rates, U = eigh(hessian * root * root[:, None])
        return rates, root[:, None] * U, U.T / root
    L = cholesky(step, lower=True)
    rates, U = eigh(L.T @ hessian @ L)
    return rates, L @ U, U.T @ solve_triangular(L, np.eye(len(L)), lower=True)
