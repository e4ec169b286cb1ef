"""The lowest point of a quadratic function in a ball, whatever its curvature: one step of a trust region."""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from equipoise.arrays import Array

__all__ = ["lowest"]

_DEEP = 30.0  # how far below its upper bound the logarithm of the multiplier is sought: less is made by rounding
_CLOSE = 1e-3  # relative error of the step's length


def lowest(gradient: Array, H: Array, radius: float) -> tuple[Array, float]:
    """The p, ‖p‖ ≤ radius, with the least gᵀp + pᵀHp/2, and how far below zero that is.

    It is Newton's step where that fits. Otherwise (H + λI) p = −g with the λ that makes ‖p‖ the radius; where none does, for
    the slope has no part along the lowest curvature, p goes on along that.
    """
    try:
        p = -cho_solve(cho_factor(H), gradient)  # keeps its digits when curvatures differ by many powers of ten
        if np.linalg.norm(p) <= radius:
            return p, -0.5 * float(gradient @ p)
    except np.linalg.LinAlgError:
        pass
    curves, axes = np.linalg.eigh(H)
    q = _lowest(axes.T @ gradient, curves, radius)
    return axes @ q, -float((axes.T @ gradient) @ q + 0.5 * np.sum(curves * q * q))


def _lowest(slope: Array, curves: Array, radius: float) -> Array:
    """The same along the axes of H, curvatures ascending."""
    from scipy.optimize import brentq  # slow to import, and convex losses do without

    base = max(0.0, -float(curves[0]))
    top = float(np.log(np.linalg.norm(slope) / radius)) + _CLOSE  # there the step is shorter, whatever the rounding

    def step(log: float) -> Array:
        return -slope / (curves + base + np.exp(log))

    def excess(log: float) -> float:
        return float(np.log(np.linalg.norm(step(log)) / radius))

    if excess(top - _DEEP) > 0.0:
        return step(brentq(excess, top - _DEEP, top, xtol=_CLOSE))
    q = step(top - _DEEP)
    if base > len(q) * np.finfo(float).eps * float(np.abs(curves).max()):  # else the direction is flat
        q[0] = np.copysign(np.sqrt(radius**2 - np.sum(q[1:] ** 2)), q[0])
    return q
