"""Curvature of the rows in a subspace: every product passes through all parameters, so that it is made once and kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax
import numpy as np

from equipoise.arrays import Array
from equipoise.models.general.curvature import GeneralCurvature
from equipoise.models.general.factored import factored_curvature
from equipoise.theory.curvature import DenseCurvature
from equipoise.theory.expansion import FullExpansion

if TYPE_CHECKING:
    from equipoise.models.general.factored import FactoredCurvature

__all__ = ["StoredCurvature", "subspace_curvature"]

# Operations that the Hessians of all rows may take, about a minute's worth; of more rows, a random sample is looked at.
_WORK = 2e12
_FEWEST = 256
_STORED = 1 << 25  # numbers in stored Hessians: 256 MB


@dataclass(frozen=True)
class StoredCurvature(DenseCurvature):
    """Hessians of rows, written out in the coordinates of a subspace; third derivatives are made when they are asked for.

    `exact` has the same rows.
    """

    exact: GeneralCurvature | None = None

    def third(self, S: Array) -> Array:
        """∇³L[S]."""
        return self._exact.third(S)

    def third_along(self, vectors: Array) -> Array:
        """∇³L[v, v, ·]."""
        return self._exact.third_along(vectors)

    def expansion(self, basis: Array) -> FullExpansion:
        """The derivatives of the rows, written out."""
        return self._exact.expansion(basis)

    def sampled(self, count: int) -> StoredCurvature:
        """The same of so many rows at most: both parts choose the same."""
        if count >= len(self.hessians):
            return self
        some = DenseCurvature.sampled(self, count)
        assert isinstance(some, StoredCurvature)
        return replace(some, exact=self._exact.sampled(count))

    def leveraged(self, inverse: Array, hessian: Array) -> StoredCurvature:
        """The same for rows drawn by leverage."""
        drawn = self._exact.leveraged(inverse, hessian)
        assert drawn.drawn is not None
        return replace(self, exact=drawn, emphasis=drawn.drawn.emphasis(self._exact.leverages(inverse)))

    @property
    def _exact(self) -> GeneralCurvature:
        assert self.exact is not None
        return self.exact


def subspace_curvature(exact: GeneralCurvature) -> FactoredCurvature | StoredCurvature:
    """The curvature of the rows, or of a random sample where all would take too long."""
    structure, dim = exact.problem.model.structure, exact.theta.size
    row = 2.0 * structure.full * dim * (dim + 5.0)  # operations: a Hessian-vector product and its coordinates, for each
    some = exact.sampled(max(_FEWEST, int(min(_WORK / row, _STORED / dim**2))))
    # to look for low ranks takes products of every row by itself, which with so many parameters cost more than its Hessian
    return (None if structure.narrow else factored_curvature(some)) or _stored(some)


def _stored(exact: GeneralCurvature) -> StoredCurvature:
    problem, functions, theta = exact.problem, exact.problem.functions, exact.theta
    scores, hessians = [], []
    with jax.enable_x64(True):
        for b in problem.each(functions.written):
            each = np.repeat(np.arange(b.size), b.counts.astype(np.int64))
            scores.append(np.asarray(functions.scores(theta, b.rows))[each])
            hessians.append(np.asarray(functions.hessians(theta, b.rows))[each])
    return StoredCurvature(np.concatenate(hessians), np.concatenate(scores), exact=exact)
