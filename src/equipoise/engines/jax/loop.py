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
from equipoise.theory.dynamics import Gradient, Plain

__all__ = ["GRADIENTS", "SHAKES", "Constants", "Drawn", "Loss", "Pull", "compiled_loop"]


@dataclass(frozen=True, eq=False)
class Loss:
    """A loss as the engine sees it; the same object for the same model, so that its loop is compiled once.

    Attributes
    ----------
    row
        `row(theta, observation) -> scalar`.
    penalty
        R(θ).
    flat, quadratic
        Whether R is zero, or at most quadratic.
    dim
        Number of parameters.
    """

    row: Callable[[Traced, Tree], Traced]
    penalty: Callable[[Traced], Traced]
    flat: bool
    quadratic: bool
    dim: int


class Constants(NamedTuple):
    """What the compiled loop reads besides rows: the step's matrices (none in whitened coordinates) and the rest."""

    matrices: tuple[Array, ...]
    noise: float
    metric: Array
    origin: Array
    radius2: float
    momentum: float


class Drawn(NamedTuple):
    """Batches and normals drawn for one call."""

    batches: NDArray[np.int32] | Traced
    normals: Array | Traced


class Pull(NamedTuple):
    """Gradient and curvature of the prior in φ, over N; empty without a prior or a projection."""

    gradient: Array
    curvature: Array


_Carry = tuple[Traced, Traced, Traced, Traced, Traced]
# (θ, rows of a batch) -> gradient; what makes one; and (θ, constants, normals, step) -> θ
_Slope = Callable[[Traced, Tree], Traced]
_Estimator = Callable[[Loss, Projection | None, Pull, int], _Slope]
_Shake = Callable[[Traced, Constants, Array | Traced, Traced], Traced]


def _plain(loss: Loss, projection: Projection | None, pull: Pull, n: int) -> _Slope:
    """The gradient of the regularised mean loss over a batch."""
    if projection is None:
        mean = jax.grad(lambda theta, block: jnp.mean(jax.vmap(loss.row, (None, 0))(theta, block)))
        push = jax.grad(loss.penalty)
        return mean if loss.flat else lambda theta, block: mean(theta, block) + push(theta) / n
    slope = jax.vmap(jax.grad(projection.outer))

    def gradient(phi: Traced, block: Tree) -> Traced:
        rows, base, others = cast(tuple[Traced, Traced, Tree], block)
        rows = rows.reshape(-1, phi.size)
        residual = slope(base + (rows @ phi).reshape(base.shape), others) / len(base)
        total = residual.reshape(-1) @ rows
        return total if loss.flat else total + pull.gradient + pull.curvature @ phi

    return gradient


def _shaken(theta: Traced, c: Constants, normals: Array | Traced, t: Traced) -> Traced:
    """The noise (2/β) Λ: of the same scale everywhere in whitened coordinates."""
    return theta + (c.matrices[1] @ normals[t] if c.matrices else c.noise * normals[t])


def _still(theta: Traced, c: Constants, normals: Array | Traced, t: Traced) -> Traced:  # noqa: ARG001
    """No noise."""
    return theta


# What the loop makes of a gradient estimator, and of a noise whose normals `equipoise.engines.rules` drew.
GRADIENTS: dict[Gradient, _Estimator] = {Plain(): _plain}
SHAKES: dict[Shake, _Shake] = {add_normals: _shaken, add_nothing: _still}


@lru_cache(maxsize=32)
def compiled_loop(
    loss: Loss, projection: Projection | None, estimator: _Estimator, shake: _Shake, guarded: bool, moving: bool
) -> Callable[..., tuple[Traced, Traced, Traced, Traced]]:
    """Compile the loop for one loss; its number of steps is an argument, so nothing is compiled twice."""

    def chain(
        data: Tree, c: Constants, pull: Pull, n: int, theta: Traced, m: Traced, drawn: Drawn, count: int
    ) -> tuple[Traced, Traced, Traced, Traced]:
        slope = estimator(loss, projection, pull, n)

        def body(carry: _Carry) -> _Carry:
            theta, m, path, hits, t = carry
            batch = jax.lax.dynamic_index_in_dim(drawn.batches, t, keepdims=False)
            g = slope(theta, jax.tree.map(lambda a: a.at[batch].get(mode="promise_in_bounds"), data))
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
