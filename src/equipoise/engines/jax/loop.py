"""The compiled loop of the general engine, and what it is made of: an estimator, a noise, a guard (theory §1).

JAX runs up to eight operations in a loop's body one after the other, and schedules a ninth and all others at twice the
cost. So the loop is kept short: it does not look for divergence, which shows in the path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import Array
from equipoise.engines.jax.projection import Projection, Traced, Tree
from equipoise.engines.random import add_normals
from equipoise.engines.rules import Shake, add_nothing
from equipoise.theory.dynamics import ControlVariate, Gradient, Plain

__all__ = ["GRADIENTS", "SHAKES", "Constants", "Drawn", "Held", "Loss", "Pull", "compiled_loop"]


@dataclass(frozen=True, eq=False)
class Loss:
    """A loss as the engine sees it; the same object for the same model, so that its loop is compiled once.

    `row(theta, frame, observation)` is a scalar, `penalty` R(θ), zero if `flat` and at most quadratic if `quadratic`;
    `frame` are arrays that the loss reads besides, too large to be constants of a compiled loop.
    """

    row: Callable[[Traced, Tree, Tree], Traced]
    penalty: Callable[[Traced], Traced]
    flat: bool
    quadratic: bool
    dim: int
    frame: Tree = ()


class Constants(NamedTuple):
    """What the compiled loop reads besides rows: the step's matrices (none in whitened coordinates) and the rest."""

    matrices: tuple[Array, ...]
    noise: Array
    metric: Array
    origin: Array
    radius2: float
    momentum: float


class Drawn(NamedTuple):
    """Batches and normals drawn for one call, and where batches may be incomplete, how many rows each has."""

    batches: NDArray[np.int32] | Traced
    normals: Array | Traced
    sizes: NDArray[np.int32] | Traced | None


class Held(NamedTuple):
    """What the loop reads of each row; of a batch, what was gathered.

    `data` is the observation; with a projection, after the rows A_n L and the combinations at θ̂. `weights` is what a
    row's term is multiplied by for the probability it was drawn with; None if all are drawn alike. `reference` are, with
    a projection and control variates, the residuals at θ̂.
    """

    data: Tree
    weights: Array | Traced | None
    reference: Array | Traced | None


class Pull(NamedTuple):
    """The share of the gradient that no batch changes, in the chain's coordinates.

    `gradient` is that at the centre θ̂: the prior's with a projection; with control variates, besides, the mean of all
    rows. `curvature` is, with a projection, the prior's over N; empty without a prior. `frame` is what the loss reads
    besides.
    """

    gradient: Array
    curvature: Array
    center: Array
    frame: Tree = ()


_Carry = tuple[Traced, Traced, Traced, Traced, Traced]
# (θ, rows of a batch, their shares or None for equal ones) -> gradient; what makes one; and
# (θ, constants, normals, step) -> θ
_Slope = Callable[[Traced, Held, Traced | None], Traced]
_Estimator = Callable[[Loss, Projection | None, Pull, int], _Slope]
_Shake = Callable[[Traced, Constants, Array | Traced, Traced], Traced]


def _mean(loss: Loss, frame: Tree, theta: Traced, held: Held, shares: Traced | None) -> Traced:
    """The mean loss of a batch, or the sum weighed by shares."""
    each = jax.vmap(loss.row, (None, None, 0))(theta, frame, held.data)
    return jnp.mean(each) if shares is None else jnp.sum(shares * each)


def _projected(projection: Projection, frame: Tree, phi: Traced, held: Held, shares: Traced | None) -> Traced:
    """The mean gradient of a batch in φ, less that of its references if there are any."""
    rows, base, others = cast(tuple[Traced, Traced, Tree], held.data)
    rows = rows.reshape(-1, phi.size)
    at = base + (rows @ phi).reshape(base.shape)
    residual = jax.vmap(jax.grad(projection.outer), (0, None, 0))(at, frame, others)
    residual = residual if held.reference is None else residual - held.reference
    residual = residual / len(base) if shares is None else residual * shares[:, None]
    return residual.reshape(-1) @ rows


def _plain(loss: Loss, projection: Projection | None, pull: Pull, n: int) -> _Slope:
    """The gradient of the regularised mean loss over a batch."""
    if projection is None:
        push = jax.grad(loss.penalty)

        def direct(theta: Traced, held: Held, shares: Traced | None) -> Traced:
            total = jax.grad(lambda t: _mean(loss, pull.frame, t, held, shares))(theta)
            return total if loss.flat else total + push(theta) / n

        return direct

    def gradient(phi: Traced, held: Held, shares: Traced | None) -> Traced:
        total = _projected(projection, pull.frame, phi, held, shares)
        return total if loss.flat else total + pull.gradient + pull.curvature @ phi

    return gradient


def _varied(loss: Loss, projection: Projection | None, pull: Pull, n: int) -> _Slope:
    """What a batch's gradient is more than at θ̂, and the whole loss's there (theory §12).

    Without a projection a batch's gradients at both points are one evaluation.
    """
    if projection is None:
        push = jax.grad(loss.penalty)

        def direct(theta: Traced, held: Held, shares: Traced | None) -> Traced:
            both = jnp.stack([theta, jnp.asarray(pull.center)])
            here, there = jax.vmap(jax.grad(lambda t: _mean(loss, pull.frame, t, held, shares)))(both)
            total = here - there + pull.gradient
            return total if loss.flat else total + push(theta) / n

        return direct

    def gradient(phi: Traced, held: Held, shares: Traced | None) -> Traced:
        total = _projected(projection, pull.frame, phi, held, shares) + pull.gradient
        return total if loss.flat else total + pull.curvature @ phi

    return gradient


def _shaken(theta: Traced, c: Constants, normals: Array | Traced, t: Traced) -> Traced:
    """The injected noise: in whitened coordinates of a scale for each."""
    return theta + (c.matrices[1] @ normals[t] if c.matrices else c.noise * normals[t])


def _still(theta: Traced, c: Constants, normals: Array | Traced, t: Traced) -> Traced:  # noqa: ARG001
    """No noise."""
    return theta


# What the loop makes of a gradient estimator, and of a noise whose normals `equipoise.engines.rules` drew.
GRADIENTS: dict[Gradient, _Estimator] = {Plain(): _plain, ControlVariate(): _varied}
SHAKES: dict[Shake, _Shake] = {add_normals: _shaken, add_nothing: _still}


def _shares(some: Held, drawn: Drawn, t: Traced) -> Traced | None:
    """What each row of a batch counts for; None if all count the same. No rule has both weights and incomplete batches."""
    most = drawn.batches.shape[1]
    if some.weights is not None:
        return jnp.asarray(some.weights) / most
    if drawn.sizes is None:
        return None
    size = jnp.asarray(drawn.sizes)[t]
    return jnp.where(jnp.arange(most) < size, 1.0 / size, 0.0)


@lru_cache(maxsize=32)
def compiled_loop(
    loss: Loss, projection: Projection | None, estimator: _Estimator, shake: _Shake, guarded: bool, moving: bool
) -> Callable[..., tuple[Traced, Traced, Traced, Traced]]:
    """Compile the loop for one loss; its number of steps is an argument, so nothing is compiled twice."""

    def chain(
        held: Held, c: Constants, pull: Pull, n: int, theta: Traced, m: Traced, drawn: Drawn, count: int
    ) -> tuple[Traced, Traced, Traced, Traced]:
        slope = estimator(loss, projection, pull, n)

        def body(carry: _Carry) -> _Carry:
            theta, m, path, hits, t = carry
            batch = jax.lax.dynamic_index_in_dim(drawn.batches, t, keepdims=False)
            some = jax.tree.map(lambda a: a.at[batch].get(mode="promise_in_bounds"), held)
            g = slope(theta, some, _shares(some, drawn, t))
            m = c.momentum * m + g if moving else m
            move = m if moving else g
            theta = theta - (c.matrices[0] @ move if c.matrices else move)
            theta = shake(theta, c, drawn.normals, t)
            if guarded:
                e = theta - c.origin
                form = e @ c.metric @ e
                out = jnp.isfinite(jnp.sum(theta * theta)) & (form > c.radius2)
                theta = jnp.where(out, c.origin + e * jnp.sqrt(c.radius2 / form), theta)
                hits = hits + out
            return theta, m, jax.lax.dynamic_update_index_in_dim(path, theta, t, 0), hits, t + 1

        path = jnp.zeros((drawn.batches.shape[0], theta.size))
        start = theta, m, path, jnp.zeros((), jnp.int64), jnp.zeros((), jnp.uint32)
        theta, m, path, hits, _ = jax.lax.while_loop(lambda carry: carry[4] < count, body, start)
        return theta, m, path, hits

    return jax.jit(chain)
