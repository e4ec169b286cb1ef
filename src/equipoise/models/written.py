"""The curvature operator of a linear-predictor loss written out: from one pass, its averages against every matrix (theory §1).

Σ h² (xᵀSx) x xᵀ is linear in S: the products of two columns, p = D(D+1)/2 of them for each row, have a p × p matrix of
second moments that is all there is to it. Columns are turned first so that they are about orthonormal, for far from zero
next to nothing would be left of its digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from equipoise.arrays import Array
from equipoise.data.arrays import Rows
from equipoise.linalg import symmetric, weighted_gram
from equipoise.models.passes import Leveraging
from equipoise.models.sums import counted, derivatives

if TYPE_CHECKING:
    from equipoise.models.glm import GLM

__all__ = ["Written", "WrittenPass", "WrittenSums"]


class WrittenSums(NamedTuple):
    """Σ h² v vᵀ and Σ t z vᵀ; v are the products z_i z_j, i ≥ j, of a row z = L⁻¹x."""

    fourth: Array
    third: Array


@dataclass(frozen=True)
class WrittenPass:
    """Second and third derivatives at θ against the products of two columns; `turn` is L⁻¹, `leverage` how rows are drawn."""

    model: GLM
    theta: Array
    turn: Array
    leverage: Leveraging | None

    def __call__(self, rows: Rows) -> WrittenSums:
        """Sums over one block."""
        h, t = derivatives(self.model.loss, rows, self.theta, 2, 3)
        z = self.turn @ rows.x.T
        v = np.concatenate([z[: k + 1] * z[k] for k in range(len(z))])
        square = h**2 if self.leverage is None else h**2 * self.leverage.emphasis(rows.x, h)
        return WrittenSums(weighted_gram(v.T, counted(rows, square)), (z * counted(rows, t)) @ v.T)


@dataclass(frozen=True)
class Written:
    """What such a pass found; `root` is L."""

    root: Array
    sums: WrittenSums

    def quadratic(self, S: Array) -> Array:
        """Σ h² (xᵀSx) x xᵀ."""
        half = np.zeros_like(self.root)
        half[np.tril_indices(len(half))] = self.sums.fourth @ self._form(S)
        return self.root @ (half + np.tril(half, -1).T) @ self.root.T

    def third(self, S: Array) -> Array:
        """Σ t (xᵀSx) x."""
        return self.root @ (self.sums.third @ self._form(S))

    def _form(self, S: Array) -> Array:
        """What v is multiplied by in xᵀSx."""
        T = symmetric(self.root.T @ S @ self.root)
        return (T + np.tril(T, -1))[np.tril_indices(len(T))]
