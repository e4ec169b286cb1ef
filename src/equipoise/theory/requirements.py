"""What a chain must have for a law: moments and dynamics, noise in every direction, a covariance to inject."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from equipoise.arrays import Array
from equipoise.checks import finite_array, instance
from equipoise.errors import InfeasibleTarget, InvalidInput
from equipoise.linalg import symmetric
from equipoise.theory.dynamics import Dynamics
from equipoise.theory.moments import Moments

__all__ = ["injected_covariance", "require_chain", "require_noise", "require_spread"]


def require_noise(dynamics: Dynamics) -> None:
    """Refuse a control-variate chain without injected noise."""
    if dynamics.gradient == "control-variate" and dynamics.temperature == 0.0:
        raise InvalidInput(
            "inverse_temperature",
            "finite with gradient='control-variate': without injected noise the chain stops at the minimiser",
            "infinity",
            "use inverse_temperature='auto' or noise='completed' in eq.tune, or give a number",
        )


def injected_covariance(noise: ArrayLike, dim: int, dynamics: Dynamics) -> Array:
    """A covariance to inject; singular ones are fine."""
    matrix = finite_array("noise", noise, "pass a covariance matrix, such as tuning.noise")
    if dynamics.inverse_temperature != np.inf:
        raise InvalidInput(
            "noise", "left out with a finite inverse_temperature", "a matrix", "give one of the two: both inject noise"
        )
    if matrix.shape != (dim, dim):
        raise InvalidInput("noise", f"of shape ({dim}, {dim})", f"shape {matrix.shape}", "match the parameters")
    scale = float(np.abs(matrix).max())
    if np.abs(matrix - matrix.T).max() > 1e-8 * scale or np.linalg.eigvalsh(symmetric(matrix))[0] < -1e-10 * scale:
        raise InvalidInput("noise", "a covariance: symmetric, no negative eigenvalue", "another matrix", "check it")
    return symmetric(matrix)


def require_chain(moments: object, dynamics: object) -> None:
    """Refuse what are not moments and dynamics, in this order."""
    instance("moments", moments, Moments, "make them with eq.moments")
    instance("dynamics", dynamics, Dynamics, "make them with eq.Dynamics(batch_size=...)")


def require_spread(cov: Array) -> None:
    """Refuse a singular stationary covariance: a chain without noise in some directions, which the error carries."""
    sd = np.sqrt(np.maximum(np.diag(cov), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(cov / np.outer(sd, sd))
    still = values <= 1e-13
    if still.any():
        raise InfeasibleTarget(
            f"step: the chain has no noise in {still.sum()} of {len(cov)} directions, so it has no law of full rank there. To "
            "fix: use a finite inverse_temperature, or eq.tune(..., noise='completed', step=...) with this step, which injects "
            "what is lacking.",
            directions=(vectors[:, still] * sd[:, None]).T,
        )
