"""Expected against observed: the numbers side by side, each with its Monte Carlo error (theory §6, §7)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve, eigh
from scipy.special import chdtrc, chdtri

from equipoise.arrays import Array
from equipoise.calibration.autocorrelation import WINDOW, squared_time
from equipoise.calibration.expectation import Expected, expect, standardised
from equipoise.calibration.observation import Observed, observe
from equipoise.calibration.thresholds import ALARM, RHAT
from equipoise.sampling.chains import Chains
from equipoise.sampling.halving import HalfStep
from equipoise.theory.tuning import Tuning

__all__ = ["Comparison", "Halving", "JointShift", "compare", "distance", "worst_direction"]


class JointShift(NamedTuple):
    """The part of the mean's shift that was not predicted, in its worst direction.

    size
        √(gᵀΣ⁻¹g), in standard deviations.
    noise
        What Monte Carlo error alone would make it: √tr(Σ⁻¹C), C the covariance of the mean.
    chance
        Probability of gᵀC⁻¹g this large when nothing is off: it is χ² with D degrees of freedom.
    direction
        Σ⁻¹g, times standard deviations and scaled to a largest entry of ±1: what each parameter has to do with it.
    """

    size: float
    noise: float
    chance: float
    direction: Array

    @property
    def real(self) -> float:
        """The size without what Monte Carlo error adds to it."""
        return float(np.sqrt(max(self.size**2 - self.noise**2, 0.0)))


class Halving(NamedTuple):
    """What half the step changes in each parameter's mean, standard deviation and skewness, (3, D), and its error.

    The mean is in standard deviations, the standard deviation relative.
    """

    change: Array
    error: Array


@dataclass(frozen=True)
class Comparison:
    """What the tuning predicts of the draws, and what they show, side by side.

    `structure` is the form of the step matrix, `center` the minimiser, and `half_step` what a run at half the step shows,
    where there was one.
    """

    expected: Expected
    observed: Observed
    names: tuple[str, ...]
    structure: str
    independent: bool
    center: Array
    half_step: HalfStep | None = None

    @cached_property
    def shift(self) -> Array:
        """Mean of the draws minus the minimiser, in expected standard deviations."""
        return (self.observed.mean - self.center) / self.expected.sd

    @cached_property
    def predicted_shift(self) -> Array:
        """What the shift should be; NaN where it is unknown."""
        return self.expected.bias / self.expected.sd

    @property
    def surprise(self) -> Array:
        """Shift that was not predicted."""
        return self.shift - np.nan_to_num(self.predicted_shift)

    @cached_property
    def shift_error(self) -> Array:
        """Monte Carlo error of the shift, from the observed autocorrelation."""
        return self.sd_ratio / np.sqrt(self.observed.ess)

    @property
    def cautious_shift_error(self) -> Array:
        """The larger of the observed error, itself a noisy one, and the predicted."""
        return np.maximum(self.shift_error, np.sqrt(np.diag(self.expected.mean_cov)) / self.expected.sd)

    @cached_property
    def joint_shift(self) -> JointShift:
        """The mean in all directions at once."""
        expected = self.expected
        gap = self.observed.mean - self.center - expected.known_bias
        solved = cho_solve(cho_factor(expected.cov), np.column_stack([gap, expected.mean_cov]))
        direction = solved[:, 0] * expected.sd
        # a chain that surely mixes more slowly than predicted has a noisier mean
        slower = self.slowdown
        chance = float(chdtrc(len(gap), gap @ cho_solve(cho_factor(expected.mean_cov), gap) / slower))
        noise = float(np.sqrt(slower * np.trace(solved[:, 1:])))
        largest = float(np.abs(direction).max()) or 1.0
        return JointShift(float(np.sqrt(gap @ solved[:, 0])), noise, chance, direction / largest)

    @property
    def slowdown(self) -> float:
        """Observed over predicted autocorrelation time where it is larger beyond its error, else 1."""
        ratio = self.observed.tau / self.expected.tau
        sure = ratio > 1.0 + 3.0 * self.time_error
        return float(ratio[sure].max()) if sure.any() else 1.0

    @property
    def time_error(self) -> Array:
        """Relative error of an observed autocorrelation time: √(2(2M+1)/T) for a sum over M = 5τ lags."""
        return _time_error(self.observed.tau, self.observed.draws)

    @property
    def cautious_time_error(self) -> float:
        """Its largest, by the larger of the observed times, which few draws make too short, and the predicted."""
        return float(_time_error(self._cautious_tau, self.observed.draws).max())

    @property
    def cautious_shape_errors(self) -> tuple[float, float]:
        """The largest Monte Carlo error of a skewness and of an excess kurtosis, by the same times."""
        longer = np.sqrt(self._cautious_tau / self.observed.tau)
        return float((longer * self.skewness_error).max()), float((longer * self.kurtosis_error).max())

    @property
    def _cautious_tau(self) -> Array:
        return np.maximum(self.observed.tau, self.expected.tau)

    @cached_property
    def sd_ratio(self) -> Array:
        """Observed over expected standard deviation."""
        return self.observed.sd / self.expected.sd

    @property
    def target_ratio(self) -> Array:
        """Expected standard deviation over the target's: the length of an interval over what it should be."""
        return self.expected.sd / np.sqrt(np.diag(self.expected.target))

    @property
    def target_scale(self) -> float:
        """Size of the expected covariance over the target's, in units of the target's standard deviations."""
        by = self.expected.target
        return float(np.linalg.norm(standardised(self.expected.cov, by)) / np.linalg.norm(standardised(by, by)))

    @cached_property
    def spread_error(self) -> Array:
        """Monte Carlo error of the ratio of standard deviations.

        A variance of T draws whose autocorrelation is φ^|k| has relative variance 2 τ₂ / T with τ₂ = Σ φ^{2|k|}.
        """
        return self.tails * np.sqrt(0.5 * squared_time(self.observed.tau) / self.observed.draws)

    @property
    def cautious_spread_error(self) -> Array:
        """The larger of the observed error, itself a noisy one, and the predicted."""
        return np.maximum(self.spread_error, np.sqrt(0.5 * squared_time(self.expected.tau) / self.observed.draws))

    @property
    def skewness_error(self) -> Array:
        """Monte Carlo error of a normal law's skewness."""
        return np.sqrt(6.0 / self.observed.ess)

    @property
    def kurtosis_error(self) -> Array:
        """Monte Carlo error of an excess kurtosis; tails that are predicted to be heavier make it larger."""
        return np.sqrt(24.0 / self.observed.ess) * (1.0 + 2.0 * float(np.nan_to_num(self.expected.kurtosis)))

    @property
    def skewness_gap(self) -> Array:
        """Skewness that was not predicted."""
        return self.observed.skewness - np.nan_to_num(self.expected.skewness)

    @cached_property
    def halving(self) -> Halving | None:
        """What half the step changes."""
        half = self.half_step
        if half is None:
            return None
        noise = np.sqrt(1.0 / self.observed.ess + 1.0 / half.ess)
        return Halving(
            np.stack(
                [
                    (half.mean - self.observed.mean) / self.expected.sd,
                    half.sd / self.observed.sd - 1.0,
                    half.skewness - self.observed.skewness,
                ]
            ),
            np.stack([self.sd_ratio * noise, np.sqrt(0.5) * self.tails * noise, np.sqrt(6.0) * self.tails * noise]),
        )

    @property
    def tails(self) -> float:
        """Factor by which tails heavier than normal make variances noisier: √(1 + excess kurtosis / 2)."""
        return float(np.sqrt(1.0 + 0.5 * max(0.0, self.observed.kurtosis.mean())))

    @property
    def half_ess(self) -> float:
        """Predicted effective draws in half a chain, of the slowest parameter."""
        return float(self.observed.length / (2.0 * self.expected.tau.max()))

    @property
    def rhat_limit(self) -> float:
        """The R̂ above which chains disagree, for this many effective draws.

        The means of h half chains with e effective draws each have (h−1) e times their variance over σ² as χ²_{h−1}, and
        the variance within a half is (1 − 1/e) σ².
        """
        return max(RHAT, float(np.sqrt(1.0 + self._halves_apart / max(self.half_ess - 1.0, 0.1))))

    def halves_needed(self, limit: float) -> float:
        """Effective draws in half a chain with which that limit is as low as this one."""
        return 1.0 + self._halves_apart / (limit * limit - 1.0)

    @property
    def _halves_apart(self) -> float:
        """The largest variance of the halves' means, in units of its expectation, that chance alone may give."""
        halves = 2 * self.observed.chains
        return float(chdtri(halves - 1, ALARM / len(self.names))) / (halves - 1)


def compare(chains: Chains, tuning: Tuning, half_step: HalfStep | None = None) -> Comparison:
    """What draws show beside what their tuning predicts."""
    expected, observed = expect(chains, tuning), observe(chains)
    return Comparison(expected, observed, chains.names, tuning.structure, chains.independent, tuning.center, half_step)


def worst_direction(cov: Array, target: Array) -> tuple[float, Array]:
    """The combination of parameters whose standard deviation is furthest from the target's.

    The ratio of the two, and each parameter's coefficient in it, in standard deviations of the target.
    """
    variances, directions = eigh(cov, target)
    worst = int(np.argmax(np.abs(np.log(np.maximum(variances, np.finfo(float).tiny)))))
    return float(np.sqrt(max(variances[worst], 0.0))), directions[:, worst] * np.sqrt(np.diag(target))


def _time_error(tau: Array, draws: int) -> Array:
    return np.sqrt(2.0 * (2.0 * WINDOW * np.maximum(tau, 1.0) + 1.0) / draws)


def distance(cov: Array, other: Array) -> float:
    """Relative Frobenius distance of a covariance from another one, in units of the other's standard deviations."""
    a, b = standardised(cov, other), standardised(other, other)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))
