"""A loss of your own on a subspace of its parameters: θ̂ + z · P for a few directions P of very many parameters."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from numpy.typing import ArrayLike

from equipoise.arrays import Array
from equipoise.checks import finite_array, instance, one_of, whole
from equipoise.data.fields import Columns
from equipoise.errors import InvalidInput, warn
from equipoise.linalg import FAINT
from equipoise.models.binding import verb
from equipoise.models.general.model import Model
from equipoise.models.general.problem import GeneralProblem
from equipoise.models.general.whole import Whole, lanczos, orthonormal, principal
from equipoise.models.problem import Problem
from equipoise.models.verbs import settle

__all__ = ["subspace"]

_KINDS = ("curvature", "scores", "trajectory")
_BATCH = 32  # rows of a step of the library's own trajectory
_RATE = 0.2  # its learning rate, of 1 over the largest curvature
_BETWEEN = 10  # steps between two iterates that are kept


@verb
def subspace(
    problem: Problem,
    params: object,
    *,
    rank: int = 50,
    of: str | ArrayLike | Sequence[object] = "curvature",
    tuning_rows: int | None = None,
    seed: int = 0,
) -> Model:
    """The model on a subspace of its parameters: θ = params + z · P, with `rank` orthonormal directions P.

    Everything else then happens in z with the whole network behind it: fit, moments, tuning, chains, predictions.
    Directions are found by products with vectors alone, so that there may be a million parameters; memory is that of a few
    times `rank` vectors of all parameters.

    Parameters
    ----------
    problem
        A bound problem of an `eq.Model`, or the model and its data.
    params
        The point the subspace goes through: a fit, or parameters of a trained network.
    rank
        Number of directions. Fewer are returned, with a warning, where the loss has no more.
    of
        `"curvature"`: where the loss curves most, the leading eigenvectors of its Hessian (Lanczos). `"scores"`: where
        the gradients of single rows vary most, those of their covariance (randomised SVD). `"trajectory"`: where a short
        run of stochastic gradients from `params` moves most; or iterates of your own run, flat in an array (T, D) or a
        list of parameters, whose principal components are taken.
    tuning_rows
        Find directions on this many random rows.
    seed
        Of those rows, random vectors and trajectories.

    Returns
    -------
    Model
        To be bound to data as any other; `Model.captured` says how much of the uncertainty it has.

    Raises
    ------
    InvalidInput
        If the model is no `eq.Model` on all its parameters, or the rank exceeds what there is.

    Examples
    --------
    >>> import equipoise as eq, jax.numpy as jnp
    >>> rng = np.random.default_rng(0)
    >>> data = {"x": rng.normal(size=(200, 40)), "y": rng.normal(size=200)}
    >>> model = eq.Model(lambda p, o: (o["y"] - o["x"] @ p) ** 2 / 2, init=np.zeros(40))
    >>> small = eq.subspace(model, data, eq.fit(model, data), rank=5)
    >>> eq.bind(small, data).names[:2]
    ('direction[0]', 'direction[1]')
    """
    here = instance("model", problem, GeneralProblem, "make one with eq.Model(...)")
    full = here.model.structure
    if full.basis is not None:
        raise InvalidInput("model", "one on all its parameters", "a subspace already", "pass the model it was made of")
    rank, seed = whole("rank", rank, 1, "50 is a common choice"), whole("seed", seed, 0, "pass an int")
    if rank > full.dim:
        raise InvalidInput("rank", f"at most the number of parameters, {full.dim:,}", rank, "choose a smaller one")
    theta = here.flatten(settle(here, params)[1])
    rng = np.random.default_rng(seed)
    if not isinstance(of, str):
        return here.model.within(theta, _components(_iterates(here, of), rank))
    one_of("of", of, _KINDS, "or pass an array of iterates (T, D)")
    some = Whole(here if tuning_rows is None else here.subsample(tuning_rows, seed), theta)
    if of == "trajectory":
        return here.model.within(theta, _components(_trajectory(some, 2 * rank + 20, rng), rank))
    values, axes, _ = lanczos(some.product, some.dim, rank, rng) if of == "curvature" else principal(some, rank, rng)
    kept = values > FAINT * np.abs(values).max()
    return here.model.within(theta, _enough(axes[kept], rank))


def _enough(axes: Array, rank: int) -> Array:
    """The directions, with a warning where there are fewer than were asked for."""
    if not len(axes):
        raise InvalidInput(
            "params",
            "where the loss curves, or rows differ",
            "no direction",
            "check that the loss depends on its parameters",
        )
    if len(axes) < rank:
        warn(
            f"the subspace has {len(axes)} directions instead of rank={rank}: there are no more in which anything happens."
        )
    return axes


def _iterates(problem: GeneralProblem, given: object) -> Array:
    """The user's iterates as rows."""
    structure = problem.model.structure
    flat = structure.dim
    if isinstance(given, (list, tuple)) and given and jax.tree.structure(given[0]) == structure.treedef:
        given = [problem.flatten(one) for one in given]
    found = finite_array("of", given, "pass iterates as an array (T, D), or a list of parameters")
    if found.ndim != 2 or found.shape[1] != flat or len(found) < 2:
        raise InvalidInput(
            "of", f"iterates (T, {flat:,}), at least two", f"shape {found.shape}", "stack flat parameters as rows"
        )
    return found


def _components(iterates: Array, rank: int) -> Array:
    """Principal components of iterates, by the products of each two of them."""
    away = iterates - iterates.mean(axis=0)
    values, turn = np.linalg.eigh(away @ away.T)
    top = np.argsort(values)[::-1][:rank]
    kept = top[values[top] > 1e-12 * values[top[0]]]
    return _enough(orthonormal(turn[:, kept].T @ away), rank)


def _trajectory(whole: Whole, count: int, rng: np.random.Generator) -> Array:
    """So many iterates of stochastic gradients from θ, at a rate that its largest curvature bears."""
    problem, theta = whole.problem, whole.theta.copy()
    largest = lanczos(whole.product, whole.dim, 1, rng)[0][0]
    if largest <= 0.0:
        raise InvalidInput("params", "where the loss curves", "no positive curvature", "start from a fit")
    size, steps = min(_BATCH, problem.source.n), count * _BETWEEN
    rows = Columns.joined(
        list(problem.source.sample(min(problem.source.n, steps * size), int(rng.integers(1 << 31))).blocks())
    )
    functions, ones = problem.functions, np.ones(size)
    found = np.empty((count, whole.dim))
    with jax.enable_x64(True):
        for t in range(steps):
            batch = problem.padded(rows.take(rng.integers(rows.n, size=size)), size)
            slope = np.asarray(functions.gradient(theta, batch.rows, ones)[1]) / size
            theta -= _RATE / largest * (slope + np.asarray(functions.penalty_gradient(theta)) / problem.n)
            if (t + 1) % _BETWEEN == 0:
                found[t // _BETWEEN] = theta
    if not np.isfinite(found).all():
        raise InvalidInput("params", "close to a minimum", "a trajectory that diverges", "start from a fit")
    return found
