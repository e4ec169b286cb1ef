"""Per-observation curvature: the operator behind K, and the same for anyone's own numbers (theory §1, §13)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from equipoise.arrays import Array
from equipoise.linalg import Sums, blocks, symmetric, tree_sum
from equipoise.theory.expansion import Expansion, FullExpansion, expanded_rows

__all__ = ["Curvature", "DenseCurvature", "Foreseeing", "ImagePass", "RankOne", "Turnable", "emphasis"]


SumsOut = TypeVar("SumsOut", bound=tuple[object, ...], covariant=True)


class ImagePass(Protocol[SumsOut]):
    """Sums over a block of rows, given what their Hessians make of some vectors.

    `emphasis` is 1/(N p_n) of rows drawn by leverage, None for rows drawn alike; `counts` how often each row counts.
    """

    def __call__(self, images: Array, emphasis: Array | None, counts: Array) -> SumsOut:
        """Of any rows; images (m, rows, D)."""
        ...

    def rank_one(self, scale: Array, x: Array, emphasis: Array | None, counts: Array) -> SumsOut:
        """Of rows whose images are multiples scale (m, rows) of x (rows, D)."""
        ...


class Curvature(Protocol):
    """Per-observation curvature, met only through its averages against a symmetric matrix."""

    @property
    def travels(self) -> bool:
        """Whether it is pickled along: it then holds no rows, but knows where they are."""
        ...

    def quadratic(self, S: Array) -> Array:
        """mean J_n S J_n."""
        ...

    def third(self, S: Array) -> Array:
        """∇³L[S] = mean over n of ∇ tr(∇²ℓ_n S)."""
        ...

    def third_along(self, vectors: Array) -> Array:
        """∇³L[v, v, ·] for each of some vectors v (m, D)."""
        ...

    def expansion(self, basis: Array) -> Expansion:
        """The derivatives of the rows, or of a sample of them, in θ = basis · z."""
        ...

    def images(self, vectors: Array, root: Array, f: ImagePass[Sums]) -> Sums:
        """Σ over rows of f of Rᵀ J_n v, for each of some vectors v (m, D) and a lower triangular R."""
        ...

    def sampled(self, count: int) -> Curvature:
        """The same of so many rows at most."""
        ...

    def representative(self, count: int, S: Array) -> Curvature:
        """The same of so many rows, where it is known that none of the others stands out by tr(J_n S); else of all."""
        ...

    def scatter(self) -> Array:
        """mean g_n g_nᵀ."""
        ...

    def cross(self, basis: Array) -> Array:
        """mean J_n r rᵀ g_n for every column r of a basis, as columns."""
        ...

    def leveraged(self, inverse: Array, hessian: Array) -> Curvature:
        """The same for rows drawn by leverage, given H⁻¹ and J: second moments are over N p_n (theory §13)."""
        ...


@runtime_checkable
class Turnable(Protocol):
    """Curvature that can be had in other coordinates: a law then asks for it without products of matrices."""

    def turned(self, basis: Array, dual: Array) -> Curvature | None:
        """The same in z, θ = basis · z and z = dual · θ; None where that would cost more than it saves."""
        ...


@runtime_checkable
class Foreseeing(Protocol):
    """Curvature that takes a pass over the rows for every question, or one for several if it knows what is to come."""

    def expecting(self, S: Array | None) -> None:
        """Averages against S will be asked for next; against many matrices, if it is None."""
        ...


@runtime_checkable
class RankOne(Protocol):
    """Curvature J_n that is a multiple of x_n x_nᵀ."""

    def factors(self, basis: Array) -> Array | None:
        """Vectors y_n (N, D) with mean Rᵀ J_n R S Rᵀ J_n R = Σ (y_nᵀ S y_n) y_n y_nᵀ; None where there are too many rows."""
        ...


_UNIFORM = 0.1  # share of leverage sampling that draws all rows alike, so that no weight exceeds its inverse


def emphasis(leverage: Array, mean: float) -> Array:
    """1/(N p_n) of rows drawn with p_n = 0.1/N + 0.9 l_n/Σl (theory §13)."""
    if mean <= 0.0:
        return np.ones_like(leverage)
    return 1.0 / (_UNIFORM + (1.0 - _UNIFORM) / mean * leverage)


@dataclass(frozen=True)
class DenseCurvature:
    """Curvature from explicit per-observation Hessians (N, D, D), for anyone's own numbers and for tests."""

    hessians: Array
    scores: Array
    thirds: Array | None = None
    emphasis: Array | None = None

    @property
    def travels(self) -> bool:
        """One matrix per observation stays where it is."""
        return False

    def quadratic(self, S: Array) -> Array:
        """mean J_n S J_n."""
        n, dim, _ = self.hessians.shape
        total = np.zeros((dim, dim))
        for rows in blocks(n, dim * dim):
            J = self.hessians[rows]
            left = J if self.emphasis is None else J * self.emphasis[rows, None, None]
            total += np.einsum("nij,njk->ik", left @ S, J, optimize=True)
        return symmetric(total) / n

    def third_along(self, vectors: Array) -> Array:
        """∇³L[v, v, ·]; unknown (NaN) when no third derivatives were given."""
        if self.thirds is None:
            return np.full_like(vectors, np.nan)
        return np.einsum("ijk,mj,mk->mi", self.thirds, vectors, vectors, optimize=True)

    def expansion(self, basis: Array) -> FullExpansion:
        """The rows, each with the mean third derivative: their own are not known."""
        n, dim, _ = self.hessians.shape
        if self.thirds is None:
            raise ValueError("third derivatives are unknown")
        some = self.sampled(expanded_rows(n, dim))
        rows = len(some.hessians)
        thirds = np.einsum("ijk,ia,jb,kc->abc", self.thirds, basis, basis, basis, optimize=True)
        return FullExpansion(
            g=some.scores @ basis,
            J=basis.T @ some.hessians @ basis,
            T=np.broadcast_to(thirds, (rows, dim, dim, dim)),
            emphasis=np.ones(rows) if some.emphasis is None else some.emphasis,
            share=np.full(rows, 1.0 / rows),
            prior=np.zeros((dim, dim, dim)),
        )

    def images(self, vectors: Array, root: Array, f: ImagePass[Sums]) -> Sums:
        """Σ f(Rᵀ J_n v)."""
        n, dim, _ = self.hessians.shape

        def made(rows: slice) -> Sums:
            images = np.einsum("nij,mj->mni", self.hessians[rows], vectors, optimize=True) @ root
            return f(images, None if self.emphasis is None else self.emphasis[rows], np.ones(images.shape[1]))

        return tree_sum(map(made, blocks(n, dim * max(dim, len(vectors)))))

    def sampled(self, count: int) -> DenseCurvature:
        """The same of so many rows at most."""
        n = len(self.hessians)
        rows = np.sort(np.random.default_rng(0).choice(n, size=min(n, count), replace=False))
        emphasis = None if self.emphasis is None else self.emphasis[rows]
        return replace(self, hessians=self.hessians[rows], scores=self.scores[rows], emphasis=emphasis)

    def representative(self, count: int, S: Array) -> DenseCurvature:
        """All rows."""
        return self

    def scatter(self) -> Array:
        """mean g_n g_nᵀ."""
        left = self.scores if self.emphasis is None else self.scores * self.emphasis[:, None]
        return symmetric(left.T @ self.scores) / len(left)

    def cross(self, basis: Array) -> Array:
        """mean J_n r rᵀ g_n for every column r of a basis."""
        n, dim, _ = self.hessians.shape
        total = np.zeros_like(basis)
        for rows in blocks(n, dim * basis.shape[1]):
            total += np.einsum("ndk,nk->dk", self.hessians[rows] @ basis, self.scores[rows] @ basis)
        return total / n

    def leveraged(self, inverse: Array, hessian: Array) -> DenseCurvature:
        """The same for rows drawn by leverage."""
        leverage = np.abs(np.einsum("nij,ji->n", self.hessians, inverse))
        return replace(self, emphasis=emphasis(leverage, float(leverage.mean())))

    def third(self, S: Array) -> Array:
        """∇³L[S]; unknown (NaN) when no third derivatives were given."""
        if self.thirds is None:
            return np.full(S.shape[0], np.nan)
        return np.einsum("ijk,jk->i", self.thirds, S)
