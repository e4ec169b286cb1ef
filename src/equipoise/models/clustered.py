"""Covariances that allow for what rows of one cluster share: sums by cluster, and the jackknife that leaves one out.

Sums of scores take G·D numbers for G clusters, those of curvatures G·D²; clusters may span blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from equipoise.arrays import Array, Index
from equipoise.data.arrays import Rows
from equipoise.data.marks import Labels
from equipoise.data.scanned import Scan
from equipoise.errors import InvalidInput, warn
from equipoise.linalg import blocks, symmetric
from equipoise.models.covariance import Covariance, folded, left, pulled
from equipoise.models.passes import Beside, Both, BothSums
from equipoise.models.problem import Block, Problem, Rowwise
from equipoise.models.rowwise import LinearRowwise
from equipoise.theory.moments import Moments

__all__ = ["ClusterSums", "Grouped", "GroupedSums", "cluster_pass", "clustered", "require_clusters"]

_LEAST = 1e-8  # smallest eigenvalue a repaired matrix is given, in units of its one-way parts' variances
_CHANGED = 1e-6  # relative change of a standard error that a repair is reported from
_DENSE = 4  # times as many whole numbers as rows, up to which they are places in a table
_SINGULAR = 1e-10  # share of the information that is left without a cluster, below which it counts as none


# Which columns of labels are summed by, for one way of clustering and for two, whose intersection counts too.
_WAYS: dict[int, list[tuple[int, ...]]] = {1: [(0,)], 2: [(0,), (1,), (0, 1)]}


@dataclass(frozen=True)
class Room:
    """Bytes for sums by cluster, and over how many rows those are that a pass over files holds at the same time."""

    memory: int
    held: tuple[int, ...] = field(compare=False)
    kind: str = "CRV1"

    def require(self, groups: int, width: int) -> None:
        """Raise unless there is enough for so many clusters."""
        size = 8 * width * sum(min(groups, rows) for rows in self.held)
        if size > self.memory:
            other = "CRV1 in place of CRV3, " if self.kind == "CRV3" else ""
            raise InvalidInput(
                "memory", f"enough for the sums of all clusters: {width} numbers for each of {groups:,} or more",
                f"{self.memory / 1e9:.3g} GB, where they take {size / 1e9:.3g} GB",
                f"pass a larger memory= to eq.data.scan, {other}or coarser clusters",
            )  # fmt: skip


class Grouped:
    """Sums by cluster: `labels` (G, ways), ascending, and one row of sums for each. Adding joins those of two blocks."""

    def __init__(self, labels: Labels, sums: Array, room: Room | None = None) -> None:
        self.labels, self.sums, self.room = labels, sums, room

    @property
    def arrays(self) -> tuple[Labels, Array]:
        """What it is made of, and made again from."""
        return self.labels, self.sums

    def __add__(self, other: Grouped) -> Grouped:
        if np.array_equal(self.labels, other.labels):
            self.sums += other.sums
            return self
        known, which = _told_apart(np.concatenate([self.labels, other.labels]))
        if self.room is not None:
            self.room.require(len(known), self.sums.shape[1])
        here = len(self.labels)
        sums = _spread(self.sums, which[:here], len(known))
        for some in blocks(len(other.labels), sums.shape[1]):
            sums[which[here:][some]] += other.sums[some]
        return Grouped(known, sums, self.room)


def _spread(sums: Array, places: Index, groups: int) -> Array:
    """The rows of sums at ascending places among so many, zeros between them; in place, where a copy would take much."""
    here = len(sums)
    if not (sums.flags.owndata and sums.flags.c_contiguous):
        sums = sums.copy()
    sums.resize((groups, sums.shape[1]), refcheck=False)
    # from the last on, since none moves towards the first
    for some in reversed(list(blocks(here, sums.shape[1]))):
        sums[places[some]] = sums[some].copy()
    empty = np.ones(groups, dtype=bool)
    empty[places] = False
    sums[empty] = 0.0
    return sums


def _told_apart(labels: Labels) -> tuple[Labels, Index]:
    """The different labels, ascending, and which of them each row has."""
    if labels.shape[1] > 1:
        known, which = np.unique(labels, axis=0, return_inverse=True)
        return known, which.reshape(-1)
    one = labels[:, 0]
    low, high = (int(one.min()), int(one.max())) if one.size else (0, -1)
    if high - low >= _DENSE * one.size:
        values, which = np.unique(one, return_inverse=True)
        return values[:, None], which
    # whole numbers close together are places in a table: no sort
    places = one - low
    present = np.bincount(places, minlength=high - low + 1) > 0
    return (np.flatnonzero(present) + low)[:, None], (np.cumsum(present) - 1)[places]


class GroupedSums(NamedTuple):
    """The sums of one way of clustering."""

    by_cluster: Grouped


ClusterSums: TypeAlias = BothSums | GroupedSums  # of one way, or of all of them in one reading


@dataclass(frozen=True)
class _ClusterPass:
    """Observations, scores and, where asked for, curvatures of each cluster."""

    rowwise: Rowwise
    ways: tuple[int, ...]
    bent: bool
    room: Room | None = None

    def __call__(self, block: Block) -> GroupedSums:
        """The sums over one block."""
        known, which = _told_apart(block.marks.labels[:, list(self.ways)])
        return GroupedSums(Grouped(known, self._sums(block, which, len(known)), self.room))

    def _sums(self, block: Block, which: Index, groups: int) -> Array:
        plain = isinstance(self.rowwise, LinearRowwise) and not self.rowwise.free
        if plain and not self.bent:
            return cast(LinearRowwise, self.rowwise).grouped(block, which, groups)
        counts, parts = self.rowwise.counts(block), [self.rowwise.scores(block)]
        if self.bent:
            parts.append(self.rowwise.curvatures(block).reshape(len(counts), -1))
        columns = (counts, *(counts * column for part in parts for column in part.T))
        return np.stack([np.bincount(which, column, groups) for column in columns], axis=1).astype(np.float64)


def cluster_pass(problem: Problem, rowwise: Rowwise, kind: str) -> Beside:
    """The sums of CRV1 or CRV3 by the clusters that the rows of the problem are marked with, all ways in one reading."""
    names, bent = require_clusters(problem, kind), kind == "CRV3"
    source: Any = problem.source
    room = Room(source.memory, source.held_rows, kind) if isinstance(source, Scan) else None
    if room is not None:
        # those of the rows that the first pass kept are known before any is read
        width = 1 + len(problem.names) * (1 + len(problem.names) * bent)
        room.require(len(source.lot.frame[list(names)].drop_duplicates()), width)
    passes: list[Callable[[Rows], ClusterSums]] = [
        _ClusterPass(rowwise, ways, bent, room) for ways in _WAYS[len(names)]
    ]
    return Beside(source, reduce(Both, passes), len(problem.names) ** (2 if bent else 1))


def clustered(
    problem: Problem,
    rowwise: Rowwise,
    moments: Moments,
    kind: str,
    along: Array | None,
    small_sample: bool | str,
    known: ClusterSums | None = None,
) -> Covariance:
    """CRV1 or CRV3 by the clusters that the rows of the problem are marked with: see `eq.robust`.

    `along` folds scores by a constant that is free; `known` is what `cluster_pass` summed up, where that was done before.
    """
    names = require_clusters(problem, kind)
    parts, groups, bent = [], [], kind == "CRV3"
    if known is None:
        made = cluster_pass(problem, rowwise, kind)
        known = made.source.reduce(made.f, made.width)
    for ways, sums in zip(_WAYS[len(names)], _by_way(known), strict=True):
        groups.append(len(sums))
        if len(sums) < 2:
            raise InvalidInput("clusters", "at least two", f"all rows in one ({names[ways[0]]})", "use HC1")
        width = moments.dim + (along is not None)
        scores = folded(sums[:, 1 : 1 + width], along) - sums[:, :1] * moments.mean_score
        bends = sums[:, 1 + width :]
        parts.append(_jackknife(moments, sums[:, 0], scores, bends) if bent else pulled(moments, scores.T @ scores))
    factors = [_factor(kind, count, min(groups), moments, small_sample) for count in groups]
    counts, df = tuple(groups[: len(names)]), min(groups) - 1.0
    if len(names) == 1:
        return Covariance(factors[0] * parts[0], kind, names, counts, df=df)
    one, two, both = (factor * part for factor, part in zip(factors, parts, strict=True))
    matrix, repaired = _repaired(one + two - both, np.sqrt(np.diag(one + two)))
    return Covariance(matrix, kind, names, counts, repaired=repaired, df=df)


def _by_way(found: ClusterSums) -> list[Array]:
    """The sums of one way of clustering after the other, out of those of several passes in one."""
    return [*_by_way(found.first), *_by_way(found.second)] if isinstance(found, BothSums) else [found.by_cluster.sums]


def require_clusters(problem: Problem, kind: str) -> tuple[str, ...]:
    """The names of as many ways of clustering as the kind takes; raises if there are none, or more."""
    marks = problem.source.marks
    names = () if marks is None else marks.names
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
    return G / (G - 1.0) * (moments.n - 1.0) / left(moments.n, moments.dim)


def _jackknife(moments: Moments, counts: Array, scores: Array, bends: Array) -> Array:
    """Σ (θ_(g) − θ̂)(θ_(g) − θ̂)ᵀ, θ_(g) one Newton step from θ̂ without cluster g and its share of the prior."""
    dim, n = moments.dim, moments.n
    prior = moments.hessian - moments.loss_hessian
    root = np.linalg.inv(np.linalg.cholesky(n * moments.hessian)).T
    moved, alone = np.empty_like(scores), 0
    for g, (count, score, bend) in enumerate(zip(counts, scores, bends, strict=True)):
        inside = bend.reshape(dim, dim) + count * prior
        # what is left without the cluster, in units of the whole: eigenvalues between 0 and 1 where the loss is convex
        values, axes = np.linalg.eigh(np.eye(dim) - symmetric(root.T @ inside @ root))
        kept = np.abs(values) > _SINGULAR
        alone += not kept.all()
        moved[g] = root @ (axes[:, kept] @ ((axes[:, kept].T @ (root.T @ score)) / values[kept]))
    if alone:
        warn(
            f"CRV3: without {alone} of the {len(counts)} clusters some parameters could not be estimated; along those "
            "directions they stay where they are (a generalised inverse)."
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
        warn(
            f"two-way clusters: the matrix is not positive definite (smallest eigenvalue {values[0]:.2g} in units of the "
            f"one-way variances), and was repaired: standard errors rose by up to {changed:.1%}."
        )
    return raised * np.outer(scale, scale), changed
