"""Per-observation curvature of a general loss: exact, block by block, or as low-rank factors found by probing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import numpy as np
from numpy.typing import NDArray

from equipoise.moments import blocks, symmetric

if TYPE_CHECKING:
    from equipoise.models.general.model import GeneralProblem

__all__ = ["FactoredCurvature", "GeneralCurvature", "low_rank_factors"]

Array = NDArray[np.float64]

_EXACT = 1e-9  # relative size below which an eigenvalue of a row's Hessian counts as zero
_PROBED_ROWS = 32


@dataclass(frozen=True)
class GeneralCurvature:
    """Exact Hessians of each block of rows, recomputed at every call: O(block · D²) memory."""

    problem: GeneralProblem
    theta: Array

    def quadratic(self, S: Array) -> Array:
        """mean J_n S J_n."""
        total = np.zeros_like(S)
        with jax.enable_x64(True):
            for block, mask in self.problem.blocks(len(S)):
                J = (
                    np.asarray(self.problem.model.functions.hessians(self.theta, block))
                    * np.asarray(mask)[:, None, None]
                )
                total += np.einsum("nij,njk->ik", J @ S, J, optimize=True)
        return symmetric(total) / self.problem.size

    def third(self, S: Array) -> Array:
        """∇³L[S], the regulariser's share included: the gradient of tr(∇²L S)."""
        values, vectors = np.linalg.eigh(symmetric(S))
        functions, total = self.problem.model.functions, np.zeros(len(S))
        with jax.enable_x64(True):
            for block in self.problem.blocks(len(S)):
                total += np.asarray(functions.bend_gradient(self.theta, *block, values, vectors.T))
            penalty = np.asarray(functions.penalty_bend(self.theta, S))
        return total / self.problem.size + penalty / self.problem.n


@dataclass(frozen=True)
class FactoredCurvature:
    """J_n = Σ_k w_nk u_nk u_nkᵀ with few terms: what a loss that sees each row through few outputs has."""

    factors: Array
    weights: Array
    exact: GeneralCurvature

    def quadratic(self, S: Array) -> Array:
        """mean J_n S J_n in O(N r D²)."""
        n, rank, dim = self.factors.shape
        total = np.zeros((dim, dim))
        for rows in blocks(n, rank * dim):
            u, w = self.factors[rows], self.weights[rows]
            middle = np.einsum("nik,njk->nij", u @ S, u) * (w[:, :, None] * w[:, None, :])
            total += np.einsum("nid,nie->de", u, middle @ u, optimize=True)
        return symmetric(total) / n

    def third(self, S: Array) -> Array:
        """∇³L[S]."""
        return self.exact.third(S)


def low_rank_factors(problem: GeneralProblem, theta: Array) -> tuple[Array, Array] | None:
    """Exact factors of every row's Hessian when its rank is small, or None.

    The rank is read off a few rows; random probes through Hessian-vector products then span each row's range, and one
    further probe checks every row, so that a row of higher rank is never missed.
    """
    dim = theta.size
    rng = np.random.default_rng(0)
    functions = problem.model.functions
    with jax.enable_x64(True):
        index = rng.choice(problem.size, size=min(_PROBED_ROWS, problem.size), replace=False)
        some = jax.tree.map(lambda a: a[index], problem.data)
        spectra = np.abs(np.linalg.eigvalsh(np.asarray(functions.hessians(theta, some))))
        rank = int((spectra > _EXACT * spectra.max(axis=1, keepdims=True)).sum(axis=1).max())
        if 4 * rank > dim or rank == 0:
            return None
        probes = rng.normal(size=(rank + 1, dim))
        factors, weights = [], []
        for block, mask in problem.blocks(dim):
            images = np.asarray(functions.products(theta, block, probes))[np.asarray(mask) > 0]
            part = _factors(images, probes, rank)
            if part is None:
                return None
            factors.append(part[0])
            weights.append(part[1])
    return np.concatenate(factors), np.concatenate(weights)


def _factors(images: Array, probes: Array, rank: int) -> tuple[Array, Array] | None:
    """u, w from J_n Ω for each row; None when the last probe disagrees.

    With Y = J Ω, J = Y (Ωᵀ Y)⁺ Yᵀ exactly for a symmetric J of rank at most that of Ω.
    """
    Y = images[:, :rank].transpose(0, 2, 1)
    core = probes[:rank] @ Y
    w, Q = np.linalg.eigh(0.5 * (core + core.transpose(0, 2, 1)))
    keep = np.abs(w) > 1e-12 * np.abs(w).max(axis=1, keepdims=True)
    inverse = np.where(keep, 1.0, 0.0) / np.where(keep, w, 1.0)
    u = (Y @ Q).transpose(0, 2, 1)
    check = np.einsum("nkd,nk,nk->nd", u, inverse, u @ probes[rank])
    error = np.linalg.norm(check - images[:, rank], axis=1)
    scale = np.linalg.norm(images, axis=(1, 2))
    return (u, inverse) if np.all(error <= 1e-7 * scale) else None
