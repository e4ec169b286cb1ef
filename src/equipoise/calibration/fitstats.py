"""How well a model fits its rows: log-likelihood, deviance, information criteria, R², dispersion; one or two passes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import gammaln

from equipoise.arrays import Array
from equipoise.cards import Card
from equipoise.data.arrays import Rows
from equipoise.errors import InvalidInput
from equipoise.families.response import law_of
from equipoise.fitting.fit import fit
from equipoise.linalg import symmetric
from equipoise.models.sums import counted, predictor, weighted
from equipoise.models.units import Changed

if TYPE_CHECKING:
    from equipoise.calibration.calibration import Calibration
    from equipoise.models.glm import GLM
    from equipoise.models.linear import LinearProblem

__all__ = ["FitStatistics", "aic", "bic", "llf", "log_choices", "statistics_of"]

_CONSTANT = 1e-10  # of the rows' number: what is left of a constant that the columns can make
_TELLING, _SURE = 0.1, 3.0  # relative excess of a variance worth words, and in its standard errors
_COUNTS = ("poisson", "negative-binomial")  # families whose law says how much a response varies


@dataclass(frozen=True, repr=False)
class FitStatistics(Card):
    """How well a model fits its rows.

    Attributes
    ----------
    n, df_resid
        Observations N, and N less the number of parameters.
    log_likelihood, null_log_likelihood
        Of the fitted model, and of one with an intercept (and the offset) alone. A gaussian scale that was estimated is
        that of largest likelihood here.
    deviance, null_deviance, pearson
        Twice the log-likelihood a perfect fit would gain, of both models; and Pearson's χ².
    dispersion
        Pearson's χ² over `df_resid`: for squared loss the residual variance, else 1 where the family's variance is right.
    aic, bic
        −2 log-likelihood plus 2 and log N times the number of parameters, an estimated dispersion among them.
    r_squared, r_squared_kind
        For squared loss the share of the variance explained (about zero without an intercept), else McFadden's.
    words
        What the dispersion says, where it says something; else empty.
    """

    n: int
    df_resid: int
    log_likelihood: float
    null_log_likelihood: float
    deviance: float
    null_deviance: float
    pearson: float
    dispersion: float
    aic: float
    bic: float
    r_squared: float
    r_squared_kind: str
    words: str = ""


def statistics_of(self: Calibration) -> FitStatistics:
    """Log-likelihood, deviance, AIC, BIC, R² and dispersion of the fit, but not of a robust loss; the rows are read for it."""
    model, problem = self.require_glm(), self.require_linear()
    if model.divergence is not None:
        raise InvalidInput(
            "model", "one whose loss is a likelihood", repr(model.divergence), "fit it without a divergence"
        )
    n, dim = problem.source.n, problem.dim
    sums = problem.source.reduce(partial(_law_sums, model, self.fit.theta))
    null, at = _null(problem, sums)
    bare = null.source.reduce(partial(_law_sums, null.model, at))
    log_likelihood, null_log_likelihood = (_likelihood(model, s, n) for s in (sums, bare))
    parameters = dim + (model.estimated and model.family.parameter == "dispersion")
    left = n - dim
    dispersion = sums.pearson / left if left > 0 else np.nan
    gaussian = model.family.name == "gaussian"
    return FitStatistics(
        n=n,
        df_resid=left,
        log_likelihood=log_likelihood,
        null_log_likelihood=null_log_likelihood,
        deviance=sums.deviance,
        null_deviance=bare.deviance,
        pearson=sums.pearson,
        dispersion=dispersion,
        aic=2.0 * (parameters - log_likelihood),
        bic=parameters * float(np.log(n)) - 2.0 * log_likelihood,
        r_squared=1.0 - (sums.deviance / bare.deviance if gaussian else log_likelihood / null_log_likelihood),
        r_squared_kind="R²" if gaussian else "McFadden's R²",
        words=_words(model.family.law, sums.trials > 0.0, dispersion, left),
    )


def llf(self: Calibration) -> float:
    """The log-likelihood."""
    return self.fit_statistics.log_likelihood


def aic(self: Calibration) -> float:
    """Akaike's criterion."""
    return self.fit_statistics.aic


def bic(self: Calibration) -> float:
    """The Bayesian criterion, by the log-likelihood."""
    return self.fit_statistics.bic


class _Sums(NamedTuple):
    """Sums over the observations; the last two say whether the columns make a constant."""

    value: float
    log_weight: float
    deviance: float
    pearson: float
    trials: float
    ones: Array
    gram: Array


def _law_sums(model: GLM, theta: Array, rows: Rows) -> _Sums:
    """The law of every response at θ, over one block."""
    family, law = model.family, law_of(model.family)
    eta, y, p = predictor(rows, theta), rows.y, np.array([model.constant or 0.0])
    mu = family.mean(eta)
    unit = np.ones(1) if family.parameter in ("scale", "shape") else p

    def total(terms: Array) -> float:
        return float(counted(rows, weighted(rows, terms)).sum())

    log_weight = 0.0 if rows.weights is None else float(counted(rows, np.log(rows.weights)).sum())
    value = family.loss.value(eta, y, p) + law.left_out(y, p)
    # of a count of successes, which of the trials they were in
    orders = 0.0 if rows.trials is None else float(rows.counts @ log_choices(rows.trials, y * rows.trials))
    half = rows.x * rows.counts[:, None]
    return _Sums(
        total(value) - orders, log_weight, total(law.deviance(y, mu, p)), total((y - mu) ** 2 / family.variance(mu, unit)),
        0.0 if rows.trials is None else float(rows.trials.sum()), half.sum(axis=0), half.T @ rows.x,
    )  # fmt: skip


def log_choices(n: Array, k: Array) -> Array:
    """log n! / (k! (n−k)!)."""
    return np.asarray(gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0))


def _likelihood(model: GLM, sums: _Sums, n: int) -> float:
    """The log-likelihood; for an estimated gaussian scale, that of largest likelihood: s² = Σ w r² / N."""
    if model.family.name != "gaussian":
        return -sums.value
    square = sums.deviance / n if model.estimated else (model.constant or 1.0) ** 2
    return 0.5 * sums.log_weight - 0.5 * n * float(np.log(2.0 * np.pi * square)) - 0.5 * sums.deviance / square


@dataclass(frozen=True)
class _Bare:
    """Rows with an intercept alone, or with a column of zeros where there is none to compare with."""

    value: float

    def __call__(self, rows: Rows) -> Rows:
        """The same rows."""
        return replace(rows, x=np.full((rows.height, 1), self.value), names=("Intercept",), marks=None)


def _null(problem: LinearProblem, sums: _Sums) -> tuple[LinearProblem, Array]:
    """The model of an intercept (and the offset) alone, and its estimate; of squared loss without one, of nothing."""
    made = np.linalg.lstsq(symmetric(sums.gram), sums.ones, rcond=None)[0]
    has_constant = problem.source.n - float(sums.ones @ made) < _CONSTANT * problem.source.n
    nothing = problem.quadratic and not has_constant
    bare = replace(
        problem,
        model=replace(problem.model, prior_precision=np.zeros(()), prior_mean=np.zeros(())),
        source=Changed(problem.source, _Bare(0.0 if nothing else 1.0), ("Intercept",)),
        precision=np.zeros(1),
        mean=np.zeros(1),
    )
    if nothing:
        return bare, np.zeros(1)
    if bare.model.estimated and bare.model.family.name != "gaussian":
        found = fit(replace(bare, model=replace(bare.model, constant=None)))
        return bare.at_constant(found.constant), found.theta
    return bare, fit(bare).theta


def _words(family: str, trials: bool, dispersion: float, left: int) -> str:
    """What Pearson's χ² says of a family whose variance follows from its mean; single trials cannot say anything."""
    if not (family in _COUNTS or trials) or not left > 0 or not np.isfinite(dispersion):
        return ""
    if abs(dispersion - 1.0) < max(_TELLING, _SURE * (2.0 / left) ** 0.5):
        return f"The response varies about as much as the {family} model says (dispersion {dispersion:.2f})."
    more = dispersion > 1.0
    return (
        f"{'Over' if more else 'Under'}dispersion: the response varies {dispersion:.2g} times as much as the {family} model "
        f"says. Robust standard errors allow for it; model-based ones are too {'small' if more else 'large'} by a factor "
        f"of about {max(dispersion, 1.0 / dispersion) ** 0.5:.2g}."
    )
