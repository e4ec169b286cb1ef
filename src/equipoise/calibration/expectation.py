"""What a tuning predicts of the draws that were stored: covariance, mean, mixing, and their Monte Carlo errors (theory §6)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky, eigh
from scipy.special import chdtri

from equipoise.arrays import Array
from equipoise.calibration.autocorrelation import per_stored_draw
from equipoise.calibration.thresholds import ALARM
from equipoise.linalg import symmetric
from equipoise.sampling.chains import Chains
from equipoise.theory.tuning import Tuning

__all__ = ["Expected", "expect", "follows_posterior", "standardised"]

_SHARE = 0.8  # of a target's variance that injected noise alone must make for a chain to follow the posterior
_NEAR = 0.25  # and how far from the posterior's the target's variances may be


@dataclass(frozen=True)
class Expected:
    """What is expected of the draws of a run.

    Attributes
    ----------
    cov, target
        The covariance they should have, and the one that was asked for.
    bias
        Their mean minus the minimiser; NaN where third derivatives are unknown.
    tau
        Autocorrelation time of each parameter, in stored draws.
    mean_cov
        Covariance of the mean of all draws.
    floor
        Relative Monte Carlo error of their covariance, in standard deviations' units (theory eq. 6.8).
    degrees
        Degrees of freedom of that error squared, as a multiple of a χ² variable.
    posterior
        Whether injected noise makes the chain follow the posterior itself, beyond its normal approximation (theory §7).
    skewness
        Of each parameter; NaN where it is not predicted.
    kurtosis
        Excess kurtosis in the worst direction; NaN where it is not predicted.
    """

    cov: Array
    target: Array
    bias: Array
    tau: Array
    mean_cov: Array
    floor: float
    degrees: float
    posterior: bool
    skewness: Array
    kurtosis: float

    @property
    def sd(self) -> Array:
        """Standard deviations."""
        return np.sqrt(np.diag(self.cov))

    @property
    def known_bias(self) -> Array:
        """The bias, zero where it is unknown."""
        return np.nan_to_num(self.bias)

    @property
    def covariance_limit(self) -> float:
        """What the covariance's relative error exceeds with probability `ALARM` when all is as predicted."""
        # a variance errs upwards further than downwards, by about its relative error
        return self.floor * (1.0 + self.floor) * float(np.sqrt(chdtri(self.degrees, ALARM) / self.degrees))

    def size(self, shift: Array) -> float:
        """Length of a shift in its worst direction, √(gᵀΣ⁻¹g), in standard deviations."""
        return float(np.sqrt(shift @ cho_solve(cho_factor(self.cov), shift)))


def expect(chains: Chains, tuning: Tuning) -> Expected:
    """The expectation of draws made with a tuning."""
    count, length, dim = chains.draws.shape
    draws = count * length
    if chains.independent:
        unit = standardised(tuning.target, tuning.target)
        # independent normal draws: E‖Σ̂−Σ‖² = (‖Σ‖² + tr(Σ)²)/T
        floor = float(np.sqrt((1.0 + (dim / np.linalg.norm(unit)) ** 2) / draws))
        zero, cov = np.zeros(dim), tuning.target
        return Expected(cov, cov, zero, np.ones(dim), cov / draws, floor, _degrees(unit), False, zero, 0.0)
    law, cov = tuning.predicted, tuning.expected
    tau, directions = _slowness(law.long_run_cov, law.cov)
    spread = law.cov @ directions
    steps = length * chains.thin
    # of all iterates it is exact; that of one in `thin` is larger by what autocorrelations φ^k would make it
    thinned = per_stored_draw(tau, chains.thin, length) / length - per_stored_draw(tau, 1, steps) / steps
    mean_cov = (law.iterate_average_cov(steps) + (spread * np.maximum(thinned, 0.0)) @ spread.T) / count
    squares = spread * np.sqrt(_time_of_squares(tau, chains.thin))
    return Expected(
        cov=cov,
        target=tuning.target,
        bias=law.mean_bias,
        tau=np.maximum(law.draw_times(chains.thin) / chains.thin, 1.0),
        mean_cov=symmetric(mean_cov),
        floor=law.covariance_floor(draws, chains.thin, standardised=True),
        degrees=_degrees(standardised(squares @ spread.T, law.cov)),
        posterior=follows_posterior(tuning),
        skewness=law.skewness,
        kurtosis=law.worst_kurtosis,
    )


def standardised(matrix: Array, by: Array) -> Array:
    """A covariance in units of another one's standard deviations: otherwise the parameter with the largest units decides."""
    sd = np.sqrt(np.diag(by))
    return matrix / np.outer(sd, sd)


def _slowness(long_run: Array, cov: Array) -> tuple[Array, Array]:
    """Autocorrelation times in steps, and directions u_i with UᵀΣU = I that have them and are uncorrelated at all lags."""
    tau, directions = eigh(long_run, cov)
    return np.maximum(tau, 0.0), directions


def _time_of_squares(tau: Array, thin: int) -> Array:
    """Autocorrelation time of squares of stored draws, whose autocorrelations are φ^{2 thin k}."""
    a = np.minimum(((tau - 1.0) / (tau + 1.0)) ** (2 * thin), 1.0 - 1e-9)
    return (1.0 + a) / (1.0 - a)


def _degrees(R: Array) -> float:
    """Degrees of freedom of ‖Σ̂−Σ‖² for errors with covariance (I + P)(R ⊗ R), by its first two moments.

    E = tr(R)² + ‖R‖², Var = 4 (‖R‖⁴ + tr R⁴), and a multiple of χ²_ν has 2 E²/Var = ν.
    """
    squares = R @ R
    mean = float(np.trace(R) ** 2 + np.trace(squares))
    return mean**2 / (2.0 * float(np.trace(squares) ** 2 + np.sum(squares * squares.T)))


def follows_posterior(tuning: Tuning) -> bool:
    """Whether the target is near H⁻¹/N and noise injected at the posterior's own temperature makes nearly all of it.

    Injected noise alone has the variances (1−κ)/(β s) of the target's, s the eigenvalues of HΣ (theory eq. 3.3): a chain
    near 1 takes small steps of Langevin dynamics, whose law is the posterior, skewness and all. Completed noise with a
    fidelity does the same (theory §14).
    """
    dynamics, moments = tuning.dynamics, tuning.predicted.moments
    if tuning.internal is not None:
        return False
    root = cholesky(moments.hessian, lower=True)
    s = np.linalg.eigvalsh(root.T @ tuning.target @ root)
    near = bool(np.abs(s * moments.n - 1.0).max() <= _NEAR)
    if tuning.fidelity:
        return near and tuning.fidelity >= _SHARE
    share = (1.0 - dynamics.momentum) * dynamics.temperature / s
    return near and bool(share.min() >= _SHARE)
