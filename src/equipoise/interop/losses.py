"""The loss of every row at every draw, for losses of one's own."""

from __future__ import annotations

import jax
import numpy as np

from equipoise.arrays import Array
from equipoise.models.general.problem import GeneralProblem
from equipoise.models.problem import Problem

__all__ = ["losses"]


def losses(problem: Problem, draws: Array) -> Array:
    """(draws, observations)."""
    assert isinstance(problem, GeneralProblem)  # there is no other kind without a linear predictor
    parts = []
    with jax.enable_x64(True):
        for b in problem.each(len(draws)):
            found = np.asarray(problem.functions.losses(draws, b.rows))[:, : b.size]
            parts.append(np.repeat(found, b.counts.astype(np.int64), axis=1))
    return np.concatenate(parts, axis=1)
