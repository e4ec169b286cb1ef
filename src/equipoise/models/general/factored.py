"""Per-observation curvature as low-rank factors, found by probing: of a loss that sees each row through few outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import jax
import numpy as np

from equipoise.arrays import Array
from equipoise.linalg import Sums, Total, blocks, fixed_order, symmetric, tree_sum
from equipoise.models.general.blockwise import Leverage
from equipoise.models.general.curvature import GeneralCurvature
from equipoise.theory.expansion import FullExpansion

if TYPE_CHECKING:
    from equipoise.theory.curvature import ImagePass

__all__ = ["FactoredCurvature", "factored_curvature"]

_EXACT = 1e-9  # relative size below which an eigenvalue of a row's Hessian counts as zero
_PROBED_ROWS = 32
# Probes beyond the rank: a square random matrix is nearly singular for one of many rows, a wide one for none.
_SPARE = 4
# Elements of factors kept between calls: 1 GB of float64.
_STORED = 1 << 27


@dataclass(frozen=True)
class FactoredCurvature:
    """J_n = Σ_k w_nk u_nk u_nkᵀ with few terms: what a loss that sees each row through few outputs has.

    `stored` has the factors of the first blocks of rows, as many as fit; the others are found again at every call.
    """

    exact: GeneralCurvature
    probes: Array
    rank: int
    negligible: float
    stored: tuple[tuple[Array, Array, Array], ...] = ()
    drawn: Leverage | None = None

    @property
    def travels(self) -> bool:
        """Rows in memory stay where they are."""
        return False

    @property
    def _width(self) -> int:
        """Numbers that probing makes of each row."""
        return self.exact.problem.model.structure.apart(len(self.probes))

    def quadratic(self, S: Array) -> Array:
        """mean J_n S J_n in O(N r D²)."""
        with jax.enable_x64(True), fixed_order():
            return symmetric(tree_sum(self._products(S)).total) / self.exact.problem.source.n

    def _products(self, S: Array) -> Iterator[Total]:
        for factors, weights, counts in self.parts():
            for rows in blocks(len(factors), factors[0].size):
                u, w = factors[rows], weights[rows]
                middle = np.einsum("nik,njk->nij", u @ S, u) * (w[:, :, None] * w[:, None, :])
                middle *= self._shares(u, w, counts[rows])[:, None, None]
                yield Total(np.einsum("nid,nie->de", u, middle @ u, optimize=True))

    def scatter(self) -> Array:
        """mean g_n g_nᵀ."""
        with jax.enable_x64(True), fixed_order():
            return symmetric(tree_sum(self._scatters()).total) / self.exact.problem.source.n

    def _scatters(self) -> Iterator[Total]:
        problem, theta = self.exact.problem, self.exact.theta
        for b, (u, w, counts) in zip(problem.each(self._width), self.parts(), strict=True):
            g = np.asarray(problem.functions.scores(theta, b.rows))[: b.size]
            yield Total((g * self._shares(u, w, counts)[:, None]).T @ g)

    def _shares(self, u: Array, w: Array, counts: Array) -> Array:
        """What each row counts for: its observations, times 1/(N p_n) where they are drawn by leverage."""
        if self.drawn is None:
            return counts
        return counts * self.drawn.emphasis(_leverage(u, w, self.drawn.inverse))

    def leverages(self, inverse: Array) -> Array:
        """|tr(H⁻¹ J_n)| of every observation."""
        with jax.enable_x64(True), fixed_order():
            return np.concatenate(
                [np.repeat(_leverage(u, w, inverse), counts.astype(np.int64)) for u, w, counts in self.parts()]
            )

    def leveraged(self, inverse: Array, hessian: Array) -> FactoredCurvature:
        """The same for rows drawn by leverage."""
        del hessian  # second derivatives of a general loss may be negative, so that J does not have the mean
        return replace(self, drawn=Leverage(inverse, None, float(self.leverages(inverse).mean())))

    def third(self, S: Array) -> Array:
        """∇³L[S]."""
        return self.exact.third(S)

    def third_along(self, vectors: Array) -> Array:
        """∇³L[v, v, ·]."""
        return self.exact.third_along(vectors)

    def expansion(self, basis: Array) -> FullExpansion:
        """The derivatives of the rows, written out."""
        return GeneralCurvature(self.exact.problem, self.exact.theta, self.drawn).expansion(basis)

    def images(self, vectors: Array, root: Array, f: ImagePass[Sums]) -> Sums:
        """Σ f(Rᵀ J_n v)."""
        with jax.enable_x64(True), fixed_order():
            return tree_sum(self._images(vectors, root, f))

    def _images(self, vectors: Array, root: Array, f: ImagePass[Sums]) -> Iterator[Sums]:
        for factors, weights, counts in self.parts():
            for rows in blocks(len(factors), max(factors[0].size, vectors.size)):
                u, w = factors[rows], weights[rows]
                images = np.einsum("nkd,me,nke,nk->mnd", u @ root, vectors, u, w, optimize=True)
                drawn = None if self.drawn is None else self.drawn.emphasis(_leverage(u, w, self.drawn.inverse))
                yield f(images, drawn, counts[rows])

    def sampled(self, count: int) -> FactoredCurvature:
        """The same of so many rows at most."""
        if count >= self.exact.problem.source.n:
            return self
        return replace(self, exact=self.exact.sampled(count), stored=())

    def representative(self, count: int, S: Array) -> FactoredCurvature:
        """All rows."""
        return self

    def cross(self, basis: Array) -> Array:
        """mean J_n r rᵀ g_n for every column r of a basis."""
        return self.exact.cross(basis)

    def parts(self) -> Iterator[tuple[Array, Array, Array]]:
        """Factors u (rows, rank, D), weights w (rows, rank) and counts of each block of rows; call it in float64."""
        yield from self.stored
        problem, theta, longest = self.exact.problem, self.exact.theta, 0
        for block in islice(problem.source.blocks(self._width), len(self.stored), None):
            longest = max(longest, block.height)
            padded = problem.padded(block, longest)
            images = np.asarray(problem.functions.products(theta, padded.rows, self.probes))[: padded.size]
            yield *_factors(images, self.probes, self.rank, self.negligible), padded.counts


def _leverage(factors: Array, weights: Array, inverse: Array) -> Array:
    """|tr(H⁻¹ J_n)| of rows with these factors."""
    forms = np.einsum("nkd,nkd->nk", factors @ inverse, factors)
    return np.abs(np.sum(weights * forms, axis=1))


class _HigherRank(Exception):
    """A row's Hessian is not of the rank that was read off the first few."""


def factored_curvature(exact: GeneralCurvature) -> FactoredCurvature | None:
    """Exact factors of every row's Hessian when its rank is small, or None.

    The rank is read off a few rows; random probes through Hessian-vector products then span each row's range, and one
    further probe checks every row, so that a row of higher rank is never missed.
    """
    dim, problem = exact.theta.size, exact.problem
    if not problem.source.in_memory:
        return None  # a pass over files costs more than it would save
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
