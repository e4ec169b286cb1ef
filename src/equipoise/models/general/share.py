"""How much of the uncertainty a subspace has: variances of random combinations, with all parameters and without the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from equipoise.arrays import Array
from equipoise.errors import FitFailed, InvalidInput
from equipoise.models.general.observing import bare
from equipoise.models.general.problem import GeneralProblem
from equipoise.models.general.tracing import require_array
from equipoise.models.general.whole import Whole

__all__ = ["Share", "captured_share"]

_SOLVED = 1e-5  # residual of a system, of its right-hand side; the variance it leads to is wrong by its square
_MOST = 1000  # steps of conjugate gradients


class Share(NamedTuple):
    """The share of a total variance that a subspace has, by random combinations of what varies.

    Attributes
    ----------
    share, std_error
        The ratio of the means below, and its standard error from how combinations differ.
    inside, total
        Mean variance of a combination with the parameters in the subspace, and with all of them.
    """

    share: float
    std_error: float
    inside: float
    total: float


def captured_share(
    problem: GeneralProblem, z: Array, function: Callable[..., object] | None, target: str, probes: int, seed: int
) -> Share:
    """The share of tr(Σ), or with a function of the variance of its values at the rows, linearised.

    A combination u of parameters has variance uᵀ Σ u. With all of them Σ = H⁻¹/N, or H⁻¹ V H⁻¹/N for the sandwich, and
    H x = u is solved by conjugate gradients; in the subspace Σ has as many rows as that. Random signs make the mean over u
    the trace; for a function, u is its gradient for random signs of its values.
    """
    structure = problem.model.structure
    whole = Whole(problem.whole(), structure.embed(z))
    moments = problem.moments(z)
    inverse = np.linalg.inv(moments.hessian)
    inside = inverse / problem.n if target == "posterior" else inverse @ moments.score_cov @ inverse / problem.n
    assert structure.basis is not None
    rng, pairs = np.random.default_rng(seed), []
    combine = None if function is None else _gradients(whole, function)
    for _ in range(probes):
        u = rng.choice([-1.0, 1.0], size=whole.dim) if combine is None else combine(rng)
        x = _solved(whole, u)
        all_of_it = float(u @ x) if target == "posterior" else float(np.mean(whole.slopes(x) ** 2))
        part = structure.basis @ u
        pairs.append((float(part @ inside @ part), all_of_it / problem.n))
    found = np.array(pairs)
    some, total = found.mean(axis=0)
    left = found[:, 0] - some / total * found[:, 1]
    error = float(np.sqrt(left @ left / (probes * (probes - 1.0))) / total)
    return Share(float(some / total), error, float(some), float(total))


def _solved(whole: Whole, u: Array) -> Array:
    """x with H x = u, by conjugate gradients."""
    x, left = np.zeros(whole.dim), u.copy()
    direction, size = left.copy(), float(left @ left)
    end = _SOLVED**2 * size
    for _ in range(_MOST):
        bent = whole.product(direction)
        curve = float(direction @ bent)
        if curve <= 1e-14 * float(direction @ direction):
            break
        x += size / curve * direction
        left -= size / curve * bent
        last, size = size, float(left @ left)
        if size <= end:
            return x
        direction = left + size / last * direction
    raise FitFailed(
        "the Hessian of all parameters is not positive definite at params, or nearly singular: their total variance is not "
        "finite. To fix: give the model a prior (prior_precision=...), and pass its minimiser; or, for the predictive "
        "variance, function=."
    )


def _gradients(whole: Whole, function: Callable[..., object]) -> Callable[[np.random.Generator], Array]:
    """Gradients of Σ ± f over the rows, for random signs."""
    problem, structure = whole.problem, whole.problem.model.structure

    def values(theta: Array | jax.Array, rows: object) -> jax.Array:
        def of_row(observation: object) -> jax.Array:
            return jnp.ravel(jnp.asarray(function(structure.shaped(theta), observation)))

        return jax.vmap(of_row)(bare(rows))

    pulled = jax.jit(jax.grad(lambda theta, rows, signs: jnp.sum(signs * values(theta, rows))))

    def combine(rng: np.random.Generator) -> Array:
        total = np.zeros(whole.dim)
        with jax.enable_x64(True):
            for b in problem.each(problem.summed):
                size = require_array(values, whole.theta, b.rows).shape
                signs = rng.choice([-1.0, 1.0], size=size) * np.sqrt(np.asarray(b.mask))[:, None]
                total += np.asarray(pulled(whole.theta, b.rows, signs))
        if not total.any():
            raise InvalidInput(
                "function", "one that depends on the parameters", "no gradient", "look at the parameters"
            )
        return total

    return combine
