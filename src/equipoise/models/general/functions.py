"""Compiled derivatives of a loss of your own: flat coordinates in, float64 out.

In a subspace the parameters are origin + z · basis. Both may be large, so that they travel as arguments: a constant would
be copied into every compiled function. Derivatives along many directions are taken a few at a time, so that nothing is
larger than a few vectors of all parameters. Where even those of all directions are too large, derivatives of single rows
are taken forwards: directions are then shared by all rows, and no row has a vector of all parameters to itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from equipoise.arrays import Array, PyTree
from equipoise.engines.jax.loop import Loss
from equipoise.engines.jax.projection import Traced, Tree
from equipoise.models.general.observing import Weighted, bare
from equipoise.models.layout import embedded

if TYPE_CHECKING:
    from equipoise.models.general.model import Model

__all__ = ["DIRECTIONS", "Functions"]

# Directions of a third derivative that are taken together: enough for matrix products, few enough to stay in cache.
DIRECTIONS = 16

_Scalar = Callable[..., Traced]


def _along(f: _Scalar, theta: Traced, v: Traced, *rest: Tree) -> Traced:
    """The derivative of f(θ, *rest) along v."""
    return jax.jvp(lambda t: f(t, *rest), (theta,), (v,))[1]


def _over(f: Callable[[Traced], Traced], vectors: Traced, most: int) -> Traced:
    """f of every vector, at most so many at a time."""
    return jax.vmap(f)(vectors) if len(vectors) <= most else jax.lax.map(f, vectors, batch_size=most)


def _hessian(f: _Scalar, most: int) -> _Scalar:
    """∇²f, (D, D), by derivatives of its gradient along so many directions at a time."""

    def found(theta: Traced, *rest: Tree) -> Traced:
        return _over(lambda v: _along(jax.grad(f), theta, v, *rest), jnp.eye(theta.size, dtype=theta.dtype), most)

    return found


def _forward_scores(each: _Scalar, most: int) -> _Scalar:
    """∇ of every row, (rows, D), one direction's slope after the other."""

    def found(theta: Traced, *rest: Tree) -> Traced:
        return _over(lambda v: _along(each, theta, v, *rest), jnp.eye(theta.size, dtype=theta.dtype), most).T

    return found


def _forward_hessians(each: _Scalar, most: int) -> _Scalar:
    """∇² of every row, (rows, D, D): slopes of slopes, by pairs of groups of so many directions."""

    def found(theta: Traced, *rest: Tree) -> Traced:
        dim = theta.size
        groups = -(-dim // most)
        unit = jnp.eye(groups * most, dim, dtype=theta.dtype).reshape(groups, most, dim)
        pairs = np.triu_indices(groups)

        def twice(v: Traced, u: Traced) -> Traced:
            return _along(lambda t: _along(each, t, v, *rest), theta, u)

        def pair(which: tuple[Traced, Traced]) -> Traced:
            return jax.vmap(lambda v: jax.vmap(lambda u: twice(v, u))(unit[which[1]]))(unit[which[0]])

        above = jax.lax.map(pair, tuple(map(jnp.asarray, pairs)))
        full = jnp.zeros((groups, groups, *above.shape[1:]), above.dtype).at[pairs].set(above)
        full = full.at[pairs[::-1]].set(above.swapaxes(1, 2)).transpose(4, 0, 2, 1, 3)
        return full.reshape(len(full), groups * most, groups * most)[:, :dim, :dim]

    return found


class Functions:
    """Compiled derivatives of a model's loss over a masked block of rows.

    All take the coordinates, then the rows (or a block of them and its mask), then what else there is.
    """

    def __init__(self, model: Model) -> None:
        structure, loss, together = model.structure, model.loss, model.structure.together
        with jax.enable_x64(True):
            frame = tuple(jnp.asarray(part) for part in structure.frame)

        def row(theta: Traced, frame: PyTree, observation: Tree) -> Traced:
            value = loss(structure.shaped(embedded(theta, frame)), bare(observation))
            return observation.weight * value if isinstance(observation, Weighted) else value

        def each(theta: Traced, frame: Tree, block: Tree) -> Traced:
            return jax.vmap(row, (None, None, 0))(theta, frame, block)

        def total(theta: Traced, frame: Tree, block: Tree, mask: Traced) -> Traced:
            return jnp.sum(mask * each(theta, frame, block))

        def slope(theta: Traced, frame: Tree, block: Tree, mask: Traced) -> Traced:
            return jax.grad(total)(theta, frame, block, mask)

        def product(theta: Traced, frame: Tree, block: Tree, mask: Traced, v: Traced) -> Traced:
            """Σ over rows of ∇²ℓ v."""
            return _along(slope, theta, v, frame, block, mask)

        def compiled(f: Callable[..., Any]) -> Callable[..., Any]:
            made = jax.jit(f)
            return lambda theta, *rest: made(theta, frame, *rest)

        self.row: _Scalar = lambda theta, observation: row(theta, frame, observation)
        self._penalties(model)
        quadratic = model.regularizer is None
        self.loss = Loss(row, self.penalty, quadratic and model.prior.absent, quadratic, structure.dim, frame)
        self.losses = compiled(lambda draws, frame, block: jax.lax.map(lambda t: each(t, frame, block), draws))
        self.value = compiled(total)
        self.gradient = compiled(jax.value_and_grad(total))
        self.hessian = compiled(_hessian(total, together))
        self.product = compiled(product)
        self.slopes = compiled(lambda t, frame, block, v: _along(each, t, v, frame, block))
        if structure.narrow:
            self.scores = compiled(_forward_scores(each, together))
            self.hessians = compiled(_forward_hessians(each, structure.group))
        else:
            self.scores = compiled(jax.vmap(jax.grad(row), (None, None, 0)))
            self.hessians = compiled(jax.vmap(_hessian(row, together), (None, None, 0)))
        # numbers that they make of each row
        self.scored, self.written = structure.scored, structure.written
        self._higher(row, product, together, compiled)

    def _higher(
        self, row: Callable[..., Traced], product: Callable[..., Traced], together: int, compiled: Callable[..., Any]
    ) -> None:
        """Third derivatives, and what rows' Hessians make of vectors."""

        def third(theta: Traced, frame: Tree, observation: Tree) -> Traced:
            """∇³ℓ of a row, (D, D, D)."""
            unit = jnp.eye(theta.size, dtype=theta.dtype)
            most = max(1, together // theta.size)
            return _over(lambda v: _along(_hessian(row, together), theta, v, frame, observation), unit, most)

        def products(theta: Traced, frame: Tree, block: Tree, vectors: Traced) -> Traced:
            """∇²ℓ_n v of every row and vector."""

            def of_row(observation: Tree) -> Traced:
                return _over(lambda v: _along(jax.grad(row), theta, v, frame, observation), vectors, together)

            return jax.vmap(of_row)(block)

        def bends(theta: Traced, frame: Tree, block: Tree, mask: Traced, vectors: Traced) -> Traced:
            """Σ over rows of ∇³ℓ[v, v, ·] for each v: second derivatives of the gradient along it."""

            def second(v: Traced) -> Traced:
                return _along(lambda t: product(t, frame, block, mask, v), theta, v)

            return jax.lax.map(second, vectors, batch_size=min(DIRECTIONS, together))

        def bend_gradient(
            theta: Traced, frame: Tree, block: Tree, mask: Traced, values: Traced, vectors: Traced
        ) -> Traced:
            """Σ over rows of ∇ tr(∇²ℓ S), S = Σ_i s_i v_i v_iᵀ."""
            return values @ bends(theta, frame, block, mask, vectors)

        self.thirds = compiled(jax.vmap(third, (None, None, 0)))
        self.products = compiled(products)
        self.bends = compiled(bends)
        self.bend_gradient = compiled(bend_gradient)

    def _penalties(self, model: Model) -> None:
        """Derivatives of the regulariser, which no row changes; of a parabola, none beyond the second."""
        structure, regularizer, dim = model.structure, model.regularizer, model.structure.dim
        prior = model.prior  # one that was given beside a regulariser is refused here
        if regularizer is None:
            self.penalty: _Scalar = prior.function(structure.frame)
        else:
            self.penalty = lambda theta: regularizer(structure.unflatten(theta))
        self.penalty_gradient = jax.jit(jax.grad(self.penalty))
        self.penalty_hessian = jax.jit(_hessian(self.penalty, structure.together))
        self.penalty_product = jax.jit(lambda t, v: _along(jax.grad(self.penalty), t, v))
        third = jax.jit(jax.jacfwd(_hessian(self.penalty, structure.together)))
        bends = jax.jit(
            lambda t, vectors: jax.lax.map(
                lambda v: _along(self.penalty_product, t, v, v), vectors, batch_size=DIRECTIONS
            )
        )

        def penalty_third(theta: Array) -> Array:
            """∇³R, (D, D, D)."""
            return np.zeros((dim, dim, dim)) if regularizer is None else np.asarray(third(theta))

        def penalty_bends(theta: Array, vectors: Array) -> Array:
            """∇³R[v, v, ·] for each v."""
            return np.zeros_like(vectors) if regularizer is None else np.asarray(bends(theta, vectors))

        self.penalty_third, self.penalty_bends = penalty_third, penalty_bends
