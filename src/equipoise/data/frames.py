"""Whole tables at the door: what counts as one, which columns and rows of it are used, what is missing."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.arrays import Mask
from equipoise.checks import nearest
from equipoise.data.marks import labels_of
from equipoise.data.wording import brief, listed
from equipoise.errors import InvalidInput

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "as_frame",
    "compact",
    "incomplete",
    "picked",
    "require_complete",
    "require_finite",
    "stacked",
    "unsound_term",
    "without_lagged",
]

# Categories that a few rows may have of the table they are from.
_FEW_LEVELS = 1000
# Bytes of text per row from which on it is kept once for all rows that have it.
_LONG_TEXT = 64


def as_frame(data: object) -> pd.DataFrame:
    """A DataFrame with at least one row, from one or from anything with a `to_pandas` method (Polars, Arrow)."""
    import pandas as pd  # slow to import: only those who bring tables pay for it

    frame = data
    if not isinstance(data, pd.DataFrame) and callable(getattr(data, "to_pandas", None)):
        try:
            frame = data.to_pandas()  # type: ignore[attr-defined]
        except Exception as error:
            raise InvalidInput(
                "data", "a table that converts to pandas", f"{type(error).__name__}: {brief(error, 200)}",
                "convert it to a pandas DataFrame first",
            ) from error  # fmt: skip
    if not isinstance(frame, pd.DataFrame):
        hint = "convert it with pd.DataFrame(...)"
        if hasattr(data, "__dataframe__"):
            hint = "convert it with pd.api.interchange.from_dataframe(...)"
        raise InvalidInput(
            "data", "a DataFrame or a file path", type(data).__name__, f"{hint}; pass formula= only with a table"
        )
    if len(frame) == 0:
        raise InvalidInput("data", "a table with at least one row", "a table without rows", "check where it comes from")
    return frame


def picked(frame: pd.DataFrame, names: Collection[str], argument: str = "formula") -> pd.DataFrame:
    """The named columns, each there once, with rows numbered from zero."""
    known = [str(c) for c in frame.columns]
    absent = [name for name in names if name not in known]
    if absent:
        close = [
            f"for {brief(repr(name), 30)} {brief(hint, 60)}" for name in absent[:3] if (hint := nearest(name, known))
        ]
        raise InvalidInput(
            argument,
            f"made of columns of the table, {listed(known)}",
            f"[{listed(absent, 5)}], which it does not have",
            "; ".join(["correct the names, or add the columns", *close]),
        )
    doubled = sorted({name for name in names if known.count(name) > 1})
    if doubled:
        raise InvalidInput(
            "data", "a table whose columns have different names", f"several columns named [{listed(doubled)}]",
            "rename or drop them",
        )  # fmt: skip
    chosen = frame.iloc[:, [known.index(name) for name in names]]
    return chosen.set_axis(list(names), axis=1).reset_index(drop=True)


def stacked(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Tables of the same columns, one below the other; categories are those of all, in the order of their appearance."""
    import pandas as pd
    from pandas.api.types import union_categoricals

    if len(frames) == 1:
        return frames[0]
    joined = {}
    for name in frames[0].columns:
        parts = [frame[name] for frame in frames]
        kinds = {part.dtype for part in parts}
        if len(kinds) > 1 and all(isinstance(kind, pd.CategoricalDtype) for kind in kinds):
            joined[name] = pd.Series(union_categoricals(parts, ignore_order=True))
        else:
            joined[name] = pd.concat(parts if len(kinds) == 1 else _unrounded(parts), ignore_index=True)
    return pd.DataFrame(joined, columns=frames[0].columns)


def _unrounded(parts: Sequence[pd.Series]) -> list[pd.Series]:
    """Numbers of several types; as objects, the whole ones whole, where there are some that floats would round."""

    def long(part: pd.Series) -> bool:
        whole = part.dtype.kind in "iu" and len(part) > 0
        return part.dtype == object or (whole and max(-int(part.min()), int(part.max())) > 2**53)

    if not any(map(long, parts)):
        return list(parts)
    return [
        part.map(lambda v: int(v) if v.is_integer() else v).astype(object)
        if part.dtype.kind == "f"
        else part.astype(object)
        for part in parts
    ]


def compact(frame: pd.DataFrame, coded: Collection[str] = ()) -> pd.DataFrame:
    """Some rows of a large table in little room: many categories without those of other rows, long text that repeats once.

    Clusters in the columns to be `coded` have labels in place of words.
    """
    import pandas as pd

    words = [name for name in coded if not isinstance(frame[name].dtype, np.dtype)]
    frame = frame.assign(**{name: labels_of(frame[name], name) for name in words})
    for name in frame.columns:
        column = frame[name]
        kind = column.dtype
        if isinstance(kind, pd.CategoricalDtype) and len(kind.categories) > max(_FEW_LEVELS, len(frame)):
            frame = frame.assign(**{str(name): column.cat.remove_unused_categories()})
        elif isinstance(kind, pd.StringDtype) and column.array.nbytes > _LONG_TEXT * len(frame):
            codes, texts = pd.factorize(column)
            # rows with the same text refer to one, also those of other tables
            shared = np.array([*map(sys.intern, texts), np.nan], dtype=object)[codes]
            frame = frame.assign(**{str(name): pd.Series(shared, index=frame.index, dtype=object)})
    return frame


def incomplete(frame: pd.DataFrame) -> Mask:
    """Which rows have a missing value."""
    return np.any(frame.isna().to_numpy(dtype=bool), axis=1)


def require_complete(
    frame: pd.DataFrame, remedy: str = "drop or fill those rows", called: Mapping[str, str] | None = None
) -> None:
    """Raise, naming columns as they are called and rows, if a value is missing."""
    columns = [(called or {}).get(str(name), str(name)) for name in frame.columns if frame[name].isna().any()]
    if columns:
        where = frame.index[incomplete(frame)]
        raise InvalidInput(
            "data", "without missing values", f"missing in columns [{listed(columns)}], rows {listed(where, 5)}", remedy
        )


def require_finite(matrix: pd.DataFrame) -> None:
    """Raise, naming the term and the rows, if a term of the formula is infinite or undefined somewhere."""
    values = matrix.to_numpy()
    # a sum is finite only if its terms are, and takes a tenth of the time and no memory
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()):
            return
    bad = ~np.isfinite(values)
    if not bad.any():
        return
    first = int(np.flatnonzero(bad.any(axis=0))[0])
    infinite = bool(np.isinf(values[:, first]).any())
    raise unsound_term(
        matrix.columns[first], matrix.index[bad[:, first]], "infinite" if infinite else "undefined (NaN)"
    )


def unsound_term(term: object, where: pd.Index[Any], word: str = "infinite or undefined (NaN)") -> InvalidInput:
    """The error for a term that is no number at some rows."""
    remedy = "change or leave out those rows, or change the term"
    if _lagged([term]).any():
        remedy = "pass missing='drop' to leave out the rows that lag() has no value for"
    given = f"{brief(term)}, which is {word} at rows {listed(where, 5)}"
    return InvalidInput("formula", "finite in every term", given, remedy)


def without_lagged(*matrices: pd.DataFrame) -> Mask:
    """Which rows are left once those are gone for which `lag()` has no value."""
    kept = np.ones(len(matrices[0]), dtype=bool)
    for matrix in matrices:
        kept &= ~np.isnan(matrix.to_numpy()[:, _lagged(matrix.columns)]).any(axis=1)
    return kept


def _lagged(names: Collection[Any]) -> Mask:
    return np.array([re.search(r"(?<!\w)lag\(", str(name)) is not None for name in names], dtype=bool)
