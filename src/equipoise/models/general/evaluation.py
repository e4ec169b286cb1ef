"""Functions of the parameters and of an observation, for many draws at once."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from equipoise.arrays import Array
from equipoise.models.general.structure import observations
from equipoise.models.problem import Layout

__all__ = ["evaluate"]


def evaluate(layout: Layout, function: Callable[..., object], data: object, draws: Array) -> Array:
    """`function(params, observation)` for every draw and every row, (draws, rows, ...)."""
    source, tree = observations(data)
    with jax.enable_x64(True):
        held = jax.tree.unflatten(tree, [jnp.asarray(leaf) for leaf in source.whole().leaves])
        each = jax.jit(lambda t: jax.vmap(lambda o: function(layout.unflatten(t), o))(held))
        return np.asarray(jax.lax.map(each, jnp.asarray(draws)))
