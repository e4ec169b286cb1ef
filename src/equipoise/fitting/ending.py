"""The last step of a fit to rows in files: the moments at its end see the slope there, and one more pass for it is saved.

    (θ, c) ← (θ, c) − (∇²L)⁻¹ ∇L,    c the logarithm of an estimated shape or dispersion, if there is one

A fit takes its own last step unseen. What that leaves is told by the scores that the moments add up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from equipoise.arrays import Array
from equipoise.fitting.certificate import Fit, require_converged
from equipoise.linalg import form_times
from equipoise.models.linear import LinearProblem
from equipoise.models.linear_curvature import LinearCurvature
from equipoise.models.problem import Problem
from equipoise.theory.moments import Moments

__all__ = ["ended", "ended_alone"]

_SEEN = 1e-11  # standard deviations that a step taken unseen is expected to leave, from which on it is worth a pass
_SHORT = 1e-4  # change of a constant's logarithm; where a step asks for more, the constant is at the end of its range
_WRONG = 1e-4  # standard deviations or errors that it cannot have left: what was foreseen is far less


def ended(problem: Problem, fitted: Fit, moments: Moments) -> tuple[Problem, Fit, Moments]:
    """A problem with its fit and the moments of all rows there, at the point that those lead to; in memory as they are.

    Raises
    ------
    FitFailed
        If the fit is not where it was foreseen to be.
    """
    if problem.source.in_memory or not isinstance(problem, LinearProblem):
        return problem, fitted, moments
    step, move = _last_step(problem, moments)
    norm = float(np.sqrt(moments.n * step @ moments.hessian @ step))
    require_converged(norm, _WRONG * max(1.0, float(np.sqrt(moments.noise_ratio))), fitted.iterations, fitted.theta)
    theta, curvature = moments.params + step, cast(LinearCurvature, moments.curvature)
    mean = moments.mean_score + moments.loss_hessian @ step
    if curvature.stacked is not None:
        mean += curvature.stacked.cross * (move / moments.n)
    constant = None if fitted.constant is None else fitted.constant * float(np.exp(move))
    here, left = problem.at_constant(constant), min(norm, fitted.gradient_norm)
    curvature = replace(curvature, problem=here, theta=theta)
    params = problem.layout.unflatten(theta)
    return (
        here,
        replace(fitted, theta=theta, params=params, constant=constant, gradient_norm=left),
        replace(moments, params=theta, mean_score=mean, constant=constant, curvature=curvature),
    )


def ended_alone(problem: Problem, fitted: Fit) -> Fit:
    """A fit that nobody takes moments of: at the price of a pass where its last step may have left something."""
    if problem.source.in_memory or not isinstance(problem, LinearProblem) or fitted.gradient_norm <= _SEEN:
        return fitted
    here = problem.at_constant(fitted.constant)
    return ended(here, fitted, here.moments(fitted.theta))[1]


def _last_step(problem: LinearProblem, moments: Moments) -> tuple[Array, float]:
    """Newton's step at the point of the moments, in θ and the logarithm of a constant."""
    n, H = moments.n, moments.hessian
    gradient = moments.mean_score + form_times(problem.precision, moments.params - problem.mean) / n
    sums = cast(LinearCurvature, moments.curvature).stacked
    alone = -cho_solve(cho_factor(H), gradient)
    if sums is None:
        return alone, 0.0
    # of the constant what is left when the parameters follow it; at the end of its range there is no bend
    along = cho_solve(cho_factor(H), sums.cross / n)
    bend = float(sums.bend / n - sums.cross @ along / n)
    move = -float(sums.constant / n + sums.cross @ alone / n) / bend if bend > 0.0 else np.inf
    return (alone - move * along, move) if abs(move) <= _SHORT else (alone, 0.0)
