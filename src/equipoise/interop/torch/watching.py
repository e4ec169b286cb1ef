"""What the gradients of a user's loop tell of its batches: their size, and whether those of one pass cancel (theory §15)."""

from __future__ import annotations

import numpy as np

from equipoise.arrays import Array
from equipoise.errors import warn
from equipoise.theory.dynamics import Epochs
from equipoise.theory.tuning import Tuning

__all__ = ["Watch"]

_DIRECTIONS = 8
# Squares of sums over a pass, in all directions, before anything is said of batches; and steps, of their noise. Sums of
# independent batches are below a quarter of their variance, in the mean of so many, once in ten thousand times.
_SUMS, _STEPS = 16, 200
_CANCELLED, _KEPT = 0.25, 0.6
_NOISE = 2.0  # factor between observed and predicted noise that is no accident


class Watch:
    """Looks at gradients along a few directions: u·(g − H(θ − θ̂)) is noise, whose size and sums over a pass are predicted."""

    def __init__(self, tuning: Tuning) -> None:
        moments, dynamics = tuning.predicted.moments, tuning.dynamics
        self.batches, self.center, self.hessian = dynamics.batches, tuning.center, moments.hessian
        self.size, n = dynamics.batch_size, moments.n
        rule = dynamics.rule
        self.period = len(rule.sizes(self.size, n)) if isinstance(rule, Epochs) else n // self.size
        noise = moments.gradient_noise(tuning.expected, dynamics)
        scale = np.sqrt(np.maximum(np.diag(noise), 1e-300))
        normals = np.random.default_rng(0).normal(size=(tuning.dim, min(_DIRECTIONS, tuning.dim)))
        self.directions = normals / scale[:, None]
        self.expected = np.einsum("ik,ij,jk->k", self.directions, noise, self.directions)
        self.steps = self.sums = 0
        self.squares, self.summed = np.zeros(normals.shape[1]), np.zeros(normals.shape[1])
        self.window = np.zeros(normals.shape[1])
        # with control variates what is left is small, and the bend of the mean gradient no longer next to nothing
        self.plain = dynamics.gradient == "plain"
        self.told: set[str] = set()

    def see(self, gradient: Array, theta: Array) -> None:
        """Take in one step's gradient, and say once what is wrong."""
        noise = self.directions.T @ (gradient - self.hessian @ (theta - self.center))
        self.steps += 1
        self.squares += noise**2
        self.window += noise
        if self.steps % max(self.period, 1):
            return
        self.summed += self.window**2
        self.sums += len(self.window)
        self.window[:] = 0.0
        for name, words in self.findings().items():
            if name not in self.told:
                self.told.add(name)
                warn(f"{name}: {words}")

    @property
    def noise(self) -> float:
        """Observed over predicted variance of the gradients' noise."""
        return float(np.mean(self.squares / self.expected) / max(self.steps, 1))

    @property
    def cancelled(self) -> float:
        """Variance of sums over a pass, over that of as many independent gradients."""
        passes = self.sums / len(self.window)
        return float(np.mean(self.summed / self.squares) * self.steps / (self.period * passes)) if passes else np.nan

    def findings(self) -> dict[str, str]:
        """What does not go together with the tuning, in words."""
        found = {}
        if self.period >= 3 and self.sums >= _SUMS:
            if self.batches != "epochs" and self.cancelled < _CANCELLED:
                found["batches"] = (
                    "the gradients of one pass cancel, as those of DataLoader(shuffle=True) do, but the tuning is for "
                    "independent batches; the draws will be narrower than their target. To fix: tune for "
                    f"eq.Dynamics(..., batches='epochs'), or use eqt.loader(dataset, {self.size})."
                )
            if self.plain and self.batches == "epochs" and self.cancelled > _KEPT:
                found["batches"] = (
                    "the gradients of one pass do not cancel, but the tuning is for epochs, one permutation per pass. To "
                    f"fix: use eqt.loader(dataset, {self.size}, batches='epochs'), or tune for independent batches."
                )
        if self.plain and self.steps >= _STEPS and not 1.0 / _NOISE <= self.noise <= _NOISE:
            found["gradient noise"] = (
                f"it has {self.noise:.2g} times the predicted variance. To fix: feed batches of {self.size} rows, and the "
                "gradient of their mean loss plus the regulariser over N."
            )
        return found
