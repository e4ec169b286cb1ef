"""What stands beside a row and no loss looks at: the clusters it belongs to, and when it was observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.arrays import Array, Index, Mask
from equipoise.cards import Card
from equipoise.checks import nearest, shown
from equipoise.data.words import word_codes
from equipoise.errors import InvalidInput

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Labels",
    "Marking",
    "Marks",
    "kind_of_labels",
    "labels_of",
    "mark_columns",
    "marked",
    "named_columns",
    "times_of",
]

# whole numbers, the same for the same cluster in every block of a source
Labels = NDArray[np.int64]


class Marking(Protocol):
    """What says which columns go beside the rows."""

    @property
    def clusters(self) -> tuple[str, ...]:
        """What rows belong together by."""
        ...

    @property
    def clock(self) -> str | None:
        """When they were observed."""
        ...


def mark_columns(marking: Marking) -> list[str]:
    """The columns, each once."""
    return list(dict.fromkeys([*marking.clusters, *([] if marking.clock is None else [marking.clock])]))


@dataclass(frozen=True, repr=False)
class Marks(Card):
    """Clusters and times of rows.

    `labels` are (rows, ways) whole numbers: rows with the same one belong together, wherever they are. `time` is when
    each was observed, (rows,) or None, and `clock` what that is called.
    """

    names: tuple[str, ...]
    labels: Labels
    time: Array | None = None
    clock: str = "time"

    def take(self, index: Index | slice) -> Marks:
        """Those of the rows at `index`."""
        return replace(self, labels=self.labels[index], time=None if self.time is None else self.time[index])

    @staticmethod
    def joined(parts: Sequence[Marks]) -> Marks:
        """Those of blocks of one source, one after the other."""
        times = [part.time for part in parts if part.time is not None]
        return replace(
            parts[0],
            labels=np.concatenate([part.labels for part in parts]),
            time=np.concatenate(times) if times else None,
        )

    def chosen(self, names: Sequence[str]) -> Marks:
        """Some of the ways of clustering that are kept."""
        for name in names:
            if name not in self.names:
                kept = f"one of {', '.join(self.names)}" if self.names else "given when the data were read"
                remedy = nearest(name, self.names) or f"read the data with clusters={name!r}, or pass one label per row"
                raise InvalidInput("clusters", kept, repr(name), remedy)
        return replace(self, names=tuple(names), labels=self.labels[:, [self.names.index(name) for name in names]])


def marked(height: int, known: Marks | None, clusters: object, time: object) -> Marks | None:
    """The marks of `height` rows: those known, with clusters and times that are given by name or as arrays.

    Clusters are names of known ones; or one label per row, several such arrays in a list, the columns of a matrix or of a
    DataFrame, or a mapping of names to arrays. Times are one number or date per row, or the name of the known ones. None
    keeps what is known.
    """
    if clusters is None and time is None:
        return known
    have = known or Marks((), np.zeros((height, 0), dtype=np.int64))
    if named_columns(clusters, height):
        have = have.chosen([clusters] if isinstance(clusters, str) else list(clusters))
    elif clusters is not None:
        ways = _ways(clusters, height)
        table = [labels_of(_of_height("clusters", way, height), name) for name, way in ways.items()]
        have = replace(have, names=tuple(ways), labels=np.column_stack(table))
    if isinstance(time, str):
        if have.time is None or time != have.clock:
            remedy = f"read the data with time={time!r}, or pass one number or date per row"
            raise InvalidInput("time", "given when the data were read", repr(time), remedy)
        return have
    if time is None:
        return have
    clock = str(getattr(time, "name", None) or "time")
    return replace(have, time=times_of(_of_height("time", cast(ArrayLike, time), height), "time"), clock=clock)


def named_columns(clusters: object, height: int) -> TypeGuard[str | Sequence[str]]:
    """Whether clusters are given by name: a word, or a list of words that are not one per row."""
    if isinstance(clusters, (list, tuple)):
        return 0 < len(clusters) != height and all(isinstance(name, str) for name in clusters)
    return isinstance(clusters, str)


def _ways(clusters: Any, height: int) -> dict[str, ArrayLike]:
    """Arrays of labels by name."""
    if isinstance(clusters, Mapping):
        return {str(name): way for name, way in clusters.items()}
    if hasattr(clusters, "columns"):
        return {str(name): clusters[name] for name in clusters.columns}
    several = isinstance(clusters, (list, tuple)) and all(np.ndim(way) == 1 for way in clusters)
    if not several:
        array = clusters if hasattr(clusters, "name") else np.asarray(clusters)
        several = np.ndim(array) == 2
        clusters = list(np.asarray(array).T) if several else [array]
    if not clusters:
        raise InvalidInput("clusters", f"one label per row, {height}", "none", "pass a vector")
    names = [str(getattr(way, "name", None) or f"cluster {k + 1}") for k, way in enumerate(clusters)]
    if len(set(names)) < len(names):
        names = [f"cluster {k + 1}" for k in range(len(names))]
    return {
        "cluster" if name == "cluster 1" and len(names) == 1 else name: way
        for name, way in zip(names, clusters, strict=True)
    }


def _of_height(name: str, values: ArrayLike, height: int) -> ArrayLike:
    given = np.shape(values)
    if given != (height,):
        raise InvalidInput(
            name,
            f"one value per row that takes part, ({height},)",
            f"shape {given}",
            "match it to the rows; given to eq.data.rows or eq.data.table, it loses the rows they leave out",
        )
    return values


def labels_of(values: ArrayLike, name: str) -> Labels:
    """Labels, none of them missing, as whole numbers that depend on the label alone: the same in every block, file and process.

    Whole numbers stand for themselves, of whatever type they are; dates for their nanoseconds, in UTC; text for a hash of
    64 bits.
    """
    array = np.asarray(values) if getattr(getattr(values, "dtype", None), "kind", None) not in (None, "O") else None
    if array is not None and array.dtype.kind in "iubfM":
        return _codes(array, name)
    import pandas as pd  # slow to import: only those whose labels are words pay for it

    series = pd.Series(values).reset_index(drop=True)
    _require_known(name, series.isna().to_numpy(dtype=bool))
    if isinstance(series.dtype, pd.CategoricalDtype):
        # each level once, of many only those of some row
        if len(series.cat.categories) > len(series):
            series = series.cat.remove_unused_categories()
        return labels_of(pd.Series(series.cat.categories), name)[series.cat.codes.to_numpy()]
    kind, series = _told(series, name)
    if kind == "text":
        return word_codes(series.astype(str)).view(np.int64)
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "iubfM":
        return _codes(series.to_numpy(), name)
    places, distinct = pd.factorize(series)
    return np.array([_exact_code(value) for value in distinct], dtype=np.int64)[places]


def kind_of_labels(column: pd.Series[Any], name: str) -> str:
    """What the labels of a column are coded as: numbers, dates or text. None are missing; what is no label is refused."""
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype):
        return kind_of_labels(pd.Series(column.cat.categories), name)
    # other types hold for every row
    return _told(column if column.dtype == object else column.iloc[:1], name)[0]


def _told(series: pd.Series[Any], name: str) -> tuple[str, pd.Series[Any]]:
    """What labels are, and the same as pandas holds it best; dates of a time zone in UTC."""
    import pandas as pd

    found = pd.api.types.infer_dtype(series, skipna=False)
    if found == "mixed" and any(isinstance(value, (list, dict, set, np.ndarray)) for value in series):
        raise InvalidInput(name, "a column of numbers, text or dates", "lists or the like", "choose another column")
    if found in {"datetime", "datetime64", "date"}:
        return "dates", pd.to_datetime(series, utc=True).dt.tz_localize(None)
    if found in {"integer", "integer-na", "floating", "mixed-integer-float", "decimal", "boolean"}:
        return "numbers", series.infer_objects()
    return "text", series


def _codes(array: NDArray[Any], name: str) -> Labels:
    """Codes of numbers, those of 64 bits without a sign wrapped around; or of dates."""
    if array.dtype.kind in "iub":
        return array.astype(np.int64)
    if array.dtype.kind == "M":
        _require_known(name, np.isnat(array))
        # far dates wrap around, and no two of them to the same
        return array.astype("datetime64[ns]").view(np.int64)
    _require_known(name, np.isnan(array))
    number = array.astype(np.float64)
    whole = (number == np.floor(number)) & (number >= -(2.0**63)) & (number < 2.0**64)
    wrapped = np.where(number < 2.0**63, number, number - 2.0**64)
    return np.where(whole, np.where(whole, wrapped, 0.0).astype(np.int64), number.view(np.int64))


def _exact_code(value: Any) -> int:
    """The code of one number that floats may round: that of the float which stands for it, if one does."""
    import pandas as pd

    exact = Decimal(repr(value) if isinstance(value, float) else value)
    if exact == exact.to_integral_value() and -(2**63) <= exact < 2**64:
        return (int(exact) + 2**63) % 2**64 - 2**63
    near = float(exact)
    if Decimal(repr(near)) == exact:
        return int(np.float64(near).view(np.int64))
    return int(pd.util.hash_array(np.array([str(Fraction(exact))], dtype=object)).view(np.int64)[0])


def times_of(values: ArrayLike, name: str) -> Array:
    """Times as numbers, dates as nanoseconds; each must be one of the two."""
    array = np.asarray(values)
    if array.dtype.kind not in "iubfM":
        import pandas as pd

        try:
            # those of a time zone stay objects otherwise
            array = pd.to_datetime(pd.Series(values), utc=True).dt.tz_localize(None).to_numpy()
        except (ValueError, TypeError) as error:
            raise InvalidInput(name, "numbers or dates", shown(values), "convert it") from error
    if array.dtype.kind == "M":
        _require_known(name, np.isnat(array))
        # nanoseconds in whole numbers end in 2262
        unit, each = ("ns", 1.0) if array.dtype == np.dtype("datetime64[ns]") else ("us", 1000.0)
        number = array.astype(f"datetime64[{unit}]").view(np.int64).astype(np.float64) * each
    else:
        number = array.astype(np.float64)
    _require_known(name, ~np.isfinite(number))
    return number


def _require_known(name: str, missing: Mask) -> None:
    if missing.any():
        where = ", ".join(str(row) for row in np.flatnonzero(missing)[:5])
        raise InvalidInput(
            name, "without missing values", f"{int(missing.sum())}, at rows {where}", "fill or drop them"
        )
