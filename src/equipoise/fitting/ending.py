"""The last step of a fit to rows in files: the moments at its end see the slope there, and one more pass for it is saved.

    (θ, c) ← (θ, c) − (∇²L)⁻¹ ∇L,    c the logarithm of an estimated shape or dispersion, if there is one

A fit takes its own last step unseen. What that leaves is told by the scores that the moments add up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np

from equipoise.arrays import Array
from equipoise.fitting.certificate import Fit
from equipoise.linalg import form_times
from equipoise.models.linear import LinearProblem
from equipoise.models.linear_curvature import LinearCurvature
from equipoise.models.problem import Problem
from equipoise.theory.moments import Moments

__all__ = ["ended"]


def ended(problem: Problem, fitted: Fit, moments: Moments) -> tuple[Fit, Moments]:
    """A fit and the moments of all rows at its end, both at the point that those lead to; in memory as they are."""
    if problem.source.in_memory or not isinstance(problem, LinearProblem):
        return fitted, moments
    step, move = _last_step(problem, moments)
    theta, curvature = moments.params + step, cast(LinearCurvature, moments.curvature)
    constant = None if fitted.constant is None else fitted.constant * float(np.exp(move))
    norm = float(np.sqrt(moments.n * step @ moments.hessian @ step))
    here = replace(curvature, problem=problem.at_constant(constant), theta=theta)
    mean = moments.mean_score + moments.loss_hessian @ step
    params = problem.layout.unflatten(theta)
    return (
        replace(fitted, theta=theta, params=params, constant=constant, gradient_norm=min(norm, fitted.gradient_norm)),
        replace(moments, params=theta, mean_score=mean, constant=constant, curvature=here),
    )


def _last_step(problem: LinearProblem, moments: Moments) -> tuple[Array, float]:
    """Newton's step at the point of the moments, in θ and the logarithm of a constant."""
    n, H = moments.n, moments.hessian
    gradient = moments.mean_score + form_times(problem.precision, moments.params - problem.mean) / n
    sums = cast(LinearCurvature, moments.curvature).stacked
    if sums is None:
        return -np.linalg.solve(H, gradient).astype(np.float64), 0.0
    joint = np.block([[H, sums.cross[:, None] / n], [sums.cross / n, np.array([[sums.bend / n]])]])
    step = -np.linalg.solve(joint, np.append(gradient, sums.constant / n)).astype(np.float64)
    return step[:-1], float(step[-1])
