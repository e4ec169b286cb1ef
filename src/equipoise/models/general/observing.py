"""Observations of any kind as a source: arrays, tables and scans of columns, with their weights folded into them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import Array
from equipoise.checks import finite_array
from equipoise.data.fields import Columns
from equipoise.data.marks import marked
from equipoise.data.numeric import require_weights
from equipoise.data.observed import Observations
from equipoise.data.observed import observations as beside
from equipoise.data.scanned import Scan
from equipoise.errors import InvalidInput
from equipoise.models.general.structure import leaf_name

__all__ = ["Weighted", "bare", "observations"]

# Containers of the user's own: only JAX looks inside.
Tree = object


class Weighted(NamedTuple):
    """An observation and what its loss is multiplied by: whatever is made of the loss has the weight in it."""

    observation: Any
    weight: Any


def bare(rows: Any) -> Any:
    """Rows as the user's functions take them."""
    return rows.observation if isinstance(rows, Weighted) else rows


def observations(data: Tree) -> tuple[Columns | Scan[Columns], jax.tree_util.PyTreeDef]:
    """A source of rows, floats in float64, and the structure of one observation.

    Raises
    ------
    InvalidInput
        If a leaf is not numeric, holds NaN or infinity, or has another leading axis than the rest.
    """
    if isinstance(data, Scan):
        return _scanned(data)
    given = data if isinstance(data, Observations) else beside(data)
    leaves, names, tree = _leaves(given.tree)
    height = len(leaves[0])
    weights, frequency = (_counts(name, getattr(given, name), height) for name in ("weights", "frequency"))
    require_weights(weights, frequency)
    made = Columns(tuple(leaves), names, marks=marked(height, None, given.clusters, given.time), frequency=frequency)
    if weights is not None:
        made = Columns((*leaves, weights), (*names, "weights"), marks=made.marks, frequency=frequency)
        tree = _weighted(tree)
    kept = np.ones(height, dtype=bool)
    for part in (weights, frequency):
        kept &= True if part is None else part > 0.0
    made = made if kept.all() else made.take(np.flatnonzero(kept))
    for name, leaf in zip(made.names, made.leaves, strict=True):
        # only of the rows that take part: one of weight zero may stand for an observation that was not made
        if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
            raise InvalidInput(f"data {name}", "finite", "NaN or infinity", "drop or impute those rows")
    return made, tree


def _scanned(data: Scan[Columns]) -> tuple[Scan[Columns], jax.tree_util.PyTreeDef]:
    if data.design is not None:
        raise InvalidInput(
            "data",
            "a scan of columns for a loss of your own",
            "one with a formula",
            "use eq.data.scan(..., columns=...)",
        )
    encoder: Any = data.encoder
    tree = jax.tree.structure(dict.fromkeys(encoder.shape, 0))
    return data, _weighted(tree) if "weights" in encoder.asked.beside else tree


def _weighted(tree: jax.tree_util.PyTreeDef) -> jax.tree_util.PyTreeDef:
    return jax.tree.structure(Weighted(jax.tree.unflatten(tree, [0] * tree.num_leaves), 0))


def _counts(name: str, given: Any, height: int) -> Array | None:
    """Weights or frequencies, one for every row."""
    if given is None:
        return None
    array = finite_array(name, given, "give one number per row")
    if array.shape != (height,):
        raise InvalidInput(name, f"one number per row, ({height},)", f"shape {array.shape}", "match them to the data")
    return array


def _leaves(data: Tree) -> tuple[list[NDArray[np.generic]], tuple[str, ...], jax.tree_util.PyTreeDef]:
    """The arrays of a pytree, their names, and the structure."""
    found: dict[str, int] = {}
    leaves: list[NDArray[np.generic]] = []
    paths, tree = jax.tree_util.tree_flatten_with_path(data)
    for path, leaf in paths:
        name, array = f"data {leaf_name(path)}" if path else "data", np.asarray(leaf)
        if array.dtype.kind not in "fiub" or array.ndim == 0:
            given = type(leaf).__name__ if array.dtype.kind == "O" else f"{array.dtype}, shape {array.shape}"
            raise InvalidInput(
                name, "a numeric array with a row axis", given, "encode it; data are arrays, such as {'x': x, 'y': y}"
            )
        found[name.removeprefix("data ")] = array.shape[0]
        leaves.append(array.astype(np.float64, copy=False) if array.dtype.kind == "f" else array)
    if not found:
        raise InvalidInput("data", "a pytree with at least one array", "no array", "pass for example {'x': x, 'y': y}")
    if len(set(found.values())) != 1 or 0 in found.values():
        raise InvalidInput(
            "data", "arrays with one common, non-empty leading axis", str(found), "match their first axes"
        )
    return leaves, tuple(found), tree
