"""Which targets a step can reach, and what to do about the others (theory §3)."""

from __future__ import annotations

import numpy as np

from equipoise.errors import FitFailed, InfeasibleTarget
from equipoise.linalg import split_range
from equipoise.theory.dynamics import Dynamics
from equipoise.theory.moments import Moments
from equipoise.theory.momentum import StepEquation
from equipoise.theory.proxy import Noise

__all__ = ["not_convex", "require_feasible", "require_noise_everywhere", "unsolved"]


def require_feasible(equation: StepEquation, moments: Moments) -> None:
    """Refuse a target that the injected noise alone exceeds, a loss that is not convex, and a chain without any noise."""
    if equation.temperature == 0.0 and not equation.noise.any():
        raise InfeasibleTarget(
            "target: a chain without gradient noise (the whole data in every batch) and without injected noise has no "
            "spread. To fix: use a smaller batch_size, or a finite inverse_temperature."
        )
    if equation.slopes[0] <= 0.0:
        raise not_convex(float(equation.slopes[0]))
    smallest = equation.min_inverse_temperature
    if equation.temperature * smallest < 1.0:
        return
    beta = 1.0 / equation.temperature
    tight = equation.slopes * beta <= (1.0 - equation.momentum)
    # H w = s Σ⁻¹ w: the directions in which injected noise alone already gives the target variance
    directions = equation.basis[:, tight].T
    names = moments.names or tuple(f"parameter {j}" for j in range(moments.dim))
    shown = ", ".join(names[int(np.abs(v).argmax())] for v in directions[:3])
    raise InfeasibleTarget(
        f"inverse_temperature: must be above {smallest:.6g} for this target (the injected noise alone already exceeds it "
        f"in {tight.sum()} direction(s), mainly {shown}); got {beta:.6g}. To fix: raise inverse_temperature above "
        f"{smallest:.6g}, use numpy.inf (SGD), or a wider target.",
        min_inverse_temperature=smallest,
        directions=directions,
    )


def require_noise_everywhere(equation: StepEquation, moments: Moments, gradient: Noise) -> None:
    """Refuse plain gradients that have no noise along some direction, where none is injected either.

    The equation has a solution there too: a step of twice the Newton step, which keeps any deviation for ever.
    """
    if equation.temperature > 0.0:
        return
    C = gradient.constant
    quiet = split_range(C, np.diag(C))[1]
    if len(quiet):
        enough = 2.0 * equation.min_inverse_temperature
        raise InfeasibleTarget(
            f"target: the gradients have no noise along {len(quiet)} of {moments.dim} direction(s), mainly "
            f"{moments.mainly(quiet)} (collinear columns or redundant parameters, which a prior alone decides), so that SGD "
            "has no variance there. To fix: use sampler='auto' in eq.calibrate; in eq.tune, noise='completed' with "
            f"Dynamics(..., gradient='control-variate'), or inverse_temperature={enough:.6g}.",
            min_inverse_temperature=equation.min_inverse_temperature,
            directions=quiet,
        )


def not_convex(slope: float) -> FitFailed:
    """What to say of a Hessian that has no inverse."""
    return FitFailed(
        f"the Hessian is not positive definite (smallest eigenvalue of H·target {slope:.2g}), so no step "
        "matrix samples the target. To fix: check that the fit converged, or add a prior."
    )


def unsolved(residual: float, equation: StepEquation, dynamics: Dynamics) -> InfeasibleTarget:
    """What to say where no step matrix was found."""
    if not np.isfinite(residual):
        return InfeasibleTarget(
            "target: no positive definite step matrix samples it: the gradient noise is next to nothing along some direction "
            f"(smallest eigenvalue {np.linalg.eigvalsh(equation.noise)[0]:.2g}). To fix: use noise='completed' with "
            "Dynamics(..., gradient='control-variate')."
        )
    return InfeasibleTarget(
        f"target: no step matrix was found for momentum {dynamics.momentum:g}; the iteration stopped at a relative "
        f"residual of {residual:.1e}. To fix: use a smaller momentum or a larger inverse_temperature."
    )
