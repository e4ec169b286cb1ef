"""Per-observation curvature of a general loss: exact, block by block, or as low-rank factors found by probing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from equipoise.arrays import Array
from equipoise.linalg import blocks, symmetric

if TYPE_CHECKING:
    from equipoise.models.general.model import GeneralProblem

__all__ = ["DIRECTIONS", "FactoredCurvature", "GeneralCurvature", "factored_curvature"]


# Directions of a third derivative that are taken together: enough for matrix products, few enough to stay in cache.
DIRECTIONS = 16
_EXACT = 1e-9  # relative size below which an eigenvalue of a row's Hessian counts as zero
_PROBED_ROWS = 32
# Probes beyond the rank: a square random matrix is nearly singular for one of many rows, a wide one for none.
_SPARE = 4
# Elements of factors kept between calls: 1 GB of float64.
_STORED = 1 << 27


@dataclass(frozen=True)
class GeneralCurvature:
    """Exact Hessians of each block of rows, recomputed at every call: O(block · D²) memory."""

    problem: GeneralProblem
    theta: Array

    def quadratic(self, S: Array) -> Array:
        """mean J_n S J_n."""
        total = np.zeros_like(S)
        with jax.enable_x64(True):
            for block, mask in self.problem.blocks(S.size):
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
            for block in self.problem.blocks(DIRECTIONS * len(S)):
                total += np.asarray(functions.bend_gradient(self.theta, *block, values, vectors.T))
            penalty = np.asarray(functions.penalty_bend(self.theta, S))
        return total / self.problem.size + penalty / self.problem.n


@dataclass(frozen=True)
class FactoredCurvature:
    """J_n = Σ_k w_nk u_nk u_nkᵀ with few terms: what a loss that sees each row through few outputs has.

    `stored` has the factors of the first blocks of rows, as many as fit; the others are found again at every call.
    """

    exact: GeneralCurvature
    probes: Array
    rank: int
    negligible: float
    stored: tuple[tuple[Array, Array], ...] = ()

    def quadratic(self, S: Array) -> Array:
        """mean J_n S J_n in O(N r D²)."""
        total = np.zeros_like(S)
        with jax.enable_x64(True):
            for factors, weights in self.parts():
                for rows in blocks(len(factors), factors[0].size):
                    u, w = factors[rows], weights[rows]
                    middle = np.einsum("nik,njk->nij", u @ S, u) * (w[:, :, None] * w[:, None, :])
                    total += np.einsum("nid,nie->de", u, middle @ u, optimize=True)
        return symmetric(total) / self.exact.problem.size

    def third(self, S: Array) -> Array:
        """∇³L[S]."""
        return self.exact.third(S)

    def parts(self) -> Iterator[tuple[Array, Array]]:
        """Factors u (rows, rank, D) and weights w (rows, rank) of each block of rows; call it in float64."""
        yield from self.stored
        problem, theta = self.exact.problem, self.exact.theta
        for block, mask in islice(problem.blocks(self.probes.size), len(self.stored), None):
            images = np.asarray(problem.model.functions.products(theta, block, self.probes))
            yield _factors(images[np.asarray(mask) > 0], self.probes, self.rank, self.negligible)


class _HigherRank(Exception):
    """A row's Hessian is not of the rank that was read off the first few."""


def factored_curvature(exact: GeneralCurvature) -> FactoredCurvature | None:
    """Exact factors of every row's Hessian when its rank is small, or None.

    The rank is read off a few rows; random probes through Hessian-vector products then span each row's range, and one
    further probe checks every row, so that a row of higher rank is never missed.
    """
    dim, problem = exact.theta.size, exact.problem
    rng = np.random.default_rng(0)
    some = rng.choice(problem.size, size=min(_PROBED_ROWS, problem.size), replace=False)
    with jax.enable_x64(True):
        rows = jax.tree.map(lambda a: a[some], problem.data)
        hessians = problem.model.functions.hessians
        # one by one: a block of them may not fit
        spectra = np.abs([np.linalg.eigvalsh(hessians(exact.theta, _one(rows, k))[0]) for k in range(len(some))])
        rank = int((spectra > _EXACT * spectra.max()).sum(axis=1).max())
        if 4 * rank > dim or rank == 0:
            return None
        found = FactoredCurvature(exact, rng.normal(size=(rank + _SPARE + 1, dim)), rank, 1e-10 * float(spectra.max()))
        stored, room = [], _STORED
        try:
            for part in found.parts():
                room -= part[0].size
                if room >= 0:
                    stored.append(part)
        except _HigherRank:
            return None
    return replace(found, stored=tuple(stored))


def _one(rows: Any, k: int) -> Any:
    return jax.tree.map(lambda a: a[k : k + 1], rows)


def _factors(images: Array, probes: Array, rank: int, negligible: float) -> tuple[Array, Array]:
    """u, w from J_n Ω for each row; raises when the last probe disagrees, by more than what is `negligible` in a Hessian.

    With Y = J Ω, J = Y (Ωᵀ Y)⁺ Yᵀ exactly for a symmetric J of rank at most that of Ω.
    """
    Y = images[:, :-1].transpose(0, 2, 1)
    core = probes[:-1] @ Y
    w, Q = np.linalg.eigh(0.5 * (core + core.transpose(0, 2, 1)))
    top = np.argsort(-np.abs(w), axis=1)[:, :rank]
    w, Q = np.take_along_axis(w, top, axis=1), np.take_along_axis(Q, top[:, None, :], axis=2)
    keep = np.abs(w) > 1e-12 * np.abs(w).max(axis=1, keepdims=True)
    inverse = np.where(keep, 1.0, 0.0) / np.where(keep, w, 1.0)
    u = (Y @ Q).transpose(0, 2, 1)
    check = np.einsum("nkd,nk,nk->nd", u, inverse, u @ probes[-1])
    error = np.linalg.norm(check - images[:, -1], axis=1)
    scale = np.linalg.norm(images, axis=(1, 2))
    if np.any(error > 1e-7 * scale + negligible * np.linalg.norm(probes[-1])):
        raise _HigherRank
    return u, inverse
