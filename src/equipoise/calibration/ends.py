"""Which ends an interval has: estimate ± z·se, or quantiles of the draws; and the Monte Carlo error of the latter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import betaincinv, ndtr, ndtri, stdtrit

from equipoise.arrays import Array
from equipoise.calibration.autocorrelation import autocorrelation_time
from equipoise.calibration.expectation import follows_posterior
from equipoise.checks import one_of
from equipoise.models.covariance import Covariance

if TYPE_CHECKING:
    from equipoise.calibration.calibration import Calibration

__all__ = ["METHODS", "critical", "ends_words", "method_of", "quantile_error"]

METHODS = ("auto", "closed", "draws")


def method_of(cal: Calibration, method: str, cov: Covariance) -> str:
    """How the ends of a table's intervals are found.

    `method` is `"closed"`, estimate ± z·se; `"draws"`, their quantiles; or `"auto"`: the closed form, which has no Monte
    Carlo error, unless the draws carry shape that it lacks and that matters. Draws are of the run's own target, and say
    nothing of another covariance in use.
    """
    if one_of("method", method, METHODS) != "auto":
        return method
    # whether a chain can carry a shape at all is known without looking at its draws
    able = cov is cal.plan.target and not cal.chains.independent and follows_posterior(cal.tuning)
    return "draws" if able and cal.diagnosis.carries_shape else "closed"


def critical(level: float, df: float | None) -> float:
    """Standard errors to either side of an interval of that probability."""
    upper = 0.5 * (1.0 + level)
    return float(ndtri(upper) if df is None else stdtrit(df, upper))


def ends_words(method: str, level: float, df: float | None) -> str:
    """What the intervals of a table are, in one line."""
    if method == "draws":
        tail = 50.0 * (1.0 - level)
        return f"Intervals: {tail:.4g}% and {100.0 - tail:.4g}% quantiles of the draws, for the shape they carry"
    law = "the normal law" if df is None else f"Student's t, {df:,.6g} degrees of freedom"
    return f"Intervals: estimate ± {critical(level, df):.4g} standard errors ({law}); no Monte Carlo error"


def quantile_error(draws: Array, probability: float) -> float:
    """Monte Carlo error of a quantile of (chains, draws).

    The share of draws below the quantile has the spread of a Beta law of as many effective draws as that share has;
    its quantiles at one standard deviation to either side are ranks of draws, half of whose distance is the error.
    """
    flat = np.sort(draws, axis=None)
    below = (draws <= np.quantile(flat, probability)).astype(np.float64)
    effective = max(draws.size / autocorrelation_time(below), 1.0)
    a, b = effective * probability + 1.0, effective * (1.0 - probability) + 1.0
    ranks = np.array([betaincinv(a, b, side) for side in (ndtr(-1.0), ndtr(1.0))]) * (len(flat) - 1)
    low, high = np.interp(ranks, np.arange(len(flat)), flat)
    return 0.5 * float(high - low)
