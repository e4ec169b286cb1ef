"""What the rows of a fit show beside its parameters, in a few numbers that can be kept where the rows cannot."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from equipoise.arrays import Array
from equipoise.calibration.answers import covariance_of
from equipoise.calibration.fitstats import FitStatistics, statistics_of
from equipoise.cards import Card
from equipoise.data.arrays import Rows
from equipoise.errors import InvalidInput
from equipoise.families.response import LAWS
from equipoise.models.glm import GLM
from equipoise.models.linear import LinearProblem
from equipoise.models.sums import predictor

if TYPE_CHECKING:
    from equipoise.calibration.calibration import Calibration

__all__ = ["GROUPS", "RowFacts", "Side", "row_facts", "standard_errors"]

GROUPS = 10  # of rows with similar predictions
_LOOKED_AT = 20_000  # rows that are grouped
_MODEL, _ROBUST = "posterior", "HC0"


class Side(NamedTuple):
    """Groups of rows from small to large predictions: how many, mean prediction and response, and their errors."""

    size: Array
    predicted: Array
    observed: Array
    predicted_error: Array
    observed_error: Array


@dataclass(frozen=True, repr=False)
class RowFacts(Card):
    """What the rows of a fit show.

    How many there were and how many had missing values; mean and spread of the response (of successes, for counts of
    them) and of every column of the design matrix; standard errors by other covariances, by name; predictions beside
    responses and statistics of the fit, None for a loss that has none.
    """

    rows: int
    dropped: int
    response_mean: float
    response_sd: float
    column_sd: Array
    errors: dict[str, Array]
    side: Side | None = None
    statistics: FitStatistics | None = None


def row_facts(cal: Calibration) -> RowFacts | None:
    """The facts of a run: those it was loaded with, or read off its rows; None where there are no rows."""
    problem = cal.plan.problem
    if cal.kept is not None or not isinstance(problem, LinearProblem):
        return cal.kept
    model, n = cal.require_glm(), problem.source.n
    sums = problem.source.reduce(_shown_by)
    mean = sums.response / sums.responses
    sd = max(sums.square / sums.responses - mean**2, 0.0) ** 0.5
    spread = sums.columns_square / n - (sums.columns / n) ** 2
    # what is left of a constant by rounding
    column_sd = np.sqrt(np.where(spread > 1e-13 * sums.columns_square / n, spread, 0.0))
    some = problem.source if n <= _LOOKED_AT else problem.source.sample(_LOOKED_AT, 0)
    design = problem.source.design
    return RowFacts(
        rows=int(sums.rows),
        dropped=0 if design is None else design.dropped,
        response_mean=mean,
        response_sd=sd,
        column_sd=column_sd,
        errors=standard_errors(cal),
        side=_side(model, list(some.blocks()), cal.fit.theta, cal.plan.target.matrix),
        statistics=statistics_of(cal) if model.divergence is None and model.family.law in LAWS else None,
    )


def standard_errors(cal: Calibration) -> dict[str, Array]:
    """Standard errors by the model, by HC0 and, where the data came with clusters, by CRV1; the target's own left out."""
    found = {}
    kinds = [_MODEL, _ROBUST, *(["CRV1"] if cal.plan.problem is not None else [])]
    same = {"sandwich": _ROBUST}.get(cal.plan.target.kind, cal.plan.target.kind)
    for kind in kinds:
        if kind == same:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a repair, or fewer clusters than parameters, is no matter here
                cov = covariance_of(cal, kind)
        except InvalidInput:  # no clusters
            continue
        found[cov.words] = np.sqrt(np.maximum(np.diag(cov.matrix), 0.0))
    return found


class _Sums(NamedTuple):
    """Sums over rows, over responses (each as often as it was observed, and tried), and over columns."""

    rows: float
    responses: float
    response: float
    square: float
    columns: Array
    columns_square: Array


def _shown_by(rows: Rows) -> _Sums:
    times = _times(rows)
    return _Sums(
        float(rows.height), float(times.sum()), float(times @ rows.y), float(times @ rows.y**2), rows.counts @ rows.x,
        rows.counts @ rows.x**2,
    )  # fmt: skip


def _times(rows: Rows) -> Array:
    """How many responses a row stands for: its frequency, and its trials."""
    return rows.counts if rows.trials is None else rows.counts * rows.trials


def _side(model: GLM, blocks: list[Rows], theta: Array, cov: Array) -> Side:
    """Groups of rows with similar predictions; as many as there are different ones where those are few."""
    eta = np.concatenate([predictor(rows, theta) for rows in blocks])
    mean, slope = model.family.mean(eta), model.family.slope(eta)
    times, y = (np.concatenate([part(rows) for rows in blocks]) for part in (_times, lambda rows: rows.y))
    x = np.concatenate([rows.x for rows in blocks])
    values = np.unique(np.round(mean, 12))
    if len(values) <= GROUPS:
        group = np.searchsorted(values, np.round(mean, 12))
    else:
        order = np.argsort(mean, kind="stable")
        place = np.empty(len(mean))
        place[order] = np.cumsum(times[order]) - 0.5 * times[order]
        group = np.minimum((place / times.sum() * GROUPS).astype(int), GROUPS - 1)
    found = []
    for k in np.unique(group):
        own = group == k
        t = times[own] / times[own].sum()
        gradient = (t * slope[own]) @ x[own]
        observed = float(t @ y[own])
        noise = np.sqrt(np.sum(t**2 * (y[own] - observed) ** 2))
        found.append((times[own].sum(), float(t @ mean[own]), observed, np.sqrt(gradient @ cov @ gradient), noise))
    return Side(*np.array(found, dtype=np.float64).T)
