"""What the numbers of rows must be: dense, finite, of one height; weights and counts among them."""

from __future__ import annotations

import numpy as np

from equipoise.arrays import Array, Index, Mask
from equipoise.errors import InvalidInput
from equipoise.linalg import fixed_order

__all__ = ["LARGEST", "matrix", "require_finite", "require_moderate", "require_rows", "require_weights", "vector"]

# Up to here every whole number is a float of its own.
_LARGEST_COUNT = 2.0**53
# Beyond it third derivatives, in which columns are cubed, leave the range of the numbers.
LARGEST = 1e100


def require_weights(weights: Array | None, frequency: Array | None, labels: Index | None = None) -> None:
    """Raise unless weights and frequencies, where given, say how much each row counts, and at least one row does.

    The first row that is wrong is named by its label, or by its number if there are none.
    """
    if weights is not None:
        require_rows(
            "weights", weights, weights >= 0.0, labels, "positive or zero", "a weight of zero leaves a row out"
        )
    if frequency is not None:
        whole_times = (frequency >= 0.0) & (frequency == np.floor(frequency))
        remedy = "count observations with it; weights= takes any positive number"
        require_rows("frequency", frequency, whole_times, labels, "whole numbers, zero or more", remedy)
        if frequency.sum() >= _LARGEST_COUNT:
            raise InvalidInput("frequency", "less than 2⁵³ in all", f"{frequency.sum():g}", "use smaller counts")
    given = {name: value for name, value in (("weights", weights), ("frequency", frequency)) if value is not None}
    if given and not np.all([value > 0.0 for value in given.values()], axis=0).any():
        raise InvalidInput(", ".join(given), "positive for some row", "zero for every row", "check them")


def require_rows(name: str, values: Array, good: Mask, labels: Index | None, requirement: str, remedy: str) -> None:
    """Raise unless all rows are good, naming the first that is not."""
    if not good.all():
        bad = np.flatnonzero(~good)
        row = bad[0] if labels is None else labels[bad[0]]
        raise InvalidInput(name, requirement, f"{values[bad[0]]:g} at row {row} ({bad.size} such rows)", remedy)


def matrix(x: object) -> Array:
    """A design matrix."""
    array = _floats("X", x)
    if array.ndim != 2 or array.shape[0] == 0 or array.shape[1] == 0:
        raise InvalidInput(
            "X",
            "a two-dimensional array with at least one row and one column",
            f"shape {array.shape}",
            "reshape it to (N, D)",
        )
    return np.ascontiguousarray(array)


def vector(name: str, values: object, n: int) -> Array:
    """One number per row."""
    array = _floats(name, values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != (n,):
        raise InvalidInput(
            name, f"a vector with one entry per row of X, ({n},)", f"shape {array.shape}", "match it to X"
        )
    return np.ascontiguousarray(array)


def _floats(name: str, values: object) -> Array:
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


def require_moderate(name: str, array: Array, labels: Index) -> None:
    """Raise, naming the first row by its label, unless all numbers are finite and moderate; a sum of squares tells mostly."""
    flat = array.ravel(order="K")
    # BLAS would start threads for it
    with np.errstate(over="ignore", invalid="ignore"), fixed_order():
        square = float(flat @ flat)
    if not square <= LARGEST**2:
        require_finite(name, array, labels)


def require_finite(name: str, array: Array, labels: Index | None = None) -> None:
    """Raise unless all numbers are finite and not absurdly large."""
    # the extremes of numbers among which one is NaN are NaN; they take a tenth of the time of a mask, and no memory
    largest = max(-float(array.min()), float(array.max()))
    if largest <= LARGEST:
        return
    if np.isfinite(largest):
        row = int(np.argmax(np.abs(array.reshape(len(array), -1)).max(axis=1)))
        where = f"{largest:g} at row {row if labels is None else labels[row]}"
        raise InvalidInput(name, f"at most {LARGEST:g} in size", where, "rescale it: choose another unit")
    bad = ~np.isfinite(array)
    if bad.any():
        index = np.argwhere(bad)
        index[:, 0] = index[:, 0] if labels is None else labels[index[:, 0]]
        where = ", ".join(str(tuple(map(int, i)) if array.ndim > 1 else int(i[0])) for i in index[:3])
        more = "" if len(index) <= 3 else f" and {len(index) - 3} more"
        raise InvalidInput(
            name,
            "finite",
            f"NaN or infinity at {where}{more}",
            "drop or impute those rows (tables take missing='drop')",
        )
