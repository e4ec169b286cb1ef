"""Where the minimum of a loss of your own may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.arrays import Array
from equipoise.errors import FitFailed
from equipoise.models.problem import Relaxation, Scaled, Yardstick

__all__ = ["GeneralSearch"]

# Perturbed starts on offer: `restarts` at most; and numbers in all of them.
_PERTURBED, _NUMBERS = 100, 1 << 22


@dataclass(frozen=True)
class GeneralSearch:
    """The search for a general loss's minimum, from the user's start."""

    start: Array
    dear: bool = False

    @property
    def convex(self) -> bool:
        """Nothing is known of a general loss."""
        return False

    @property
    def exhaustive(self) -> bool:
        """The user's start first; the others only if it fails."""
        return False

    @property
    def proportional(self) -> float | None:
        """No constant is estimated."""
        return None

    def starts(self) -> list[Array]:
        """The user's start, then seeded perturbations of it for losses with several minima."""
        rng = np.random.default_rng(0)
        spread = 0.3 + 0.3 * np.abs(self.start)
        count = max(1, min(_PERTURBED, _NUMBERS // self.start.size))
        return [self.start, *(self.start + spread * rng.normal(size=self.start.size) for _ in range(count))]

    def relaxations(self) -> Sequence[Relaxation]:
        """A general loss has no convex companion."""
        return ()

    def yardstick(self, theta: Array) -> Yardstick:
        """Posterior standard deviations: nothing is known of the rows."""
        return Yardstick(1.0, 0.0)

    def metric(self) -> Array | None:
        """The user's own units."""
        return None

    def scaled(self) -> Scaled | None:
        """Nothing is known of a general loss's units."""
        return None

    def require_constant(self, constant: float) -> None:
        """No constant is estimated."""

    def explain(self, candidates: Sequence[Array], theta: Array, norm: float) -> FitFailed | None:
        """A general loss may rise again far away: nothing can be concluded."""
        return None
