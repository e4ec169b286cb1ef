"""The gradient a tuning was made for, as a JAX function of parameters and a batch, for loops of one's own."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from equipoise.arrays import PyTree
from equipoise.checks import shown
from equipoise.engines.jax.projection import Traced, Tree
from equipoise.errors import InvalidInput
from equipoise.interop.moves import Move, move_of, require_size
from equipoise.models.general.model import Model
from equipoise.models.general.observing import Weighted
from equipoise.models.general.problem import GeneralProblem
from equipoise.models.general.structure import Structure
from equipoise.theory.tuning import Tuning

__all__ = ["at_rest", "flat_gradient", "general_model", "gradient", "moved", "raveled"]


def gradient(tuning: Tuning, model: Model | GeneralProblem) -> Callable[[PyTree, PyTree], PyTree]:
    """The stochastic gradient of the mean regularised loss: plain, or with control variates if the tuning asks for them.

    Parameters
    ----------
    tuning
        What the chain is tuned to.
    model
        An `eq.Model`, or a problem of one.

    Returns
    -------
    Callable
        `gradient(params, batch)`: a tree like `params`; `batch` has the data's structure, with rows along the first axis. Of
        a problem whose rows have weights: `gradient(params, (batch, weights))`.
    """
    loss = general_model(model)
    slope = flat_gradient(tuning, model)

    def of_tree(params: PyTree, batch: PyTree) -> PyTree:
        theta, back = raveled(loss.structure, params)
        return back(slope(theta, batch))

    return of_tree


def flat_gradient(tuning: Tuning, model: Model | GeneralProblem) -> Callable[[Traced, Tree], Traced]:
    """The same for flat parameters.

    With control variates, the mean gradient of all rows at θ̂ is what the regulariser's is there, with the other sign.
    """
    move_of(tuning)
    loss = general_model(model)
    require_size(tuning, loss.structure.dim, "tune on this model's moments")
    functions, push, n = loss.functions, _push(tuning, loss), tuning.predicted.moments.n
    tree = model.tree if isinstance(model, GeneralProblem) else None

    def mean(theta: Traced, batch: Tree) -> Traced:
        rows = batch if tree is None else _structured(batch, tree)
        return jnp.mean(jax.vmap(functions.row, (None, 0))(theta, rows))

    def plain(theta: Traced, batch: Tree) -> Traced:
        return jax.grad(mean)(theta, batch) + push(theta) / n

    def varied(theta: Traced, batch: Tree) -> Traced:
        center = jnp.asarray(tuning.center, dtype=theta.dtype)
        here, there = jax.vmap(lambda t: jax.grad(mean)(t, batch))(jnp.stack([theta, center]))
        return here - there + (push(theta) - push(center)) / n

    return varied if tuning.dynamics.gradient == "control-variate" else plain


def moved(move: Move, g: Traced, velocity: Traced, key: jax.Array) -> tuple[Traced, Traced]:
    """−Λ m + ε of a gradient, and m = κ m + g, which is empty without momentum; the key is that of ε."""
    step, root, momentum = move
    velocity = momentum * velocity + g if momentum else velocity
    change = -jnp.asarray(step, g.dtype) @ (velocity if momentum else g)
    if root.size:
        change = change + jnp.asarray(root, g.dtype) @ jax.random.normal(key, root.shape[1:], g.dtype)
    return change, velocity


def at_rest(move: Move, theta: Traced) -> Traced:
    """The velocity to begin with."""
    return jnp.zeros_like(theta) if move.momentum else jnp.zeros(0, theta.dtype)


def _push(tuning: Tuning, model: Model) -> Callable[[Traced], Traced]:
    """∇R, in the precision of the user's parameters; a Gaussian prior's is linear, and all of it known at θ̂."""
    penalty = model.functions.penalty
    if model.regularizer is not None:
        return jax.grad(penalty)
    with jax.enable_x64(True):
        slope, bend = (np.asarray(d(penalty)(tuning.center)) for d in (jax.grad, jax.hessian))

    def linear(theta: Traced) -> Traced:
        at = theta.dtype
        return jnp.asarray(slope, at) + jnp.asarray(bend, at) @ (theta - jnp.asarray(tuning.center, at))

    return linear


def _structured(batch: Tree, tree: jax.tree_util.PyTreeDef) -> Tree:
    """A batch as the rows it was tuned on: gradients without their weights would be those of another loss."""
    weighed = isinstance(jax.tree.unflatten(tree, range(tree.num_leaves)), Weighted)
    rows = Weighted(*batch) if weighed and isinstance(batch, tuple) and len(batch) == 2 else batch
    if jax.tree.structure(rows) != tree:
        raise InvalidInput(
            "minibatch", "(rows, weights), as the problem's rows have weights" if weighed else "rows in the data's structure",
            str(jax.tree.structure(batch)), "take the same rows of every array of the data",
        )  # fmt: skip
    return rows


def general_model(model: object) -> Model:
    """The loss in JAX behind a model or a problem."""
    found = model.model if isinstance(model, GeneralProblem) else model
    if not isinstance(found, Model):
        raise InvalidInput(
            "model",
            "an eq.Model or a problem of one, whose loss is in JAX",
            shown(type(found)),
            "write the loss in JAX",
        )
    return found


def raveled(structure: Structure, params: PyTree) -> tuple[Traced, Callable[[Traced], PyTree]]:
    """The coordinates of a tree of parameters, and how a gradient in them becomes a tree; constants have none.

    Coordinates that are flat already stay so.
    """
    if structure.basis is not None or _is_flat(structure, params):
        _require_shape("parameters", (structure.dim,), params)
        return _floating(params), lambda flat: flat
    leaves, tree = jax.tree.flatten(params)
    if tree != structure.treedef:
        raise InvalidInput(
            "parameters", f"of the structure {structure.treedef}, or a vector of {structure.dim} numbers", str(tree),
            "pass fit.params",
        )  # fmt: skip
    parts = [leaf for leaf, varies in zip(leaves, structure.varies, strict=True) if varies]
    for part, (name, shape) in zip(parts, structure.trained, strict=True):
        _require_shape(f"parameters {name}", shape, part)
    theta = jnp.concatenate([jnp.ravel(_floating(part)) for part in parts])

    def back(flat: Traced) -> PyTree:
        found, start = [], 0
        for leaf, varies in zip(leaves, structure.varies, strict=True):
            if not varies:
                found.append(jnp.zeros_like(leaf))
                continue
            shape, size = jnp.shape(leaf), jnp.size(leaf)
            found.append(flat[start : start + size].reshape(shape))
            start += size
        return jax.tree.unflatten(tree, found)

    return theta, back


def _is_flat(structure: Structure, params: PyTree) -> bool:
    return structure.treedef != jax.tree.structure(0.0) and isinstance(params, (np.ndarray, jax.Array))


def _require_shape(name: str, shape: tuple[int, ...], given: PyTree) -> None:
    if jnp.shape(given) != shape:
        raise InvalidInput(name, f"of shape {shape}", f"shape {jnp.shape(given)}", "pass fit.params")


def _floating(a: PyTree) -> Traced:
    """Whole numbers, as a start may have them, have no gradient."""
    found = jnp.asarray(a)
    return found if jnp.issubdtype(found.dtype, jnp.floating) else found.astype(float)
