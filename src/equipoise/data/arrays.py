"""Rows of a regression: design matrix, response, weights and offset, checked once at the door."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import Array, Index
from equipoise.checks import checked_options, shown
from equipoise.data.source import chosen_rows, ordered_reduce
from equipoise.errors import InvalidInput
from equipoise.linalg import Sums, blocks

if TYPE_CHECKING:
    from equipoise.data.table import Design

__all__ = ["Columns", "Rows", "as_rows", "rows"]

# Numbers that a pass makes of one block of columns: the largest intermediate.
_COLUMN_ELEMENTS = 1 << 22
# Beyond it third derivatives, in which columns are cubed, leave the range of the numbers.
_LARGEST = 1e100


@dataclass(frozen=True)
class Rows:
    """N observations of a linear-predictor model.

    Attributes
    ----------
    x, y
        Design matrix (N, D) and response (N,).
    weights, offset
        Observation weights and known part of the predictor, (N,) or None.
    names
        One name per column of `x`.
    response
        The name of the response.
    design
        How the columns were made from a table, or None when they were given as arrays.
    """

    x: Array
    y: Array
    weights: Array | None
    offset: Array | None
    names: tuple[str, ...]
    response: str = "y"
    design: Design | None = None

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.x.shape[0]

    @property
    def dim(self) -> int:
        """Number of columns."""
        return self.x.shape[1]

    def take(self, index: Index | slice) -> Rows:
        """The rows at `index`; for a slice, views of them."""
        return replace(
            self,
            x=self.x[index],
            y=self.y[index],
            weights=None if self.weights is None else self.weights[index],
            offset=None if self.offset is None else self.offset[index],
        )

    @staticmethod
    def joined(parts: Sequence[Rows]) -> Rows:
        """Blocks of one source, one after the other."""
        first = parts[0]
        weights = [part.weights for part in parts if part.weights is not None]
        offset = [part.offset for part in parts if part.offset is not None]
        return replace(
            first,
            x=np.concatenate([part.x for part in parts]),
            y=np.concatenate([part.y for part in parts]),
            weights=np.concatenate(weights) if weights else None,
            offset=np.concatenate(offset) if offset else None,
        )

    def blocks(self, width: int | None = None) -> Iterator[Rows]:
        """Views of the rows that stay in cache while a pass uses them."""
        for block in blocks(self.n, max(self.dim, width or 0)):
            yield self.take(block)

    def reduce(self, f: Callable[[Rows], Sums], width: int | None = None) -> Sums:
        """Σ f(block) on all cores, in a fixed order."""
        return ordered_reduce(list(self.blocks(width)), f)

    def sample(self, count: int, seed: int) -> Rows:
        """`count` rows drawn without replacement, in their original order."""
        return self.take(chosen_rows(self.n, count, seed))

    def fingerprint(self) -> str:
        """A digest of every number."""
        return _digest([self.x, self.y, self.weights, self.offset])


@dataclass(frozen=True, eq=False)
class Columns:
    """N observations of any kind: arrays with one leading axis, for losses that look at a row themselves.

    Attributes
    ----------
    leaves
        The arrays.
    names
        One name per array.
    """

    leaves: tuple[NDArray[np.generic], ...]
    names: tuple[str, ...]
    response: str = "y"
    design: Design | None = None

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.leaves[0].shape[0])

    def take(self, index: Index | slice) -> Columns:
        """The rows at `index`; for a slice, views of them."""
        return replace(self, leaves=tuple(leaf[index] for leaf in self.leaves))

    def blocks(self, width: int | None = None) -> Iterator[Columns]:
        """Views of the rows, at most `width` numbers to be made of each."""
        size = max(1, min(self.n, _COLUMN_ELEMENTS // max(1, width or 1)))
        for start in range(0, self.n, size):
            yield self.take(slice(start, min(self.n, start + size)))

    def reduce(self, f: Callable[[Columns], Sums], width: int | None = None) -> Sums:
        """Σ f(block) in a fixed order, one block after the other: what looks at such rows has threads of its own."""
        return ordered_reduce(list(self.blocks(width)), f, threads=1)

    def sample(self, count: int, seed: int) -> Columns:
        """`count` rows drawn without replacement, in their original order."""
        return self.take(chosen_rows(self.n, count, seed))

    def fingerprint(self) -> str:
        """A digest of every number."""
        return _digest(self.leaves)


def _digest(arrays: Iterable[NDArray[np.generic] | None]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(b"none" if array is None else f"{array.dtype} {array.shape}".encode())
        if array is not None:
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


@checked_options
def rows(
    x: Any,
    y: Any,
    *,
    weights: Any = None,
    offset: Any = None,
    names: Sequence[str] | None = None,
) -> Rows:
    """Check arrays (or pandas objects) and make them `Rows`.

    Parameters
    ----------
    x
        (N, D) design matrix; a DataFrame gives its column names to the parameters.
    y
        (N,) response.
    weights
        (N,) positive observation weights multiplying the losses; None means ones.
    offset
        (N,) known part of the linear predictor; None means zeros.
    names
        Names of the columns.

    Returns
    -------
    Rows

    Raises
    ------
    InvalidInput
        If shapes disagree, a value is not a finite number, or a weight is not positive.

    Examples
    --------
    >>> rows([[1.0, 0.5], [1.0, 2.0]], [0, 1], names=["intercept", "dose"]).dim
    2
    """
    design = _matrix(x)
    n, dim = design.shape
    labels = _labels(x, names, dim)
    checked_weights = None if weights is None else _vector("weights", weights, n)
    if checked_weights is not None and not np.all(checked_weights > 0):
        raise InvalidInput(
            "weights",
            "positive",
            f"minimum {checked_weights.min():g}",
            "drop the rows whose weight is zero or negative",
        )
    return Rows(
        x=design,
        y=_vector("y", y, n),
        weights=checked_weights,
        offset=None if offset is None else _vector("offset", offset, n),
        names=labels,
        response=str(getattr(y, "name", None) or "y"),
    )


def _labels(x: Any, names: Sequence[str] | None, dim: int) -> tuple[str, ...]:
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


def as_rows(data: Any) -> Rows:
    """Accept `Rows`, an `(x, y)` pair, or a mapping with keys x, y and optionally weights, offset.

    Raises
    ------
    InvalidInput
        If `data` is none of these.
    """
    if isinstance(data, Rows):
        return data
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return rows(data[0], data[1])
    if isinstance(data, dict) and {"x", "y"} <= data.keys() <= {"x", "y", "weights", "offset"}:
        return rows(**data)
    raise InvalidInput(
        "data",
        "an (X, y) pair, a mapping with keys x, y, weights, offset, or a source from eq.data",
        type(data).__name__,
        "for a DataFrame or a file pass formula=..., or use eq.data.table(frame, formula)",
    )


def _matrix(x: Any) -> Array:
    array = _floats("X", x)
    if array.ndim != 2 or array.shape[0] == 0 or array.shape[1] == 0:
        raise InvalidInput(
            "X",
            "a two-dimensional array with at least one row and one column",
            f"shape {array.shape}",
            "reshape it to (N, D)",
        )
    _require_finite("X", array)
    return np.ascontiguousarray(array)


def _vector(name: str, values: Any, n: int) -> Array:
    array = _floats(name, values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != (n,):
        raise InvalidInput(
            name, f"a vector with one entry per row of X, ({n},)", f"shape {array.shape}", "match it to X"
        )
    _require_finite(name, array)
    return np.ascontiguousarray(array)


def _floats(name: str, values: Any) -> Array:
    if hasattr(values, "toarray"):
        raise InvalidInput(name, "a dense array", f"a sparse one, {type(values).__name__}", f"pass {name}.toarray()")
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InvalidInput(
            name, "a rectangular array", "rows of unequal length", "give every row as many entries"
        ) from error
    given = InvalidInput(
        name, "numeric", f"dtype {array.dtype}", "encode text columns first, or pass a DataFrame with formula=..."
    )
    # complex numbers, dates and digits in text would convert, and lose their meaning
    if array.dtype.kind in "cmMSU":
        raise given
    try:
        return array.astype(np.float64, copy=False)
    except (TypeError, ValueError) as error:
        raise given from error


def _require_finite(name: str, array: Array) -> None:
    # the extremes of numbers among which one is NaN are NaN; they take a tenth of the time of a mask, and no memory
    largest = max(-float(array.min()), float(array.max()))
    if largest <= _LARGEST:
        return
    if np.isfinite(largest):
        raise InvalidInput(name, f"at most {_LARGEST:g} in size", f"{largest:g}", "rescale it: choose another unit")
    bad = ~np.isfinite(array)
    if bad.any():
        index = np.argwhere(bad)
        where = ", ".join(str(tuple(map(int, i)) if array.ndim > 1 else int(i[0])) for i in index[:3])
        more = "" if len(index) <= 3 else f" and {len(index) - 3} more"
        raise InvalidInput(
            name,
            "finite",
            f"NaN or infinity at {where}{more}",
            "drop or impute those rows (tables take missing='drop')",
        )
