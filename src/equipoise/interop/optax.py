"""A tuned chain as an optax `GradientTransformation`, for training loops that are already there."""

from __future__ import annotations

from typing import NamedTuple

import jax
import optax
from jax.flatten_util import ravel_pytree

from equipoise.arrays import PyTree
from equipoise.checks import whole
from equipoise.interop.gradients import at_rest, gradient, moved
from equipoise.interop.moves import move_of, require_size
from equipoise.theory.tuning import Tuning

__all__ = ["CalibratedState", "calibrated", "gradient"]


class CalibratedState(NamedTuple):
    """The generator's key and the velocity m, flat; the latter empty without momentum."""

    key: jax.Array
    velocity: jax.Array


def calibrated(tuning: Tuning, seed: int) -> optax.GradientTransformation:
    """The updates of a tuned chain: −Λ m + ε with m ← κ m + g and ε ~ N(0, M).

    Gradients are those of the mean loss of a batch plus the regulariser's over N; with a tuning for control variates,
    those of `eqo.gradient(tuning, model)`. Batches must be drawn as the tuning's dynamics say.

    Parameters
    ----------
    tuning
        From `eq.tune`, for batches that are independent or epochs.
    seed
        Of the injected noise.

    Returns
    -------
    optax.GradientTransformation
        Over the model's own tree of parameters, or their flat vector. Of a part of a tree: `optax.masked` with it.

    Examples
    --------
    >>> import equipoise as eq
    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x, problem = rng.normal(size=(200, 2)), eq.glm("gaussian", scale=1.0)
    >>> y = x @ [1.0, 2.0] + rng.normal(size=200)
    >>> moments = eq.moments(problem, (x, y), eq.fit(problem, (x, y)))
    >>> chain = calibrated(eq.tune(moments, "sandwich", eq.Dynamics(batch_size=20)), seed=0)
    >>> state = chain.init(jnp.zeros(2))
    >>> updates, state = chain.update(jnp.ones(2), state)
    >>> updates.shape
    (2,)
    """
    move, start = move_of(tuning), whole("seed", seed, 0, "pass an int")

    def init(params: PyTree) -> CalibratedState:
        flat, _ = ravel_pytree(params)
        require_size(
            tuning, flat.size, "pass the model's own tree of parameters, a part of a larger one by optax.masked"
        )
        return CalibratedState(jax.random.key(start), at_rest(move, flat))

    def update(updates: PyTree, state: CalibratedState, params: PyTree = None) -> tuple[PyTree, CalibratedState]:
        del params
        flat, back = ravel_pytree(updates)
        key, now = jax.random.split(state.key) if move.root.size else (state.key, state.key)
        change, velocity = moved(move, flat, state.velocity, now)
        return back(change), CalibratedState(key, velocity)

    return optax.GradientTransformation(init, update)
