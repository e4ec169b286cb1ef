"""What one pass over the rows of a linear-predictor loss adds up (theory §1).

Each pass is a small frozen object that is called with a block of rows, so that it can travel to where the rows are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

import numpy as np

from equipoise.arrays import Array
from equipoise.data.arrays import Rows
from equipoise.data.source import Source
from equipoise.linalg import Sums, Total, times_lower
from equipoise.models.core import Chances, lots, standing
from equipoise.models.sums import counted, derivatives, forms, gram, gram_and_sum, weighted
from equipoise.theory.curvature import ImagePass, emphasis

if TYPE_CHECKING:
    from equipoise.models.glm import GLM

__all__ = [
    "AbsolutePass",
    "Beside",
    "Both",
    "BothSums",
    "CorePass",
    "CoreSums",
    "CrossPass",
    "CurvaturePass",
    "CurvatureSums",
    "DiagonalPass",
    "ImagesPass",
    "LeverageWeight",
    "Leveraging",
    "LossPass",
    "LossSums",
    "MomentPass",
    "MomentSums",
    "ProductPass",
    "ScatterPass",
    "ThirdPass",
    "side_by_side",
    "standing_rows",
]


class BothSums(NamedTuple):
    """The sums of two passes."""

    first: Any
    second: Any


@dataclass(frozen=True)
class Both:
    """Two passes in one reading."""

    one: Callable[[Rows], Any]
    other: Callable[[Rows], Any]

    def __call__(self, rows: Rows) -> BothSums:
        """The sums over one block."""
        return BothSums(self.one(rows), self.other(rows))


class Beside(NamedTuple):
    """A pass that is made in the same reading as another: over the same rows with marks beside them, in blocks so wide."""

    source: Source[Rows]
    f: Callable[[Rows], Any]
    width: int


class LossSums(NamedTuple):
    """Σ w ℓ, Σ w ℓ' x and Σ w ℓ'' x xᵀ over the observations; what was not asked for is empty."""

    value: float
    gradient: Array
    hessian: Array


@dataclass(frozen=True)
class LossPass:
    """The loss and its derivatives at θ, up to `order`."""

    model: GLM
    theta: Array
    order: int

    def __call__(self, rows: Rows) -> LossSums:
        """Sums over one block."""
        found = derivatives(self.model.loss, rows, self.theta, *range(self.order + 1))
        value, *rest = (counted(rows, terms) for terms in found)
        slope, bend = np.zeros(0), np.zeros(0)
        if self.order > 1:
            bend, slope = gram_and_sum(rows.x, rest[1], rest[0])
        elif self.order > 0:
            slope = rest[0] @ rows.x
        return LossSums(float(np.sum(value)), slope, bend)


class MomentSums(NamedTuple):
    """Σ g², Σ h of the rows' scalar derivatives, the sums that give ḡ, J and V, and Σ |h| x xᵀ where some h are negative."""

    square: float
    second: float
    score: Array
    hessian: Array
    scatter: Array
    absolute: Array


@dataclass(frozen=True)
class MomentPass:
    """Scores and Hessians at θ."""

    model: GLM
    theta: Array

    def __call__(self, rows: Rows) -> MomentSums:
        """Sums over one block."""
        g, h = derivatives(self.model.loss, rows, self.theta, 1, 2)
        score, bend = counted(rows, g), counted(rows, h)
        hessian, total = gram_and_sum(rows.x, bend, score)
        absolute = np.zeros(0) if self.model.divergence is None else gram(rows.x, np.abs(bend))
        return MomentSums(float(score @ g), float(np.sum(bend)), total, hessian, gram(rows.x, score * g), absolute)


@dataclass(frozen=True)
class Leveraging:
    """Rows drawn in proportion to their leverages l_n = |h_n| x_nᵀ H⁻¹ x_n, but for a share (theory §13).

    `root` is R with H⁻¹ = R Rᵀ, lower triangular; `mean` is the mean leverage of all observations.
    """

    root: Array
    mean: float

    def of(self, x: Array, h: Array) -> Array:
        """Leverages of rows with these second derivatives."""
        return np.abs(h) * forms(x, self.root, self.root)

    def emphasis(self, x: Array, h: Array) -> Array:
        """1/(N p_n)."""
        return emphasis(self.of(x, h), self.mean)


@dataclass(frozen=True)
class AbsolutePass:
    """Σ |h| x xᵀ: second derivatives at θ, without their signs."""

    model: GLM
    theta: Array

    def __call__(self, rows: Rows) -> Total:
        """The sum over one block."""
        (h,) = derivatives(self.model.loss, rows, self.theta, 2)
        return Total(gram(rows.x, np.abs(counted(rows, h))))


@dataclass(frozen=True)
class LeverageWeight:
    """N p_n of rows drawn by leverage around θ, to which their probabilities are proportional."""

    model: GLM
    theta: Array
    leverage: Leveraging

    def emphasis(self, rows: Rows) -> Array:
        """1/(N p_n) of the rows of a block."""
        (h,) = derivatives(self.model.loss, rows, self.theta, 2)
        return self.leverage.emphasis(rows.x, h)

    def __call__(self, rows: Rows) -> Array:
        """N p_n."""
        return 1.0 / self.emphasis(rows)

    @property
    def numbers(self) -> Array:
        """All that it depends on besides the loss."""
        return np.concatenate([self.theta, self.leverage.root.ravel(), [self.leverage.mean]])


@dataclass(frozen=True)
class ScatterPass:
    """Σ g² x xᵀ: scores at θ, of rows as they are drawn."""

    model: GLM
    theta: Array
    leverage: Leveraging | None

    def __call__(self, rows: Rows) -> Total:
        """The sum over one block."""
        g, h = derivatives(self.model.loss, rows, self.theta, 1, 2)
        square = g**2 if self.leverage is None else g**2 * self.leverage.emphasis(rows.x, h)
        return Total(gram(rows.x, counted(rows, square)))


class CurvatureSums(NamedTuple):
    """Σ h² (xᵀSx) x xᵀ for each rule by which rows are drawn, Σ t (xᵀSx) x, and Σ (h xᵀSx)⁴, which no rare row escapes.

    And rows that were kept, if they were asked for: see `CoreSums`.
    """

    quadratic: Array
    third: Array
    fourth: Array
    kept: tuple[Array, ...]


@dataclass(frozen=True)
class CurvaturePass:
    """Second and third derivatives at θ against a symmetric matrix S; one reading of the rows gives both.

    `rules` say how rows are drawn: by leverages, or None for all alike; `chances` for each of them, which are kept besides.
    """

    model: GLM
    theta: Array
    S: Array
    root: Array | None
    rules: tuple[Leveraging | None, ...]
    chances: tuple[Chances, ...] = ()

    def __call__(self, rows: Rows) -> CurvatureSums:
        """Sums over one block."""
        h, t = derivatives(self.model.loss, rows, self.theta, 2, 3)
        q = forms(rows.x, self.S, self.root)
        quadratic, fourth, third = [], [], np.zeros(0)
        squares = self._squares(rows, h, q)
        for square in squares:
            matrix, third = gram_and_sum(rows.x, counted(rows, square), counted(rows, q * t))
            quadratic.append(matrix)
            fourth.append(float(np.sum(counted(rows, (square * q) ** 2))))
        kept: tuple[Array, ...] = ()
        if self.chances:
            every = [chances.by_square(square * q) for chances, square in zip(self.chances, squares, strict=True)]
            kept = (_kept(rows, np.abs(h) * q, np.max(every, axis=0)),)
        return CurvatureSums(np.stack(quadratic), third, np.array(fourth), kept)

    def _squares(self, rows: Rows, h: Array, q: Array) -> list[Array]:
        """h² xᵀSx of every row, by each rule."""
        return [q * h**2 if rule is None else q * h**2 * rule.emphasis(rows.x, h) for rule in self.rules]

    def keeping(self, some: Source[Rows], n: int) -> CurvaturePass:
        """The same that keeps rows which stand for all n by each rule, by what some rows tell of their sizes."""
        sizes: list[list[Array]] = [[] for _ in self.rules]
        for rows in some.blocks():
            (h,), q = derivatives(self.model.loss, rows, self.theta, 2), forms(rows.x, self.S, self.root)
            for held, square in zip(sizes, self._squares(rows, h, q), strict=True):
                held.append(np.sqrt(square * q))
        return replace(self, chances=tuple(Chances.of(np.concatenate(held), n) for held in sizes))


class CoreSums(NamedTuple):
    """Rows that were kept: columns, response, weight, offset, observations in it and the chance it had, side by side."""

    kept: tuple[Array, ...]


@dataclass(frozen=True)
class CorePass:
    """Rows that together stand for all, by their v = (|h| + w·least) xᵀSx: where a loss hardly bends, it may after a step."""

    model: GLM
    theta: Array
    S: Array
    root: Array | None
    chances: Chances
    least: float = 0.0

    def __call__(self, rows: Rows) -> CoreSums:
        """Those of one block."""
        v = self.sizes(rows)
        return CoreSums((_kept(rows, v, self.chances(v)),))

    def sizes(self, rows: Rows) -> Array:
        """v of every row."""
        (h,) = derivatives(self.model.loss, rows, self.theta, 2)
        return (np.abs(h) + weighted(rows, np.full(len(h), self.least))) * forms(rows.x, self.S, self.root)


def _kept(rows: Rows, v: Array, chance: Array) -> Array:
    """Rows of a block that their sizes and chances choose."""
    index = np.flatnonzero(lots(v) < chance)
    return side_by_side(rows.take(index), chance[index])


def side_by_side(some: Rows, chance: Array) -> Array:
    """Rows with the chances they had, as `CoreSums` have them."""
    one = np.ones(some.height)
    weights = one if some.weights is None else some.weights
    offset = 0.0 * one if some.offset is None else some.offset
    return np.column_stack([some.x, some.y, weights, offset, some.counts, chance])


def standing_rows(kept: tuple[Array, ...], like: Source[Rows]) -> Rows:
    """Rows that were kept as if they were all: such as were kept by chance share the observations that the others leave."""
    *x, y, weights, offset, counts, chance = np.concatenate(kept).T
    times = standing(counts, chance, like.n)
    return Rows(np.stack(x, axis=1), y, weights, offset, like.names, frequency=times)


@dataclass(frozen=True)
class ThirdPass:
    """Σ t (xᵀv)² x: third derivatives at θ along some vectors v."""

    model: GLM
    theta: Array
    vectors: Array

    def __call__(self, rows: Rows) -> Total:
        """Sums over one block."""
        t = counted(rows, *derivatives(self.model.loss, rows, self.theta, 3))
        return Total((t * (self.vectors @ rows.x.T) ** 2) @ rows.x)


@dataclass(frozen=True)
class ImagesPass(Generic[Sums]):
    """Sums of what the rows' Hessians at θ make of some vectors: Rᵀ J_n v = h_n (x_nᵀv) Rᵀx_n, R lower triangular."""

    model: GLM
    theta: Array
    vectors: Array
    root: Array
    leverage: Leveraging | None
    f: ImagePass[Sums]

    def __call__(self, rows: Rows) -> Sums:
        """Sums over one block."""
        (h,) = derivatives(self.model.loss, rows, self.theta, 2)
        emphasis = None if self.leverage is None else self.leverage.emphasis(rows.x, h)
        return self.f.rank_one(h * (self.vectors @ rows.x.T), times_lower(rows.x, self.root), emphasis, rows.counts)


@dataclass(frozen=True)
class CrossPass:
    """Σ h g (xᵀr)² x for every column r of a basis, as columns: first times second derivatives at θ."""

    model: GLM
    theta: Array
    basis: Array

    def __call__(self, rows: Rows) -> Total:
        """The sum over one block."""
        g, h = derivatives(self.model.loss, rows, self.theta, 1, 2)
        square = (rows.x @ self.basis) ** 2
        square *= counted(rows, g * h)[:, None]
        return Total(rows.x.T @ square)


@dataclass(frozen=True)
class ProductPass:
    """Σ w ℓ'' (xᵀv) x at θ."""

    model: GLM
    theta: Array
    vector: Array

    def __call__(self, rows: Rows) -> Total:
        """Sums over one block."""
        return Total((_bend(self.model, self.theta, rows) * (rows.x @ self.vector)) @ rows.x)


@dataclass(frozen=True)
class DiagonalPass:
    """Σ w ℓ'' x² at θ."""

    model: GLM
    theta: Array

    def __call__(self, rows: Rows) -> Total:
        """Sums over one block."""
        return Total(_bend(self.model, self.theta, rows) @ rows.x**2)


def _bend(model: GLM, theta: Array, rows: Rows) -> Array:
    return counted(rows, *derivatives(model.loss, rows, theta, 2))
