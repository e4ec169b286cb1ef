"""The best scalar or diagonal step for a target, when a full matrix is not wanted (theory §3).

"Best" is the smallest Kullback–Leibler divergence KL(N(0, Σ(Λ)) ‖ N(0, target)) = ½ [tr(Σ_t⁻¹Σ) − D − log det(Σ_t⁻¹Σ)]:
it is invariant under any linear change of parameters, and grows without bound towards the stability limit. Towards zero it
does, too, unless injected noise alone is as wide as the target. The gradient comes from one adjoint solve, which is the
stationary equation itself: its operator is self-adjoint in the coordinates of the modes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import cho_factor, cho_solve, eigh

from equipoise.arrays import Array
from equipoise.errors import InfeasibleTarget, InvalidInput, UnstableStep
from equipoise.linalg import symmetric
from equipoise.theory.equation import balance
from equipoise.theory.limit import max_stable_step
from equipoise.theory.proxy import proxy_noise
from equipoise.theory.stationary import Stationary, stationary

if TYPE_CHECKING:
    from equipoise.theory.dynamics import Dynamics
    from equipoise.theory.moments import Moments

__all__ = ["best_structured", "divergence", "divergence_gradient"]


_NOTHING = 20.0  # in logarithms below the largest step: a chain does not move
_NEARBY = 1e-5  # of a logarithm: where no gradient is derived, its size is a difference over this


def divergence(cov: Array, target: Array) -> float:
    """KL(N(0, cov) ‖ N(0, target))."""
    ratio = cho_solve(cho_factor(target), cov)
    return 0.5 * float(np.trace(ratio) - len(cov) - np.linalg.slogdet(ratio)[1])


def best_structured(
    moments: Moments, target: Array, dynamics: Dynamics, proxy: str, structure: str
) -> tuple[Array, float]:
    """The best step of a structure, as a matrix, and the size of the divergence's gradient there (in log steps)."""
    from scipy.optimize import minimize_scalar  # slow to import, rarely needed

    if structure == "diagonal" and dynamics.batches == "epochs":
        raise InvalidInput(
            "structure", "'full' or 'scalar' with batches='epochs'", repr(structure), "leave it out, or use 'scalar'"
        )
    # a diagonal step is sought from 1/diag(H), which makes the search independent of the parameters' units
    shape = np.ones(moments.dim) if structure == "scalar" else 1.0 / np.diag(moments.hessian)
    limit = max_stable_step(moments, dynamics, shape, proxy=proxy)
    # for ct there is no limit: the scale at which the mean would lose stability serves as one
    ceiling = (
        limit if np.isfinite(limit) else 2.0 / float(eigh(moments.hessian, np.diag(1.0 / shape), eigvals_only=True)[-1])
    )

    def scalar(log_step: float) -> float:
        return divergence(stationary(moments, np.exp(log_step) * shape, dynamics, proxy).cov, target)

    found = minimize_scalar(
        scalar,
        bounds=(np.log(ceiling) - 25.0, np.log(ceiling) - 1e-6),
        method="bounded",
        options={"xatol": 1e-10},
    )
    if found.x < np.log(ceiling) - _NOTHING:
        raise InfeasibleTarget(
            f"inverse_temperature: must be such that a {structure} step comes close to the target; with "
            f"{dynamics.inverse_temperature:g} the injected noise alone is as wide, and the best step is zero. To fix: use "
            "inverse_temperature='auto', numpy.inf (SGD), or a wider target."
        )
    step = np.exp(found.x) * shape
    if structure == "diagonal" and moments.dim > 1:
        step = _diagonal(moments, target, dynamics, proxy, step)
    if dynamics.batches == "epochs":
        nearby = (scalar(found.x + sign * _NEARBY) for sign in (1.0, -1.0))
        return np.diag(step), abs(next(nearby) - next(nearby)) / (2.0 * _NEARBY)
    gradient = step * np.diag(divergence_gradient(stationary(moments, step, dynamics, proxy), target))
    size = np.abs(gradient.sum()) if structure == "scalar" else np.abs(gradient).max()
    return np.diag(step), float(size)


def _diagonal(moments: Moments, target: Array, dynamics: Dynamics, proxy: str, start: Array) -> Array:
    from scipy.optimize import minimize  # slow to import, rarely needed

    def objective(log_step: Array) -> tuple[float, Array]:
        step = np.exp(log_step)
        try:
            law = stationary(moments, step, dynamics, proxy)
        except UnstableStep:
            return np.inf, np.zeros_like(log_step)
        return divergence(law.cov, target), step * np.diag(divergence_gradient(law, target))

    found = minimize(
        objective,
        np.log(start),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 500, "ftol": 1e-15, "gtol": 1e-9},
    )
    return np.exp(found.x)


def divergence_gradient(law: Stationary, target: Array) -> Array:
    """Gradient of KL(N(0, Σ(Λ)) ‖ N(0, target)) in the entries of Λ, by implicit differentiation."""
    outer = 0.5 * (np.linalg.inv(target) - np.linalg.inv(law.cov))
    U = _adjoint(law, outer)
    k, T = law.dynamics.momentum, law.dynamics.temperature
    H, S, C, Lam = law.hessian, law.cov, law.gradient_noise, law.step
    total = 2.0 * (1.0 - k) * H @ S @ U - 2.0 * C @ Lam @ U - 2.0 * T * (1.0 - k) ** 2 * U
    if law.modes.discrete:
        total -= 2.0 * (1.0 + k * k) / (1.0 - k * k) * H @ S @ H @ Lam @ U
        total -= 8.0 * T * k / (1.0 + k) * H @ Lam @ U
        total += 2.0 * k / (1.0 - k * k) * (H @ Lam @ H @ S @ U + H @ S @ U @ Lam @ H)
    return -symmetric(total)


def _adjoint(law: Stationary, outer: Array) -> Array:
    """Solve the adjoint of the stationary equation for the sensitivity `outer` of a function of Σ."""
    modes, noise = law.modes, proxy_noise(law.moments, law.dynamics, law.proxy)
    return modes.dual.T @ balance(modes, noise, modes.force(outer))[0] @ modes.dual
