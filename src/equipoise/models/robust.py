"""Robust covariances of an estimate: heteroskedastic, clustered, autocorrelated (theory §3).

All are H⁻¹ M H⁻¹ with a middle matrix M of scores, made by sums over blocks of rows. Scores are centred, as those of the
sandwich are: each observation carries its share of the prior, whose pull would otherwise count as noise.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from equipoise.arrays import Array
from equipoise.checks import one_of, shown, whole
from equipoise.data.marks import Labels, Marks
from equipoise.errors import EquipoiseWarning, InvalidInput
from equipoise.linalg import symmetric
from equipoise.models.binding import verb
from equipoise.models.problem import Problem, Rowwise
from equipoise.models.verbs import moments as take_moments
from equipoise.models.verbs import settle
from equipoise.theory.moments import Moments
from equipoise.theory.targets import TARGETS, sandwich

__all__ = ["CLUSTERED", "KINDS", "Covariance", "covariance", "robust"]

CLUSTERED = ("CRV1", "CRV3")
KINDS = ("HC0", "HC1", "HC2", "HC3", *CLUSTERED, "HAC")
_STUDENT = ("posterior", "HC1", "HC2", "HC3")  # kinds whose squared-loss standard errors go with t of N − D
_POWER = {"HC2": 0.5, "HC3": 1.0}
_LEAST = 1e-8  # smallest eigenvalue a repaired matrix is given, in units of its one-way parts' variances
_CHANGED = 1e-6  # relative change of a standard error that a repair is reported from
_SINGULAR = 1e-10  # share of the information that is left without a cluster, below which it counts as none


@dataclass(frozen=True)
class Covariance:
    """A covariance of the estimate and where it comes from.

    Attributes
    ----------
    matrix
        (D, D).
    kind
        One of `KINDS` or of the targets made from moments alone; or what else it is called.
    by
        The ways of clustering.
    groups
        The number of clusters of each.
    lags
        Of HAC; otherwise None.
    repaired
        The largest relative change of a standard error by which the matrix was made positive definite.
    df
        Degrees of freedom of t and F: clusters less one, of the way with fewest; for squared loss N − D; None for a
        normal law.
    """

    matrix: Array
    kind: str
    by: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()
    lags: int | None = None
    repaired: float = 0.0
    df: float | None = None

    @property
    def rank(self) -> int:
        """How many directions it has variance along at most: centred scores of G clusters span G − 1."""
        return sum(count - 1 for count in self.groups) if self.groups else len(self.matrix)

    @property
    def words(self) -> str:
        """What it is called, in full."""
        if self.groups:
            parts = (f"{name} ({count:,} clusters)" for name, count in zip(self.by, self.groups, strict=True))
            return f"{self.kind} by {' and '.join(parts)}"
        return self.kind if self.lags is None else f"{self.kind} with {self.lags} lags"


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
    here, values = settle(problem, params)
    theta = here.flatten(values)
    here = here.settled(theta)
    found = covariance(here, take_moments(here, values), kind, clusters, time, lags, small_sample)
    if found.rank < len(theta):
        warnings.warn(
            f"{found.words}: with {len(theta)} parameters the matrix is singular. Standard errors and tests of fewer "
            "parameters than clusters are as usual; a chain cannot have it as its covariance.",
            EquipoiseWarning,
            stacklevel=4,
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
) -> Covariance:
    """A covariance by name, with where it comes from; `moments` are those of all rows at the estimate.

    Raises
    ------
    InvalidInput
        If options do not go with the kind.
    """
    one_of("kind", kind, (*KINDS, *TARGETS))
    _require_own(kind, clusters, time, lags, small_sample)
    n, dim = moments.n, moments.dim
    # as in least squares; elsewhere the normal law is as good a guess
    df = float(n - dim) if problem.quadratic and n > dim and kind in _STUDENT else None
    if kind in TARGETS:
        return Covariance(TARGETS[kind](moments), kind, df=df)
    if kind in ("HC0", "HC1"):
        return Covariance(sandwich(moments) * (n / _left(n, dim) if kind == "HC1" else 1.0), kind, df=df)
    here = problem.marked(clusters, time)
    rowwise = here.rowwise(moments.params)
    if kind in _POWER:
        return Covariance(_pulled(moments, _leveraged(here, rowwise, moments, _POWER[kind])), kind, df=df)
    if kind == "HAC":
        lags = int(4.0 * (n / 100.0) ** (2.0 / 9.0)) if lags is None else whole("lags", lags, 0, "leave it out")
        return Covariance(_pulled(moments, _smoothed(here, rowwise, moments, lags)), kind, lags=lags)
    return _clustered(here, rowwise, moments, kind, small_sample)


def _require_own(kind: str, clusters: object, time: object, lags: int | None, small_sample: bool | str) -> None:
    """Refuse options that the kind would not look at, and factors that are not known."""
    for name, value, kinds in (("clusters", clusters, CLUSTERED), ("time", time, ("HAC",)), ("lags", lags, ("HAC",))):
        if value is not None and kind not in kinds:
            raise InvalidInput(
                name, f"left out for {kind}, which does not look at it", shown(value), f"use {' or '.join(kinds)}"
            )
    if small_sample not in (True, False, "min"):
        raise InvalidInput("small_sample", "True, False or 'min'", shown(small_sample), "choose one of them")


def _left(n: int, dim: int) -> int:
    if n <= dim:
        raise InvalidInput(
            "kind", "one without N − D in it for as few rows as parameters", f"N = {n}, D = {dim}", "use HC0"
        )
    return n - dim


def _pulled(moments: Moments, middle: Array) -> Array:
    """(NH)⁻¹ M (NH)⁻¹."""
    factor = cho_factor(moments.n * moments.hessian)
    return symmetric(cho_solve(factor, cho_solve(factor, middle).T))


# --- Heteroskedastic ----------------------------------------------------------------------------------


class _Matrix(NamedTuple):
    total: Array


@dataclass(frozen=True)
class _InformationPass:
    """Σ of the information that leverages are shares of."""

    rowwise: Rowwise

    def __call__(self, block: Any) -> _Matrix:
        """The sum over one block."""
        return _Matrix(self.rowwise.information(block))


@dataclass(frozen=True)
class _LeveragedPass:
    """Σ of squares of scores, each over a power of 1 − leverage, less their mean."""

    rowwise: Rowwise
    mean: Array
    root: Array
    power: float

    def __call__(self, block: Any) -> _Matrix:
        """The sum over one block."""
        scores = self.rowwise.inflated(block, self.rowwise.scores(block), self.root, self.power) - self.mean
        return _Matrix((scores * self.rowwise.counts(block)[:, None]).T @ scores)


def _leveraged(problem: Any, rowwise: Rowwise, moments: Moments, power: float) -> Array:
    width = moments.dim**2
    information = problem.source.reduce(_InformationPass(rowwise), width).total
    total = symmetric(information) + moments.n * (moments.hessian - moments.loss_hessian)
    root = np.linalg.inv(np.linalg.cholesky(total)).T
    return symmetric(problem.source.reduce(_LeveragedPass(rowwise, moments.mean_score, root, power), width).total)


# --- Autocorrelated -----------------------------------------------------------------------------------


def _smoothed(problem: Any, rowwise: Rowwise, moments: Moments, lags: int) -> Array:
    """Σ_l k(l) (Γ_l + Γ_lᵀ) with Bartlett's k, in one pass over the rows in the order of time."""
    dim, total = moments.dim, np.zeros((moments.dim, moments.dim))
    # a product with the recent past, weighted: lag 0 enters half, so that the sum with its transpose has it once
    weights = 1.0 - np.arange(lags + 1) / (lags + 1.0)
    weights[0] = 0.5
    recent, last, tied = np.zeros((0, dim)), -np.inf, 0
    for block in problem.source.by_time().blocks(dim * 2):
        tied += _ties(block.marks, last)
        if block.marks is not None and block.marks.time is not None:
            last = float(block.marks.time[-1])
        if np.any(rowwise.counts(block) != 1.0):
            raise InvalidInput(
                "frequency", "left out for HAC, where each row is one time", "counts above 1", "write the rows out"
            )
        scores = rowwise.scores(block) - moments.mean_score
        joined, carried, size = np.concatenate([recent, scores]), len(recent), len(scores)
        past = weights[0] * scores
        for lag in range(1, min(lags, carried + size - 1) + 1):
            first = max(0, lag - carried)
            past[first:] += weights[lag] * joined[carried + first - lag : carried + size - lag]
        total += scores.T @ past
        recent = joined[max(0, len(joined) - lags) :]
    if tied:
        warnings.warn(
            f"HAC: {tied} rows have the time of the row before them; they were taken in the order of the table, each as "
            "a time of its own. For several units observed over time use clusters.",
            EquipoiseWarning,
            stacklevel=2,
        )
    return total + total.T


def _ties(marks: Marks | None, last: float) -> int:
    """Rows of a block with the time of the one before; times must not fall."""
    if marks is None or marks.time is None:
        return 0
    steps = np.diff(marks.time, prepend=last)
    if np.any(steps < 0.0):
        raise InvalidInput(
            "time", "such that rows are already in its order, where they cannot be sorted in memory",
            f"{int(np.sum(steps < 0.0))} rows that are earlier than the one before", "sort the files by it",
        )  # fmt: skip
    return int(np.sum(steps == 0.0))


# --- Clustered ----------------------------------------------------------------------------------------


class Grouped:
    """Sums by cluster: `labels` (G, ways), ascending, and one row of sums for each. Adding joins those of two blocks."""

    def __init__(self, labels: Labels, sums: Array) -> None:
        self.labels, self.sums = labels, sums

    @staticmethod
    def of(labels: Labels, rows: Array) -> Grouped:
        """Sums of the rows of one block."""
        known, which = np.unique(labels, axis=0, return_inverse=True)
        order = np.argsort(which, kind="stable")
        starts = np.searchsorted(which[order], np.arange(len(known)))
        return Grouped(known, np.add.reduceat(rows[order], starts, axis=0))

    def __add__(self, other: Grouped) -> Grouped:
        if np.array_equal(self.labels, other.labels):
            self.sums += other.sums
            return self
        known, which = np.unique(np.concatenate([self.labels, other.labels]), axis=0, return_inverse=True)
        sums, here = np.zeros((len(known), self.sums.shape[1])), len(self.labels)
        sums[which[:here]] = self.sums
        sums[which[here:]] += other.sums
        return Grouped(known, sums)


class _GroupedSums(NamedTuple):
    by_cluster: Grouped


@dataclass(frozen=True)
class _ClusterPass:
    """Observations, scores and, where asked for, curvatures of each cluster."""

    rowwise: Rowwise
    ways: tuple[int, ...]
    bent: bool

    def __call__(self, block: Any) -> _GroupedSums:
        """The sums over one block."""
        counts, scores = self.rowwise.counts(block), self.rowwise.scores(block)
        parts = [np.ones((len(counts), 1)), scores]
        if self.bent:
            parts.append(self.rowwise.curvatures(block).reshape(len(counts), -1))
        rows = np.concatenate(parts, axis=1)
        rows *= counts[:, None]
        return _GroupedSums(Grouped.of(block.marks.labels[:, list(self.ways)], rows))


def _clustered(problem: Any, rowwise: Rowwise, moments: Moments, kind: str, small_sample: bool | str) -> Covariance:
    names = _require_clusters(problem, kind)
    wanted = [(0,)] if len(names) == 1 else [(0,), (1,), (0, 1)]
    parts, groups = [], []
    for ways in wanted:
        bent = kind == "CRV3"
        sums = problem.source.reduce(
            _ClusterPass(rowwise, ways, bent), moments.dim ** (2 if bent else 1)
        ).by_cluster.sums
        groups.append(len(sums))
        if len(sums) < 2:
            raise InvalidInput("clusters", "at least two", f"all rows in one ({names[ways[0]]})", "use HC1")
        scores = sums[:, 1 : 1 + moments.dim] - sums[:, :1] * moments.mean_score
        parts.append(_jackknife(moments, sums, scores) if bent else _pulled(moments, scores.T @ scores))
    factors = [_factor(kind, count, min(groups), moments, small_sample) for count in groups]
    counts, df = tuple(groups[: len(names)]), min(groups) - 1.0
    if len(names) == 1:
        return Covariance(factors[0] * parts[0], kind, names, counts, df=df)
    one, two, both = (factor * part for factor, part in zip(factors, parts, strict=True))
    matrix, repaired = _repaired(one + two - both, np.sqrt(np.diag(one + two)))
    return Covariance(matrix, kind, names, counts, repaired=repaired, df=df)


def _require_clusters(problem: Any, kind: str) -> tuple[str, ...]:
    first: Marks | None = next(iter(problem.source.blocks())).marks
    names = () if first is None else first.names
    if not names:
        raise InvalidInput(
            "clusters",
            f"given for {kind}",
            "none",
            "pass clusters= a column of the table, or one label per row",
        )
    most = 2 if kind == "CRV1" else 1
    if len(names) > most:
        raise InvalidInput(
            "clusters", f"at most {most} way{'s' if most > 1 else ''} for {kind}", f"{len(names)}: {', '.join(names)}",
            "choose among them with clusters=" if kind == "CRV1" else "use CRV1, or one of them",
        )  # fmt: skip
    return names


def _factor(kind: str, groups: int, fewest: int, moments: Moments, small_sample: bool | str) -> float:
    """The small-sample factor of one way of clustering."""
    if small_sample is False:
        return 1.0
    G = fewest if small_sample == "min" else groups
    if kind == "CRV3":
        return (G - 1.0) / G
    return G / (G - 1.0) * (moments.n - 1.0) / _left(moments.n, moments.dim)


def _jackknife(moments: Moments, sums: Array, scores: Array) -> Array:
    """Σ (θ_(g) − θ̂)(θ_(g) − θ̂)ᵀ, θ_(g) one Newton step from θ̂ without cluster g and its share of the prior."""
    dim, n = moments.dim, moments.n
    prior = moments.hessian - moments.loss_hessian
    root = np.linalg.inv(np.linalg.cholesky(n * moments.hessian)).T
    moved, alone = np.empty_like(scores), 0
    for g, (row, score) in enumerate(zip(sums, scores, strict=True)):
        inside = row[1 + dim :].reshape(dim, dim) + row[0] * prior
        # what is left without the cluster, in units of the whole: eigenvalues between 0 and 1 where the loss is convex
        values, axes = np.linalg.eigh(np.eye(dim) - symmetric(root.T @ inside @ root))
        kept = np.abs(values) > _SINGULAR
        alone += not kept.all()
        moved[g] = root @ (axes[:, kept] @ ((axes[:, kept].T @ (root.T @ score)) / values[kept]))
    if alone:
        warnings.warn(
            f"CRV3: without {alone} of the {len(sums)} clusters some parameters could not be estimated; along those "
            "directions they stay where they are (a generalised inverse).",
            EquipoiseWarning,
            stacklevel=2,
        )
    return symmetric(moved.T @ moved)


def _repaired(matrix: Array, scale: Array) -> tuple[Array, float]:
    """A two-way matrix with the eigenvalues below a small number raised to it, and by how much that changed an error."""
    unit = symmetric(matrix) / np.outer(scale, scale)
    values, axes = np.linalg.eigh(unit)
    if values[0] >= _LEAST:
        return symmetric(matrix), 0.0
    raised = symmetric((axes * np.maximum(values, _LEAST)) @ axes.T)
    before, after = np.sqrt(np.maximum(np.diag(unit), 0.0)), np.sqrt(np.diag(raised))
    changed = float(np.max((after - before) / after))
    if changed > _CHANGED:
        warnings.warn(
            f"two-way clusters: the matrix is not positive definite (smallest eigenvalue {values[0]:.2g} in units of the "
            f"one-way variances), and was repaired: standard errors rose by up to {changed:.1%}.",
            EquipoiseWarning,
            stacklevel=2,
        )
    return raised * np.outer(scale, scale), changed
