"""Per-observation curvature of a general loss: exact, block by block, or as low-rank factors found by probing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from equipoise.arrays import Array
from equipoise.linalg import blocks, fixed_order, symmetric, tree_sum

if TYPE_CHECKING:
    from equipoise.models.general.problem import GeneralProblem, Padded

__all__ = ["DIRECTIONS", "FactoredCurvature", "GeneralCurvature", "factored_curvature"]


# Directions of a third derivative that are taken together: enough for matrix products, few enough to stay in cache.
DIRECTIONS = 16
_EXACT = 1e-9  # relative size below which an eigenvalue of a row's Hessian counts as zero
_PROBED_ROWS = 32
# Probes beyond the rank: a square random matrix is nearly singular for one of many rows, a wide one for none.
_SPARE = 4
# Elements of factors kept between calls: 1 GB of float64.
_STORED = 1 << 27


class _Quadratic(NamedTuple):
    total: Array


class _Third(NamedTuple):
    total: Array


class _Cross(NamedTuple):
    total: Array


@dataclass(frozen=True)
class GeneralCurvature:
    """Exact Hessians of each block of rows, recomputed at every call: O(block · D²) memory."""

    problem: GeneralProblem
    theta: Array

    @property
    def travels(self) -> bool:
        """Rows in memory stay where they are."""
        return False

    def quadratic(self, S: Array) -> Array:
        """mean J_n S J_n."""

        def products(b: Padded) -> _Quadratic:
            J = np.asarray(self.problem.functions.hessians(self.theta, b.rows))[: b.size]
            return _Quadratic(np.einsum("nij,njk->ik", J @ S, J, optimize=True))

        with jax.enable_x64(True):
            return symmetric(self.problem.reduce(products, S.size).total) / self.problem.source.n

    def third(self, S: Array) -> Array:
        """∇³L[S], the regulariser's share included: the gradient of tr(∇²L S)."""
        values, vectors = np.linalg.eigh(symmetric(S))
        functions = self.problem.functions

        def bend(b: Padded) -> _Third:
            return _Third(np.array(functions.bend_gradient(self.theta, b.rows, b.mask, values, vectors.T)))

        with jax.enable_x64(True):
            total = self.problem.reduce(bend, DIRECTIONS * len(S)).total
            penalty = np.asarray(functions.penalty_bend(self.theta, S))
        return total / self.problem.source.n + penalty / self.problem.n

    def cross(self, basis: Array) -> Array:
        """mean J_n r rᵀ g_n for every column r of a basis, by Hessian-vector products."""
        functions = self.problem.functions

        def against(b: Padded) -> _Cross:
            scores = np.asarray(functions.scores(self.theta, b.rows))[: b.size]
            images = np.asarray(functions.products(self.theta, b.rows, basis.T))[: b.size]
            return _Cross(np.einsum("nkd,nk->dk", images, scores @ basis))

        with jax.enable_x64(True):
            return self.problem.reduce(against, basis.size).total / self.problem.source.n


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

    @property
    def travels(self) -> bool:
        """Rows in memory stay where they are."""
        return False

    def quadratic(self, S: Array) -> Array:
        """mean J_n S J_n in O(N r D²)."""
        with jax.enable_x64(True), fixed_order():
            return symmetric(tree_sum(self._products(S)).total) / self.exact.problem.source.n

    def _products(self, S: Array) -> Iterator[_Quadratic]:
        for factors, weights in self.parts():
            for rows in blocks(len(factors), factors[0].size):
                u, w = factors[rows], weights[rows]
                middle = np.einsum("nik,njk->nij", u @ S, u) * (w[:, :, None] * w[:, None, :])
                yield _Quadratic(np.einsum("nid,nie->de", u, middle @ u, optimize=True))

    def third(self, S: Array) -> Array:
        """∇³L[S]."""
        return self.exact.third(S)

    def cross(self, basis: Array) -> Array:
        """mean J_n r rᵀ g_n for every column r of a basis."""
        return self.exact.cross(basis)

    def parts(self) -> Iterator[tuple[Array, Array]]:
        """Factors u (rows, rank, D) and weights w (rows, rank) of each block of rows; call it in float64."""
        yield from self.stored
        problem, theta, longest = self.exact.problem, self.exact.theta, 0
        for block in islice(problem.source.blocks(self.probes.size), len(self.stored), None):
            longest = max(longest, block.n)
            padded = problem.padded(block, longest)
            images = np.asarray(problem.functions.products(theta, padded.rows, self.probes))[: padded.size]
            yield _factors(images, self.probes, self.rank, self.negligible)


class _HigherRank(Exception):
    """A row's Hessian is not of the rank that was read off the first few."""


def factored_curvature(exact: GeneralCurvature) -> FactoredCurvature | None:
    """Exact factors of every row's Hessian when its rank is small, or None.

    The rank is read off a few rows; random probes through Hessian-vector products then span each row's range, and one
    further probe checks every row, so that a row of higher rank is never missed.
    """
    dim, problem = exact.theta.size, exact.problem
    rng = np.random.default_rng(0)
    some = problem.source.sample(min(_PROBED_ROWS, problem.source.n), seed=0)
    with jax.enable_x64(True):
        # one by one: a block of them may not fit
        ones = [problem.padded(row.take(slice(k, k + 1)), 1).rows for row in some.blocks() for k in range(row.n)]
        spectra = np.abs([np.linalg.eigvalsh(problem.functions.hessians(exact.theta, one)[0]) for one in ones])
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
