"""Scores, curvatures and leverages of single rows of a loss of your own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import jax
import numpy as np

from equipoise.arrays import Array
from equipoise.data.fields import Columns
from equipoise.models.rowwise import require_below_one

if TYPE_CHECKING:
    from equipoise.models.general.problem import GeneralProblem

__all__ = ["GeneralRowwise"]


@dataclass(frozen=True)
class GeneralRowwise:
    """Derivatives of every row's loss, by automatic differentiation; see `PaddedPass` for the problem and its identity."""

    problem: GeneralProblem = field(compare=False)
    identity: str
    theta: Array

    def scores(self, block: Columns) -> Array:
        """Gradient of each row's loss."""
        with jax.enable_x64(True):
            padded = self.problem.padded(block, block.height)
            return np.array(self.problem.functions.scores(self.theta, padded.rows))

    def counts(self, block: Columns) -> Array:
        """As often as they are observed."""
        return block.counts

    def curvatures(self, block: Columns) -> Array:
        """Hessian of each row's loss."""
        with jax.enable_x64(True):
            padded = self.problem.padded(block, block.height)
            return np.array(self.problem.functions.hessians(self.theta, padded.rows))

    @property
    def observed(self) -> bool:
        """Nothing is known of what the model expects."""
        return True

    def information(self, block: Columns) -> Array:
        """Σ J_n: the observed curvature."""
        return np.einsum("n,nij->ij", block.counts, self.curvatures(block))

    def inflated(self, block: Columns, vectors: Array, root: Array, power: float) -> Array:
        """R⁻ᵀ (I − Rᵀ J_n R)^−power Rᵀ v_n: for a J_n of rank one, division by a power of 1 − leverage."""
        values, axes = np.linalg.eigh(root.T @ self.curvatures(block) @ root)
        require_below_one(values[:, -1])
        turned = np.einsum("nik,ni->nk", axes, vectors @ root)
        back = np.einsum("nik,nk->ni", axes, turned * (1.0 - values) ** -power)
        return np.asarray(np.linalg.solve(root.T, back.T).T)
