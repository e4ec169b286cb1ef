"""What a report tells of a run, as numbers: coefficients, intervals, errors compared, and which parameters to show.

Nothing here is laid out, and nothing that lays out computes: `equipoise.report` turns these into tables and pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from equipoise.arrays import Array, Index
from equipoise.errors import InvalidInput
from equipoise.models.robust import KINDS
from equipoise.theory.targets import posterior, sandwich

if TYPE_CHECKING:
    from equipoise.calibration.calibration import Calibration

__all__ = [
    "Choice",
    "Coefficients",
    "ErrorsCompared",
    "Headline",
    "Intervals",
    "choose",
    "coefficients",
    "compare_errors",
    "headline",
    "intervals",
    "passes_spent",
    "ratio_name",
    "sampler_name",
    "step_found",
]

_TELLING = 0.1  # relative difference of standard errors that says something about the model
# what exp(coefficient) is, by family with its link
_RATIOS = {"bernoulli": "odds ratio", "bernoulli-cloglog": "hazard ratio", "poisson": "rate ratio"}
_RATIOS |= {"negative-binomial": "rate ratio", "gamma": "ratio of means"}


@dataclass(frozen=True)
class Intervals:
    """Lower and upper ends, by parameter."""

    lower: Array
    upper: Array


@dataclass(frozen=True)
class Coefficients:
    """The coefficient table: estimate, standard error, test against zero, interval, effective draws, flags; by parameter.

    `robust` says whether the standard error is the sandwich's, `student` whether the statistic is a t, `tail` is the
    probability beyond each end of the interval, and `words` say how the intervals were made.
    """

    estimate: Array
    se: Array
    statistic: Array
    p_value: Array
    interval: Intervals
    predicted_ess: Array
    ess: Array
    flags: tuple[tuple[str, ...], ...]
    robust: bool
    student: bool
    tail: float
    words: str


@dataclass(frozen=True)
class Headline:
    """The few numbers that come first: the worst over all parameters."""

    ess: float
    predicted_ess: float
    shift: float
    rhat: float


@dataclass(frozen=True)
class ErrorsCompared:
    """The target's standard errors beside those of the other covariance: the model's, or the robust one.

    `ratio` is of the others over the target's; `meaning` what model-based over robust errors say about the model, empty
    where they agree.
    """

    name: str
    ratio: Array
    meaning: str

    @property
    def smallest(self) -> float:
        """The smallest ratio."""
        return float(self.ratio.min())

    @property
    def largest(self) -> float:
        """The largest ratio."""
        return float(self.ratio.max())


@dataclass(frozen=True)
class Choice:
    """Parameters worth showing, each in the order of the table.

    Those furthest from their prediction in spread, shift and skewness, in Monte Carlo errors; `drawn`, those furthest in
    mean and spread together; and those with the fewest effective draws, slowest first.
    """

    spread: Index
    shift: Index
    skewness: Index
    drawn: Index
    slowest: Index


def intervals(calibration: Calibration, level: float, recentred: bool = False) -> Intervals:
    """Quantiles of the draws; recentred, less the predicted shift of their mean.

    Raises
    ------
    InvalidInput
        If they should be recentred and the shift is unknown.
    """
    tail = 0.5 * (1.0 - level)
    lower, upper = np.quantile(calibration.chains.flat(), [tail, 1.0 - tail], axis=0)
    if not recentred or calibration.chains.independent:
        return Intervals(lower, upper)
    bias = calibration.tuning.predicted.mean_bias
    if not np.isfinite(bias).all():
        raise InvalidInput("recentred", "False where third derivatives are unknown", True, "leave it out")
    return Intervals(lower - bias, upper - bias)


def coefficients(
    calibration: Calibration, level: float, method: str = "auto", exponentiate: bool = False
) -> Coefficients:
    """The coefficient table of a run, with the intervals of `tidy`."""
    diagnosis = calibration.diagnosis
    found = calibration.tidy(level, method=method, exponentiate=exponentiate)
    column = {name: found[name].to_numpy(dtype=np.float64) for name in found.columns[1:]}
    return Coefficients(
        estimate=column["estimate"],
        se=column["std_error"],
        statistic=column["statistic"],
        p_value=column["p_value"],
        interval=Intervals(column["conf_low"], column["conf_high"]),
        predicted_ess=diagnosis.predicted_ess,
        ess=diagnosis.ess,
        flags=diagnosis.flags,
        robust=calibration.plan.target_name in (*KINDS, "sandwich"),
        student=calibration.plan.target.df is not None,
        tail=0.5 * (1.0 - level),
        words=found.attrs["intervals"],
    )


def ratio_name(calibration: Calibration) -> str | None:
    """What exp(coefficient) is called where it is a ratio of something, else None."""
    return _RATIOS.get(calibration.title.name.split(",")[0])


def headline(calibration: Calibration) -> Headline:
    """The worst of each, over all parameters."""
    d = calibration.diagnosis
    return Headline(float(d.ess.min()), float(d.predicted_ess.min()), float(np.abs(d.shift).max()), float(d.rhat.max()))


def compare_errors(calibration: Calibration) -> ErrorsCompared:
    """Standard errors of the target beside the other covariance's: the robust one's for a posterior, else the model's."""
    model, robust = (_sd(made(calibration.plan.moments)) for made in (posterior, sandwich))
    from_model = calibration.plan.target_name == "posterior"
    return ErrorsCompared(
        name="robust (sandwich)" if from_model else "model-based (posterior)",
        ratio=(robust if from_model else model) / _sd(calibration.tuning.target),
        meaning=_meaning(float(np.median(model / robust))),
    )


def choose(calibration: Calibration, shown: int, traced: int, curves: int) -> Choice:
    """The parameters worth showing, at most so many in a plot of all, as traces, and as curves."""
    d = calibration.diagnosis
    spread = np.abs(d.sd_ratio - 1.0) / d.spread_error
    surprise = np.abs(d.shift - np.nan_to_num(d.predicted_shift)) / d.shift_error
    return Choice(
        spread=_furthest(spread, shown),
        shift=_furthest(surprise, shown),
        skewness=_furthest(np.abs(d.skewness) / d.skewness_error, shown),
        drawn=_furthest(np.abs(d.shift) / d.shift_error + spread, traced),
        # predicted first, to ten draws, and observed where that ties
        slowest=np.lexsort((d.ess, np.round(d.predicted_ess, -1)))[:curves],
    )


def passes_spent(calibration: Calibration) -> float:
    """What the sampling cost, in passes over the data."""
    return calibration.chains.statistics["rows"] / calibration.plan.moments.n


def sampler_name(calibration: Calibration) -> str:
    """What made the draws, in a few words."""
    if calibration.chains.independent:
        return "N(estimate, target)"
    dynamics, completed = calibration.tuning.dynamics, calibration.tuning.predicted.completion is not None
    name = "SGD" if dynamics.beta == np.inf and not completed else "SGLD"
    if dynamics.gradient == "control-variate":
        name = "control variates"
    return name if dynamics.batches == "independent" else f"{name}, {dynamics.batches}"


def step_found(calibration: Calibration) -> tuple[Array, Array]:
    """Eigenvalues of the step matrix, and of step × Hessian, ascending."""
    return np.asarray(np.linalg.eigvalsh(calibration.tuning.step)), calibration.tuning.predicted.modes.rates


def _meaning(ratio: float) -> str:
    if ratio < 1.0 - _TELLING:
        return "The data vary more than the model says: posterior intervals are too narrow."
    return "The data vary less than the model says: posterior intervals are too wide." if ratio > 1.0 + _TELLING else ""


def _furthest(score: Array, limit: int) -> Index:
    """The positions of the `limit` largest scores, in their original order."""
    clean = np.nan_to_num(score, nan=-np.inf)
    return np.sort(np.argsort(-clean, kind="stable")[:limit])


def _sd(cov: Array) -> Array:
    return np.sqrt(np.diag(cov))
