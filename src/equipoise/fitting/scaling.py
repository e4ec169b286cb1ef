"""Parameters and the robust scale of their residuals found together, where passes over the rows are what costs.

    ∇L(θ, s) = 0,    s = the scale of the residuals at θ

Each pass gives both sides at one point, and the rows around the median of the residuals' sizes, which tell it close by with
every corner. Newton's method needs besides how slopes move with the scale, which a sample tells, and better so what is left of
them after a step (Broyden).

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
from equipoise.models.residuals import Scale

__all__ = ["settled_together"]

_APART = 1e-4  # logarithms of the scale between which a sample's slopes are compared
_UNSEEN = 1e-9  # standard errors that a step taken unseen may leave
_DOUBT = 4.0  # times what is predicted to be left
_AGREED = 5e-9  # relative change of the scale, below which neither it nor the loss need be seen again
_NEAR = 0.1  # standard deviations: after shorter steps the slopes that are left are no curvature
_ROUNDS, _EXACT = 50, 1e-15  # in which a move of the scale is found, and the last change of it
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
    (fall, bend), move, gain = _moving(part, theta, log), 0.0, 1.0
    unseen = _UNSEEN * yard.spread
    for iteration in range(1, max_iterations + 1):
        here, scale = problem.at_constant(float(np.exp(log))).derivatives_and_scale(theta)
        newton = newton_map(problem, here.hessian)
        if last < _NEAR and move:
            bend = bend + here.gradient / move  # what Newton's step left is what was wrong with it
        straight, aside = newton.step(here.gradient), newton.step(bend)
        move = _agreed_move(scale, log, straight, aside)
        step = straight + move * aside
        size = float(np.sqrt(problem.n * max(0.0, float(step @ here.hessian @ step))))
        if not size < _FURTHER * last:
            raise FitFailed("parameters and scale do not settle on each other. To fix: pass scale=.")
        # a secant method: by as much as a step is shorter than the last, the next gains over what this one gained
        gain, before = (min(1.0, size / last) if np.isfinite(last) else 1.0), gain
        left = _DOUBT * size * gain * before
        theta, log, last = theta + step, log + move, size
        if left <= unseen and abs(move) <= _AGREED:
            require_residuals(problem, yard.spread > 10.0 * yard.rounding)
            constant = float(np.exp(log))
            problem.search.require_constant(constant)
            sure = left <= converged(yard, problem.n)
            return Fit(theta, left, sure, iteration, here.value + fall * move, newton.condition, constant=constant)
    raise FitFailed("parameters and scale did not settle on each other. To fix: pass scale=, or raise max_iterations.")


def _agreed_move(scale: Scale, log: float, straight: Array, aside: Array) -> float:
    """How far the scale's logarithm moves for a step `straight` + move · `aside` to have residuals of that scale."""
    lead = scale.slope / scale.value
    move, gain = 0.0, 1.0 - float(lead @ aside)
    for _ in range(_ROUNDS):
        wanted = scale.after(straight + move * aside)
        change = (np.log(wanted) - log - move) / gain if wanted > 0.0 else 0.0
        move += change
        if abs(change) <= _EXACT:
            break
    return move


def _moving(part: LinearProblem, theta: Array, log: float) -> tuple[float, Array]:
    """How the loss of some rows and its slopes move with the logarithm of the scale."""
    up, down = (part.at_constant(float(np.exp(log + h))).derivatives(theta, 1) for h in (_APART, -_APART))
    return (up.value - down.value) / (2.0 * _APART), (up.gradient - down.gradient) / (2.0 * _APART)
