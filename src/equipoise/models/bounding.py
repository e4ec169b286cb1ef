"""What the Wasserstein bounds need of the rows of a linear-predictor loss (theory §8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from equipoise.arrays import Array
from equipoise.data.arrays import Rows
from equipoise.linalg import form_times
from equipoise.models.sums import counted, derivatives, gram, predictor, weighted

if TYPE_CHECKING:
    from equipoise.models.glm import GLM

__all__ = ["BoundPass", "BoundSums"]


class BoundSums(NamedTuple):
    """Sums behind the constants of the Wasserstein bounds; `bent` counts the rows that are not convex."""

    bent: float
    third: float
    third_square: float
    score_fourth: float
    hessian: Array
    lowest: Array


@dataclass(frozen=True)
class BoundPass:
    """Derivatives' ranges over a ball around θ, or over the whole line where the family bounds them (theory §8)."""

    model: GLM
    theta: Array
    prior: Array
    mean: Array
    radius: float | None

    def ranges(self, rows: Rows) -> tuple[Array, Array, Array]:
        """Smallest and largest second, and largest third derivative of each row's loss.

        On the ball of the given radius around θ a predictor moves by at most radius · ‖x_n‖; the derivatives of every
        family are monotone or have one peak, so that the ends of that interval, with a global bound where the family
        has one, are extreme. Without a radius: global where the family allows it, else at θ.
        """
        loss, family, y = self.model.loss, self.model.family, rows.y
        eta, p = predictor(rows, self.theta), loss.constants
        reach = (self.radius or 0.0) * np.linalg.norm(rows.x, axis=1)
        with np.errstate(over="ignore"):
            second = np.stack([loss.d2(eta + sign * reach, y, p) for sign in (-1.0, 1.0)])
            third = np.stack([np.abs(loss.d3(eta + sign * reach, y, p)) for sign in (-1.0, 1.0)])
        low, high, steep = second.min(axis=0), second.max(axis=0), third.max(axis=0)
        if family.second_bound is not None and family.third_bound is not None:
            high, steep = family.second_bound(y, p), family.third_bound(y, p)
        return weighted(rows, low), weighted(rows, high), weighted(rows, steep)

    def largest(self, rows: Rows) -> float:
        """max of L_n over one block, the prior's share apart."""
        return float(np.max(self.ranges(rows)[1] * np.sum(rows.x**2, axis=1)))

    def __call__(self, rows: Rows) -> BoundSums:
        """Sums over one block."""
        slope, bend = derivatives(self.model.loss, rows, self.theta, 1, 2)
        low, _, steep = self.ranges(rows)
        scores = slope[:, None] * rows.x
        scores = scores + form_times(self.prior, self.theta - self.mean)
        third = steep * np.linalg.norm(rows.x, axis=1) ** 3
        return BoundSums(
            float(np.sum(low < 0.0)),
            float(np.sum(counted(rows, third))),
            float(np.sum(counted(rows, third**2))),
            float(np.sum(counted(rows, np.sum(scores**2, axis=1) ** 2))),
            gram(rows.x, counted(rows, bend)),
            gram(rows.x, counted(rows, low)),
        )
