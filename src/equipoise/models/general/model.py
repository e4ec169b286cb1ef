"""Any differentiable loss: JAX functions over pytrees of parameters, bound to pytrees of rows (theory §1).

Everything is computed in float64 inside a local context: the global JAX configuration is never touched. Data travel as
arguments of compiled functions, in blocks of rows, so memory stays O(block · D²) and nothing of size N×D×D is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from equipoise.arrays import Array
from equipoise.errors import InvalidInput
from equipoise.linalg import FLAT, curvature_axes, symmetric
from equipoise.models.general.curvature import DIRECTIONS, GeneralCurvature, factored_curvature
from equipoise.models.general.structure import Structure, row_count, trainable_structure
from equipoise.theory.moments import Curvature, Moments

__all__ = ["GeneralProblem", "Model"]


# Elements of the largest intermediate of one block: rows times D² for Hessians of each row.
_BLOCK_ELEMENTS = 1 << 22
# Perturbed starts on offer: `restarts` at most.
_PERTURBED = 100


@dataclass(frozen=True, eq=False)
class Model:
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

    loss: Callable[[Any, Any], Any]
    init: Any
    prior_precision: ArrayLike = 0.0
    prior_mean: ArrayLike = 0.0
    regularizer: Callable[[Any], Any] | None = None
    trainable: Any = None
    subspace: tuple[Array, Array] | None = None

    def bind(self, data: Any) -> GeneralProblem:
        """Check the loss at its start and the data's leading axes.

        Raises
        ------
        InvalidInput
            If the loss is not a finite scalar at `init`, parameters are not floating-point, or leading axes differ.
        """
        rows = row_count(data)
        with jax.enable_x64(True):
            held = jax.tree.map(_column, data)
        problem = GeneralProblem(self, held, rows, rows)
        problem.check()
        return problem

    def evaluate(self, function: Callable[[Any, Any], Any], data: Any, draws: Array) -> Array:
        """`function(params, observation)` for every draw and every row, (draws, rows, ...)."""
        row_count(data)
        with jax.enable_x64(True):
            held = jax.tree.map(_column, data)
            each = jax.jit(lambda t: jax.vmap(lambda o: function(self.structure.unflatten_jax(t), o))(held))
            return np.asarray(jax.lax.map(each, jnp.asarray(draws)))

    def at_constant(self, constant: float | None) -> Model:  # noqa: ARG002
        """A general loss has no constant to fix."""
        return self

    @cached_property
    def structure(self) -> Structure:
        """How flat vectors become the user's parameters."""
        whole = trainable_structure(self.init, self.trainable)
        return whole if self.subspace is None else whole.within(*self.subspace)

    def identified(self, data: Any, params: Any, tuning_rows: int | None = None, seed: int = 0) -> Model:
        """The model restricted to the directions its loss curves along at a minimiser, which is its new start.

        Along the others (symmetries, dead units, redundant parameters) the data say nothing and no chain is stationary.
        """
        problem = self.bind(data)
        if tuning_rows is not None:
            problem = problem.subsample(tuning_rows, seed)
        theta = problem.flatten(params)
        values, axes = curvature_axes(problem.derivatives(theta)[2])
        basis = axes[values > FLAT]
        if self.subspace is not None:
            basis = basis @ self.subspace[1]
        return replace(self, subspace=(np.asarray(self.structure.embed(theta)), basis), init=params)

    @cached_property
    def functions(self) -> Functions:
        """The compiled functions, shared by every binding of this model."""
        return Functions(self)

    def prior(self) -> tuple[Array, Array]:
        """Precision matrix and mean of the Gaussian prior."""
        dim = self.structure.full
        precision = _finite("prior_precision", self.prior_precision)
        mean = _finite("prior_mean", self.prior_mean)
        if precision.shape not in {(), (dim,), (dim, dim)} or mean.shape not in {(), (dim,)}:
            raise InvalidInput(
                "prior_precision, prior_mean",
                f"a scalar, a vector ({dim},) or (precision only) a matrix ({dim}, {dim})",
                f"shapes {precision.shape}, {mean.shape}",
                "match the flat parameters",
            )
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

        def row(theta: Any, observation: Any) -> Any:
            return loss(structure.unflatten_jax(theta), observation)

        def total(theta: Any, block: Any, mask: Any) -> Any:
            return jnp.sum(mask * jax.vmap(row, (None, 0))(theta, block))

        def penalty(theta: Any) -> Any:
            if model.regularizer is not None:
                return model.regularizer(structure.unflatten_jax(theta))
            away = structure.embed(theta) - mean
            return 0.5 * away @ precision @ away

        def bend_gradient(theta: Any, block: Any, mask: Any, values: Any, vectors: Any) -> Any:
            """Σ over rows of ∇ tr(∇²ℓ S), S = Σ_i s_i v_i v_iᵀ: second derivatives of the gradient along each v_i."""

            def along(v: Any) -> Any:
                slope = lambda t: jax.jvp(lambda u: jax.grad(total)(u, block, mask), (t,), (v,))[1]  # noqa: E731
                return jax.jvp(slope, (theta,), (v,))[1]

            return values @ jax.lax.map(along, vectors, batch_size=DIRECTIONS)

        self.row = row
        self.penalty = penalty
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
        self.bend_gradient = jax.jit(bend_gradient)
        self.penalty_derivatives = jax.jit(lambda t: (penalty(t), jax.grad(penalty)(t), jax.hessian(penalty)(t)))
        self.penalty_bend = jax.jit(jax.grad(lambda t, S: jnp.sum(jax.hessian(penalty)(t) * S)))


@dataclass(frozen=True)
class GeneralProblem:
    """A model on its rows; see `equipoise.models.protocol.Problem`."""

    model: Model
    data: Any
    size: int
    n: int

    @property
    def names(self) -> tuple[str, ...]:
        """One name per flat parameter."""
        return self.model.structure.names

    @property
    def variables(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Name and shape of every trainable leaf, in flat order."""
        return self.model.structure.variables

    @property
    def guarded(self) -> bool:
        """Chains of general losses run unguarded unless asked."""
        return False

    @property
    def convex(self) -> bool:
        """Nothing is known of a general loss."""
        return False

    @property
    def relaxed(self) -> None:
        """A general loss has no convex companion."""
        return None

    @property
    def every_start(self) -> bool:
        """The user's start first; the others only if it fails."""
        return False

    def check(self) -> None:
        """Trace the loss of the first row and the regulariser, evaluate both at the start, and name what is wrong."""
        functions, start = self.model.functions, self.model.structure.flatten(self.model.init)
        with jax.enable_x64(True):
            first = jax.tree.map(lambda a: a[0], self.data)
            _require_scalar("loss", "(init, one row of the data)", functions.row, start, first)
            _require_scalar("regularizer", "init", functions.penalty, start)
        value = self.value(start)
        if not np.isfinite(value):
            raise InvalidInput("init", "a point where the loss is finite", f"mean loss {value}", "choose another start")

    def subsample(self, rows: int, seed: int) -> GeneralProblem:
        """The same problem on random rows."""
        if not 1 <= rows <= self.size:
            raise InvalidInput(
                "tuning_rows", f"between 1 and the number of rows, {self.size}", rows, "choose a size in range"
            )
        index = np.sort(np.random.default_rng(seed).choice(self.size, size=rows, replace=False))
        with jax.enable_x64(True):
            taken = jax.tree.map(lambda a: a[index], self.data)
        return replace(self, data=taken, size=rows)

    def flatten(self, params: Any) -> Array:
        """Parameters in the user's structure, or already flat, as a flat vector."""
        return self.model.structure.flatten(params)

    def unflatten(self, theta: Array) -> Any:
        """Flat vectors (any leading axes) in the user's structure."""
        return self.model.structure.unflatten(theta)

    def settled(self, theta: Array) -> GeneralProblem:  # noqa: ARG002
        """No constant is estimated."""
        return self

    def constant_at(self, theta: Array) -> float | None:  # noqa: ARG002
        """A general loss has no constant of its own."""
        return None

    def starts(self) -> list[Array]:
        """The user's start, then seeded perturbations of it for losses with several minima."""
        start = self.flatten(self.model.init)
        rng = np.random.default_rng(0)
        spread = 0.3 + 0.3 * np.abs(start)
        return [start, *(start + spread * rng.normal(size=start.size) for _ in range(_PERTURBED))]

    def value(self, theta: Array) -> float:
        """L(θ)."""
        with jax.enable_x64(True):
            total = sum(float(self.model.functions.value(theta, *block)) for block in self.blocks(theta.size))
            return total / self.size + float(self.model.functions.penalty(theta)) / self.n

    def gradient(self, theta: Array) -> tuple[float, Array]:
        """L and ∇L."""
        value, total = 0.0, np.zeros(theta.size)
        with jax.enable_x64(True):
            for block in self.blocks(theta.size):
                part, slope = self.model.functions.gradient(theta, *block)
                value, total = value + float(part), total + np.asarray(slope)
            R, dR, _ = self.model.functions.penalty_derivatives(theta)
        return value / self.size + float(R) / self.n, total / self.size + np.asarray(dR) / self.n

    def derivatives(self, theta: Array) -> tuple[float, Array, Array]:
        """L, ∇L and ∇²L."""
        value, gradient = self.gradient(theta)
        with jax.enable_x64(True):
            d2R = np.asarray(self.model.functions.penalty_derivatives(theta)[2])
        return value, gradient, self._loss_hessian(theta) + d2R / self.n

    def explain(self, theta: Array, direction: Array) -> tuple[str, ...] | None:  # noqa: ARG002
        """A general loss may rise again far away: nothing can be concluded."""
        return None

    def moments(self, params: Any, tuning_rows: int | None = None, seed: int = 0) -> Moments:
        """J, V, H and the curvature operator at `params`."""
        if tuning_rows is not None:
            return self.subsample(tuning_rows, seed).moments(params)
        theta = self.flatten(params)
        dim, functions = theta.size, self.model.functions
        mean, square = np.zeros(dim), np.zeros((dim, dim))
        with jax.enable_x64(True):
            for block, mask in self.blocks(dim):
                g = np.asarray(functions.scores(theta, block)) * np.asarray(mask)[:, None]
                mean, square = mean + g.sum(axis=0), square + g.T @ g
            d2R = np.asarray(functions.penalty_derivatives(theta)[2])
        mean, J = mean / self.size, self._loss_hessian(theta)
        V = symmetric(square / self.size - np.outer(mean, mean))
        return Moments(
            n=self.n,
            params=theta,
            loss_hessian=J,
            hessian=symmetric(J + d2R / self.n),
            score_cov=V,
            mean_score=mean,
            noise_ratio=float(np.trace(np.linalg.lstsq(J, V, rcond=None)[0]) / dim),
            curvature=self._curvature(theta),
            names=self.names,
        )

    def blocks(self, elements: int) -> Iterator[tuple[Any, Any]]:
        """Blocks of rows, so many `elements` each, with a mask; all are of one size, so that nothing is compiled twice."""
        length = max(1, min(self.size, _BLOCK_ELEMENTS // max(1, elements)))
        for start in range(0, self.size, length):
            index = np.minimum(np.arange(start, start + length), self.size - 1)
            mask = jnp.asarray(np.arange(start, start + length) < self.size, dtype=jnp.float64)
            whole = length == self.size
            yield (self.data if whole else jax.tree.map(lambda a, i=index: a[i], self.data)), mask

    def _loss_hessian(self, theta: Array) -> Array:
        total = np.zeros((theta.size, theta.size))
        with jax.enable_x64(True):
            # a tangent per parameter through what lies between parameters and loss, and that is narrower than they are
            for block in self.blocks(int(theta.size**1.5)):
                total += np.asarray(self.model.functions.hessian(theta, *block))
        return symmetric(total) / self.size

    def _curvature(self, theta: Array) -> Curvature:
        exact = GeneralCurvature(self, theta)
        return factored_curvature(exact) or exact


def _finite(name: str, value: ArrayLike) -> Array:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(name, "numeric", repr(value), "pass finite numbers") from error
    if not np.isfinite(array).all():
        raise InvalidInput(name, "finite", "NaN or infinity", "pass finite numbers")
    return array


def _require_scalar(name: str, arguments: str, function: Callable[..., Any], *at: Any) -> None:
    """Raise `InvalidInput` unless the user's function can be traced, gives a real scalar, and has a derivative."""
    try:
        found = jax.eval_shape(function, *at)
        if isinstance(found, jax.ShapeDtypeStruct) and found.shape == () and found.dtype.kind == "f":
            jax.eval_shape(jax.grad(function), *at)
            return
    except Exception as error:  # whatever the user's code raises
        raise InvalidInput(
            name,
            f"a differentiable JAX function of {arguments}",
            f"{type(error).__name__}: {str(error).partition(chr(10))[0].rstrip('.')}",
            "use jax.numpy throughout and check both pytrees",
        ) from error
    given = jax.tree.map(lambda leaf: f"{leaf.dtype}, shape {leaf.shape}", found)
    raise InvalidInput(name, "a floating-point scalar", given, "sum or index the result")


def _column(leaf: Any) -> Any:
    """A column of the data: floats in float64, integers and booleans as they are."""
    array = np.asarray(leaf)
    return jnp.asarray(array, dtype=jnp.float64 if array.dtype.kind == "f" else array.dtype)
