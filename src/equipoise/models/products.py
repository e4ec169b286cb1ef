"""Products of a linear-predictor loss's Hessian with a vector, and its diagonal: one pass over the rows, no matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from equipoise.arrays import Array
from equipoise.data.arrays import Rows
from equipoise.linalg import Total
from equipoise.models.sums import counted, derivatives

if TYPE_CHECKING:
    from equipoise.models.glm import GLM

__all__ = ["DiagonalPass", "ProductPass"]


@dataclass(frozen=True)
class ProductPass:
    """Σ w ℓ'' (xᵀv) x at θ."""

    model: GLM
    theta: Array
    vector: Array

    def __call__(self, rows: Rows) -> Total:
        """Sums over one block."""
        return Total((_bend(self.model, self.theta, rows) * (rows.x @ self.vector)) @ rows.x)


@dataclass(frozen=True)
class DiagonalPass:
    """Σ w ℓ'' x² at θ."""

    model: GLM
    theta: Array

    def __call__(self, rows: Rows) -> Total:
        """Sums over one block."""
        return Total(_bend(self.model, self.theta, rows) @ rows.x**2)


def _bend(model: GLM, theta: Array, rows: Rows) -> Array:
    return counted(rows, *derivatives(model.loss, rows, theta, 2))
