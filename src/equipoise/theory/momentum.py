"""From a target covariance to a step matrix: one linear equation without momentum, a short iteration with it (theory §3).

Factor Σ = W Wᵀ with Wᵀ H W = diag(s) and put Λ = W Y⁻¹ Wᵀ. Then

    (1−κ)(s_i + s_j) Y_ij − (1−κ)² (2/β) Y_ij
        = (Wᵀ C(Σ) W)_ij + δ_ij [(1+κ²)/(1−κ²) s_i² + (4/β) κ/(1+κ) s_i] − κ/(1−κ²) (s Y⁻¹ s Y + Y s Y⁻¹ s)_ij,

whose last bracket vanishes for κ = 0. Continuous time drops every term of second order in s.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import solve_triangular
from scipy.sparse.linalg import LinearOperator, gmres

from equipoise.arrays import Array
from equipoise.linalg import is_positive, symmetric

__all__ = ["StepEquation", "solve_step"]

# The relative residual of a solution.
_TOLERANCE = 1e-13


@dataclass(frozen=True)
class StepEquation:
    """The equation for Y in the coordinates of the target, W.

    `slopes` are s, the eigenvalues of HΣ, and `noise` is Wᵀ C(Σ) W; then κ, 1/β, and whether time is discrete.
    """

    basis: Array
    slopes: Array
    noise: Array
    momentum: float
    temperature: float
    discrete: bool

    @classmethod
    def of(
        cls, target: Array, hessian: Array, noise: Array, momentum: float, temperature: float, discrete: bool
    ) -> StepEquation:
        """Set the equation up for a target covariance and the gradient noise C(Σ) at it."""
        L = np.linalg.cholesky(target)
        s, U = np.linalg.eigh(L.T @ hessian @ L)
        W = L @ U
        return cls(W, s, W.T @ noise @ W, momentum, temperature, discrete)

    @property
    def min_inverse_temperature(self) -> float:
        """The smallest β for which a step exists is just above (1−κ)/s_min: injected noise alone then fills the target."""
        return (1.0 - self.momentum) / float(self.slopes[0])

    @cached_property
    def resistance(self) -> Array:
        """(1−κ)(s_i + s_j) − (1−κ)² 2/β."""
        k = self.momentum
        return (1.0 - k) * np.add.outer(self.slopes, self.slopes) - 2.0 * self.temperature * (1.0 - k) ** 2

    @cached_property
    def source(self) -> Array:
        """The right-hand side without the bracket."""
        if not self.discrete:
            return self.noise
        k, s = self.momentum, self.slopes
        diagonal = (1.0 + k * k) / (1.0 - k * k) * s * s + 4.0 * self.temperature * k / (1.0 + k) * s
        return self.noise + np.diag(diagonal)

    def bracket(self, Y: Array) -> Array:
        """κ/(1−κ²) (s Y⁻¹ s Y + Y s Y⁻¹ s)."""
        s, k = self.slopes, self.momentum
        half = k / (1.0 - k * k) * (s[:, None] * np.linalg.solve(Y, s[:, None] * Y))
        return half + half.T

    def residual(self, Y: Array) -> Array:
        """Left side minus right side."""
        rest = self.resistance * Y - self.source
        return rest + self.bracket(Y) if self.momentum > 0.0 and self.discrete else rest

    def error(self, Y: Array) -> float:
        """Relative residual."""
        return float(np.linalg.norm(self.residual(Y)) / np.linalg.norm(self.resistance * Y))

    def step(self, Y: Array) -> Array:
        """Λ = W Y⁻¹ Wᵀ."""
        half = solve_triangular(np.linalg.cholesky(Y), self.basis.T, lower=True, check_finite=False)
        return half.T @ half


def solve_step(equation: StepEquation) -> tuple[Array | None, float]:
    """Y and its relative residual; Y is None when no positive definite solution was found.

    The bracket is frozen and the linear equation solved again, damped when the residual grows; Newton takes over when
    that stalls.
    """
    Y = equation.source / equation.resistance
    if equation.momentum == 0.0 or not equation.discrete:
        return (Y, equation.error(Y)) if is_positive(Y) else (None, np.inf)
    # the commuting part of the bracket, 2κ/(1−κ²) s², is exact when H, Σ and Λ share eigenvectors
    k = equation.momentum
    Y = (equation.source - np.diag(2.0 * k / (1.0 - k * k) * equation.slopes**2)) / equation.resistance
    if not is_positive(Y):
        Y = np.diag(np.maximum(np.diag(Y), 1e-3 * np.abs(np.diag(equation.source / equation.resistance))))
    error = equation.error(Y)
    for _ in range(60):
        if error <= _TOLERANCE:
            return Y, error
        direction = (equation.source - equation.bracket(Y)) / equation.resistance - Y
        Y, error, moved = _search(equation, Y, direction, error)
        if not moved:
            break
    return _newton(equation, Y, error)


def _newton(equation: StepEquation, Y: Array, error: float) -> tuple[Array | None, float]:
    dim = len(Y)
    s, k = equation.slopes, equation.momentum
    c = k / (1.0 - k * k)

    for _ in range(60):
        if error <= _TOLERANCE:
            break
        Z: Array = np.linalg.inv(Y).astype(np.float64)
        ZsY = Z @ (s[:, None] * Y)

        def apply(v: Array, Z: Array = Z, ZsY: Array = ZsY) -> Array:
            D = symmetric(v.reshape(dim, dim))
            half = c * s[:, None] * (Z @ (s[:, None] * D) - Z @ D @ ZsY)
            return (equation.resistance * D + half + half.T).ravel()

        operator = LinearOperator((dim * dim, dim * dim), matvec=apply, dtype=np.float64)
        scaling = LinearOperator(
            (dim * dim, dim * dim), matvec=lambda v: v / equation.resistance.ravel(), dtype=np.float64
        )
        v, _ = gmres(operator, -equation.residual(Y).ravel(), rtol=1e-12, M=scaling, restart=100, maxiter=5)
        direction = symmetric(v.reshape(dim, dim))
        Y, error, moved = _search(equation, Y, direction, error)
        if not moved:
            break
    return (Y if is_positive(Y) and error < 1e-8 else None), error


def _search(equation: StepEquation, Y: Array, direction: Array, error: float) -> tuple[Array, float, bool]:
    """The longest damped step along `direction` that stays positive definite and lowers the residual."""
    length = 1.0
    while length > 1e-4:
        trial = Y + length * direction
        if is_positive(trial):
            found = equation.error(trial)
            if found < error:
                return trial, found, True
        length *= 0.5
    return Y, error, False
