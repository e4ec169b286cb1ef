"""Second and third derivatives of a generalised linear model, averaged over its rows against matrices and vectors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from equipoise.arrays import Array
from equipoise.data.arrays import Rows
from equipoise.files import available_memory
from equipoise.linalg import Sums, symmetric
from equipoise.models.passes import (
    CrossPass,
    CurvaturePass,
    CurvatureSums,
    ImagesPass,
    Leveraging,
    ScatterPass,
    ThirdPass,
)
from equipoise.models.rowwise import StackedSums
from equipoise.models.sums import derivatives
from equipoise.theory.curvature import ImagePass
from equipoise.theory.expansion import RankOneExpansion, expanded_rows

if TYPE_CHECKING:
    from equipoise.models.linear import LinearProblem

__all__ = ["LinearCurvature"]

_TURNED = 512  # columns from which on rows are brought into other coordinates
_ROWS_TURNED = 20  # rows a column up to which they are
_ROWS_PAIRED = 6  # rows a column up to which all pairs of rows cost less than many passes over them
_SHARE = 0.25  # of the memory at hand that their copy may take
_ALIKE = 0.1  # by how much the mean (h xᵀSx)⁴ of a sample may differ from that of all rows


@dataclass(frozen=True)
class LinearCurvature:
    """Curvature of a linear-predictor loss: J_n = h_n x_n x_nᵀ, third derivative t_n x_n ⊗ x_n ⊗ x_n.

    One pass gives both averages against a matrix, and the last ones are kept: a law asks for one after the other. `stacked`
    are sums that the pass of the moments made besides.
    """

    problem: LinearProblem
    theta: Array
    leverage: Leveraging | None = None
    stacked: StackedSums | None = None
    _last: dict[bytes, CurvatureSums] = field(default_factory=dict, repr=False, compare=False)

    @property
    def travels(self) -> bool:
        """Rows in memory stay where they are."""
        return False

    def quadratic(self, S: Array) -> Array:
        """mean h_n² (x_nᵀ S x_n) x_n x_nᵀ."""
        return symmetric(self._sums(S).quadratic) / self.problem.source.n

    def third(self, S: Array) -> Array:
        """mean t_n (x_nᵀ S x_n) x_n."""
        return self._sums(S).third / self.problem.source.n

    def third_along(self, vectors: Array) -> Array:
        """mean t_n (x_nᵀv)² x_n."""
        sums = self.problem.source.reduce(ThirdPass(self.problem.model, self.theta, vectors), vectors.size)
        return sums.third / self.problem.source.n

    def expansion(self, basis: Array) -> RankOneExpansion:
        """The rows' columns in θ = basis · z, and their scalar derivatives."""
        some = self.sampled(expanded_rows(self.problem.source.n, len(basis), written_out=False)).problem.source
        loss, parts = self.problem.model.loss, []
        for rows in some.blocks():
            g, h, t = derivatives(loss, rows, self.theta, 1, 2, 3)
            emphasis = np.ones_like(h) if self.leverage is None else self.leverage.emphasis(rows.x, h)
            parts.append((rows.x @ basis, g, h, t, emphasis, rows.counts / some.n))
        return RankOneExpansion(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def images(self, vectors: Array, root: Array, f: ImagePass[Sums]) -> Sums:
        """Σ f(h_n (x_nᵀv) Rᵀx_n)."""
        part = ImagesPass(self.problem.model, self.theta, vectors, root, self.leverage, f)
        return self.problem.source.reduce(part)

    def sampled(self, count: int) -> LinearCurvature:
        """The same of so many rows at most."""
        source = self.problem.source
        if count >= source.n and source.in_memory:
            return self
        return LinearCurvature(self.problem.subsample(min(count, source.n), seed=None), self.theta, self.leverage)

    def representative(self, count: int, S: Array) -> LinearCurvature:
        """The same of so many rows, where they have the mean (h_n x_nᵀSx_n)⁴ of all: then no other stands out."""
        some = self.sampled(count)
        whole, part = (c._sums(S).fourth / c.problem.source.n for c in (self, some))
        return some if abs(part - whole) <= _ALIKE * whole else self

    def scatter(self) -> Array:
        """mean g_n² x_n x_nᵀ."""
        sums = self.problem.source.reduce(ScatterPass(self.problem.model, self.theta, self.leverage))
        return symmetric(sums.scatter) / self.problem.source.n

    def cross(self, basis: Array) -> Array:
        """mean g_n h_n (x_nᵀ r)² x_n for every column r of a basis."""
        sums = self.problem.source.reduce(CrossPass(self.problem.model, self.theta, basis))
        return sums.cross / self.problem.source.n

    def leveraged(self, inverse: Array, hessian: Array) -> LinearCurvature:
        """The same for rows drawn by leverage."""
        leverage = self.problem.leveraging(self.theta, inverse, hessian)
        return LinearCurvature(self.problem, self.theta, leverage)

    def turned(self, basis: Array, dual: Array) -> LinearCurvature | None:
        """The same in z, θ = basis · z: of many columns in memory, and not too many rows, which are copied."""
        source, dim = self.problem.source, self.theta.size
        if self.leverage is not None or dim < _TURNED or source.n > _ROWS_TURNED * dim or not isinstance(source, Rows):
            return None
        if 8.0 * source.x.size > _SHARE * available_memory():
            return None
        rows = replace(source, x=source.x @ basis)
        return LinearCurvature(replace(self.problem, source=rows), dual @ self.theta)

    def factors(self, basis: Array) -> Array | None:
        """√(|h_n| √(e_n c_n / N)) Rᵀ x_n, c_n the row's frequency and e_n its emphasis; of few rows in memory."""
        rows = self.problem.source
        if not isinstance(rows, Rows) or len(rows.y) > _ROWS_PAIRED * self.theta.size:
            return None
        # two matrices of all pairs, what is made of them, and the rows themselves
        if 8.0 * (4.0 * len(rows.y) ** 2 + 2.0 * rows.x.size) > _SHARE * available_memory():
            return None
        (h,) = derivatives(self.problem.model.loss, rows, self.theta, 2)
        share = rows.counts / rows.n
        if self.leverage is not None:
            share = share * self.leverage.emphasis(rows.x, h)
        return np.sqrt(np.abs(h) * np.sqrt(share))[:, None] * (rows.x @ basis)

    def _sums(self, S: Array) -> CurvatureSums:
        key = S.tobytes()
        if key not in self._last:
            sums = self.problem.source.reduce(CurvaturePass.at(self.problem.model, self.theta, S, self.leverage))
            self._last.clear()
            self._last[key] = sums
        return self._last[key]
