"""Scores, curvatures and leverages of single rows of a generalised linear model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from equipoise.arrays import Array, Index
from equipoise.data.arrays import Rows
from equipoise.errors import InvalidInput
from equipoise.models.problem import Block, Rowwise
from equipoise.models.profile import ConstantTerms, constant_terms
from equipoise.models.sums import added_by_group, counted, derivatives, gram, predictor, weighted

if TYPE_CHECKING:
    from equipoise.models.glm import GLM

__all__ = ["Information", "InformationPass", "LinearRowwise", "StackedPass", "StackedSums", "require_below_one"]

_CANONICAL = {"gaussian", "bernoulli", "poisson"}  # with their usual links
_ONE = 1.0 - 1e-9  # leverage beyond which a row is fitted by columns of its own


@dataclass(frozen=True)
class LinearRowwise:
    """g_n = w ℓ' x_n and J_n = w ℓ'' x_n x_nᵀ of a model with settled constants.

    Where a shape or dispersion c was estimated it is `free`, and scores have a last column u_n = w ∂ℓ_n/∂(log c).
    """

    model: GLM
    theta: Array
    free: bool = False

    def scores(self, rows: Rows) -> Array:
        """Gradient of each row's loss."""
        (slope,) = derivatives(self.model.loss, rows, self.theta, 1)
        found = slope[:, None] * rows.x
        return np.column_stack([found, weighted(rows, self.terms(rows).score)]) if self.free else found

    def terms(self, rows: Rows) -> ConstantTerms:
        """What each row says of the constant, weights left out."""
        assert self.model.constant is not None
        return constant_terms(self.model.family.name, self.model.constant, rows, self.theta)

    def grouped(self, rows: Rows, which: Index, groups: int) -> Array:
        """Observations of each group of rows, and the sum of their scores without that of a free constant."""
        (slope,) = derivatives(self.model.loss, rows, self.theta, 1)
        return added_by_group(rows.x, counted(rows, slope), rows.counts, which, groups)

    def counts(self, rows: Rows) -> Array:
        """How many observations each row stands for."""
        return rows.counts

    def curvatures(self, rows: Rows) -> Array:
        """Hessian of each row's loss."""
        (bend,) = derivatives(self.model.loss, rows, self.theta, 2)
        half = bend[:, None] * rows.x
        return half[:, :, None] * rows.x[:, None, :]

    @property
    def observed(self) -> bool:
        """Whether ℓ'' is free of the response, so that it is its own mean; of a robust loss it is taken as it is."""
        return self.model.divergence is not None or self.model.family.name in _CANONICAL

    def information(self, rows: Rows) -> Array:
        """Σ w E[ℓ''] x xᵀ: the weighted design of a generalised linear model."""
        return gram(rows.x, counted(rows, self._working(rows)))

    def inflated(self, rows: Rows, vectors: Array, root: Array, power: float) -> Array:
        """v_n (1 − l_n)^−power with the leverages of the weighted design."""
        return vectors * ((1.0 - self.leverages(rows, root)) ** -power)[:, None]

    def leverages(self, rows: Rows, root: Array) -> Array:
        """l_n of every row; refused where one is 1."""
        half = rows.x @ root
        leverage = self._working(rows) * np.einsum("ni,ni->n", half, half)
        require_below_one(leverage)
        return leverage

    def _working(self, rows: Rows) -> Array:
        """The working weights of each row: ℓ'' is linear in the response, so its mean is that at the mean response.

        A robust loss has no such mean, and its own second derivative is taken.
        """
        loss, eta = self.model.loss, predictor(rows, self.theta)
        y = rows.y if self.model.divergence is not None else self.model.family.mean(eta)
        return weighted(rows, loss.d2(eta, y, loss.constants))


class Information(NamedTuple):
    """Σ w E[ℓ''] x xᵀ, which leverages are shares of."""

    total: Array


@dataclass(frozen=True)
class InformationPass:
    """The information of single rows added up."""

    rowwise: Rowwise

    def __call__(self, block: Block) -> Information:
        """The sum over one block."""
        return Information(self.rowwise.information(block))


class StackedSums(NamedTuple):
    """H_cc and H_θc by the logarithm c of the constant; Σ u, Σ u², Σ u g, Σ g and Σ g gᵀ of the scores u by c and g by θ."""

    bend: float
    cross: Array
    constant: float
    square: float
    mixed: Array
    score: Array
    scatter: Array


@dataclass(frozen=True)
class StackedPass:
    """The sums behind the stacked estimating equations of θ and the constant."""

    rowwise: LinearRowwise

    def __call__(self, rows: Rows) -> StackedSums:
        """The sums over one block."""
        terms = self.rowwise.terms(rows)
        (g,) = derivatives(self.rowwise.model.loss, rows, self.rowwise.theta, 1)
        bend, cross = (counted(rows, weighted(rows, term)) for term in (terms.bend, terms.cross))
        u = weighted(rows, terms.score)
        slope, times = counted(rows, g), counted(rows, u)
        return StackedSums(
            float(bend.sum()), cross @ rows.x, float(times.sum()), float(times @ u), (times * g) @ rows.x, slope @ rows.x,
            gram(rows.x, slope * g),
        )  # fmt: skip


def require_below_one(leverage: Array) -> None:
    """Raise, saying how many, where rows are fitted exactly by columns of their own, not to be estimated without them."""
    alone = int(np.sum(leverage > _ONE))
    if alone:
        raise InvalidInput(
            "kind",
            "one that exists for these rows: HC2 and HC3 divide by 1 − leverage",
            f"{alone} rows of leverage 1, each fitted by a column of its own",
            "use HC1, or leave those rows and columns out",
        )
