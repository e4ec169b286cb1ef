"""Roles: a model is bound to data and becomes a problem, which is all the verbs ever call."""

from __future__ import annotations

from typing import Any, Protocol

from equipoise.arrays import Array
from equipoise.theory.moments import Moments

__all__ = ["Model", "Problem"]


class Problem(Protocol):
    """A model together with its data: the loss L(θ) = (1/N) [Σ ℓ_n(θ) + R(θ)] and its derivatives, in flat θ."""

    @property
    def n(self) -> int:
        """Number of observations N the loss is an average over."""
        ...

    @property
    def size(self) -> int:
        """Number of rows at hand: fewer than N in a subsample."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """One name per parameter."""
        ...

    @property
    def convex(self) -> bool:
        """Whether the loss is known to be convex, so that any minimum is the minimum."""
        ...

    @property
    def every_start(self) -> bool:
        """Whether all starts are worth trying, or only the first that works."""
        ...

    @property
    def variables(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Name and shape of every parameter array, in flat order."""
        ...

    @property
    def guarded(self) -> bool:
        """Whether chains are kept inside a very large ellipsoid by default (theory §10)."""
        ...

    def subsample(self, rows: int, seed: int) -> Problem:
        """The same problem on a random subset of rows, still weighing the regulariser by the full N."""
        ...

    @property
    def relaxed(self) -> Any:
        """The same problem with a convex loss, where a search may begin; None when there is none."""
        ...

    def starts(self) -> list[Array]:
        """Where a minimiser may start."""
        ...

    def settled(self, theta: Array) -> Problem:
        """The problem with any constant that is estimated from the data fixed at its value for θ; itself if none is."""
        ...

    def constant_at(self, theta: Array) -> float | None:
        """The constant in use at θ, if the loss has one."""
        ...

    def value(self, theta: Array) -> float:
        """L(θ)."""
        ...

    def gradient(self, theta: Array) -> tuple[float, Array]:
        """L and ∇L."""
        ...

    def derivatives(self, theta: Array) -> tuple[float, Array, Array]:
        """L, ∇L and ∇²L."""
        ...

    def explain(self, theta: Array, direction: Array) -> tuple[str, ...] | None:
        """The parameters to blame, when the loss never rises along `direction` and has no minimiser; else None."""
        ...

    def moments(self, params: Any, tuning_rows: int | None = None, seed: int = 0) -> Moments:
        """Moments at the given parameters."""
        ...

    def flatten(self, params: Any) -> Array:
        """Parameters in the user's structure, as a flat vector."""
        ...

    def unflatten(self, theta: Array) -> Any:
        """A flat vector in the user's structure."""
        ...


class Model(Protocol):
    """Anything that can be bound to data."""

    def bind(self, data: Any) -> Problem:
        """The problem this model poses on `data`; bad input is caught here."""
        ...
