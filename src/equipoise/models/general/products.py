"""What is known of a loss of your own by products with vectors alone: its Hessian's images, and about its diagonal."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from equipoise.arrays import Array

if TYPE_CHECKING:
    from equipoise.models.general.problem import GeneralProblem, Padded

__all__ = ["diagonal", "product"]

_LOOKED = 1 << 28  # numbers in the scores that a diagonal is read off, at most: of more rows, a sample
_PROBES = 2  # random signs that tell how large second derivatives are beside squared scores


class _Pulled(NamedTuple):
    total: Array


def product(problem: GeneralProblem, theta: Array, v: Array) -> Array:
    """∇²L(θ) v, the regulariser's share included."""
    functions = problem.functions
    with jax.enable_x64(True):
        penalty = np.asarray(functions.penalty_product(theta, v)) / problem.n
        return _bent(problem, theta, v) + penalty


def _bent(problem: GeneralProblem, theta: Array, v: Array) -> Array:
    """The rows' share of it; call it in float64."""
    functions = problem.functions

    def bent(b: Padded) -> _Pulled:
        return _Pulled(np.array(functions.product(theta, b.rows, b.mask, v)))

    return problem.reduce(bent, problem.summed).total / problem.source.n


def diagonal(problem: GeneralProblem, theta: Array) -> Array:
    """About ∂²L/∂θ_i², positive: what parameters are measured by, so that nothing depends on their units.

    Squared scores follow every unit, and of a likelihood they are second derivatives in the mean. Of another loss they
    are so up to a factor, which products with random signs tell. The regulariser's share is exact where it is separable.
    """
    functions, dim = problem.functions, theta.size
    few = max(1, _LOOKED // dim)
    some = problem if few >= problem.source.n else problem.subsample(few, seed=0)

    def squared(b: Padded) -> _Pulled:
        g = np.asarray(functions.scores(theta, b.rows))[: b.size]
        return _Pulled(b.counts @ (g * g))

    with jax.enable_x64(True):
        squares = some.reduce(squared, problem.model.structure.apart(1)).total / some.source.n
        squares = np.where(squares > 0.0, squares, squares.mean())
        held = np.abs(np.asarray(functions.penalty_product(theta, np.ones(dim)))) / problem.n
        rng = np.random.default_rng(0)
        signs = rng.choice([-1.0, 1.0], size=(_PROBES, dim)) / np.sqrt(np.where(squares > 0.0, squares, 1.0))
        factor = np.mean([abs(float(s @ _bent(some, theta, s))) for s in signs]) / dim
    found = (factor or 1.0) * squares + held
    usable = found[np.isfinite(found) & (found > 0.0)]
    return np.where(np.isfinite(found) & (found > 0.0), found, usable.mean() if usable.size else 1.0)
