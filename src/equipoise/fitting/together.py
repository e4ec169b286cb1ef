"""Parameters together with an estimated shape or dispersion, of rows in files: from those of a part of the rows.

Newton's method in the logarithm of a constant is good where that is known well. A dispersion that may as well be none is looked
for by itself, down to the end of its range; there the parameters are found alone, and the slope tells whether it belongs there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from equipoise.arrays import Array
from equipoise.errors import FitFailed
from equipoise.fitting.certificate import Fit, require_residuals
from equipoise.fitting.maps import newton_map
from equipoise.fitting.newton import Rough, minimise
from equipoise.models.joint import Beyond, JointProblem
from equipoise.models.linear import LinearProblem
from equipoise.models.problem import Derivatives
from equipoise.models.profile import LEAST

__all__ = ["jointly"]

_VAGUE = 0.1  # standard deviation of a dispersion's logarithm, from which on it is looked for by itself
_AT_END = 1.01  # times the end of its range, up to which a dispersion is there
_TURNS = 4  # from inside the range to its end or back


def jointly(problem: LinearProblem, part: LinearProblem, start: Fit, max_iterations: int) -> Fit:
    """The minimum in parameters and constant at once, from that of a part of the rows."""
    constant = start.constant
    assert constant is not None
    yard = part.at_constant(constant).search.yardstick(start.theta)
    whole, some, first = JointProblem(problem), JointProblem(part), np.append(start.theta, np.log(constant))
    there = some.derivatives(first, 2)
    if problem.model.family.parameter == "dispersion" and _vague(there, part.source.n):
        whole, first = replace(whole, straight=True), np.append(start.theta, _within(constant))
        some = replace(some, straight=True, held=True)
        rough = Rough(newton_map(whole, some.derivatives(first, 2).hessian, own=False), yard, constant)
        whole, found = _bounded(whole, first, max_iterations, rough)
    else:
        rough = Rough(newton_map(whole, there.hessian, own=False), yard, constant)
        found = minimise(whole, first, max_iterations, rough)
    require_residuals(problem, yard.spread > 10.0 * yard.rounding)
    constant = whole.constant(found.theta)
    problem.search.require_constant(constant)
    return replace(found, theta=found.theta[:-1], constant=constant, loss=whole.loss(found.theta))


def _vague(here: Derivatives, n: int) -> bool:
    """Whether n rows tell little of the logarithm of a dispersion."""
    return not _constant_alone(here)[1] * n * _VAGUE**2 > 1.0


def _within(dispersion: float) -> float:
    return LEAST if dispersion < _AT_END * LEAST else dispersion


def _constant_alone(here: Derivatives) -> tuple[float, float]:
    """Slope and bend by the constant when the parameters follow it; nothing where they cannot."""
    try:
        factor = cho_factor(here.hessian[:-1, :-1])
    except (LinAlgError, ValueError):
        return 0.0, 0.0
    along = cho_solve(factor, here.hessian[:-1, -1])
    return float(here.gradient[-1] - here.gradient[:-1] @ along), float(
        here.hessian[-1, -1] - here.hessian[:-1, -1] @ along
    )


def _bounded(whole: JointProblem, first: Array, max_iterations: int, rough: Rough) -> tuple[JointProblem, Fit]:
    """The minimum inside the range of the dispersion or at its end, and the problem that was solved there."""
    (slope, bend), last = _constant_alone(whole.core(first)[0]), first[-1]
    held = slope >= 0.0 and last * bend - slope <= LEAST * bend
    for _ in range(_TURNS):
        joint = replace(whole, held=held)
        first = np.append(first[:-1], LEAST) if held else first
        try:
            found = minimise(joint, first, max_iterations, rough)
        except Beyond:
            held = True
            continue
        if not held or joint.rises(found.theta):
            return joint, found
        held, first = False, joint.last[0]  # whose slopes are known
    raise FitFailed("the dispersion and the parameters did not settle on each other. To fix: pass dispersion=.")
