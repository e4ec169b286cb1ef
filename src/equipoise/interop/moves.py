"""What a tuned chain does with a gradient, for loops that are not ours: θ ← θ − Λ m + ε, m ← κ m + g, ε ~ N(0, M)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equipoise.arrays import Array
from equipoise.checks import instance
from equipoise.errors import InvalidInput
from equipoise.linalg import signed_axes, symmetric
from equipoise.theory.tuning import Tuning

__all__ = ["Move", "move_of", "require_size"]

_ROUNDING = 1e-14  # of an eigenvalue of the injected covariance, relative to the largest


class Move(NamedTuple):
    """Λ, (D, D); a root of M, (D, rank): normals times it are the injected noise, none for rank 0; and κ."""

    step: Array
    root: Array
    momentum: float


def move_of(tuning: Tuning) -> Move:
    """The matrices of a tuning; not for batches by leverage, whose rows a loop would have to draw and weigh by itself."""
    instance("tuning", tuning, Tuning, "make one with eq.tune, or eq.Tuning.at for a step of your own")
    if tuning.dynamics.batches == "leverage":
        raise InvalidInput(
            "tuning",
            "one for batches='independent' or 'epochs' in a loop of your own",
            "batches='leverage', which draws rows unequally and weighs them",
            "tune for other batches, or run it with eq.sample",
        )
    values, axes = signed_axes(symmetric(tuning.noise))
    kept = values > _ROUNDING * max(values[-1], 0.0)
    return Move(tuning.step, axes[:, kept] * np.sqrt(values[kept]), tuning.dynamics.momentum)


def require_size(tuning: Tuning, size: int, remedy: str) -> None:
    """Refuse parameters of another number than the tuning's."""
    if size != tuning.dim:
        raise InvalidInput("parameters", f"the tuning's {tuning.dim} numbers", f"{size} numbers", remedy)
