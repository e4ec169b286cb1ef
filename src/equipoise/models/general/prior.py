"""The regulariser of a loss of your own: a Gaussian prior, never larger than it was given, or R(θ) as a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import jax
import numpy as np

from equipoise.arrays import Array
from equipoise.checks import finite_array, require_semidefinite
from equipoise.engines.jax.projection import Traced, Tree
from equipoise.errors import InvalidInput
from equipoise.linalg import symmetric
from equipoise.models.general.structure import Structure

__all__ = ["Prior", "gaussian_prior"]


@dataclass(frozen=True)
class Prior:
    """R(θ) = ½ (θ − μ)ᵀ Γ (θ − μ), with Γ a number, the diagonal or a matrix, and μ a number or a vector."""

    precision: Array
    mean: Array

    @property
    def absent(self) -> bool:
        """Whether R is zero."""
        return not self.precision.any()

    def times(self, vectors: Array) -> Array:
        """Γ v, for vectors along the last axis."""
        return vectors @ self.precision if self.precision.ndim == 2 else vectors * self.precision

    def hessian(self, dim: int) -> Array:
        """Γ, written out."""
        return self.precision if self.precision.ndim == 2 else np.diag(np.broadcast_to(self.precision, dim))

    def function(self, frame: tuple[Array, ...]) -> Callable[[Traced], Traced]:
        """R in coordinates: of a subspace, the parabola with the same coefficients, so that no step looks at all of θ."""
        if frame:
            origin, basis = frame
            pulled = self.times(basis)
            bend, away = symmetric(pulled @ basis.T), origin - self.mean
            slope, level = pulled @ away, 0.5 * float(away @ self.times(away))
            return lambda z: cast(Traced, level + slope @ z + 0.5 * z @ (bend @ z))

        def whole(theta: Traced) -> Traced:
            away = theta - self.mean
            if self.precision.ndim == 2:
                return 0.5 * away @ self.precision @ away
            return 0.5 * jax.numpy.sum(self.precision * away * away)

        return whole


def gaussian_prior(structure: Structure, precision: Tree, mean: Tree, alone: bool) -> Prior:
    """Check a prior's precision and mean: numbers, flat arrays, or trees like the parameters; `alone`: no other regulariser."""
    dim = structure.full
    gamma, mu = _numbers("prior_precision", precision, structure), _numbers("prior_mean", mean, structure)
    if gamma.shape not in {(), (dim,), (dim, dim)} or mu.shape not in {(), (dim,)}:
        raise InvalidInput(
            "prior_precision, prior_mean",
            f"a scalar, a vector ({dim},), a tree like init, or (precision only) a matrix ({dim}, {dim})",
            f"shapes {gamma.shape}, {mu.shape}",
            "match the flat parameters",
        )
    if mu.any() and not gamma.any() and alone:
        remedy = "add prior_precision=..., or remove prior_mean="
        raise InvalidInput("prior_mean", "given with a prior_precision", "no precision", remedy)
    if not alone and (gamma.any() or mu.any()):
        raise InvalidInput("regularizer", "left out when a Gaussian prior is given", "both", "give one of the two")
    require_semidefinite("prior_precision", gamma)
    return Prior(symmetric(gamma) if gamma.ndim == 2 else gamma, mu)


def _numbers(name: str, given: Tree, structure: Structure) -> Array:
    """An array as it is; a tree of numbers, as one number for each parameter."""
    # a list of numbers may be either; it is one array unless the parameters are such a list
    plain = isinstance(given, (list, tuple)) and jax.tree.structure(given) != structure.treedef
    return finite_array(name, given) if plain or jax.tree_util.all_leaves([given]) else structure.spread(name, given)
