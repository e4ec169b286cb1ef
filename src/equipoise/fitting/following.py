"""A minimum of a loss of one's own on rows in files: a pass for each step, and how the loss bends from a part of the rows.

    θ ← argmin  L_part(θ') + tᵀθ' + ½ (θ'−θ)ᵀ B (θ'−θ),    t and B such that slope and curvature at θ are those of all rows

Near the minimum of the part a step leaves of the distance about its square, times the little by which the part does not know
how curvatures move.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np

from equipoise.errors import FitFailed
from equipoise.fitting.certificate import POLISHED, Fit
from equipoise.fitting.newton import Tilted
from equipoise.fitting.settling import settle
from equipoise.fitting.trust import FEW, descend
from equipoise.models.problem import Problem

__all__ = ["followed"]

_STEPS = 8  # after which it is no use
_SHRINKING = 0.5  # share of the last step, from which on steps lead nowhere
_DOUBT = 4.0  # times what a step is predicted to leave


def followed(problem: Problem, part: Problem, start: Fit, max_iterations: int) -> Fit:
    """The minimum next to that of a part of the rows; with many parameters, or where steps do not shrink, by a trust region."""
    theta, last = start.theta, np.inf
    for step in range(1, _STEPS + 1) if theta.size <= FEW and not problem.search.dear else ():
        tilted, here = Tilted.at(problem, part, theta)
        try:
            found = descend(cast(Problem, tilted), theta, max_iterations)
        except FitFailed:  # away from their minimum all rows may bend downwards where the part does not
            break
        away = found.theta - theta
        size = float(np.sqrt(problem.n * max(0.0, float(away @ here.hessian @ away))))
        if not size < _SHRINKING * last:
            break
        left = _DOUBT * size * (size / last if np.isfinite(last) else 1.0)
        if left <= POLISHED:
            value = here.value + found.loss - tilted.derivatives(theta, 0).value
            return replace(found, gradient_norm=left, iterations=step, loss=value)
        theta, last = found.theta, size
    return settle(problem, theta, descend, max_iterations)
