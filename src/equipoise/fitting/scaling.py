"""Parameters and the robust scale of their residuals found together, where passes over the rows are what costs.

    ∇L(θ, s) = 0,    s = the scale of the residuals at θ

Each pass gives both sides at one point, how slopes move with the scale, and the rows around the median of the residuals' sizes,
which tell it close by with every corner. How slopes bend further away, rows that stand for all tell, from the first pass.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from equipoise.arrays import Array
from equipoise.errors import FitFailed
from equipoise.fitting.certificate import Fit, converged, require_residuals
from equipoise.fitting.maps import Map, newton_map
from equipoise.fitting.newton import Astray, moved_information
from equipoise.linalg import symmetric
from equipoise.models.linear import LinearProblem
from equipoise.models.problem import Yardstick
from equipoise.models.residuals import Scale
from equipoise.models.scaled import Drifting, drifting, drifting_with_scale

__all__ = ["settled_together"]

_UNSEEN = 1e-9  # standard errors that a step taken unseen may leave
_DOUBT = 4.0  # times what is predicted to be left
_AGREED = 5e-9  # relative change of the scale, below which neither it nor the loss need be seen again
_KNOWN = 1e-6  # the same where the scale after a step is certain, and the loss extrapolated
_CORNERS = 10.0  # times what Newton's method would leave of a loss without corners
_ROUNDS, _EXACT = 50, 1e-15  # in which a move of the scale is found, and the last change of it
_TURNS = 20  # in which what a sample tells of bends is followed
_FURTHER = 4.0  # times the last step: a step of this length leads nowhere


def settled_together(
    problem: LinearProblem, part: LinearProblem, start: Fit, yard: Yardstick, max_iterations: int
) -> Fit:
    """The minimum with the scale of its residuals, from those of a part of the rows.

    Raises
    ------
    FitFailed
        If the steps do not shrink, with rows that stand for all, or the Hessian is singular on the way.
    """
    assert start.constant is not None
    core: LinearProblem | None = None
    theta, log, last, gain = start.theta, float(np.log(start.constant)), np.inf, 1.0
    unseen = _UNSEEN * yard.spread
    hessian = part.at_constant(start.constant).derivatives(theta, 2).hessian
    newton_map(problem.at_constant(start.constant), hessian)  # which says so where it is singular
    inverse = symmetric(np.linalg.inv(hessian).astype(np.float64))
    for iteration in range(1, max_iterations + 1):
        here = problem.at_constant(float(np.exp(log)))
        whole, scale, kept = drifting_with_scale(here, theta, inverse, with_core=core is None)
        core, newton = core or kept, newton_map(here, whole.here.hessian)
        assert core is not None  # the first pass has it
        step, move = _followed(core, theta, log, whole, scale, newton, iteration == 1)
        # what slopes of all rows ask for, too: rows that stand for all may not know of it
        size = max(_length(whole, each) for each in (step, newton.step(whole.here.gradient))) * np.sqrt(problem.n)
        if not size < _FURTHER * last:
            raise Astray(core)
        # by as much as a step is shorter than the last, the next gains over what this one gained, or more without corners
        gain, before = (min(1.0, size / last) if np.isfinite(last) else 1.0), gain
        theta, log, last = theta + step, log + move, size
        certain = scale.certain(step, float(np.exp(log)))
        left = _DOUBT * size * gain * (min(before, _CORNERS * gain) if certain and iteration > 2 else before)
        if left <= unseen and abs(move) <= (_KNOWN if certain else _AGREED):
            require_residuals(problem, yard.spread > 10.0 * yard.rounding)
            constant = float(np.exp(log))
            problem.search.require_constant(constant)
            sure = left <= converged(yard, problem.n)
            value, information = whole.here.value + whole.fall * move, whole.here.information
            if information is not None:
                before = core.at_constant(here.constant), theta - step
                information = information + moved_information(core.at_constant(constant), theta, *before)
            found = Fit(theta, left, sure, iteration, value, newton.condition, constant=constant)
            return replace(found, information=information)
    raise FitFailed("parameters and scale did not settle on each other. To fix: pass scale=, or raise max_iterations.")


def _length(whole: Drifting, step: Array) -> float:
    return float(np.sqrt(max(0.0, float(step @ whole.here.hessian @ step))))


def _followed(
    part: LinearProblem, theta: Array, log: float, whole: Drifting, scale: Scale, newton: Map, first: bool
) -> tuple[Array, float]:
    """How far θ and the scale's logarithm move until slopes vanish and the residuals have that scale.

    Slopes are those of all rows here, and so is how they move at first; beyond that they move as those of some rows that
    stand for all.

    Raises
    ------
    Astray
        If these ask for another first step altogether.
    """
    aside, straight = newton.step(whole.drift), newton.step(whole.here.gradient)
    move = _agreed_move(scale, log, straight, aside)
    step = straight + move * aside
    some = drifting(part.at_constant(float(np.exp(log))), theta)
    tilt, bend = whole.here.gradient - some.here.gradient, whole.here.hessian - some.here.hessian
    drift, unit, shortest = whole.drift - some.drift, np.sqrt(np.diag(whole.here.hessian)), np.inf
    length = max(_length(whole, step), 1.0 / np.sqrt(part.n))  # a standard deviation is no other step altogether
    for _ in range(_TURNS):
        there = part.at_constant(float(np.exp(log + move))).derivatives(theta + step, 1).gradient
        straight = newton.step(there + tilt + bend @ step + drift * move)
        moved = _agreed_move(scale, log, step + straight - move * aside, aside)
        change = straight + (moved - move) * aside
        size = float(np.max(np.abs(change) * unit))
        if first and shortest == np.inf and _length(whole, change) > length:
            raise Astray(part)
        if not size < shortest:
            break
        step, move, shortest = step + change, moved, size
    return step, move


def _agreed_move(scale: Scale, log: float, straight: Array, aside: Array) -> float:
    """How far the scale's logarithm moves for a step `straight` + move · `aside` to have residuals of that scale.

    Next to a corner the scale moves by far more or less than on the average: from both sides of the answer on, it is looked for
    between them (regula falsi, where an end that stays counts half).
    """
    lead = scale.slope / scale.value
    move, gain, last = 0.0, 1.0 - float(lead @ aside), None
    ends: dict[bool, tuple[float, float]] = {}
    for _ in range(_ROUNDS):
        wanted = scale.after(straight + move * aside)
        change = float(np.log(wanted) - log - move) / gain if wanted > 0.0 else 0.0
        side = change > 0.0
        if side == last and len(ends) == 2:
            at, rise = ends[not side]
            ends[not side] = at, 0.5 * rise
        ends[side], last = (move, change), side
        if len(ends) == 2:
            (low, rise), (high, fall) = ends[True], ends[False]
            change = low + (high - low) * rise / (rise - fall) - move
        move += change
        if abs(change) <= _EXACT:
            break
    return move
