"""The largest stable step in a direction (theory §5)."""

from __future__ import annotations

from numpy.typing import ArrayLike

from equipoise.checks import checked_options
from equipoise.linalg import in_fixed_order
from equipoise.theory.dynamics import Dynamics
from equipoise.theory.modes import Modes, step_matrix
from equipoise.theory.moments import Moments
from equipoise.theory.proxy import proxy_noise
from equipoise.theory.requirements import require_chain
from equipoise.theory.stability import largest_multiple

__all__ = ["max_stable_step"]


@checked_options
@in_fixed_order
def max_stable_step(
    moments: Moments, dynamics: Dynamics, direction: ArrayLike | None = None, *, proxy: str = "dq-exact"
) -> float:
    """The largest c such that every step below c·direction has a finite stationary covariance.

    Parameters
    ----------
    moments, dynamics
        The model's moments and the chain's dynamics.
    direction
        Scalar, vector or matrix Λ₀; the identity by default, so that the result is a scalar step size.
    proxy
        The proxy whose stability is asked for.

    Returns
    -------
    float
        Infinite for the continuous-time proxy, zero when the Hessian is not positive definite. To six digits where D > 12.
    """
    require_chain(moments, dynamics)
    Lam = step_matrix(1.0 if direction is None else direction, moments.dim, "direction")
    noise = proxy_noise(moments, dynamics, proxy)
    # what is injected does not matter for stability
    return largest_multiple(Modes.of(Lam, moments.hessian, dynamics.momentum, 0.0, noise.discrete), noise)
