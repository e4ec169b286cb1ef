"""A differentiable loss of your own: JAX functions over pytrees of parameters, bound to pytrees of rows (theory §1).

Everything is computed in float64 inside a local context: the global JAX configuration is never touched. Data travel as
arguments of compiled functions, in blocks of rows, so memory stays O(block · D²) and nothing of size N×D×D is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from equipoise.arrays import Array
from equipoise.cards import Card
from equipoise.checks import checked_fields, finite_array
from equipoise.engines.jax.loop import Loss
from equipoise.engines.jax.projection import Traced, Tree
from equipoise.errors import InvalidInput
from equipoise.linalg import symmetric
from equipoise.models.general.curvature import DIRECTIONS
from equipoise.models.general.problem import GeneralProblem
from equipoise.models.general.structure import Structure, observations, trainable_structure
from equipoise.models.problem import CUSTOM, Title

__all__ = ["GeneralProblem", "Model"]


@checked_fields
@dataclass(frozen=True, eq=False, repr=False)
class Model(Card):
    """A loss of your own.

    Attributes
    ----------
    loss
        `loss(params, observation) -> scalar`, in JAX; `observation` is one row of the data's pytree.
    init
        Parameters to start from: any pytree of floating-point arrays. It also gives the structure of every result.
    prior_precision, prior_mean
        Of a Gaussian prior on the (flat, trainable) parameters: scalar, vector or matrix; mean scalar or vector.
    regularizer
        `regularizer(params) -> scalar`, R(θ), instead of a Gaussian prior.
    trainable
        Which parameters vary: a pytree of booleans (prefixes allowed), or a function of a leaf's name. All by default;
        the others stay at `init` (last-layer calibration).
    subspace
        (origin, basis): parameters are origin + coordinates @ basis; made by `identified`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> model = Model(lambda p, o: (o["y"] - p["a"] - p["b"] * o["x"]) ** 2 / 2, init={"a": 0.0, "b": 0.0})
    >>> problem = model.bind({"x": np.arange(4.0), "y": 1.0 + 2.0 * np.arange(4.0)})
    >>> problem.names
    ('a', 'b')
    """

    loss: Callable[..., Traced]
    init: Tree
    prior_precision: ArrayLike = 0.0
    prior_mean: ArrayLike = 0.0
    regularizer: Callable[..., Traced] | None = None
    trainable: Tree = None
    subspace: tuple[Array, Array] | None = None

    @property
    def title(self) -> Title:
        """It has no name of its own."""
        return Title("Loss", CUSTOM, None)

    @property
    def portable(self) -> bool:
        """A loss of your own is not part of what is saved."""
        return False

    def bind(self, data: object) -> GeneralProblem:
        """Check the loss at its start and the data's leading axes.

        Raises
        ------
        InvalidInput
            If the loss is not a finite scalar at `init`, parameters are not floating-point, or leading axes differ.
        """
        source, tree = observations(data)
        problem = GeneralProblem(self, source, tree, source.n)
        problem.check()
        return problem

    def mean_response(self, eta: Array) -> Array:
        """A loss of your own has none."""
        raise InvalidInput(
            "model",
            "one from eq.glm to have a mean response",
            "a loss of your own",
            "use evaluate(function, data), or cal.draws",
        )

    def __getstate__(self) -> dict[str, object]:
        # compiled functions are made anew where they are needed
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @cached_property
    def structure(self) -> Structure:
        """How flat vectors become the user's parameters."""
        whole = trainable_structure(self.init, self.trainable)
        return whole if self.subspace is None else whole.within(*self.subspace)

    def identified(self, data: object, params: object) -> Model:
        """The model restricted to the directions its loss curves along at a minimiser, which is its new start."""
        problem = self.bind(data)
        return problem.identified(problem.flatten(params)).model

    def within(self, theta: Array, axes: Array) -> Model:
        """The model restricted to θ + the span of the rows of `axes`, with θ as its start."""
        basis = axes if self.subspace is None else axes @ self.subspace[1]
        origin = np.asarray(self.structure.embed(theta))
        return replace(self, subspace=(origin, basis), init=self.structure.unflatten(theta))

    @cached_property
    def functions(self) -> Functions:
        """The compiled functions, shared by every binding of this model."""
        return Functions(self)

    def prior(self) -> tuple[Array, Array]:
        """Precision matrix and mean of the Gaussian prior."""
        dim = self.structure.full
        precision = finite_array("prior_precision", self.prior_precision)
        mean = finite_array("prior_mean", self.prior_mean)
        if precision.shape not in {(), (dim,), (dim, dim)} or mean.shape not in {(), (dim,)}:
            raise InvalidInput(
                "prior_precision, prior_mean",
                f"a scalar, a vector ({dim},) or (precision only) a matrix ({dim}, {dim})",
                f"shapes {precision.shape}, {mean.shape}",
                "match the flat parameters",
            )
        if mean.any() and not precision.any() and self.regularizer is None:
            remedy = "add prior_precision=..., or remove prior_mean="
            raise InvalidInput("prior_mean", "given with a prior_precision", "no precision", remedy)
        if self.regularizer is not None and (precision.any() or mean.any()):
            raise InvalidInput("regularizer", "left out when a Gaussian prior is given", "both", "give one of the two")
        if precision.ndim == 2 and np.abs(precision - precision.T).max() > 1e-8 * np.abs(precision).max():
            raise InvalidInput("prior_precision", "symmetric", "a matrix that is not", "pass (P + P.T) / 2")
        matrix = symmetric(precision) if precision.ndim == 2 else np.diag(np.broadcast_to(precision, dim))
        if np.linalg.eigvalsh(matrix)[0] < -1e-10 * max(1.0, np.abs(matrix).max()):
            raise InvalidInput(
                "prior_precision", "positive semi-definite", "a negative direction", "use zero for no prior"
            )
        return matrix.astype(np.float64), np.broadcast_to(mean, dim).astype(np.float64)


class Functions:
    """Compiled derivatives of a model's loss over a masked block of rows; flat parameters in, float64 out."""

    def __init__(self, model: Model) -> None:
        structure, loss = model.structure, model.loss
        precision, mean = model.prior()

        def row(theta: Traced, observation: Tree) -> Traced:
            return loss(structure.unflatten(theta), observation)

        def total(theta: Traced, block: Tree, mask: Traced) -> Traced:
            return jnp.sum(mask * jax.vmap(row, (None, 0))(theta, block))

        def penalty(theta: Array | Traced) -> Traced:
            if model.regularizer is not None:
                return model.regularizer(structure.unflatten(theta))
            away = structure.embed(theta) - mean
            return cast(Traced, 0.5 * away @ precision @ away)

        def bends(theta: Traced, block: Tree, mask: Traced, vectors: Traced) -> Traced:
            """Σ over rows of ∇³ℓ[v, v, ·] for each v: second derivatives of the gradient along it."""

            def along(v: Traced) -> Traced:
                slope = lambda t: jax.jvp(lambda u: jax.grad(total)(u, block, mask), (t,), (v,))[1]  # noqa: E731
                return jax.jvp(slope, (theta,), (v,))[1]

            return jax.lax.map(along, vectors, batch_size=DIRECTIONS)

        def bend_gradient(theta: Traced, block: Tree, mask: Traced, values: Traced, vectors: Traced) -> Traced:
            """Σ over rows of ∇ tr(∇²ℓ S), S = Σ_i s_i v_i v_iᵀ."""
            return values @ bends(theta, block, mask, vectors)

        flat = model.regularizer is None and not precision.any()
        self.row = row
        self.penalty = penalty
        self.loss = Loss(row, penalty, flat, model.regularizer is None, structure.dim)
        self.value = jax.jit(total)
        self.gradient = jax.jit(jax.value_and_grad(total))
        self.hessian = jax.jit(jax.hessian(total))
        self.scores = jax.jit(jax.vmap(jax.grad(row), (None, 0)))
        self.hessians = jax.jit(jax.vmap(jax.hessian(row), (None, 0)))
        self.products = jax.jit(
            lambda theta, block, vectors: jax.vmap(
                lambda o: jax.vmap(lambda v: jax.jvp(lambda t: jax.grad(row)(t, o), (theta,), (v,))[1])(vectors)
            )(block)
        )
        self.thirds = jax.jit(jax.vmap(jax.jacfwd(jax.hessian(row)), (None, 0)))
        self.bends = jax.jit(bends)
        self.bend_gradient = jax.jit(bend_gradient)
        self.penalty_derivatives = jax.jit(lambda t: (penalty(t), jax.grad(penalty)(t), jax.hessian(penalty)(t)))
        self.penalty_third = jax.jit(jax.jacfwd(jax.hessian(penalty)))
        self.penalty_bend = jax.jit(jax.grad(lambda t, S: jnp.sum(jax.hessian(penalty)(t) * S)))
