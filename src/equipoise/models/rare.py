"""Rows of rare levels beside a sample that has none or few of them: without them its loss has no minimum."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from equipoise.arrays import Array, Index
from equipoise.data.arrays import Rows
from equipoise.data.kept import FEWEST
from equipoise.data.source import Source
from equipoise.linalg import is_positive
from equipoise.models.passes import CoreSums, side_by_side, standing_rows

__all__ = ["RarePass", "with_rare"]

_PLAIN, _EXPRESSION = (
    re.compile(r"C\(\w+\)"),
    re.compile(r"[(]"),
)  # a column's own levels, and those of something made of it
_ROUNDING = 1e-10  # of a matrix of counts, below which a direction of it is empty


@dataclass(frozen=True)
class RarePass:
    """Rows of large zᵀSz, z some of their columns."""

    columns: Index
    S: Array
    limit: float

    def __call__(self, rows: Rows) -> CoreSums:
        """Those of one block."""
        index = np.flatnonzero(self.sizes(rows) > self.limit)
        return CoreSums((side_by_side(rows.take(index), np.ones(len(index))),))

    def sizes(self, rows: Rows) -> Array:
        """zᵀSz of every row."""
        z = rows.x[:, self.columns]
        return np.asarray(np.vecdot(z @ self.S, z))


def with_rare(certain: Rows, others: Rows, source: Source[Rows], few: bool, searched: bool) -> Rows:
    """Rows that stand for themselves, others that stand for the rest, and every row of levels that these have few of.

    That is one pass, if there are any; where few rows do for a start (`few`), only if there are levels that these have none of.
    Where rows of rare levels were searched for before, those of expressions alone may be missing: others are of no row at all.

    Rows of a level, or of a combination of levels, that m observations have are of leverage 1/m among columns of two values.
    """
    part = Rows.joined([certain, others])
    low, high = part.x.min(axis=0), part.x.max(axis=0)
    columns = np.flatnonzero(np.all((part.x == low) | (part.x == high), axis=0))
    share, z = float(others.counts.max(initial=1.0)), part.x[:, columns]
    form = (z * part.counts[:, None]).T @ z
    # a level that the sample does not have is as one of a single observation
    found = RarePass(columns, np.linalg.inv(form + np.eye(len(form))).astype(np.float64), 1.0 / (FEWEST * share))
    rare = found.sizes(part) > found.limit
    unsure = rare[certain.height :]
    open_ = [k for k, j in enumerate(columns) if not searched or _EXPRESSION.search(_PLAIN.sub("", part.names[j]))]
    kept = form[np.ix_(open_, open_)]
    absent = not is_positive(kept - _ROUNDING * np.diag(np.diag(kept)))
    # more than a sample would have of them are no few rows
    if share <= 1.0 or not (absent or (unsure.any() and not few)) or part.counts[rare].sum() > part.height:
        return part
    left = part.take(np.flatnonzero(~rare))
    # those that are not certain share the observations that the others leave
    common = side_by_side(left, np.full(left.height, 0.5))
    return standing_rows((*source.reduce(found).kept, common), source)
