"""Scores, curvatures and leverages of single rows of a generalised linear model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from equipoise.arrays import Array
from equipoise.data.arrays import Rows
from equipoise.errors import InvalidInput
from equipoise.linalg import weighted_gram
from equipoise.models.passes import counted, predictor, weighted

if TYPE_CHECKING:
    from equipoise.models.glm import GLM

__all__ = ["LinearRowwise", "require_below_one"]

_ONE = 1.0 - 1e-9  # leverage beyond which a row is fitted by columns of its own


@dataclass(frozen=True)
class LinearRowwise:
    """g_n = w ℓ' x_n and J_n = w ℓ'' x_n x_nᵀ of a model with settled constants."""

    model: GLM
    theta: Array

    def scores(self, rows: Rows) -> Array:
        """Gradient of each row's loss."""
        loss, eta = self.model.loss, predictor(rows, self.theta)
        return weighted(rows, loss.d1(eta, rows.y, loss.constants))[:, None] * rows.x

    def counts(self, rows: Rows) -> Array:
        """How many observations each row stands for."""
        return rows.counts

    def curvatures(self, rows: Rows) -> Array:
        """Hessian of each row's loss."""
        loss, eta = self.model.loss, predictor(rows, self.theta)
        half = weighted(rows, loss.d2(eta, rows.y, loss.constants))[:, None] * rows.x
        return half[:, :, None] * rows.x[:, None, :]

    def information(self, rows: Rows) -> Array:
        """Σ w E[ℓ''] x xᵀ: the weighted design of a generalised linear model."""
        return weighted_gram(rows.x, counted(rows, self._working(rows)))

    def inflated(self, rows: Rows, vectors: Array, root: Array, power: float) -> Array:
        """v_n (1 − l_n)^−power with the leverages of the weighted design."""
        half = rows.x @ root
        leverage = self._working(rows) * np.einsum("ni,ni->n", half, half)
        require_below_one(leverage)
        return vectors * ((1.0 - leverage) ** -power)[:, None]

    def _working(self, rows: Rows) -> Array:
        """The working weights of each row: ℓ'' is linear in the response, so its mean is that at the mean response.

        A robust loss has no such mean, and its own second derivative is taken.
        """
        loss, eta = self.model.loss, predictor(rows, self.theta)
        y = rows.y if self.model.divergence is not None else self.model.family.mean(eta)
        return weighted(rows, loss.d2(eta, y, loss.constants))


def require_below_one(leverage: Array) -> None:
    """Raise where a row is fitted exactly by columns of its own: without it, they could not be estimated.

    Raises
    ------
    InvalidInput
        Saying how many rows there are.
    """
    alone = int(np.sum(leverage > _ONE))
    if alone:
        raise InvalidInput(
            "kind",
            "one that exists for these rows: HC2 and HC3 divide by 1 − leverage",
            f"{alone} rows of leverage 1, each fitted by a column of its own",
            "use HC1, or leave those rows and columns out",
        )
