"""A robust loss beside the scale of its residuals: its derivatives, how they move with the scale, and the scale itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from equipoise.arrays import Array
from equipoise.data.arrays import Rows
from equipoise.models.linear_curvature import LinearCurvature
from equipoise.models.passes import Both, LossPass, standing_rows
from equipoise.models.residuals import Reach, Scale, scale_beside

if TYPE_CHECKING:
    from equipoise.models.linear import LinearProblem
    from equipoise.models.problem import Derivatives

__all__ = ["Drifting", "drifting", "drifting_with_scale"]

_APART = 1e-4  # logarithms of the scale between which losses and slopes are compared


class Drifting(NamedTuple):
    """L, ∇L and ∇²L at θ and a scale, and how the first two move with the logarithm of the scale."""

    here: Derivatives
    fall: float
    drift: Array


def drifting(problem: LinearProblem, theta: Array) -> Drifting:
    """With the scale as it is, of rows in memory."""
    up, down = (near.derivatives(theta, 1) for near in _beside(problem))
    return _drifting(problem.derivatives(theta, 2), up, down)


def drifting_with_scale(
    problem: LinearProblem, theta: Array, S: Array, with_core: bool
) -> tuple[Drifting, Scale, LinearProblem | None]:
    """The same, the robust scale of the residuals at θ and, if asked for, the problem on some rows that stand for all.

    The rows are read once. S is about the inverse of ∇²L.
    """
    assert problem.constant is not None
    up, down = _beside(problem)
    f: Callable[[Rows], Any] = Both(
        LossPass(problem.model, theta, 2), Both(LossPass(up.model, theta, 1), LossPass(down.model, theta, 1))
    )
    if with_core:
        f = Both(f, LinearCurvature(problem, theta).standing_pass())
    reach = Reach.of(problem.source, theta, problem.constant, S)
    sums, scale = scale_beside(problem.source, theta, reach, f)
    sums, kept = sums if with_core else (sums, None)
    here, (above, below) = sums
    slopes = (each.averaged(found, theta, 1) for each, found in ((up, above), (down, below)))
    core = None if kept is None else replace(problem, source=standing_rows(kept.kept, problem.source))
    return _drifting(problem.averaged(here, theta, 2), *slopes), scale, core


def _beside(problem: LinearProblem) -> tuple[LinearProblem, LinearProblem]:
    """The problem with a scale a little above and below its own."""
    assert problem.constant is not None
    up, down = (problem.at_constant(problem.constant * float(np.exp(h))) for h in (_APART, -_APART))
    return up, down


def _drifting(here: Derivatives, up: Derivatives, down: Derivatives) -> Drifting:
    return Drifting(here, (up.value - down.value) / (2.0 * _APART), (up.gradient - down.gradient) / (2.0 * _APART))
