"""The law of a chain that reads its rows in epochs: random reshuffling, what `DataLoader(shuffle=True)` does (theory §15)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd

import numpy as np
from scipy.linalg import eigh

from equipoise.arrays import Array
from equipoise.checks import whole
from equipoise.errors import InvalidInput, UnstableStep
from equipoise.linalg import symmetric
from equipoise.theory.dynamics import Dynamics, Epochs
from equipoise.theory.mixing import thinned
from equipoise.theory.modes import Modes
from equipoise.theory.moments import Moments
from equipoise.theory.proxy import proxy_noise
from equipoise.theory.reshuffling import Epoch, Sizes
from equipoise.theory.stability import largest_multiple, mean_radius2
from equipoise.theory.stationary import Stationary, modes_of

__all__ = ["Reshuffled", "batch_sizes", "epoch_of", "reshuffled"]


@dataclass(frozen=True, repr=False)
class Reshuffled(Stationary):
    """The predicted law of a chain that goes through the rows in epochs.

    The state has a covariance at every position of the epoch; `cov` is their average, that of all iterates. It is exact
    for rows of one curvature. What rows of different curvature add is not in it, but its size is: `remainder`.
    `spectral_radius` is that of the mean dynamics; the limit at which second moments are lost is not derived.
    """

    @property
    def epoch(self) -> int:
        """Batches per epoch, n."""
        return self._epoch.sizes.steps

    def cov_at(self, position: int) -> Array:
        """The covariance after `position` batches of an epoch, from 0 to n: P_j (theory eq. 15.2)."""
        return symmetric(self.modes.outward(self._epoch.at(self._position(position))[0, 0]))

    @cached_property
    def remainder(self) -> float:
        """About how much larger, relatively, the rows' different curvatures make the covariance: ρ nh/N.

        ρ = λ_max(Σ̄⁻¹H⁻¹K(Σ̄)H⁻¹) is D + 1 for Gaussian covariates and more with heavy tails, h = tr(ΛH)/D/(1−κ). The
        recursion that has the curvature's terms gave 0.6 to 2.3 times this, with D from 2 to 15, 5 to 100 batches, 200 and
        2000 rows, Gaussian and Student-t₅ covariates. A pilot run repairs it.
        """
        rho = self.moments.relative_noise(self.moments.curvature_noise(self.cov), self.cov)
        rate = float(self.modes.rates.mean()) / (1.0 - self.dynamics.momentum)
        return rho * self.epoch * rate / self.moments.n

    @cached_property
    def shift(self) -> Array:
        """μ̄ = −ω H⁻¹ U((I−Ā)H⁻¹): the mean's shift, averaged over the epoch, even for squared loss (theory eq. 15.6)."""
        return self.modes.basis @ self._epoch.shift(self._response)

    def shift_at(self, position: int) -> Array:
        """The mean's shift after `position` batches of an epoch, from 0 to n."""
        return self.modes.basis @ self._epoch.shift_at(self._position(position) % self.epoch, self._response)

    def stride(self, most: int) -> int:
        """The largest stride up to `most` with which stored draws meet every position: no divisor in common with n."""
        return next(k for k in range(most, 0, -1) if gcd(k, self.epoch) == 1)

    def draw_time(self, thin: int = 1) -> float:
        """Steps per effective draw, at least 1, for means and for variances, whichever need more.

        Means are nearly free. The error of a variance is that of independent draws times the sum over lags of the
        squared autocorrelation, averaged over positions; the largest over the modes of the mean dynamics is taken.
        """
        return float(thinned(max(1.0, self.iact(), float(self._epoch.square_times().max())), thin))

    def draw_times(self, thin: int = 1) -> Array:
        """Steps per effective draw of each parameter: those of a variance, where means need fewer."""
        return np.maximum(thinned(self.iacts(), thin), self.draw_time(thin))

    def ess(self, steps: int) -> float:
        """Effective draws in `steps` steps: those of a variance, where means need fewer."""
        return whole("steps", steps, 0, "pass an int") / self.draw_time()

    @cached_property
    def _epoch(self) -> Epoch:
        return epoch_of(self.moments.n, self.moments.score_cov, self.dynamics, self.modes)

    @property
    def _lasting_noise(self) -> Array:
        """N/(N−1) (mean 1/B_i − n/N) V: zero when all batches are full, for an epoch's noises then add up to nothing."""
        return self._epoch.sizes.surplus * self.moments.score_cov

    def _moved(self) -> Array:
        """The shift, and what the loss's third derivative moves the mean by."""
        return self.shift + super()._moved()

    def _lagged(self, lag: int) -> Array:
        """Ξ_k, averaged over the positions of the epoch."""
        return self._epoch.autocovariance(lag)

    def _averaged(self, k: int) -> Array:
        """The covariance of an average of k iterates, averaged over where in the epoch they begin."""
        return self._epoch.iterate_average(k)

    def _squares(self, thin: int, metric: Array) -> float:
        """Averaged over positions: stored draws meet all of them if `thin` and n have no common divisor."""
        return self._epoch.covariance_noise(thin, metric)

    @cached_property
    def _response(self) -> Array:
        """Rᵀ U(r rᵀ) for every column r of R, as columns."""
        return self.modes.basis.T @ self.moments.score_curvature(self.modes.basis)

    @cached_property
    def _decay(self) -> float:
        """AΣ̄A ⪯ decay·Σ̄; where that is no contraction, or with momentum, the mean dynamics' own factor."""
        if self.dynamics.momentum == 0.0:
            a = 1.0 - self.modes.rates
            decay = float(eigh(np.outer(a, a) * self._spread, self._spread, eigvals_only=True)[-1])
            if decay < 1.0:
                return max(decay, 0.0)
        return mean_radius2(self.modes)

    def _position(self, position: int) -> int:
        found = whole("position", position, 0, "pass an int")
        if found > self.epoch:
            raise InvalidInput(
                "position", f"at most {self.epoch}, the batches of an epoch", found, "use it modulo that"
            )
        return found


def reshuffled(moments: Moments, step: Array, dynamics: Dynamics, completion: Array | None = None) -> Reshuffled:
    """The law of a chain with a step matrix that reads its rows in epochs; `UnstableStep` if the mean does not converge."""
    noise = proxy_noise(moments, dynamics)
    modes = modes_of(step, moments.hessian, dynamics, completion, discrete=True)
    if not modes.mean_is_stable:
        raise UnstableStep(mean_radius2(modes), largest_multiple(modes, noise))
    cov = modes.outward(epoch_of(moments.n, moments.score_cov, dynamics, modes).mean[0, 0])
    still = noise.constant
    return Reshuffled(symmetric(cov), step, still, still, dynamics, "dq-exact", moments, completion=completion)


def epoch_of(n: int, score_cov: Array, dynamics: Dynamics, modes: Modes) -> Epoch:
    """The epoch of a chain on n rows, in the coordinates of its modes."""
    return Epoch.of(modes, score_cov, batch_sizes(n, dynamics))


def batch_sizes(n: int, dynamics: Dynamics) -> Sizes:
    """What the batches of an epoch of n rows come to."""
    return Sizes.of(Epochs(dynamics.drop_last).sizes(dynamics.batch_size, n), n)
