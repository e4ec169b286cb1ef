"""Robust covariances of an estimate: heteroskedastic, clustered, autocorrelated (theory §3).

All are H⁻¹ M H⁻¹ with a middle matrix M of scores, made by sums over blocks of rows. Scores are centred, as those of the
sandwich are: each observation carries its share of the prior, whose pull would otherwise count as noise. A shape or
dispersion that was estimated enters through stacked scores: zero where the means are right.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy.linalg import eigh

from equipoise.arrays import Array
from equipoise.checks import one_of, shown, whole
from equipoise.data.arrays import Rows
from equipoise.errors import InvalidInput, warn
from equipoise.linalg import added_form, symmetric
from equipoise.models.autocorrelated import SeriesSums, series_pass, smoothed
from equipoise.models.binding import verb
from equipoise.models.clustered import ClusterSums, GroupedSums, cluster_pass, clustered, require_clusters
from equipoise.models.covariance import Covariance, folded, left, pulled
from equipoise.models.linear import LinearProblem
from equipoise.models.passes import Beside, Both, BothSums
from equipoise.models.problem import Block, Problem, Rowwise
from equipoise.models.rowwise import InformationPass, LinearRowwise
from equipoise.models.sums import counted, derivatives, gram
from equipoise.models.verbs import moments as take_moments
from equipoise.models.verbs import settle
from equipoise.theory.moments import Moments
from equipoise.theory.targets import TARGETS, sandwich

__all__ = [
    "CLUSTERED",
    "KINDS",
    "PLAIN",
    "Covariance",
    "Known",
    "Leveraged",
    "covariance",
    "from_moments",
    "moments_for",
    "require_kind",
    "robust",
    "summed_with_moments",
]

CLUSTERED = ("CRV1", "CRV3")
PLAIN = (*TARGETS, "HC0", "HC1")  # those that moments are enough for
KINDS = ("HC0", "HC1", "HC2", "HC3", *CLUSTERED, "HAC")
_STUDENT = ("posterior", "HC1", "HC2", "HC3")  # kinds whose squared-loss standard errors go with t of N − D
_POWER = {"HC2": 0.5, "HC3": 1.0}
_UNSEEN = 1e-10  # relative error of a covariance by that of leverages, at the most


class Leveraged(NamedTuple):
    """Scores over a power of 1 − leverage, added up with the moments: leverages are shares of what a fit knew before.

    Attributes
    ----------
    sums
        Σ v vᵀ and Σ v of these scores.
    root
        R with (R Rᵀ)⁻¹ the information that leverages were taken against, that of the prior included.
    doubt
        Σ v vᵀ l/(1 − l): 2·power times that is how fast Σ v vᵀ moves with a relative error of all leverages l.
    information
        What they should be shares of, where it is not the sum of the curvatures.
    """

    sums: _InflatedSums
    root: Array
    doubt: Array
    information: Array | None


Known: TypeAlias = ClusterSums | SeriesSums | Leveraged  # sums that a covariance needs besides moments


@verb
def robust(
    problem: Problem,
    params: object,
    *,
    kind: str = "HC0",
    clusters: object = None,
    time: object = None,
    lags: int | None = None,
    small_sample: bool | str = True,
) -> Array:
    """A robust covariance of the estimate, from one or two passes over the rows.

    Parameters
    ----------
    problem
        A bound problem, or a model and its data.
    params
        The fit, or parameters like `Fit.params`.
    kind
        `"HC0"` is the sandwich, and `"HC1"` N/(N−D) times it. `"HC2"` and `"HC3"` divide each score by √(1−l) and by
        1−l, with the leverages l of the weighted design (for a loss of your own: of its observed curvature).
        `"CRV1"` adds scores up within clusters. `"CRV3"` is the jackknife that leaves out one cluster at a time, exactly
        for squared loss, and otherwise by one Newton step from the estimate. `"HAC"` is Newey and West's for a time
        series, with Bartlett weights.
    clusters
        For CRV1 and CRV3: names of clusters that the data were read with, or one label per row. CRV1 takes two ways:
        the sum of both less that of their intersection, where it is not positive definite repaired with a warning.
        Left out, those the data were read with.
    time
        For HAC: one number or date per row, by which rows are ordered; left out, that the data were read with, or
        else the order of the rows. Rows are taken to be equally far apart.
    lags
        For HAC: the largest lag; ⌊4 (N/100)^(2/9)⌋ when left out.
    small_sample
        Factors of the clustered kinds: True takes G/(G−1)·(N−1)/(N−D) for CRV1, each way with its own number of
        clusters G (as statsmodels), and (G−1)/G for CRV3; `"min"` the smallest G for all ways (as fixest); False none.

    Returns
    -------
    (D, D) array

    Raises
    ------
    InvalidInput
        If the kind needs clusters and there are none or one, or a row's leverage is 1.

    Examples
    --------
    >>> import equipoise as eq
    >>> rng = np.random.default_rng(0)
    >>> x, firm = np.column_stack([np.ones(60), rng.normal(size=60)]), np.repeat(np.arange(12), 5)
    >>> y = rng.poisson(np.exp(0.3 + 0.2 * rng.normal(size=12)[firm]))
    >>> fit = eq.fit(eq.glm("poisson"), (x, y))
    >>> eq.robust(eq.glm("poisson"), (x, y), fit, kind="CRV1", clusters=firm).shape
    (2, 2)
    """
    require_kind(problem, kind, clusters, time, lags, small_sample)
    here, values = settle(problem, params)
    theta = here.flatten(values)
    here = here.settled(theta)
    found = covariance(here, take_moments(here, values), kind, clusters, time, lags, small_sample)
    if found.rank < len(theta):
        warn(
            f"{found.words}: with {len(theta)} parameters the matrix is singular. Standard errors and tests of fewer "
            "parameters than clusters are as usual; a chain cannot have it as its covariance."
        )
    return found.matrix


def covariance(
    problem: Problem,
    moments: Moments,
    kind: str,
    clusters: object = None,
    time: object = None,
    lags: int | None = None,
    small_sample: bool | str = True,
    known: Known | None = None,
) -> Covariance:
    """A covariance by name, with where it comes from; `moments` are those of all rows at the estimate.

    `known` are sums that it needs, where `moments_for` made them.

    Raises
    ------
    InvalidInput
        If options do not go with the kind.
    """
    here = require_kind(problem, kind, clusters, time, lags, small_sample)
    moments, along = problem.stacked(moments)
    df = _degrees(moments, kind, problem.quadratic)
    if kind in PLAIN:
        return from_moments(moments, kind, problem.quadratic)
    rowwise = here.rowwise(moments.params)
    if kind in _POWER:
        inflated = known if isinstance(known, Leveraged) else None
        middle = _leveraged(here, rowwise, moments, along, _POWER[kind], inflated)
        return Covariance(pulled(moments, middle), kind, df=df)
    if kind == "HAC":
        lags = _lags(moments.n, lags)
        series = known if isinstance(known, SeriesSums) else None
        return Covariance(pulled(moments, smoothed(here, rowwise, moments, along, lags, series)), kind, lags=lags)
    sums = known if isinstance(known, (BothSums, GroupedSums)) else None
    return clustered(here, rowwise, moments, kind, along, small_sample, sums)


def _lags(n: int, lags: int | None) -> int:
    """The largest lag of HAC."""
    return int(4.0 * (n / 100.0) ** (2.0 / 9.0)) if lags is None else lags


def summed_with_moments(problem: Problem, kind: object) -> bool:
    """Whether sums that a kind needs can be made in the same reading of files as the moments."""
    if not isinstance(problem, LinearProblem) or problem.source.in_memory or not isinstance(kind, str):
        return False
    return kind in (*CLUSTERED, "HAC", *_POWER)


def moments_for(
    problem: Problem, params: object, kind: object, lags: int | None, information: Array | None = None
) -> tuple[Moments, Known | None]:
    """Moments at a fit and, where rows are read from files, in the same reading the sums that a kind needs besides.

    Those of HC2 and HC3 need to know what leverages are shares of; from a fit that does not, they take a reading of their own.
    """
    here, values = settle(problem, params)
    if not summed_with_moments(here, kind) or not isinstance(here, LinearProblem):
        return take_moments(problem, params), None
    theta = here.flatten(values)
    rowwise = here.rowwise(theta)
    if kind in _POWER:
        if information is None:
            return take_moments(problem, params), None
        return _moments_with_leverages(here, theta, rowwise, _POWER[str(kind)], information)
    if kind == "HAC":
        beside = series_pass(here.marked(), rowwise, _lags(here.n, lags))
    else:
        beside = cluster_pass(here.marked(), rowwise, str(kind))
    found, sums = here.moments_beside(theta, beside)
    return replace(found, loss=here.model.title.name), sums


def from_moments(moments: Moments, kind: str, quadratic: bool) -> Covariance:
    """One of the kinds that need no rows."""
    df, n = _degrees(moments, kind, quadratic), moments.n
    if kind in TARGETS:
        return Covariance(TARGETS[kind](moments), kind, df=df)
    return Covariance(sandwich(moments) * (n / left(n, moments.dim) if kind == "HC1" else 1.0), kind, df=df)


def _degrees(moments: Moments, kind: str, quadratic: bool) -> float | None:
    """N − D as in least squares; elsewhere the normal law is as good a guess."""
    left = moments.n - moments.dim
    return float(left) if quadratic and left > 0 and kind in _STUDENT else None


def require_kind(
    problem: Problem,
    kind: str,
    clusters: object = None,
    time: object = None,
    lags: int | None = None,
    small_sample: bool | str = True,
) -> Problem:
    """The problem with what stands beside its rows, if such a covariance can be made of it; no row is read for that.

    Refused if options do not go with the kind, clusters are needed and not known, or rows of a time series count several
    times.
    """
    one_of("kind", kind, (*KINDS, *TARGETS))
    _require_own(kind, clusters, time, lags, small_sample)
    if kind in PLAIN:
        return problem
    here = problem.marked(clusters, time)
    if kind in CLUSTERED:
        require_clusters(here, kind)
    # a source of somebody else's may not say how many rows it has
    if kind == "HAC" and here.source.n != getattr(here.source, "height", here.source.n):
        raise InvalidInput(
            "frequency", "left out for HAC, where each row is one time", "counts above 1", "write the rows out"
        )
    return here


def _require_own(kind: str, clusters: object, time: object, lags: int | None, small_sample: bool | str) -> None:
    """Refuse options that the kind would not look at, and factors that are not known."""
    if lags is not None:
        whole("lags", lags, 0, "leave it out")
    for name, value, kinds in (("clusters", clusters, CLUSTERED), ("time", time, ("HAC",)), ("lags", lags, ("HAC",))):
        if value is not None and kind not in kinds:
            raise InvalidInput(
                name, f"left out for {kind}, which does not look at it", shown(value), f"use {' or '.join(kinds)}"
            )
    if not isinstance(small_sample, (bool, str)) or small_sample not in (True, False, "min"):
        raise InvalidInput("small_sample", "True, False or 'min'", shown(small_sample), "choose one of them")


# --- Heteroskedastic ----------------------------------------------------------------------------------


class _InflatedSums(NamedTuple):
    """Σ v vᵀ and Σ v."""

    scatter: Array
    total: Array


@dataclass(frozen=True)
class _InflatedPass:
    """Scores over a power of 1 − leverage, and their squares."""

    rowwise: Rowwise
    root: Array
    power: float

    def __call__(self, block: Block) -> _InflatedSums:
        """The sums over one block."""
        scores = self.rowwise.inflated(block, self.rowwise.scores(block), self.root, self.power)
        times = self.rowwise.counts(block)[:, None] * scores
        return _InflatedSums(times.T @ scores, times.sum(axis=0))


class _SharesSums(NamedTuple):
    """As in `Leveraged`."""

    sums: _InflatedSums
    doubt: Array


@dataclass(frozen=True)
class _SharesPass:
    """The same of a regression, and how much hangs on its leverages."""

    inflated: _InflatedPass
    rowwise: LinearRowwise

    def __call__(self, rows: Rows) -> _SharesSums:
        """The sums over one block."""
        root, power = self.inflated.root, self.inflated.power
        leverage = self.rowwise.leverages(rows, root)
        (slope,) = derivatives(self.rowwise.model.loss, rows, self.rowwise.theta, 1)
        square = slope**2 * leverage * (1.0 - leverage) ** (-2.0 * power - 1.0)
        return _SharesSums(self.inflated(rows), gram(rows.x, counted(rows, square)))


def _moments_with_leverages(
    problem: LinearProblem, theta: Array, rowwise: LinearRowwise, power: float, information: Array
) -> tuple[Moments, Leveraged]:
    """Moments and scores over leverages, in one reading of the rows."""
    root = _root(added_form(information.copy(), problem.precision))
    shares, f = _SharesPass(_InflatedPass(rowwise, root, power), rowwise), InformationPass(rowwise)
    beside = Beside(problem.source, shares if rowwise.observed else Both(shares, f), len(theta) ** 2)
    found, sums = problem.moments_beside(theta, beside)
    sums, own = (sums, None) if rowwise.observed else (sums.first, symmetric(sums.second.total))
    return replace(found, loss=problem.model.title.name), Leveraged(sums.sums, root, sums.doubt, own)


def _root(information: Array) -> Array:
    """R with R Rᵀ the inverse."""
    return np.linalg.inv(np.linalg.cholesky(information)).T


def _leveraged(
    problem: Problem, rowwise: Rowwise, moments: Moments, along: Array | None, power: float, known: Leveraged | None
) -> Array:
    """Σ (v − ḡ)(v − ḡ)ᵀ of the folded scores over a power of 1 − leverage."""
    width = moments.dim**2
    information = problem.source.n * moments.loss_hessian
    if not rowwise.observed:
        own = None if known is None else known.information
        information = symmetric(problem.source.reduce(InformationPass(rowwise), width).total) if own is None else own
    total = information + moments.n * (moments.hessian - moments.loss_hessian)
    if known is not None and _error(known, total, power) <= _UNSEEN:
        sums = known.sums
    else:
        sums = problem.source.reduce(_InflatedPass(rowwise, _root(total), power), width)
    mean, sum_ = moments.mean_score, folded(sums.total, along)
    scatter = folded(folded(sums.scatter, along).T, along)
    return symmetric(scatter - np.outer(mean, sum_) - np.outer(sum_, mean)) + problem.source.n * np.outer(mean, mean)


def _error(known: Leveraged, information: Array, power: float) -> float:
    """At most how far, of itself along any direction, Σ v vᵀ is from that with shares of this information."""
    dim = len(known.root)
    apart = np.linalg.eigvalsh(symmetric(known.root.T @ information @ known.root)) - 1.0
    half, middle = known.root.T @ known.doubt @ known.root, known.root.T @ known.sums.scatter[:dim, :dim] @ known.root
    try:
        doubt = float(eigh(symmetric(half), symmetric(middle), eigvals_only=True)[-1])
    except np.linalg.LinAlgError:  # there are directions without any
        return np.inf
    return 2.0 * power * float(np.abs(apart).max()) * doubt
