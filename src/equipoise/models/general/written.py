"""The curvature operator of a loss of your own written out: from one pass, mean J_n S J_n against every matrix (theory §1).

It is linear in S. The p = D(D+1)/2 numbers of each row's Hessian have a p × p matrix of second moments that is all there is to
it. Parameters are turned first so that the mean Hessian is about the identity, for in other units few digits would be left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.arrays import Array
from equipoise.linalg import curvature_axes, symmetric

__all__ = ["Written", "halves", "turning"]

_LEAST = 1e-8  # of the largest curvature in units of the parameters, which flat directions count as having


def turning(hessian: Array) -> Array:
    """A with A H Aᵀ about the identity, up to signs."""
    values, axes = curvature_axes(symmetric(hessian))
    size = np.abs(values)
    return axes / np.sqrt(np.maximum(size, _LEAST * max(float(size.max()), 1e-300)))[:, None]


def halves(J: Array, turn: Array) -> Array:
    """The lower halves of A J_n Aᵀ, (rows, p)."""
    return (turn @ J @ turn.T)[:, *np.tril_indices(len(turn))]


@dataclass(frozen=True)
class Written:
    """Σ w_n v_n v_nᵀ, with v_n the lower half of A J_n Aᵀ."""

    turn: Array
    squares: Array

    def quadratic(self, S: Array) -> Array:
        """Σ w_n J_n S J_n."""
        dim, root = len(self.turn), np.linalg.inv(self.turn).astype(np.float64)
        T = symmetric(root.T @ S @ root)
        place = np.zeros((dim, dim), dtype=np.intp)
        place[np.tril_indices(dim)] = np.arange(len(self.squares))
        place = np.maximum(place, place.T)
        # entry (a, b) is the sum of T_cd Σ w J_ac J_db over c and d
        made = np.stack([np.take_along_axis(T @ self.squares[place[a]], place, axis=1).sum(axis=0) for a in range(dim)])
        return symmetric(root @ made @ root.T)
