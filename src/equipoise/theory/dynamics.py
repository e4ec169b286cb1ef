"""The dynamics of a chain: batch, momentum, temperature, and how batches are drawn (theory §1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.checks import is_number, whole
from equipoise.errors import InvalidInput

__all__ = ["Dynamics"]


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", whole("batch_size", self.batch_size, 1, "pass an int such as 100"))
        object.__setattr__(self, "replacement", bool(self.replacement))
        if not (is_number(self.momentum) and 0.0 <= self.momentum < 1.0):
            raise InvalidInput(
                "momentum", "at least 0 and below 1", self.momentum, "use 0 for none, 0.9 for a common choice"
            )
        if not (is_number(self.inverse_temperature) and self.inverse_temperature > 0.0):
            raise InvalidInput(
                "inverse_temperature",
                "positive",
                self.inverse_temperature,
                "use numpy.inf for SGD, the number of rows for SGLD",
            )

    @property
    def temperature(self) -> float:
        """1/β, zero for SGD."""
        return 1.0 / self.inverse_temperature

    def noise_factor(self, n: int) -> float:
        """The factor b of the gradient noise: 1/B with replacement, (N−B)/(B(N−1)) without."""
        self.require_batch_within(n)
        if self.replacement:
            return 1.0 / self.batch_size
        return (n - self.batch_size) / (self.batch_size * (n - 1)) if n > 1 else 0.0

    def require_batch_within(self, n: int) -> None:
        """Raise `InvalidInput` when a batch would hold more rows than the data."""
        if self.batch_size > n:
            raise InvalidInput(
                "batch_size", f"at most the number of rows, {n}", self.batch_size, "choose a smaller batch"
            )
