"""What one pass over the rows of a linear-predictor loss adds up (theory §1).

Each pass is a small frozen object that is called with a block of rows, so that it can travel to where the rows are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

import numpy as np

from equipoise.arrays import Array
from equipoise.data.arrays import Rows
from equipoise.data.source import Source
from equipoise.linalg import Sums, form_times, quadratic_forms, scaled_gram, symmetric, times_lower, weighted_gram
from equipoise.theory.curvature import ImagePass, emphasis

if TYPE_CHECKING:
    from equipoise.models.glm import GLM

__all__ = [
    "Beside",
    "Both",
    "BothSums",
    "BoundPass",
    "BoundSums",
    "CrossPass",
    "CrossSums",
    "CurvaturePass",
    "CurvatureSums",
    "ImagesPass",
    "LeveragePass",
    "LeverageSums",
    "LeverageWeight",
    "Leveraging",
    "LossPass",
    "LossSums",
    "MiddlePass",
    "MiddleSums",
    "MomentPass",
    "MomentSums",
    "ResidualPass",
    "ResidualSums",
    "ScatterPass",
    "ScatterSums",
    "ThirdPass",
    "ThirdSums",
    "counted",
    "predictor",
    "weighted",
]

_SLACK = 1e-12  # relative rounding of a sum of many weights


def predictor(rows: Rows, theta: Array) -> Array:
    """η = X θ + offset."""
    eta = rows.x @ theta
    return eta if rows.offset is None else eta + rows.offset


def weighted(rows: Rows, terms: Array) -> Array:
    """Terms of each row times its weight: what an observation's loss is multiplied by, its derivatives with it."""
    return terms if rows.weights is None else terms * rows.weights


def counted(rows: Rows, terms: Array) -> Array:
    """Terms of each row times its frequency: of a sum over observations, the last factor."""
    return terms if rows.frequency is None else terms * rows.frequency


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
        loss, eta = self.model.loss, predictor(rows, self.theta)
        p, nothing = loss.constants, np.zeros(0)

        def total(terms: Array) -> Array:
            return counted(rows, weighted(rows, terms))

        return LossSums(
            float(np.sum(total(loss.value(eta, rows.y, p)))),
            total(loss.d1(eta, rows.y, p)) @ rows.x if self.order > 0 else nothing,
            weighted_gram(rows.x, total(loss.d2(eta, rows.y, p))) if self.order > 1 else nothing.copy(),
        )


class MomentSums(NamedTuple):
    """Σ g, Σ g², Σ h of the rows' scalar derivatives, and the sums that give ḡ, J and V."""

    square: float
    second: float
    score: Array
    hessian: Array
    scatter: Array


@dataclass(frozen=True)
class MomentPass:
    """Scores and Hessians at θ."""

    model: GLM
    theta: Array

    def __call__(self, rows: Rows) -> MomentSums:
        """Sums over one block."""
        loss, eta = self.model.loss, predictor(rows, self.theta)
        g, h = (weighted(rows, d(eta, rows.y, loss.constants)) for d in (loss.d1, loss.d2))
        score, hessian = counted(rows, g), counted(rows, h)
        root = g if rows.frequency is None else g * np.sqrt(rows.frequency)
        return MomentSums(
            float(score @ g), float(np.sum(hessian)), score @ rows.x, weighted_gram(rows.x, hessian),
            scaled_gram(rows.x, root),
        )  # fmt: skip


@dataclass(frozen=True)
class Leveraging:
    """Rows drawn in proportion to their leverages l_n = |h_n| x_nᵀ H⁻¹ x_n, but for a share (theory §13).

    Attributes
    ----------
    root
        R with H⁻¹ = R Rᵀ, lower triangular.
    mean
        The mean leverage of all observations.
    """

    root: Array
    mean: float

    def of(self, x: Array, h: Array) -> Array:
        """Leverages of rows with these second derivatives."""
        return np.abs(h) * quadratic_forms(x, self.root, self.root)

    def emphasis(self, x: Array, h: Array) -> Array:
        """1/(N p_n)."""
        return emphasis(self.of(x, h), self.mean)


class LeverageSums(NamedTuple):
    """Σ l."""

    leverage: float


@dataclass(frozen=True)
class LeveragePass:
    """Leverages at θ."""

    model: GLM
    theta: Array
    root: Array

    def __call__(self, rows: Rows) -> LeverageSums:
        """The sum over one block."""
        loss, eta = self.model.loss, predictor(rows, self.theta)
        h = weighted(rows, loss.d2(eta, rows.y, loss.constants))
        return LeverageSums(float(np.sum(counted(rows, Leveraging(self.root, 1.0).of(rows.x, h)))))


@dataclass(frozen=True)
class LeverageWeight:
    """N p_n of rows drawn by leverage around θ, to which their probabilities are proportional."""

    model: GLM
    theta: Array
    leverage: Leveraging

    def emphasis(self, rows: Rows) -> Array:
        """1/(N p_n) of the rows of a block."""
        loss = self.model.loss
        h = weighted(rows, loss.d2(predictor(rows, self.theta), rows.y, loss.constants))
        return self.leverage.emphasis(rows.x, h)

    def __call__(self, rows: Rows) -> Array:
        """N p_n."""
        return 1.0 / self.emphasis(rows)

    @property
    def numbers(self) -> Array:
        """All that it depends on besides the loss."""
        return np.concatenate([self.theta, self.leverage.root.ravel(), [self.leverage.mean]])


class ScatterSums(NamedTuple):
    """Σ g² x xᵀ."""

    scatter: Array


@dataclass(frozen=True)
class ScatterPass:
    """Scores at θ, of rows as they are drawn."""

    model: GLM
    theta: Array
    leverage: Leveraging | None

    def __call__(self, rows: Rows) -> ScatterSums:
        """The sum over one block."""
        loss, eta = self.model.loss, predictor(rows, self.theta)
        g, h = (weighted(rows, d(eta, rows.y, loss.constants)) for d in (loss.d1, loss.d2))
        square = g**2 if self.leverage is None else g**2 * self.leverage.emphasis(rows.x, h)
        return ScatterSums(weighted_gram(rows.x, counted(rows, square)))


class CurvatureSums(NamedTuple):
    """Σ h² (xᵀSx) x xᵀ, Σ t (xᵀSx) x, and Σ (h xᵀSx)⁴, which no rare row escapes."""

    quadratic: Array
    third: Array
    fourth: float


@dataclass(frozen=True)
class CurvaturePass:
    """Second and third derivatives at θ against a symmetric matrix S; one reading of the rows gives both."""

    model: GLM
    theta: Array
    S: Array
    root: Array | None
    leverage: Leveraging | None

    @staticmethod
    def at(model: GLM, theta: Array, S: Array, leverage: Leveraging | None = None) -> CurvaturePass:
        """The pass for S; with a Cholesky root, where there is one, no form is negative by rounding."""
        S = symmetric(S)
        try:
            root = np.linalg.cholesky(S).astype(np.float64)
        except np.linalg.LinAlgError:
            root = None
        return CurvaturePass(model, theta, S, root, leverage)

    def __call__(self, rows: Rows) -> CurvatureSums:
        """Sums over one block."""
        loss, eta = self.model.loss, predictor(rows, self.theta)
        h, t = (weighted(rows, d(eta, rows.y, loss.constants)) for d in (loss.d2, loss.d3))
        q = quadratic_forms(rows.x, self.S, self.root)
        square = q * h**2 if self.leverage is None else q * h**2 * self.leverage.emphasis(rows.x, h)
        return CurvatureSums(
            weighted_gram(rows.x, counted(rows, square)),
            counted(rows, q * t) @ rows.x,
            float(np.sum(counted(rows, (square * q) ** 2))),
        )


class ThirdSums(NamedTuple):
    """Σ t (xᵀv)² x for some vectors v."""

    third: Array


@dataclass(frozen=True)
class ThirdPass:
    """Third derivatives at θ along some vectors."""

    model: GLM
    theta: Array
    vectors: Array

    def __call__(self, rows: Rows) -> ThirdSums:
        """Sums over one block."""
        loss, eta = self.model.loss, predictor(rows, self.theta)
        t = counted(rows, weighted(rows, loss.d3(eta, rows.y, loss.constants)))
        return ThirdSums((t * (self.vectors @ rows.x.T) ** 2) @ rows.x)


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
        loss, eta = self.model.loss, predictor(rows, self.theta)
        h = weighted(rows, loss.d2(eta, rows.y, loss.constants))
        emphasis = None if self.leverage is None else self.leverage.emphasis(rows.x, h)
        return self.f.rank_one(h * (self.vectors @ rows.x.T), times_lower(rows.x, self.root), emphasis, rows.counts)


class CrossSums(NamedTuple):
    """Σ h g (xᵀr)² x for every column r of a basis, as columns."""

    cross: Array


@dataclass(frozen=True)
class CrossPass:
    """First times second derivatives at θ, against a basis."""

    model: GLM
    theta: Array
    basis: Array

    def __call__(self, rows: Rows) -> CrossSums:
        """The sum over one block."""
        loss, eta = self.model.loss, predictor(rows, self.theta)
        g, h = (weighted(rows, d(eta, rows.y, loss.constants)) for d in (loss.d1, loss.d2))
        square = (rows.x @ self.basis) ** 2
        square *= counted(rows, g * h)[:, None]
        return CrossSums(rows.x.T @ square)


class ResidualSums(NamedTuple):
    """Σ w r²."""

    square: float


@dataclass(frozen=True)
class ResidualPass:
    """Squared residuals at θ."""

    theta: Array

    def __call__(self, rows: Rows) -> ResidualSums:
        """The sum over one block."""
        square = weighted(rows, (rows.y - predictor(rows, self.theta)) ** 2)
        return ResidualSums(float(np.sum(counted(rows, square))))


class MiddleSums(NamedTuple):
    """The weight of all rows and of those below some values, and what lies between: |r| and its weight, by blocks."""

    total: float
    below: float
    between: tuple[Array, ...]

    def around(self, share: float) -> tuple[float, float]:
        """Values that leave this much more and less than half of the weight below; all must lie between."""
        values, upto = self._sorted()
        ends = np.searchsorted(upto, np.clip([0.5 - share, 0.5 + share], 0.0, 1.0) * upto[-1])
        low, high = values[np.minimum(ends, values.size - 1)]
        return float(low), float(high)

    def median(self) -> float | None:
        """The median of |r|; None if it does not lie between."""
        values, upto = self._sorted()
        # where the counts reach exactly half, two values share the middle, and rounding must not choose between them
        half = 0.5 * self.total
        if not self.below < half * (1.0 - _SLACK) or not upto.size or not half * (1.0 + _SLACK) < upto[-1]:
            return None
        first = np.searchsorted(upto, half * (1.0 - _SLACK), side="left")
        last = np.searchsorted(upto, half * (1.0 + _SLACK), side="right")
        return float(0.5 * (values[first] + values[last]))

    def _sorted(self) -> tuple[Array, Array]:
        """The values between, ascending, and the weight up to each."""
        values, weight = np.concatenate(self.between, axis=1)
        order = np.argsort(values, kind="stable")
        return values[order], self.below + np.cumsum(weight[order])


@dataclass(frozen=True)
class MiddlePass:
    """Residuals at θ whose size is from `low` to `high`."""

    theta: Array
    low: float
    high: float

    def __call__(self, rows: Rows) -> MiddleSums:
        """Of one block."""
        size, weight = np.abs(rows.y - predictor(rows, self.theta)), weighted(rows, rows.counts)
        near = (size >= self.low) & (size <= self.high)
        between = np.stack([size[near], weight[near]])
        return MiddleSums(float(weight.sum()), float(weight[size < self.low].sum()), (between,))


class BoundSums(NamedTuple):
    """Sums behind the constants of the Wasserstein bounds; `bent` counts the rows that are not convex."""

    bent: float
    third: float
    third_square: float
    score_fourth: float
    hessian: Array
    lowest: Array


@dataclass(frozen=True)
class BoundPass:
    """Derivatives' ranges over a ball around θ, or over the whole line where the family bounds them (theory §8)."""

    model: GLM
    theta: Array
    prior: Array
    mean: Array
    radius: float | None

    def ranges(self, rows: Rows) -> tuple[Array, Array, Array]:
        """Smallest and largest second, and largest third derivative of each row's loss.

        On the ball of the given radius around θ a predictor moves by at most radius · ‖x_n‖; the derivatives of every
        family are monotone or have one peak, so that the ends of that interval, with a global bound where the family
        has one, are extreme. Without a radius: global where the family allows it, else at θ.
        """
        loss, family, y = self.model.loss, self.model.family, rows.y
        eta, p = predictor(rows, self.theta), loss.constants
        reach = (self.radius or 0.0) * np.linalg.norm(rows.x, axis=1)
        with np.errstate(over="ignore"):
            second = np.stack([loss.d2(eta + sign * reach, y, p) for sign in (-1.0, 1.0)])
            third = np.stack([np.abs(loss.d3(eta + sign * reach, y, p)) for sign in (-1.0, 1.0)])
        low, high, steep = second.min(axis=0), second.max(axis=0), third.max(axis=0)
        if family.second_bound is not None and family.third_bound is not None:
            high, steep = family.second_bound(y, p), family.third_bound(y, p)
        return weighted(rows, low), weighted(rows, high), weighted(rows, steep)

    def largest(self, rows: Rows) -> float:
        """max of L_n over one block, the prior's share apart."""
        return float(np.max(self.ranges(rows)[1] * np.sum(rows.x**2, axis=1)))

    def __call__(self, rows: Rows) -> BoundSums:
        """Sums over one block."""
        loss, eta = self.model.loss, predictor(rows, self.theta)
        low, _, steep = self.ranges(rows)
        scores = weighted(rows, loss.d1(eta, rows.y, loss.constants))[:, None] * rows.x
        scores = scores + form_times(self.prior, self.theta - self.mean)
        third = steep * np.linalg.norm(rows.x, axis=1) ** 3
        return BoundSums(
            float(np.sum(low < 0.0)),
            float(np.sum(counted(rows, third))),
            float(np.sum(counted(rows, third**2))),
            float(np.sum(counted(rows, np.sum(scores**2, axis=1) ** 2))),
            weighted_gram(rows.x, counted(rows, weighted(rows, loss.d2(eta, rows.y, loss.constants)))),
            weighted_gram(rows.x, counted(rows, low)),
        )
