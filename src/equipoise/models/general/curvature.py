"""Per-observation curvature of a general loss: exact, block by block, or as low-rank factors found by probing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from equipoise.arrays import Array
from equipoise.linalg import Sums, blocks, fixed_order, symmetric, tree_sum
from equipoise.models.general.functions import DIRECTIONS
from equipoise.models.passes import BothSums
from equipoise.theory.curvature import emphasis
from equipoise.theory.expansion import FullExpansion, expanded_rows

if TYPE_CHECKING:
    from equipoise.models.general.problem import GeneralProblem, Padded
    from equipoise.theory.curvature import ImagePass

__all__ = ["FactoredCurvature", "GeneralCurvature", "factored_curvature"]


_EXACT = 1e-9  # relative size below which an eigenvalue of a row's Hessian counts as zero
_PROBED_ROWS = 32
# Probes beyond the rank: a square random matrix is nearly singular for one of many rows, a wide one for none.
_SPARE = 4
# Elements of factors kept between calls: 1 GB of float64.
_STORED = 1 << 27
_SEVERAL = 8  # times what is between parameters and loss, that third derivatives keep of it
# Leverages of rows are found with this many random directions where there are more parameters than that: they decide what
# is drawn, and are weighed for, so that an estimate of them is as good in all but the noise it leaves.
_DIRECTIONS_OF_LEVERAGE, _MANY = 8, 200


class _Quadratic(NamedTuple):
    total: Array


class _Third(NamedTuple):
    total: Array


class _Scatter(NamedTuple):
    total: Array


class _Leverage(NamedTuple):
    """Rows drawn by leverage: H⁻¹, directions v with Σ v vᵀ ≈ H⁻¹ for many parameters, and the mean leverage (theory §13)."""

    inverse: Array
    directions: Array | None
    mean: float = 1.0

    @staticmethod
    def of(inverse: Array, full: int) -> _Leverage:
        """Exact for few parameters, of which a subspace has as many as are behind it."""
        dim = len(inverse)
        if full <= _MANY:
            return _Leverage(inverse, None)
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(_DIRECTIONS_OF_LEVERAGE, dim))
        root = np.linalg.cholesky(symmetric(inverse)).astype(np.float64)
        return _Leverage(inverse, signs @ root.T / np.sqrt(_DIRECTIONS_OF_LEVERAGE))

    def emphasis(self, leverage: Array) -> Array:
        """1/(N p_n)."""
        return emphasis(leverage, self.mean)


class _Cross(NamedTuple):
    total: Array


@dataclass(frozen=True)
class GeneralCurvature:
    """Exact Hessians of each block of rows, recomputed at every call: O(block · D²) memory."""

    problem: GeneralProblem
    theta: Array
    drawn: _Leverage | None = None
    _last: dict[bytes, BothSums] = field(default_factory=dict, repr=False, compare=False)

    @property
    def travels(self) -> bool:
        """Rows in memory stay where they are."""
        return False

    def quadratic(self, S: Array) -> Array:
        """mean J_n S J_n."""
        if not self.problem.source.in_memory:
            return symmetric(self._both(S).first.total) / self.problem.source.n
        with jax.enable_x64(True):
            return symmetric(self.problem.reduce(self._products(S), self._written).total) / self.problem.source.n

    def _products(self, S: Array) -> Callable[[Padded], _Quadratic]:
        def products(b: Padded) -> _Quadratic:
            J = np.asarray(self.problem.functions.hessians(self.theta, b.rows))[: b.size]
            left = J * self._shares(b, J)[:, None, None]
            return _Quadratic(np.einsum("nij,njk->ik", left @ S, J, optimize=True))

        return products

    def _bends(self, S: Array) -> Callable[[Padded], _Third]:
        values, vectors = np.linalg.eigh(symmetric(S))

        def bend(b: Padded) -> _Third:
            return _Third(np.array(self.problem.functions.bend_gradient(self.theta, b.rows, b.mask, values, vectors.T)))

        return bend

    def _both(self, S: Array) -> BothSums:
        """What `quadratic` and `third` sum up, from one reading of files; the last ones are kept."""
        key = S.tobytes()
        if key not in self._last:
            products, bends = self._products(S), self._bends(S)
            with jax.enable_x64(True):
                found = self.problem.reduce(lambda b: BothSums(products(b), bends(b)), max(self._written, self._bent))
            self._last.clear()
            self._last[key] = found
        return self._last[key]

    def scatter(self) -> Array:
        """mean g_n g_nᵀ."""

        def products(b: Padded) -> _Scatter:
            g = np.asarray(self.problem.functions.scores(self.theta, b.rows))[: b.size]
            return _Scatter((g * self._shares(b)[:, None]).T @ g)

        with jax.enable_x64(True):
            width = self.problem.functions.scored if self.drawn is None else self._width
            return symmetric(self.problem.reduce(products, width).total) / self.problem.source.n

    def leverages(self, inverse: Array) -> Array:
        """|tr(H⁻¹ J_n)| of every observation: exact, or with many parameters an estimate, the same at every call."""
        drawn, problem, found, longest = self._lottery(inverse), self.problem, [], 0
        with jax.enable_x64(True), fixed_order():
            for block in problem.source.blocks(self._width):
                longest = max(longest, block.height)
                b = problem.padded(block, longest)
                found.append(np.repeat(self._leverage(b, drawn), b.counts.astype(np.int64)))
        return np.concatenate(found)

    def leveraged(self, inverse: Array, hessian: Array) -> GeneralCurvature:
        """The same for rows drawn by leverage."""
        del hessian  # second derivatives of a general loss may be negative, so that J does not have the mean
        drawn = self._lottery(inverse)._replace(mean=float(self.leverages(inverse).mean()))
        return GeneralCurvature(self.problem, self.theta, drawn)

    def _lottery(self, inverse: Array) -> _Leverage:
        return _Leverage.of(inverse, self.problem.model.structure.full)

    @property
    def _width(self) -> int:
        """Numbers a leverage takes of each row."""
        few = self.problem.model.structure.full > _MANY
        return self.problem.model.structure.apart(_DIRECTIONS_OF_LEVERAGE) if few else self._written

    @property
    def _written(self) -> int:
        """Numbers that its Hessian takes."""
        return self.problem.functions.written

    @property
    def _bent(self) -> int:
        """Numbers that third derivatives along several directions take of it, where rows are added up."""
        return self.problem.model.structure.summed(DIRECTIONS) * _SEVERAL

    def _shares(self, b: Padded, J: Array | None = None) -> Array:
        """What each row of a block counts for: its observations, times 1/(N p_n) where they are drawn by leverage."""
        return b.counts if self.drawn is None else b.counts * self.drawn.emphasis(self._leverage(b, self.drawn, J))

    def _leverage(self, b: Padded, drawn: _Leverage, J: Array | None = None) -> Array:
        """Leverages of a block of rows, whose Hessians may be known."""
        functions = self.problem.functions
        if drawn.directions is not None:
            images = np.asarray(functions.products(self.theta, b.rows, drawn.directions))[: b.size]
            return np.abs(np.einsum("nkd,kd->n", images, drawn.directions))
        J = np.asarray(functions.hessians(self.theta, b.rows))[: b.size] if J is None else J
        return np.abs(np.einsum("nij,ij->n", J, drawn.inverse))

    def third(self, S: Array) -> Array:
        """∇³L[S], the regulariser's share included: the gradient of tr(∇²L S)."""
        with jax.enable_x64(True):
            if self.problem.source.in_memory:
                total = self.problem.reduce(self._bends(S), self._bent).total
            else:
                total = self._both(S).second.total
            values, vectors = np.linalg.eigh(symmetric(S))
            penalty = values @ self.problem.functions.penalty_bends(self.theta, vectors.T)
        return total / self.problem.source.n + penalty / self.problem.n

    def third_along(self, vectors: Array) -> Array:
        """∇³L[v, v, ·], the regulariser's share included."""
        functions = self.problem.functions

        def bends(b: Padded) -> _Third:
            return _Third(np.array(functions.bends(self.theta, b.rows, b.mask, vectors)))

        with jax.enable_x64(True):
            total = self.problem.reduce(bends, self._bent).total
            penalty = functions.penalty_bends(self.theta, vectors)
        return total / self.problem.source.n + penalty / self.problem.n

    def expansion(self, basis: Array) -> FullExpansion:
        """The derivatives of the rows, written out."""
        some = self.sampled(expanded_rows(self.problem.source.n, len(basis))).problem
        functions, parts, longest = some.functions, [], 0
        with jax.enable_x64(True):
            for block in some.source.blocks(some.model.structure.apart(basis.size)):
                longest = max(longest, block.height)
                b = some.padded(block, longest)
                of_rows = (functions.scores, functions.hessians, functions.thirds)
                g, J, T = (np.asarray(f(self.theta, b.rows))[: b.size] for f in of_rows)
                weights = (
                    np.ones(b.size) if self.drawn is None else self.drawn.emphasis(self._leverage(b, self.drawn, J))
                )
                parts.append((g @ basis, basis.T @ J @ basis, _turned(T, basis), weights, b.counts / some.source.n))
            prior = _turned(functions.penalty_third(self.theta), basis) / some.n
        g, J, T, weights, share = (np.concatenate(column) for column in zip(*parts, strict=True))
        return FullExpansion(g, J, T, weights, share, prior)

    def images(self, vectors: Array, root: Array, f: ImagePass[Sums]) -> Sums:
        """Σ f(Rᵀ J_n v)."""

        def made(b: Padded) -> Sums:
            found = np.asarray(self.problem.functions.products(self.theta, b.rows, vectors))[: b.size]
            weights = None if self.drawn is None else self.drawn.emphasis(self._leverage(b, self.drawn))
            return f(found.transpose(1, 0, 2) @ root, weights, b.counts)

        with jax.enable_x64(True):
            width = self.problem.model.structure.apart(len(vectors))
            return self.problem.reduce(made, width if self.drawn is None else max(width, self._width))

    def sampled(self, count: int) -> GeneralCurvature:
        """The same of so many rows at most."""
        return (
            self
            if count >= self.problem.source.n
            else GeneralCurvature(self.problem.subsample(count, seed=None), self.theta, self.drawn)
        )

    def representative(self, count: int, S: Array) -> GeneralCurvature:
        """All rows."""
        return self

    def cross(self, basis: Array) -> Array:
        """mean J_n r rᵀ g_n for every column r of a basis, by Hessian-vector products."""
        functions = self.problem.functions

        def against(b: Padded) -> _Cross:
            scores = np.asarray(functions.scores(self.theta, b.rows))[: b.size]
            images = np.asarray(functions.products(self.theta, b.rows, basis.T))[: b.size]
            return _Cross(np.einsum("nkd,nk->dk", images, b.counts[:, None] * (scores @ basis)))

        with jax.enable_x64(True):
            return (
                self.problem.reduce(against, self.problem.model.structure.apart(basis.shape[1])).total
                / self.problem.source.n
            )


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
    drawn: _Leverage | None = None

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

    def _products(self, S: Array) -> Iterator[_Quadratic]:
        for factors, weights, counts in self.parts():
            for rows in blocks(len(factors), factors[0].size):
                u, w = factors[rows], weights[rows]
                middle = np.einsum("nik,njk->nij", u @ S, u) * (w[:, :, None] * w[:, None, :])
                middle *= self._shares(u, w, counts[rows])[:, None, None]
                yield _Quadratic(np.einsum("nid,nie->de", u, middle @ u, optimize=True))

    def scatter(self) -> Array:
        """mean g_n g_nᵀ."""
        with jax.enable_x64(True), fixed_order():
            return symmetric(tree_sum(self._scatters()).total) / self.exact.problem.source.n

    def _scatters(self) -> Iterator[_Scatter]:
        problem, theta, longest = self.exact.problem, self.exact.theta, 0
        for block, (u, w, counts) in zip(problem.source.blocks(self._width), self.parts(), strict=True):
            longest = max(longest, block.height)
            padded = problem.padded(block, longest)
            g = np.asarray(problem.functions.scores(theta, padded.rows))[: padded.size]
            yield _Scatter((g * self._shares(u, w, counts)[:, None]).T @ g)

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
        return replace(self, drawn=_Leverage(inverse, None, float(self.leverages(inverse).mean())))

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


def _turned(T: Array, basis: Array) -> Array:
    """Third derivatives in θ = basis · z."""
    return np.einsum("...ijk,ia,jb,kc->...abc", T, basis, basis, basis, optimize=True)


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
