"""Noise completion: what has to be injected so that a chain with any step has the target as its covariance (theory §13).

In the coordinates of the modes the noise to inject is read off the stationary equation, entry by entry:

    R⁻¹ M R⁻ᵀ = [(E − F) ∘ R⁻¹ Σ R⁻ᵀ − Rᵀ C(Σ) R] / G,

which for κ = 0 is M = ΛHΣ + ΣHΛ − Λ (C(Σ) + HΣH) Λ.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import eigh

from equipoise.arrays import Array
from equipoise.errors import InfeasibleTarget
from equipoise.linalg import symmetric
from equipoise.theory.modes import Modes

if TYPE_CHECKING:
    from equipoise.theory.dynamics import Dynamics
    from equipoise.theory.moments import Moments

__all__ = ["MARGIN", "Completion", "fidelity_of", "largest_fidelity_step"]

MARGIN = 0.9  # share of the largest feasible multiple of a step that is taken: at the limit nothing is left to inject
_ROUNDING = 1e-10  # of an eigenvalue of the injected covariance, relative to the target's


def fidelity_of(gamma: float) -> float:
    """3γa²/(1−a³), a = 1−γ: the share of the posterior's skewness that a step of γ keeps (theory §14)."""
    a = 1.0 - gamma
    return 3.0 * a * a / (1.0 + a + a * a)


def largest_fidelity_step(fidelity: float) -> float:
    """The largest γ with that fidelity: (3−f) a² − f a − f = 0."""
    f = fidelity
    return 1.0 - (f + sqrt(f * f + 4.0 * f * (3.0 - f))) / (2.0 * (3.0 - f))


@dataclass(frozen=True)
class Completion:
    """What completes the noise C(Σ) of a chain, whose dynamics inject nothing of their own, to a target Σ."""

    moments: Moments
    dynamics: Dynamics
    target: Array
    gradient_noise: Array

    @property
    def newton_limit(self) -> float:
        """The largest feasible γ of a step γH⁻¹: 2/(1 + λ_max(Σ⁻¹H⁻¹CH⁻¹)) for κ = 0."""
        k = self.dynamics.momentum
        noise = self.moments.relative_noise(self.gradient_noise, self.target)
        return 2.0 * (1.0 - k) / ((1.0 - k) / (1.0 + k) + noise)

    def noise(self, step: Array) -> Array:
        """M, whether or not it is a covariance."""
        modes = Modes.of(step, self.moments.hessian, self.dynamics.momentum, 0.0, discrete=True)
        spread = (modes.first_order - modes.second_order) * modes.inward(self.target)
        lacking = (spread - modes.force(self.gradient_noise)) / modes.response
        return symmetric(modes.outward(lacking))

    def slack(self, step: Array) -> float:
        """The smallest eigenvalue of Σ⁻¹M."""
        return float(eigh(self.noise(step), self.target, eigvals_only=True)[0])

    def required(self, step: Array) -> Array:
        """M, which must be a covariance.

        `InfeasibleTarget` has the largest feasible multiple of the step, or the direction in which there is none.
        """
        noise = self.noise(step)
        values, vectors = eigh(noise, self.target)
        slack = float(values[0])
        if slack > 0.0 or (slack >= -_ROUNDING and self.dynamics.gradient == "plain"):
            return noise
        multiple, direction = self.feasible_multiple(step)
        if multiple > 1.0:
            raise InfeasibleTarget(
                f"step: along a combination of mainly {self._mainly(vectors[:, 0])} the noise to inject is lost in rounding: "
                "the loss hardly bends there beside other directions, as for a level of few rows that are all alike. To fix: "
                "leave that column or level out, or add a prior (prior_precision=...).",
                directions=vectors[:, :1].T,
            )
        if multiple > 0.0:
            raise InfeasibleTarget(
                f"step: this step alone already makes more noise than the target has. To fix: multiply it by less than "
                f"{multiple:.6g}, use a larger batch, or leave it out for the Newton step.",
                largest_multiple=multiple,
            )
        shown = self._mainly(direction)
        raise InfeasibleTarget(
            "step: no multiple of this step can have the target as its covariance, whatever is injected: it would pull "
            f"apart what the target holds together along a combination of mainly {shown}. To fix: leave step and "
            "structure out, for the Newton step, or bring a matrix closer to the inverse Hessian.",
            largest_multiple=0.0,
            directions=direction[None],
        )

    def _mainly(self, direction: Array) -> str:
        """The parameters that a direction is mainly of."""
        names = self.moments.names or tuple(f"parameter {j}" for j in range(self.moments.dim))
        part = np.abs(direction) * np.sqrt(np.diag(self.target))
        return ", ".join(names[j] for j in np.argsort(-part)[:3])

    def feasible_multiple(self, step: Array) -> tuple[float, Array]:
        """The largest c for which c·step is feasible, and the direction that decides it."""
        H, S = self.moments.hessian, self.target
        first = step @ H @ S
        P = symmetric(first + first.T)
        values, vectors = eigh(P, S)
        if values[0] <= 0.0:
            return 0.0, vectors[:, 0]
        Q = step @ (self.gradient_noise + H @ S @ H) @ step
        limits, vectors = eigh(P, symmetric(Q))
        if self.dynamics.momentum == 0.0:
            return float(limits[0]), vectors[:, 0]
        return self._bisected(step), vectors[:, 0]

    def _bisected(self, step: Array) -> float:
        low, high = 0.0, 1.0
        while self.slack(high * step) > 0.0:
            low, high = high, 2.0 * high
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self.slack(middle * step) > 0.0 else (low, middle)
        return low
