"""How flat vectors become parameters: as they are, or in nested containers that can be kept without pickle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import Array

__all__ = ["FlatLayout", "Skeleton", "Variables", "Wide", "embedded", "kept"]

# Name and shape of every parameter array, in flat order.
Variables = tuple[tuple[str, tuple[int, ...]], ...]


@runtime_checkable
class Wide(Protocol):
    """A layout that may have more parameters than coordinates: those of a subspace."""

    @property
    def full(self) -> int:
        """Number of scalars that vary."""
        ...

    def embed(self, theta: Array) -> Array:
        """Coordinates, with any leading axes, as vectors of those scalars."""
        ...

    def shaped(self, full: object) -> object:
        """Such vectors in the user's structure."""
        ...


def embedded(theta: Any, frame: tuple[Any, ...]) -> Any:
    """Coordinates z as parameters: origin + z · basis, or as they are where there is no subspace; NumPy's or JAX's."""
    return frame[0] + theta @ frame[1] if frame else theta


@dataclass(frozen=True)
class FlatLayout:
    """Parameters that are a vector already: one scalar per name."""

    names: tuple[str, ...]

    @property
    def variables(self) -> Variables:
        """Every name is a scalar parameter."""
        return tuple((name, ()) for name in self.names)

    def unflatten(self, theta: Array) -> Array:
        """As they are."""
        return theta

    def skeleton(self) -> FlatLayout:
        """It can be kept as it is."""
        return self


@dataclass(frozen=True)
class Skeleton:
    """A structure of dictionaries, lists and tuples with numbered leaves.

    Attributes
    ----------
    frame
        Nested `{"dict": {key: frame}}`, `{"list": [...]}`, `{"tuple": [...]}`, `{"none": None}` and `{"leaf": number}`.
        Containers of other kinds are kept as dictionaries.
    trained
        Name, shape and number of every leaf that varies, in flat order.
    constants
        The other leaves by number.
    origin, basis
        In a subspace, parameters are origin + coordinates @ basis; None without one.
    """

    frame: dict[str, object]
    trained: tuple[tuple[str, tuple[int, ...], int], ...]
    constants: dict[int, NDArray[np.generic]]
    origin: Array | None = None
    basis: Array | None = None

    @property
    def variables(self) -> Variables:
        """Name and shape of every array of coordinates."""
        if self.basis is not None:
            return (("direction", (self.basis.shape[0],)),)
        return tuple((name, shape) for name, shape, _ in self.trained)

    def skeleton(self) -> Skeleton:
        """It can be kept as it is."""
        return self

    @property
    def full(self) -> int:
        """Number of scalars that vary."""
        return sum(prod(shape) for _, shape, _ in self.trained)

    def embed(self, theta: Array) -> Array:
        """Coordinates as the vector of all scalars that vary."""
        frame = () if self.origin is None or self.basis is None else (self.origin, self.basis)
        return np.asarray(embedded(theta, frame))

    def unflatten(self, theta: Array) -> object:
        """Vectors with any leading axes in the containers; constants are repeated as they are."""
        return self.shaped(self.embed(theta))

    def shaped(self, full: Array) -> object:
        """The same for vectors of all scalars that vary, NumPy's or JAX's."""
        leaves, start = dict[int, object](self.constants), 0
        for _, shape, number in self.trained:
            stop = start + prod(shape)
            leaves[number] = full[..., start:stop].reshape((*full.shape[:-1], *shape))
            start = stop
        return _filled(self.frame, leaves)


def kept(skeleton: Skeleton) -> Skeleton:
    """What becomes of a layout that does not travel: its skeleton does."""
    return skeleton


def _filled(frame: Mapping[str, object], leaves: Mapping[int, object]) -> object:
    ((kind, inside),) = frame.items()
    if kind == "leaf" and isinstance(inside, int):
        return leaves[inside]
    if kind == "dict" and isinstance(inside, Mapping):
        return {key: _filled(part, leaves) for key, part in inside.items()}
    if isinstance(inside, Sequence):
        parts = [_filled(part, leaves) for part in inside]
        return tuple(parts) if kind == "tuple" else parts
    return None
