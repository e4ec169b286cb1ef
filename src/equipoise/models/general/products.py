"""What is known of a loss of your own by products with vectors alone: its Hessian's images, and about its diagonal."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import jax
import numpy as np

from equipoise.arrays import Array
from equipoise.linalg import Total

if TYPE_CHECKING:
    from equipoise.models.general.functions import Functions
    from equipoise.models.general.passes import Padded
    from equipoise.models.general.problem import GeneralProblem

__all__ = ["diagonal", "product"]

_LOOKED = 1 << 28  # numbers in the scores that a diagonal is read off, at most: of more rows, a sample
_PROBES, _ROUNDS = 4, 4  # random signs that tell how large second derivatives are beside squared scores, and how often
_OUTSTANDING = 10.0  # times as large as others, that a second derivative is told apart


def product(problem: GeneralProblem, theta: Array, v: Array) -> Array:
    """∇²L(θ) v, the regulariser's share included."""
    functions = problem.functions
    with jax.enable_x64(True):
        penalty = np.asarray(functions.penalty_product(theta, v)) / problem.n
        return _bent(problem, theta, v) + penalty


def _bent(problem: GeneralProblem, theta: Array, v: Array) -> Array:
    """The rows' share of it; call it in float64."""
    return problem.reduce(partial(_bent_along, theta, v), problem.summed).total / problem.source.n


def _bent_along(theta: Array, v: Array, functions: Functions, b: Padded) -> Total:
    return Total(np.array(functions.product(theta, b.rows, b.mask, v)))


def _squared(theta: Array, functions: Functions, b: Padded) -> Total:
    g = np.asarray(functions.scores(theta, b.rows))[: b.size]
    return Total(b.counts @ (g * g))


def diagonal(problem: GeneralProblem, theta: Array) -> Array:
    """About ∂²L/∂θ_i², positive: what parameters are measured by, so that nothing depends on their units.

    Squared scores follow every unit, and of a likelihood they are second derivatives in the mean. Products with random signs
    tell by what factor they are of another loss, and which parameters curve though no row pulls at them. The regulariser's
    share is exact where it is separable.
    """
    functions, dim = problem.functions, theta.size
    few = max(1, _LOOKED // dim)
    some = problem if few >= problem.source.n else problem.subsample(few, seed=0)

    with jax.enable_x64(True):
        squares = some.reduce(partial(_squared, theta), functions.scored).total / some.source.n
        squares = np.where(squares > 0.0, squares, squares.mean() or 1.0)
        bent = _probed(lambda v: _bent(some, theta, v), squares)
        held = np.abs(np.asarray(functions.penalty_product(theta, np.ones(dim)))) / problem.n
    found = bent + held
    usable = found[np.isfinite(found) & (found > 0.0)]
    return np.where(np.isfinite(found) & (found > 0.0), found, usable.mean() if usable.size else 1.0)


def _probed(product: Callable[[Array], Array], guess: Array) -> Array:
    """A guess at a matrix's diagonal, with the factor it lacks, and mended where entries stand out."""
    rng, typical = np.random.default_rng(0), 0.0
    for _ in range(_ROUNDS):
        signs = rng.choice([-1.0, 1.0], size=(_PROBES, guess.size))
        seen = signs * np.stack([product(z / np.sqrt(guess)) for z in signs]) / np.sqrt(guess)
        mean, error = seen.mean(axis=0), seen.std(axis=0) / np.sqrt(_PROBES - 1.0)
        typical = float(np.quantile(np.abs(mean), 0.25, method="lower"))
        high = (mean > 3.0 * error) & (mean > _OUTSTANDING * typical)
        if not high.any() or typical == 0.0:
            break
        guess = np.where(high, guess * mean / typical, guess)
    return guess * max(float(mean.mean()), typical, 0.0)
