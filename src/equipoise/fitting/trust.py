"""A minimum of a loss that need not be convex: a trust region, then Newton in the curved directions."""

from __future__ import annotations

import numpy as np

from equipoise.arrays import Array
from equipoise.errors import FitFailed
from equipoise.fitting.certificate import POLISHED, Fit, finite_or_inf, require_minimum, require_rise
from equipoise.linalg import FLAT, curvature_axes
from equipoise.models.problem import Derivatives, Problem

__all__ = ["descend"]

_FADED = 1e-8  # of the curvature at the start: below it, a minimum may be an asymptote


def descend(problem: Problem, start: Array, max_iterations: int = 100) -> Fit:
    """A minimum of a loss that need not be convex: trust-region Newton, then Newton steps in the curved directions.

    Raises
    ------
    FitFailed
        If it ends in a saddle point (the error carries the directions of negative curvature) or does not converge.
    """
    from scipy.optimize import minimize  # slow to import, and convex losses do without

    last = b"", Derivatives(0.0, start, start)

    def at(theta: Array) -> Derivatives:
        nonlocal last
        if last[0] != theta.tobytes():
            found = problem.derivatives(theta, 2)
            # outside the loss's domain the trust region would otherwise never shrink
            last = theta.tobytes(), found._replace(value=finite_or_inf(found.value))
        return last[1]

    options = {
        "gtol": 1e-8,
        "maxiter": 10 * max_iterations,
        "initial_trust_radius": 1.0,
        # it doubles only while the quadratic model predicts well, so that parameters of any size are reached
        "max_trust_radius": 1e12,
    }
    first = at(start)
    if not all(np.isfinite(part).all() for part in first):
        raise FitFailed(
            "the loss or one of its derivatives is not finite at the start. To fix: start elsewhere (init=), and look for "
            "sqrt, log, or division at zero."
        )
    rough = minimize(  # type: ignore[call-overload]
        lambda t: at(t)[0],
        start,
        jac=lambda t: at(t)[1],
        hess=lambda t: at(t)[2],
        method="trust-exact",
        options=options,
    )
    theta, iterations, norm = rough.x, int(rough.nit), np.inf
    for _ in range(20):
        value, gradient, H = at(theta)
        direction, spectrum, axes = _curved_direction(gradient, H)
        # along flat directions a slope, if any, is never made up for: measure it as if they curved like the others
        slope = axes[np.abs(spectrum) <= FLAT] @ gradient
        decrement = max(0.0, -float(gradient @ direction)) + float(slope @ slope)
        previous, norm = norm, float(np.sqrt(decrement * problem.n))
        if norm <= POLISHED or norm >= previous or not np.isfinite(at(theta + direction)[0]):
            break
        theta, iterations = theta + direction, iterations + 1
    require_minimum(problem, spectrum, axes, norm, iterations)
    if np.any(np.diag(H) < _FADED * np.diag(first[2])):
        require_rise(problem, theta, axes[spectrum > FLAT], first[0] - value)
    flat = axes[np.abs(spectrum) <= FLAT]
    curved = spectrum[spectrum > FLAT]
    condition = float(curved[-1] / curved[0])
    return Fit(theta, norm, True, iterations, value, condition, flat=flat if len(flat) else None)


def _curved_direction(gradient: Array, H: Array) -> tuple[Array, Array, Array]:
    """The Newton step within the directions of positive curvature, with the spectrum and its axes."""
    values, axes = curvature_axes(H)
    up = values > FLAT
    return -((axes[up] @ gradient) / values[up]) @ axes[up], values, axes
