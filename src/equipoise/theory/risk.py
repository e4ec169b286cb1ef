"""Expected loss of a stationary chain on any data, to second order (theory §7)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.arrays import Array
from equipoise.cards import Card
from equipoise.theory.stationary import Stationary

__all__ = ["ExpectedLoss", "expected_loss"]


@dataclass(frozen=True, repr=False)
class ExpectedLoss(Card):
    """E L_test(θ) under a stationary law, and its parts.

    Attributes
    ----------
    at_minimiser
        L_test(θ̂).
    bias
        ∇L_testᵀ E(θ − θ̂).
    variance
        ½ tr(∇²L_test Σ).
    """

    at_minimiser: float
    bias: float
    variance: float

    @property
    def value(self) -> float:
        """The expected loss."""
        return self.at_minimiser + self.bias + self.variance

    def __float__(self) -> float:
        return self.value


def expected_loss(value: float, gradient: Array, hessian: Array, law: Stationary) -> ExpectedLoss:
    """L(θ̂) + ∇L(θ̂)ᵀ bias + ½ tr(∇²L(θ̂) Σ); exact for squared loss."""
    bias = np.nan_to_num(law.mean_bias)
    return ExpectedLoss(value, float(gradient @ bias), 0.5 * float(np.sum(hessian * law.cov)))
