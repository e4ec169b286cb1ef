"""The dynamics of a chain: gradient estimator, batch rule, injected noise and momentum (theory §1).

The first three are small values, each with one place here, for the law it gives, and one in the engines, for the loop
that does it. A new one is a new value, its law, and a branch of the loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from equipoise.arrays import Array
from equipoise.checks import checked_fields, flag, is_number, one_of, shown, whole
from equipoise.errors import InvalidInput

if TYPE_CHECKING:
    from equipoise.theory.moments import Moments

__all__ = ["GRADIENTS", "BatchRule", "Dynamics", "Gradient", "Independent", "Langevin", "Plain"]


class Gradient(Protocol):
    """A gradient estimator: the part of its noise that does not vanish at the minimiser."""

    @property
    def name(self) -> str:
        """What `Dynamics` calls it."""
        ...

    def score_cov(self, moments: Moments) -> Array:
        """Covariance of one row's term at the minimiser; K(S) comes on top of it (theory §2)."""
        ...


@dataclass(frozen=True)
class Plain:
    """The mean gradient of a batch."""

    name: str = "plain"

    def score_cov(self, moments: Moments) -> Array:
        """V: at the minimiser every row still pulls its own way."""
        return moments.score_cov


GRADIENTS: dict[str, Gradient] = {"plain": Plain()}


class BatchRule(Protocol):
    """How the rows of a batch are drawn."""

    @property
    def name(self) -> str:
        """What `Dynamics` calls it."""
        ...

    def factor(self, batch_size: int, n: int) -> float:
        """b: the noise of a batch's mean over that of one row."""
        ...


@dataclass(frozen=True)
class Independent:
    """A new batch at every step, whatever was drawn before; its rows with or without replacement."""

    replacement: bool
    name: str = "independent"

    def factor(self, batch_size: int, n: int) -> float:
        """1/B with replacement, (N−B)/(B(N−1)) without."""
        if self.replacement:
            return 1.0 / batch_size
        return (n - batch_size) / (batch_size * (n - 1)) if n > 1 else 0.0


@dataclass(frozen=True)
class Langevin:
    """Injected normal noise with covariance (2/β) Λ; at temperature zero there is none."""

    temperature: float

    @property
    def silent(self) -> bool:
        """Whether nothing is injected."""
        return self.temperature == 0.0

    def covariance(self, step: Array) -> Array:
        """What one step injects."""
        return 2.0 * self.temperature * step


@checked_fields
@dataclass(frozen=True)
class Dynamics:
    """How a chain moves, apart from its step matrix.

    Attributes
    ----------
    batch_size
        Rows per step, B.
    momentum
        Heavy-ball coefficient κ in [0, 1).
    inverse_temperature
        β; infinity is SGD, the number of rows is canonical SGLD.
    replacement
        Whether the rows of one batch are drawn with replacement.
    gradient
        The gradient estimator: `"plain"`.
    batches
        The batch rule: `"independent"`.

    Examples
    --------
    >>> Dynamics(batch_size=50).noise_factor(1000)
    0.02
    >>> Dynamics(batch_size=1000, replacement=False).noise_factor(1000)
    0.0
    """

    batch_size: int
    momentum: float = 0.0
    inverse_temperature: float = np.inf
    replacement: bool = True
    gradient: str = "plain"
    batches: str = "independent"

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", whole("batch_size", self.batch_size, 1, "pass an int such as 100"))
        object.__setattr__(self, "replacement", flag("replacement", self.replacement))
        if not (is_number(self.momentum) and 0.0 <= self.momentum < 1.0):
            raise InvalidInput(
                "momentum", "at least 0 and below 1", shown(self.momentum), "use 0 for none, 0.9 for a common choice"
            )
        if not (is_number(self.inverse_temperature) and self.inverse_temperature > 0.0):
            raise InvalidInput(
                "inverse_temperature",
                "positive",
                shown(self.inverse_temperature),
                "use numpy.inf for SGD, the number of rows for SGLD",
            )
        one_of("gradient", self.gradient, GRADIENTS)
        one_of("batches", self.batches, ("independent",))

    @property
    def estimator(self) -> Gradient:
        """The gradient estimator."""
        return GRADIENTS[self.gradient]

    @property
    def rule(self) -> BatchRule:
        """The batch rule."""
        return Independent(self.replacement)

    @property
    def injected(self) -> Langevin:
        """The injected noise."""
        return Langevin(self.temperature)

    @property
    def temperature(self) -> float:
        """1/β, zero for SGD."""
        return 1.0 / self.inverse_temperature

    def noise_factor(self, n: int) -> float:
        """The factor b of the gradient noise: 1/B with replacement, (N−B)/(B(N−1)) without."""
        self.require_batch_within(n)
        return self.rule.factor(self.batch_size, n)

    def require_batch_within(self, n: int) -> None:
        """Raise `InvalidInput` when a batch would hold more rows than the data."""
        if self.batch_size > n:
            raise InvalidInput(
                "batch_size", f"at most the number of rows, {n}", self.batch_size, "choose a smaller batch"
            )
