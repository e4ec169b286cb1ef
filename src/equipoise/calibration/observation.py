"""What draws show: mean, covariance, shape, mixing and agreement of the chains, by parameter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.arrays import Array
from equipoise.calibration.autocorrelation import autocorrelation_time, split_rhat
from equipoise.sampling.chains import Chains

__all__ = ["Observed", "observe"]

_FURTHEST = 5.0  # standard deviations: one normal draw in two million is further away


@dataclass(frozen=True)
class Observed:
    """What the draws of a run show, all together and by parameter.

    `tau` is the autocorrelation time, in stored draws; the kurtosis is the excess over a normal law's. In it and in the
    skewness draws beyond five standard deviations count as five: in a law with heavy tails a single draw would decide.
    `guard_rate` is the share of the steps on which the guard acted.
    """

    chains: int
    length: int
    mean: Array
    cov: Array
    tau: Array
    rhat: Array
    skewness: Array
    kurtosis: Array
    guard_rate: float

    @property
    def draws(self) -> int:
        """Stored draws of all chains together."""
        return self.chains * self.length

    @property
    def ess(self) -> Array:
        """Effective draws by parameter."""
        return self.draws / self.tau

    @property
    def sd(self) -> Array:
        """Standard deviations."""
        return np.sqrt(np.diag(self.cov))


def observe(chains: Chains) -> Observed:
    """The observation of a run."""
    draws, flat = chains.draws, chains.flat()
    mean = flat.mean(axis=0)
    z = np.clip((flat - mean) / flat.std(axis=0), -_FURTHEST, _FURTHEST)
    return Observed(
        chains=draws.shape[0],
        length=draws.shape[1],
        mean=mean,
        cov=np.atleast_2d(np.cov(flat, rowvar=False)),
        tau=np.array([autocorrelation_time(draws[:, :, j]) for j in range(draws.shape[2])]),
        rhat=split_rhat(draws),
        skewness=(z**3).mean(axis=0),
        kurtosis=(z**4).mean(axis=0) - 3.0,
        guard_rate=chains.statistics["guard_rate"],
    )
