"""Scales of responses at a penalised estimate, which does not depend on them."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from equipoise.arrays import Array
from equipoise.data.arrays import Rows
from equipoise.errors import FitFailed
from equipoise.fitting.fit import fit
from equipoise.models.binding import bind
from equipoise.models.glm import glm

__all__ = ["gamma_shape", "residual_scale"]

# Share of the response's spread below which residuals are rounding, and no scale.
_EXACT = 1e-8


def residual_scale(design: Array, y: Array, weight: Array | None, precision: Array) -> float:
    """The residuals' standard deviation at the penalised least-squares estimate, which does not depend on it.

    Degrees of freedom are the trace of the smoother; where residuals are nothing but rounding, the scale is 1.
    """
    w = np.ones(len(y)) if weight is None else weight
    scaled = design * w[:, None]
    gram = design.T @ scaled
    H = gram + np.diag(precision)
    theta = np.linalg.lstsq(H, scaled.T @ y, rcond=None)[0]
    used = float(np.trace(np.linalg.lstsq(H, gram, rcond=None)[0]))
    squares = float(w @ (y - design @ theta) ** 2)
    if squares <= _EXACT**2 * float(w @ y**2):
        return 1.0
    return float(np.sqrt(squares / max(w.sum() - used, 1.0)))


def gamma_shape(data: Rows, precision: Array) -> float:
    """The shape of gamma responses at the penalised estimate, which does not depend on it; 0 where residuals vanish."""
    # the shape multiplies loss and penalty alike
    with suppress(FitFailed):  # it names what is wrong with the rows, and so will the run
        found = fit(glm("gamma", shape=1.0, prior_precision=precision), data)
        shape = bind(glm("gamma"), data).settled(found.theta).constant or np.inf
        return shape if shape * _EXACT < 1.0 else 0.0
    return 0.0
