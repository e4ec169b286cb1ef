"""Rows of a regression: design matrix, response, weights, frequencies and offset, checked once at the door."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.arrays import Array, Index
from equipoise.checks import checked_options, shown
from equipoise.data.held import Held
from equipoise.data.marks import Marks, marked
from equipoise.data.numeric import matrix, require_finite, require_rows, require_weights, vector
from equipoise.data.source import digest_of, ordered_reduce
from equipoise.errors import InvalidInput
from equipoise.linalg import Sums, blocks

if TYPE_CHECKING:
    from equipoise.data.table import Design

__all__ = ["Rows", "rows", "shares"]

_BY_ROW = ("x", "y", "weights", "offset", "frequency", "trials")  # the arrays of `Rows`, an entry or none for every row


@dataclass(frozen=True, repr=False)
class Rows(Held):
    """N observations of a linear-predictor model, each a row, or several alike in one row that counts them.

    Attributes
    ----------
    x, y
        Design matrix (rows, D) and response (rows,).
    weights, offset
        What multiplies each loss and the known part of the predictor, (rows,) or None.
    names
        One name per column of `x`.
    response
        The name of the response.
    design
        How the columns were made from a table, or None when they were given as arrays.
    frequency
        How many observations each row stands for, (rows,) or None for one each.
    marks
        The clusters each row belongs to and its time, or None.
    trials
        Of how many trials the response is the share of successes, (rows,) or None; they are part of the weights.
    """

    x: Array
    y: Array
    weights: Array | None
    offset: Array | None
    names: tuple[str, ...]
    response: str = "y"
    design: Design | None = None
    frequency: Array | None = None
    marks: Marks | None = None
    trials: Array | None = None

    @property
    def height(self) -> int:
        """Number of rows that are stored."""
        return self.x.shape[0]

    @property
    def dim(self) -> int:
        """Number of columns."""
        return self.x.shape[1]

    def row_name(self, number: int) -> str:
        """What a row is called in messages."""
        return f"row {number}"

    @property
    def extremes(self) -> tuple[float, float] | None:
        """Smallest and largest response."""
        return float(self.y.min()), float(self.y.max())

    def take(self, index: Index | slice) -> Rows:
        """The rows at `index`; for a slice, views of them."""
        arrays: dict[str, Any] = {name: array[index] for name in _BY_ROW if (array := getattr(self, name)) is not None}
        return replace(self, **arrays, marks=None if self.marks is None else self.marks.take(index))

    def counted(self, times: Array) -> Rows:
        """The rows, each so many times; those of no time are left out."""
        kept = np.flatnonzero(times)
        alone = self.frequency is None and bool(np.all(times[kept] == 1.0))
        return replace(self.take(kept), frequency=None if alone else times[kept])

    @staticmethod
    def joined(parts: Sequence[Rows]) -> Rows:
        """Blocks of one source, one after the other."""
        given = [name for name in _BY_ROW if any(getattr(part, name) is not None for part in parts)]
        # where some blocks have frequencies, the rows of others count once
        arrays: dict[str, Any] = {
            name: np.concatenate([part.counts if name == "frequency" else getattr(part, name) for part in parts])
            for name in given
        }
        marks = [part.marks for part in parts if part.marks is not None]
        return replace(parts[0], **arrays, marks=Marks.joined(marks) if marks else None)

    @property
    def of_trials(self) -> bool:
        """Whether the response is a share of trials."""
        return self.trials is not None

    def blocks(self, width: int | None = None) -> Iterator[Rows]:
        """Views of the rows that stay in cache while a pass uses them."""
        for block in blocks(self.height, max(self.dim, width or 0)):
            yield self.take(block)

    def reduce(self, f: Callable[[Rows], Sums], width: int | None = None) -> Sums:
        """Σ f(block) on all cores, in a fixed order."""
        return ordered_reduce(list(self.blocks(width)), f)

    def fingerprint(self) -> str:
        """A digest of every number."""
        counts = [] if self.frequency is None else [self.frequency]
        return digest_of([self.x, self.y, self.weights, self.offset, *counts])


@checked_options
def rows(
    x: object,
    y: object,
    *,
    weights: object = None,
    frequency: object = None,
    offset: object = None,
    names: Sequence[str] | None = None,
    clusters: object = None,
    time: object = None,
    trials: object = None,
) -> Rows:
    """Check arrays (or pandas objects) and make them `Rows`.

    Parameters
    ----------
    x
        (rows, D) design matrix; a DataFrame gives its column names to the parameters.
    y
        (rows,) response.
    weights
        (rows,) precision weights, none negative: each multiplies the loss of its row, so that a row of weight 4 is one
        observation with half the spread. None means ones.
    frequency
        (rows,) whole numbers: how many equal observations each row stands for. N is then their sum, and every result
        is that of the data with each row written so many times. None means ones.
    offset
        (rows,) known part of the linear predictor; None means zeros.
    names
        Names of the columns.
    clusters
        To which cluster each row belongs, for covariances that allow for what rows of one cluster share: one label per
        row, or several such arrays (a list, a mapping of names to arrays, a DataFrame) for more than one way.
    time
        When each row was observed, for covariances that allow for what neighbours in time share: numbers or dates.
    trials
        (rows,) of how many trials `y` counts the successes, for the bernoulli family: the response is then their share,
        and each row's loss that of all its trials.

    Returns
    -------
    Rows
        Without the rows whose weight or frequency is zero.

    Raises
    ------
    InvalidInput
        If shapes disagree, a value is not a finite number, a weight is negative, a frequency is not a whole number of
        times, or no row is left.

    Examples
    --------
    >>> rows([[1.0, 0.5], [1.0, 2.0]], [0, 1], names=["intercept", "dose"]).dim
    2
    >>> made = rows([[1.0, 0.5], [1.0, 2.0]], [0, 1], frequency=[3, 2])
    >>> made.n, made.height
    (5, 2)
    """
    design = matrix(x)
    n, dim = design.shape
    labels = _labels(x, names, dim)
    made = Rows(
        x=design,
        y=vector("y", y, n),
        weights=None if weights is None else vector("weights", weights, n),
        offset=None if offset is None else vector("offset", offset, n),
        names=labels,
        response=str(getattr(y, "name", None) or "y"),
        frequency=None if frequency is None else vector("frequency", frequency, n),
        marks=marked(n, None, clusters, time),
    )
    taking = _taking_part(made.weights, made.frequency)
    made = made if taking is None else made.take(taking)
    # only of the rows that take part: one of weight zero may stand for an observation that was not made
    for name, array in (("X", made.x), ("y", made.y), ("offset", made.offset)):
        if array is not None:
            require_finite(name, array, taking)
    if trials is None:
        return made
    counts = vector("trials", trials, n)
    return shares(made, counts if taking is None else counts[taking], taking)


def shares(made: Rows, trials: Array, labels: Index | None) -> Rows:
    """Counts of successes as shares of their trials, which weigh the rows; the first row where they are none is named."""
    require_finite("trials", trials, labels)
    require_rows("trials", trials, trials > 0.0, labels, "positive", "leave out rows without a trial")
    inside = (made.y >= 0.0) & (made.y <= trials)
    require_rows(
        made.response, made.y, inside, labels, "a number of successes between 0 and trials", "check both columns"
    )
    weights = trials if made.weights is None else trials * made.weights
    return replace(made, y=made.y / trials, weights=weights, trials=trials)


def _taking_part(weights: Array | None, frequency: Array | None) -> Index | None:
    """The rows whose weight and frequency are positive, once both were checked; None for all rows."""
    given = [("weights", weights), ("frequency", frequency)]
    counts = [(name, values) for name, values in given if values is not None]
    for name, values in counts:
        require_finite(name, values)
    require_weights(weights, frequency)
    kept = np.all([values > 0.0 for _, values in counts], axis=0)
    return None if np.all(kept) else np.flatnonzero(kept)


def _labels(x: object, names: Sequence[str] | None, dim: int) -> tuple[str, ...]:
    """One name per column: given, those of a DataFrame, or numbered."""
    if names is None and hasattr(x, "columns"):
        labels = tuple(str(column) for column in x.columns)
        if len(set(labels)) < dim:
            twice = sorted({label for label in labels if labels.count(label) > 1})
            raise InvalidInput("X", "a table of distinct columns", f"several named {shown(twice)}", "rename them")
        return labels
    if names is None:
        return tuple(f"x{j}" for j in range(dim))
    given = tuple(names) if isinstance(names, Iterable) and not isinstance(names, str) else ()
    if all(isinstance(name, str) for name in given) and len(given) == len(set(given)) == dim:
        return given
    raise InvalidInput("names", f"{dim} distinct names, one per column", shown(names), "give one name per column")
