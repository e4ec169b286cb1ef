"""Parameters and the robust scale of their residuals found together, where passes over the rows are what costs.

    ∇L(θ, s) = 0,    s = the scale of the residuals at θ

Each pass gives both sides at one point, and how the scale moves with θ. Newton's method needs besides how slopes move with the
scale, which a sample tells, and better so what is left of them after a step (Broyden).

References
----------
Broyden, A class of methods for solving nonlinear simultaneous equations, Math. Comp. 19 (1965).
"""

from __future__ import annotations

import numpy as np

from equipoise.arrays import Array
from equipoise.errors import FitFailed
from equipoise.fitting.certificate import Fit, converged, require_residuals
from equipoise.fitting.maps import newton_map
from equipoise.models.linear import LinearProblem
from equipoise.models.problem import Yardstick

__all__ = ["settled_together"]

_APART = 1e-4  # logarithms of the scale between which a sample's slopes are compared
_UNSEEN = 1e-9  # standard errors that a step taken unseen may leave
_AGREED = 5e-9  # relative change of the scale, below which neither it nor the loss need be seen again
_NEAR = 0.1  # standard deviations: after shorter steps the slopes that are left are no curvature
_FURTHER = 4.0  # times the last step: a step of this length leads nowhere


def settled_together(
    problem: LinearProblem, part: LinearProblem, start: Fit, yard: Yardstick, max_iterations: int
) -> Fit:
    """The minimum with the scale of its residuals, from those of a part of the rows.

    Raises
    ------
    FitFailed
        If the steps do not shrink, or the Hessian is singular on the way.
    """
    assert start.constant is not None
    theta, log, last = start.theta, float(np.log(start.constant)), np.inf
    (fall, bend), move, step, before = _moving(part, theta, log), 0.0, np.zeros(theta.size), 0.0
    unseen = _UNSEEN * yard.spread
    for iteration in range(1, max_iterations + 1):
        here, wanted, slope = problem.at_constant(float(np.exp(log))).derivatives_and_scale(theta)
        gap, lead, newton = float(np.log(wanted)) - log, slope / wanted, newton_map(problem, here.hessian)
        if last < _NEAR and move:
            # what Newton's step left is what was wrong: with how slopes move with the scale, and that with θ
            bend = bend + here.gradient / move
            lead = _agreeing(lead, here.hessian, step, float(np.log(wanted)) - before)
        straight, aside = newton.step(here.gradient), newton.step(bend)
        move = (gap + float(lead @ straight)) / (1.0 - float(lead @ aside))
        step = straight + move * aside
        size = float(np.sqrt(problem.n * max(0.0, float(step @ here.hessian @ step))))
        if not size < _FURTHER * last:
            raise FitFailed("parameters and scale do not settle on each other. To fix: pass scale=.")
        left = size * min(1.0, size / last) if np.isfinite(last) else size
        theta, log, last, before = theta + step, log + move, size, float(np.log(wanted))
        if left <= unseen and abs(move) <= _AGREED:
            require_residuals(problem, yard.spread > 10.0 * yard.rounding)
            constant = float(np.exp(log))
            problem.search.require_constant(constant)
            sure = left <= converged(yard, problem.n)
            return Fit(theta, left, sure, iteration, here.value + fall * move, newton.condition, constant=constant)
    raise FitFailed("parameters and scale did not settle on each other. To fix: pass scale=, or raise max_iterations.")


def _agreeing(lead: Array, hessian: Array, step: Array, change: float) -> Array:
    """How the scale's logarithm moves with θ, altered by as little as agrees with the last step: a median has corners."""
    image = hessian @ step
    return lead + image * ((change - float(lead @ step)) / max(float(step @ image), np.finfo(np.float64).tiny))


def _moving(part: LinearProblem, theta: Array, log: float) -> tuple[float, Array]:
    """How the loss of some rows and its slopes move with the logarithm of the scale."""
    up, down = (part.at_constant(float(np.exp(log + h))).derivatives(theta, 1) for h in (_APART, -_APART))
    return (up.value - down.value) / (2.0 * _APART), (up.gradient - down.gradient) / (2.0 * _APART)
