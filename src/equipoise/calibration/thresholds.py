"""Every threshold of the diagnosis, for checks and flags alike."""

from __future__ import annotations

from scipy.special import ndtri

__all__ = [
    "ALARM",
    "BIAS",
    "COVARIANCE",
    "GUARD",
    "LAPLACE",
    "MIXING",
    "POWER",
    "RHAT",
    "SEEN",
    "SHAPE",
    "TARGET",
    "sigmas",
]

ALARM = 0.005  # chance that a check of a run that is as predicted asks for a look
COVARIANCE = 0.02  # relative error of a covariance that does not matter, beyond Monte Carlo error
TARGET = 0.1  # relative distance of a covariance from the target that matters: intervals five per cent off
BIAS = 0.1  # standard deviations of mean bias that matter
SHAPE = 0.2  # skewness or excess kurtosis that matters
MIXING = 0.3  # how much slower than predicted a chain may mix, beyond the error of measuring it
RHAT = 1.02
GUARD = 1e-3  # share of the steps on which the guard may act
SEEN = 0.5  # standard deviations of a shift that a run must be able to see
POWER = 0.3  # relative Monte Carlo error above which a comparison tells nothing
LAPLACE = 0.3  # relative distance a posterior's covariance may have from its Laplace approximation


def sigmas(comparisons: int) -> float:
    """Standard errors that `comparisons` two-sided comparisons together exceed with probability `ALARM`, at most."""
    return -float(ndtri(ALARM / (2 * comparisons)))
