"""Functions of the parameters and of an observation, for many draws at once."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from equipoise.arrays import Array
from equipoise.data.observed import Observations
from equipoise.models.general.observing import observations
from equipoise.models.general.tracing import require_array
from equipoise.models.layout import Wide
from equipoise.models.problem import Layout

__all__ = ["evaluate"]

# Numbers in the parameters of all draws that are looked at together: 128 MB.
_TOGETHER = 1 << 24


def evaluate(layout: Layout, function: Callable[..., object], data: object, draws: Array) -> Array:
    """`function(params, observation)` for every draw and every row, (draws, rows, ...).

    In a subspace the parameters of a few draws at a time are made: all of them may not fit into memory.
    """
    source, tree = observations(data.tree if isinstance(data, Observations) else data)
    embed, shaped, size = _parts(layout, draws.shape[-1])
    with jax.enable_x64(True):
        held = jax.tree.unflatten(tree, [jnp.asarray(leaf) for leaf in source.whole().leaves])

        @jax.jit
        def each(full: jax.Array) -> object:
            return jax.lax.map(lambda t: jax.vmap(lambda o: function(shaped(t), o))(held), full)

        require_array(each, embed(draws[:1]))
        some = max(1, _TOGETHER // size)
        parts = [np.asarray(each(embed(draws[k : k + some]))) for k in range(0, len(draws), some)]
        return np.concatenate(parts)


def _parts(layout: Layout, dim: int) -> tuple[Callable[[Array], Array], Callable[..., object], int]:
    """How draws become vectors of all parameters, how those get their structure, and how long they are."""
    if isinstance(layout, Wide):
        return layout.embed, layout.shaped, layout.full
    return lambda draws: draws, layout.unflatten, dim
