"""Draws of a probabilistic program, in its own sites: what lies between flat coordinates and named, constrained values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.arrays import Array, PyTree
from equipoise.models.layout import Skeleton, Variables, kept

if TYPE_CHECKING:
    import jax
    from numpy.typing import ArrayLike

    from equipoise.models.general.structure import Structure

__all__ = ["SiteLayout", "Sites"]


@dataclass(frozen=True, eq=False)
class Sites:
    """The way from unconstrained coordinates to sites and back.

    `outward` is from unconstrained values by label to sites by name, those that follow from them included; `inward` from
    the sites that vary, those of `names`, to unconstrained values by label.
    """

    outward: Callable[[PyTree], dict[str, jax.Array]]
    inward: Callable[[Mapping[str, ArrayLike]], dict[str, jax.Array]]
    names: tuple[str, ...]


@dataclass(frozen=True)
class SiteLayout:
    """Flat coordinates as the sites of a program: the structure of the unconstrained ones, and what becomes of them."""

    structure: Structure
    sites: Sites

    @property
    def variables(self) -> Variables:
        """Name and shape of every array of coordinates, which are unconstrained."""
        return self.structure.variables

    def unflatten(self, theta: Array | jax.Array) -> dict[str, Any]:
        """Vectors with any leading axes as sites, inside compiled functions too."""
        import jax  # those who look at draws of other models do without it
        import jax.numpy as jnp

        if isinstance(theta, jax.core.Tracer):
            return self._many(jnp.asarray(theta))
        with jax.enable_x64(True):
            found = jax.jit(self._many)(jnp.asarray(theta))
            return {name: np.asarray(value) for name, value in found.items()}

    def skeleton(self) -> Skeleton:
        """What can be kept: the unconstrained coordinates, by their labels."""
        return self.structure.skeleton()

    def _many(self, theta: jax.Array) -> dict[str, jax.Array]:
        import jax

        lead = theta.shape[:-1]
        flat = theta.reshape(prod(lead), theta.shape[-1])
        found = jax.lax.map(lambda t: self.sites.outward(self.structure.unflatten(t)), flat)
        return {name: value.reshape(*lead, *value.shape[1:]) for name, value in found.items()}

    def __deepcopy__(self, memo: dict[int, object]) -> SiteLayout:
        return self

    def __reduce__(self) -> tuple[Callable[[Skeleton], Skeleton], tuple[Skeleton]]:
        # programs do not travel
        return kept, (self.skeleton(),)
