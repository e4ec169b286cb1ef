"""The user's parameter structure: which leaves vary, what they are called, and how flat vectors become pytrees."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import jax
import numpy as np

from equipoise.arrays import Array
from equipoise.checks import finite_array, numeric_array, users_code
from equipoise.errors import InvalidInput
from equipoise.models.layout import Skeleton, Variables, embedded, kept

__all__ = ["Structure", "leaf_name", "trainable_structure"]

# Numbers in the parameters of all directions that are taken together: 64 MB.
_TOGETHER = 1 << 23
# The same of one row that stay in cache, and directions of a group where they do not.
_CACHED, _GROUP = 1 << 20, 8

# Containers of the user's own: only JAX looks inside.
Tree = object


@dataclass(frozen=True)
class Structure:
    """Trainable leaves in `ravel_pytree` order; the others are constants.

    `leaves` are those of the initial parameters, float64, in the user's structure; `varies` says which of them are
    trainable, and `trained` has their names and shapes. With a subspace, parameters are origin + coordinates @ basis.
    """

    treedef: jax.tree_util.PyTreeDef
    leaves: tuple[Tree, ...]
    varies: tuple[bool, ...]
    trained: tuple[tuple[str, tuple[int, ...]], ...]
    origin: Array | None = None
    basis: Array | None = None

    @property
    def full(self) -> int:
        """Number of trainable scalars."""
        return sum(prod(shape) for _, shape in self.trained)

    @property
    def dim(self) -> int:
        """Number of coordinates: trainable scalars, or directions of the subspace."""
        return self.full if self.basis is None else self.basis.shape[0]

    @property
    def variables(self) -> Variables:
        """Name and shape of every array of coordinates."""
        return self.trained if self.basis is None else (("direction", (self.dim,)),)

    @property
    def together(self) -> int:
        """Directions along which derivatives are taken together: as many as their parameters leave room for."""
        return max(1, _TOGETHER // self.full)

    @property
    def narrow(self) -> bool:
        """Whether this is a subspace of so many parameters that no row should have those of all directions to itself."""
        return self.basis is not None and self.full * self.dim > _CACHED

    @property
    def group(self) -> int:
        """Directions that are paired with as many others where second derivatives are taken forwards."""
        return min(_GROUP, self.together, self.dim)

    def apart(self, directions: int) -> int:
        """Numbers made of each row where derivatives of every row are taken along so many directions."""
        return max(directions * self.dim, min(directions, self.together) * self.full)

    def summed(self, directions: int = 1) -> int:
        """The same where rows are added up: what lies between parameters and loss, which is narrower than they are."""
        return min(directions, self.together) * max(1, int(self.full**0.5))

    @property
    def scored(self) -> int:
        """Numbers made of each row where its gradient is."""
        return self.summed(self.dim) if self.narrow else self.apart(1)

    @property
    def written(self) -> int:
        """Numbers made of each row where its Hessian is."""
        if not self.narrow:
            return self.apart(self.dim)
        return max(self.dim**2, self.group * self.summed(self.group))

    def within(self, origin: Array, basis: Array) -> Structure:
        """The same parameters restricted to origin + the span of the rows of `basis`."""
        return replace(self, origin=origin, basis=basis)

    @property
    def frame(self) -> tuple[Array, ...]:
        """What leads from coordinates to trainable scalars: origin and basis, or nothing; large, so never a constant."""
        return () if self.origin is None or self.basis is None else (self.origin, self.basis)

    def embed(self, theta: Array) -> Array:
        """Coordinates as the vector of all trainable scalars."""
        return np.asarray(embedded(theta, self.frame))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """One name per trainable scalar: `leaf` or `leaf[i,j]`; a million of them take a second."""
        return tuple(
            name + (f"[{','.join(map(str, index))}]" if index else "")
            for name, shape in self.variables
            for index in np.ndindex(*shape)
        )

    def flatten(self, params: Tree) -> Array:
        """The trainable part of `params` as a vector; a flat vector passes through."""
        if isinstance(params, np.ndarray) and params.shape == (self.dim,) and self._vectors_are_flat:
            return _finite(params.astype(np.float64))
        leaves, treedef = jax.tree.flatten(params)
        if treedef != self.treedef:
            raise InvalidInput("params", f"of the structure {self.treedef}", str(treedef), "pass fit.params")
        parts = [numeric_array("params", leaf) for leaf, v in zip(leaves, self.varies, strict=True) if v]
        for part, (name, shape) in zip(parts, self.trained, strict=True):
            if part.shape != shape:
                raise InvalidInput(f"params {name}", f"of shape {shape}", f"shape {part.shape}", "pass fit.params")
        flat = _finite(np.concatenate([np.ravel(part) for part in parts]))
        if self.basis is None or self.origin is None:
            return flat
        return _coordinates(self.basis, flat - self.origin)

    @property
    def _vectors_are_flat(self) -> bool:
        """Whether a plain vector can only mean coordinates: a single bare array is its own structure otherwise."""
        return self.basis is not None or self.treedef != jax.tree.structure(0.0)

    def unflatten(self, theta: Array | jax.Array) -> Tree:
        """Vectors with any leading axes in the user's structure, inside compiled functions too."""
        return self.shaped(embedded(theta, self.frame))

    def shaped(self, full: Array | jax.Array) -> Tree:
        """The same for vectors of all trainable scalars."""
        # copies for the user: JAX remembers an array that was a constant in float64 as such, also where they have float32
        leaves = [_own(leaf) for leaf in self.leaves] if isinstance(full, np.ndarray) else list(self.leaves)
        start, shapes = 0, iter(self.trained)
        for k, varies in enumerate(self.varies):
            if varies:
                shape = next(shapes)[1]
                stop = start + prod(shape)
                leaves[k] = full[..., start:stop].reshape((*full.shape[:-1], *shape))
                start = stop
        return jax.tree.unflatten(self.treedef, leaves)

    def spread(self, name: str, given: Tree) -> Array:
        """A number or array per leaf of parameters (prefixes allowed) as one number for every trainable scalar."""
        shapes = iter(self.trained)
        parts = [next(shapes) if varies else None for varies in self.varies]
        with users_code(name, "a pytree of numbers that fits init", "match its keys"):
            whole = jax.tree.unflatten(self.treedef, [_Leaf(k) for k in range(len(parts))])
            each = jax.tree.map(lambda value, part: jax.tree.map(lambda leaf: (leaf, value), part), given, whole)
        flat = np.empty(self.full)
        start = 0
        for leaf, value in jax.tree.leaves(each, is_leaf=lambda pair: isinstance(pair, tuple) and len(pair) == 2):
            if (part := parts[leaf.number]) is None:
                continue
            leaf_name, shape = part
            array = finite_array(f"{name} {leaf_name}", value)
            if array.shape not in {(), shape}:
                raise InvalidInput(
                    f"{name} {leaf_name}", f"a number or of shape {shape}", f"shape {array.shape}", "match the leaf"
                )
            flat[start : start + prod(shape)] = np.broadcast_to(array, shape).ravel()
            start += prod(shape)
        return flat

    def skeleton(self) -> Skeleton:
        """The same in plain containers, which can be kept: what is not a dictionary, list or tuple becomes the first."""
        numbers = [k for k, varies in enumerate(self.varies) if varies]
        trained = tuple((name, shape, k) for (name, shape), k in zip(self.trained, numbers, strict=True))
        others = {k: np.asarray(leaf) for k, leaf in enumerate(self.leaves) if not self.varies[k]}
        constants = {k: array for k, array in others.items() if array.dtype.kind in "fiub"}
        whole = jax.tree.unflatten(self.treedef, [_Leaf(k) for k in range(len(self.leaves))])
        return Skeleton(_frame(whole, constants.keys() | set(numbers)), trained, constants, self.origin, self.basis)

    def __deepcopy__(self, memo: dict[int, object]) -> Structure:
        return self

    def __reduce__(self) -> tuple[Callable[[Skeleton], Skeleton], tuple[Skeleton]]:
        # a treedef of the user's own classes does not travel
        return kept, (self.skeleton(),)


@dataclass(frozen=True)
class _Leaf:
    number: int


def _coordinates(basis: Array, away: Array) -> Array:
    """The coordinates of the nearest point: rows of a basis may be long or short, but are far from parallel."""
    norms = np.linalg.norm(basis, axis=1)
    gram = basis @ basis.T / np.outer(norms, norms)
    z = np.zeros(len(basis))
    for _ in range(2):  # the second mends the rounding of the first
        z += np.linalg.solve(gram, basis @ (away - z @ basis) / norms) / norms
    return z


def _frame(tree: Tree, kept: Set[int]) -> dict[str, object]:
    """The containers of a tree of numbered leaves; leaves that cannot be kept (functions, say) are left empty."""
    if isinstance(tree, _Leaf):
        return {"leaf": tree.number} if tree.number in kept else {"none": None}
    if tree is None:
        return {"none": None}
    if isinstance(tree, dict) and all(isinstance(key, str) for key in tree):
        return {"dict": {key: _frame(part, kept) for key, part in tree.items()}}
    if isinstance(tree, (list, tuple)) and type(tree) in (list, tuple):
        return {type(tree).__name__: [_frame(part, kept) for part in tree]}
    parts = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda part: part is not tree)[0]
    return {"dict": {leaf_name(path): _frame(part, kept) for path, part in parts}}


def trainable_structure(init: Tree, trainable: Tree) -> Structure:
    """The structure of `init` with the leaves chosen by `trainable`: at least one, and floating-point arrays."""
    paths, treedef = jax.tree_util.tree_flatten_with_path(init)
    names = [leaf_name(path) for path, _ in paths]
    if trainable is None:
        varies = [True] * len(paths)
    elif callable(trainable) and jax.tree_util.all_leaves([trainable]):
        # a mask of the user's own class may be callable too, but it is a pytree
        with users_code("trainable", "a function of a leaf's name", "write def trainable(name): ..."):
            varies = [bool(trainable(name)) for name in names]
    else:
        with users_code("trainable", "a pytree of booleans that fits init", "match its keys"):
            spread = jax.tree.map(lambda flag, part: jax.tree.map(lambda _: bool(flag), part), trainable, init)
        varies = jax.tree.leaves(spread)
    leaves, variables = [], []
    for name, (_, leaf), chosen in zip(names, paths, varies, strict=True):
        array = _leaf(name, leaf) if chosen else _own(leaf)
        leaves.append(array)
        if chosen:
            variables.append((name, np.shape(array)))
    if not variables:
        raise InvalidInput("trainable", "true for at least one parameter", "none", "choose some leaves of init")
    return Structure(treedef, tuple(leaves), tuple(varies), tuple(variables))


def _finite(flat: Array) -> Array:
    if not np.isfinite(flat).all():
        raise InvalidInput("params", "finite", "NaN or infinity", "pass fit.params")
    return flat


def _own(leaf: Any) -> Any:
    """A copy of an array."""
    return np.array(leaf) if isinstance(leaf, np.ndarray) else leaf


def _leaf(name: str, leaf: object) -> Array:
    try:
        array = np.asarray(leaf)
    except (TypeError, ValueError):
        array = np.asarray(leaf, dtype=object)
    if array.dtype.kind != "f" and str(array.dtype) != "bfloat16":
        raise InvalidInput(
            f"init {name}",
            "a floating-point array",
            f"dtype {array.dtype}",
            "write 0.0 for 0, or mark it as not trainable",
        )
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise InvalidInput(f"init {name}", "finite", "NaN or infinity", "choose another start")
    return array


def leaf_name(path: tuple[object, ...]) -> str:
    """`layers.0.w` for a path of keys, indices and attributes."""
    keys = (getattr(k, "key", getattr(k, "idx", getattr(k, "name", k))) for k in path)
    return ".".join(str(k) for k in keys) or "theta"
