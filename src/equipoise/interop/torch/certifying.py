"""Weights that the user brings: how far they are from a minimiser, and whether that is near enough."""

from __future__ import annotations

import numpy as np

from equipoise.checks import is_number, shown
from equipoise.errors import FitFailed, InvalidInput
from equipoise.fitting.certificate import Fit
from equipoise.linalg import FAINT, curvature_axes
from equipoise.models.binding import verb
from equipoise.models.problem import Problem

__all__ = ["certify"]


@verb
def certify(problem: Problem, *, tolerance: float = 0.05) -> Fit:
    """The module's own weights as a fit, if they are near enough to a minimiser.

    Training in float32 ends some way from the minimum; chains that are tuned there move around another point than their
    predicted centre, which is visible once the distance is a share of a standard deviation.

    Parameters
    ----------
    problem
        A bound `eqt.Model`, or a model and its data.
    tolerance
        The largest distance √N · sqrt(∇Lᵀ H⁻¹ ∇L), in posterior standard deviations, from the minimiser.

    Returns
    -------
    Fit
        With that distance as `gradient_norm`.

    Raises
    ------
    FitFailed
        If the distance is larger, or the Hessian there is not positive definite.
    """
    if not (is_number(tolerance) and tolerance > 0.0):
        raise InvalidInput("tolerance", "positive, in posterior standard deviations", shown(tolerance), "0.05 is small")
    theta = problem.search.starts()[0]
    found = problem.derivatives(theta, 2)
    spectrum, _ = curvature_axes(found.hessian)
    if not spectrum.min() > FAINT:
        flat = int((spectrum <= FAINT).sum())
        raise FitFailed(
            f"the loss does not curve upwards along {flat} direction(s) at these weights (smallest scaled eigenvalue "
            f"{spectrum.min():.2g}). To fix: train further, add a prior (prior_precision=...) and use target='posterior', or "
            "let fewer parameters vary (trainable=...)."
        )
    distance = float(np.sqrt(problem.n * found.gradient @ np.linalg.solve(found.hessian, found.gradient)))
    if not distance <= tolerance:
        raise FitFailed(
            f"these weights are {distance:.2g} posterior standard deviations from the minimiser, more than {tolerance:g}. "
            "To fix: train further, or polish them with eq.fit(model, data), which starts from them."
        )
    scale = np.sqrt(np.diag(found.hessian))
    condition = float(np.linalg.cond(found.hessian / np.outer(scale, scale)))
    return Fit(theta, distance, True, 0, found.value, condition, params=problem.layout.unflatten(theta))
