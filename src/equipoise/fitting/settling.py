"""A constant that is estimated from the residuals moves with the parameters: the fit is repeated until both agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np

from equipoise.arrays import Array
from equipoise.errors import FitFailed
from equipoise.fitting.certificate import Fit, require_residuals
from equipoise.fitting.newton import Rough
from equipoise.models.linear import LinearProblem
from equipoise.models.parabola import Parabola
from equipoise.models.problem import Problem

__all__ = ["Solver", "settle"]

_AGREED = 1e-13  # relative difference of an estimated constant from the one in use
_ROUNDED = 1e-8  # below which that difference may be rounding: of a dispersion that is next to none, say
_CLOSE = 0.2  # difference of logarithms that are extrapolated, and the longest step that leads to
_SHRUNK = 0.1  # of the first scale, when the fit fails: it was on its way to zero

Solver = Callable[[Problem, Array, int], Fit]


def settle(problem: Problem, theta: Array, solver: Solver, max_iterations: int, rough: Rough | None = None) -> Fit:
    """Minimise; a constant estimated from the residuals (the gaussian scale) moves with θ: repeat until both agree.

    A sample's constant is as good as any to begin with, and its residuals tell whether they are more than rounding.
    """
    known = None if rough is None or problem.constant is not None else rough.constant
    here = problem.settled(theta) if known is None else problem.at_constant(known)
    if here is problem:
        return replace(solver(here, theta, max_iterations), constant=problem.constant)
    if problem.search.proportional is not None:
        return _rescaled(problem, here, solver(here, theta, max_iterations), problem.search.proportional, rough)
    moving = problem
    if here.quadratic and isinstance(here, LinearProblem) and not here.source.in_memory:
        here = moving = cast(Problem, Parabola.of(here, theta))
    result = solver(here, theta, max_iterations)
    iterations, path = result.iterations, list[tuple[float, float]]()
    for _ in range(max_iterations):
        constant, wanted = _constant(here), _constant(here.resettled(result.theta, result.loss))
        path.append((np.log(constant), np.log(wanted / constant)))
        if _agree(path):
            require_residuals(problem, _sizeable(here, result.theta, rough))
            problem.search.require_constant(constant)
            return replace(result, iterations=iterations, constant=constant)
        here = moving.at_constant(float(np.exp(_secant(path))))
        try:
            result = solver(here, result.theta, max_iterations)
        except FitFailed:
            # the smaller the scale, the less a prior holds what the rows do not determine
            require_residuals(problem, path[-1][0] > path[0][0] + np.log(_SHRUNK))
            raise
        iterations += result.iterations
    raise FitFailed(
        f"the estimated constant and the parameters did not settle on each other in {max_iterations} rounds. To fix: fix the "
        "constant (scale=, shape=, dispersion=), or raise max_iterations."
    )


def _constant(problem: Problem) -> float:
    assert problem.constant is not None  # the problem is settled
    return problem.constant


def _sizeable(problem: Problem, theta: Array, rough: Rough | None) -> bool:
    """Whether the residuals are more than rounding; if those of a sample are, all are."""
    if rough is not None and rough.yardstick.spread > 10.0 * rough.yardstick.rounding:
        return True
    spread, rounding = problem.search.yardstick(theta)
    return spread > 10.0 * rounding


def _agree(path: list[tuple[float, float]]) -> bool:
    """Whether a constant and what the parameters found with it want it to be agree, or as well as rounding allows."""
    gap = abs(path[-1][1])
    return gap <= _AGREED or (len(path) > 1 and abs(path[-2][1]) < 2.0 * gap < 2.0 * _ROUNDED)


def _secant(path: list[tuple[float, float]]) -> float:
    """The next logarithm of the constant: the one wanted, or close to agreement where the last two leave no gap.

    Gaps of both signs have a root between them: the next is there, half-way if the last did not gain much.
    """
    here, gap = path[-1]
    low = max((at for at, rise in path if rise > 0.0), default=-np.inf)
    high = min((at for at, rise in path if rise < 0.0), default=np.inf)
    between = low < high and np.isfinite(high - low)
    if len(path) == 1 or here == path[-2][0] or not (between or abs(gap) < _CLOSE):
        return here + gap
    rate = (gap - path[-2][1]) / (here - path[-2][0])
    step = gap / max(-rate, abs(gap) / _CLOSE)
    slow = abs(gap) > 0.5 * abs(path[-2][1])
    return 0.5 * (low + high) if between and (slow or not low < here + step < high) else here + step


def _rescaled(problem: Problem, here: Problem, result: Fit, power: float, rough: Rough | None) -> Fit:
    """The minimiser with the constant its residuals give, where that only multiplies the loss, by this power of it."""
    require_residuals(problem, _sizeable(here, result.theta, rough))
    constant = _constant(here.resettled(result.theta, result.loss))
    problem.search.require_constant(constant)
    factor = (constant / _constant(here)) ** power
    norm = result.gradient_norm * float(np.sqrt(factor))
    information = None if result.information is None else result.information * factor
    return replace(result, constant=constant, gradient_norm=norm, loss=result.loss * factor, information=information)
