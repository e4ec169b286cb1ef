"""What stands for data: rows of a regression; observations for a loss of your own, and what stands beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike, NDArray

from equipoise.arrays import PyTree
from equipoise.cards import Card
from equipoise.checks import checked_options, nearest, shown
from equipoise.data.arrays import Rows, rows
from equipoise.data.scanned import Scan
from equipoise.errors import InvalidInput

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Observations", "as_rows", "observations"]

_ARGUMENTS = {"x", "y", "weights", "frequency", "offset", "clusters", "time", "trials"}


@dataclass(frozen=True, eq=False, repr=False)
class Observations(Card):
    """Rows as they were given, and what goes with each; the model checks them where they are bound.

    Attributes
    ----------
    tree
        A pytree of arrays with a common leading axis.
    weights, frequency
        What multiplies each row's loss, and how many observations it stands for; None for ones.
    clusters, time
        To which clusters rows belong and when they were observed; None where it is not known.
    """

    tree: PyTree
    weights: ArrayLike | None = None
    frequency: ArrayLike | None = None
    clusters: object = None
    time: ArrayLike | None = None


@checked_options
def observations(
    data: PyTree,
    *,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    weights: str | ArrayLike | None = None,
    frequency: str | ArrayLike | None = None,
    clusters: object = None,
    time: str | ArrayLike | None = None,
) -> Observations:
    """Rows for a loss of your own, with weights and frequencies.

    Parameters
    ----------
    data
        A pytree of arrays with a common leading axis, or a DataFrame, whose columns become the fields of an observation.
    columns
        Of a DataFrame: `{"x": ["a", "b"], "y": "y"}` makes observations with a vector `x` and a number `y`, as in
        `eq.data.scan`. Without it every column that has no other use is a field by its own name.
    weights
        (rows,) precision weights, none negative: each multiplies the loss of its row. A column's name, or an array.
    frequency
        (rows,) whole numbers: how many equal observations each row stands for. N is then their sum, and every result is that of
        the data with each row written so many times. A column's name, or an array.
    clusters, time
        As in `eq.data.rows`; or names of columns.

    Returns
    -------
    Observations
        For every verb, in place of the data. Rows of weight or frequency zero do not take part.

    Raises
    ------
    InvalidInput
        If a column does not exist.

    Examples
    --------
    >>> import numpy as np
    >>> import equipoise as eq
    >>> model = eq.Model(lambda p, o: (o - p) ** 2 / 2, init=0.0)
    >>> heavy = eq.data.observations(np.array([1.0, 4.0]), weights=[2.0, 1.0])
    >>> float(np.round(eq.fit(model, heavy).params, 6))
    2.0
    """
    if not hasattr(data, "columns"):
        if columns is not None:
            raise InvalidInput("columns", "left out but for a DataFrame", shown(columns), "build the pytree yourself")
        return Observations(data, weights, frequency, clusters, time)
    beside = {"weights": weights, "frequency": frequency, "clusters": clusters, "time": time}
    given = {name: _column(data, name, value) for name, value in beside.items()}
    if columns is None:
        used = {name for value in beside.values() for name in _names(value)}
        columns = {str(name): name for name in data.columns if name not in used}
    if not isinstance(columns, Mapping):
        raise InvalidInput(
            "columns", "a mapping of names to columns", shown(columns), "pass {'x': ['a', 'b'], 'y': 'y'}"
        )
    return Observations({name: _field(data, f"columns {name}", part) for name, part in columns.items()}, **given)


def _names(value: object) -> list[str]:
    """The columns that are meant, where they are named."""
    if isinstance(value, str):
        return [value]
    return list(value) if isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value) else []


def _column(frame: pd.DataFrame, argument: str, value: Any) -> Any:
    """An array, or the column or columns of that name."""
    if not _names(value) or (isinstance(value, (list, tuple)) and len(value) == len(frame)):
        return value
    for name in _names(value):
        _require(frame, argument, name)
    return frame[value if isinstance(value, str) else list(value)]


def _field(frame: pd.DataFrame, argument: str, part: str | Sequence[str]) -> NDArray[Any]:
    chosen: Any = list(part) if isinstance(part, (list, tuple)) else part
    for name in chosen if isinstance(chosen, list) else [chosen]:
        _require(frame, argument, name)
    return frame[chosen].to_numpy()


def _require(frame: pd.DataFrame, argument: str, name: str) -> None:
    if name not in frame.columns:
        known = [str(column) for column in frame.columns]
        raise InvalidInput(
            argument, "a column of the table", shown(name), nearest(str(name), known) or "see its columns"
        )


def as_rows(data: object) -> Rows | Scan[Rows]:
    """Accept `Rows`, a scan by a formula, an `(x, y)` pair, or a mapping of the arguments of `rows`.

    Raises
    ------
    InvalidInput
        If `data` is none of these.
    """
    if isinstance(data, Rows) or (isinstance(data, Scan) and data.design is not None):
        return data
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return rows(data[0], data[1])
    if isinstance(data, dict) and {"x", "y"} <= data.keys() <= _ARGUMENTS:
        return rows(**data)
    raise InvalidInput(
        "data",
        "an (X, y) pair, a mapping with keys x, y, weights, frequency, offset, or a source from eq.data",
        "a scan of columns" if isinstance(data, Scan) else type(data).__name__,
        "for a DataFrame or files pass formula=..., or use eq.data.table(frame, formula)",
    )
