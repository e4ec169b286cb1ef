"""Columns of a table, as a design takes them: numbers, levels or dates, the same for every table to come."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from equipoise.arrays import Array, Index
from equipoise.data.arrow import plain_decimals
from equipoise.data.grammar import LIMITS
from equipoise.data.wording import brief, listed
from equipoise.errors import InvalidInput, warn

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "KINDS",
    "Column",
    "Kind",
    "Level",
    "column_values",
    "first_of_each",
    "learnt",
    "level_codes",
    "numbers",
    "plain_values",
    "require_few",
    "simplified",
]

# str, bool, int, float, Timestamp or Interval
Level: TypeAlias = Any
Kind = Literal["number", "whole", "flag", "category", "date", "text"]
KINDS: tuple[str, ...] = get_args(Kind)

_WORDS: dict[str, str] = {
    "number": "numbers",
    "whole": "whole numbers",
    "flag": "true and false",
    "date": "dates",
    "category": "levels",
    "text": "text",
}


@dataclass(frozen=True)
class Column:
    """What a column was when the model was fitted.

    Attributes
    ----------
    kind
        How its values enter: `number`, `whole` and `flag` (whole numbers and truth values that are levels),
        `category`, `date` (as days since 1970) or `text` (that is hashed).
    levels
        The levels in the order in which they are coded, where it has any.
    """

    kind: Kind
    levels: tuple[Level, ...] | None = None


def simplified(name: str, column: pd.Series, exact: bool = True) -> pd.Series:
    """A column without missing values as float64, int64, uint64, bool, datetime64, category or an object column of text.

    The rest is refused: sparse, complex, lists, a mixture. Long decimals become the nearest floats, or if that need not be
    exact, floats near them, which takes a fifth of the time.
    """
    import pandas as pd
    from pandas.api import types

    dtype = column.dtype
    if isinstance(dtype, (pd.CategoricalDtype, pd.StringDtype)) or dtype == np.float64:
        return column
    if isinstance(dtype, pd.SparseDtype):
        raise InvalidInput(name, "a dense column", "a sparse one", "convert it with frame.sparse.to_dense()")
    if types.is_bool_dtype(dtype):
        return column.astype(bool)
    if types.is_integer_dtype(dtype):
        return column.astype(np.int64 if int(column.max()) < 2**63 else np.uint64)
    if types.is_datetime64_any_dtype(dtype):
        return _dates(name, column)
    if types.is_timedelta64_dtype(dtype):
        return _days(column)
    if str(dtype).startswith("decimal"):
        return _from_decimals(column, exact)
    if types.is_numeric_dtype(dtype) and not types.is_complex_dtype(dtype):
        return pd.Series(column.to_numpy(dtype=np.float64), index=column.index, name=column.name)
    return _inferred(name, column.astype(object))


def _from_decimals(column: pd.Series, exact: bool) -> pd.Series:
    """Arrow's decimals as numbers, whole ones that floats would round as whole numbers."""
    import pandas as pd
    import pyarrow as pa

    made = plain_decimals(pa.chunked_array([pa.array(column.array)]))
    if pa.types.is_decimal(made.type):
        made = (made.cast(pa.string()) if exact else made).cast(pa.float64())
    return pd.Series(made.to_numpy(), index=column.index, name=column.name)


def _inferred(name: str, column: pd.Series) -> pd.Series:
    """A column of objects by what they are."""
    import pandas as pd

    found = pd.api.types.infer_dtype(column, skipna=True)
    if found in {"string", "interval"}:
        return column
    if found == "boolean":
        return column.astype(bool)
    long = found == "decimal" and column.abs().max() > 2**53
    if found == "integer" or (long and all(value == value.to_integral_value() for value in column)):
        for kind in (np.int64, np.uint64):
            if np.iinfo(kind).min <= column.min() and column.max() <= np.iinfo(kind).max:
                return column.map(int).astype(kind)
    if found in {"datetime", "datetime64", "date"}:
        return _dates(name, column)
    if found in {"timedelta", "timedelta64"}:
        return _days(pd.to_timedelta(column))
    if all(isinstance(value, (Real, Decimal)) and not isinstance(value, bool) for value in column):
        return column.astype(np.float64)
    kinds = sorted({type(value).__name__ for value in column})
    raise InvalidInput(
        name, "a column of numbers, text, dates or categories", f"values of type {listed(kinds, 4)}",
        "convert it to one of these, or leave the column out",
    )  # fmt: skip


def _dates(name: str, column: pd.Series) -> pd.Series:
    """Dates without a time zone, those with one in UTC."""
    import pandas as pd

    try:
        dates = pd.to_datetime(column.astype(object) if column.dtype == object else column, utc=True)
        return dates.dt.tz_localize(None).astype("datetime64[us]")
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput(name, "a column of dates", brief(error, 200), "convert it with pd.to_datetime") from error


def _days(times: pd.Series) -> pd.Series:
    """Dates as days since 1970 began, or spans of time as days, with fractions."""
    dtype = np.dtype("datetime64[us]" if times.dtype.kind == "M" else "timedelta64[us]")
    return times.astype(dtype).astype(np.int64) / 86_400e6


def _is(simple: pd.Series, kinds: str) -> bool:
    """Whether a simplified column is boolean (b), whole (i, u), floating (f), a date (M) or a category or text (O)."""
    import pandas as pd

    kind = "O" if isinstance(simple.dtype, pd.CategoricalDtype) else simple.dtype.kind
    return kind in kinds


def numbers(name: str, column: pd.Series) -> Array:
    """A column without missing values as float64.

    Raises
    ------
    InvalidInput
        If it is not made of finite numbers.
    """
    simple = simplified(name, column, exact=False)
    if not _is(simple, "biuf"):
        raise InvalidInput(name, "numeric", f"a column of {_described(simple)}", "choose a column of numbers")
    values = simple.to_numpy(dtype=np.float64)
    if not np.isfinite(values).all():
        where = column.index[~np.isfinite(values)]
        raise InvalidInput(name, "finite", f"infinity at rows {listed(where, 5)}", "change or leave out those rows")
    return values


def _described(simple: pd.Series) -> str:
    """What a simplified column is made of, in words."""
    if _is(simple, "O"):
        return "text or categories"
    return "dates" if _is(simple, "M") else "numbers"


def _coded(simple: pd.Series) -> tuple[Any, list[Level]]:
    """The row numbers of a column's distinct values, and those values."""
    import pandas as pd

    if isinstance(simple.dtype, pd.CategoricalDtype):
        categories = simplified(str(simple.name), pd.Series(simple.cat.categories))
        return simple.cat.codes.to_numpy(), categories.tolist()
    codes, distinct = pd.factorize(simple)
    return codes, distinct.tolist()


def _levels(name: str, simple: pd.Series) -> tuple[Level, ...]:
    """The levels that occur, in a category's own order or sorted; a note on those that do not."""
    codes, found = _coded(simple)
    used = set(np.unique(codes).tolist())
    unused = [level for i, level in enumerate(found) if i not in used]
    if unused:
        warn(f"{name}: the levels {listed(unused)} have no rows and were left out of the design.")
    levels = [level for i, level in enumerate(found) if i in used]
    require_few(name, dict.fromkeys(levels, 0))
    categorical = hasattr(simple, "cat")
    return tuple(levels if categorical else sorted(levels))


def learnt(name: str, column: pd.Series, roles: frozenset[str]) -> Column:
    """What a column without missing values is, given the roles it has in the formula.

    Values that have no use in a formula, and roles that contradict each other, are refused.
    """
    simple = simplified(name, column)
    kind = _kind(name, simple, roles)
    return Column(kind, _levels(name, simple) if kind == "category" or "coded" in roles else None)


def _kind(name: str, simple: pd.Series, roles: frozenset[str]) -> Kind:
    """How the values of a simplified column enter."""
    if _is(simple, "O"):
        return "text" if roles == {"hashed"} else "category"
    as_levels = roles & {"coded", "hashed"}
    if _is(simple, "M"):
        if as_levels and roles - {"coded", "hashed"}:
            raise InvalidInput(
                name, "used either as a number or inside C()", "both", "make a second column of the dates as text"
            )
        return "category" if as_levels else "date"
    if as_levels and _is(simple, "biu"):
        return "flag" if _is(simple, "b") else "whole"
    return "number"


def first_of_each(name: str, column: pd.Series, roles: frozenset[str]) -> dict[Level, int] | None:
    """The levels of a column, each with the place where it occurs first; None if it has no levels, and refused if too many."""
    simple = simplified(name, column, exact="coded" in roles)
    if _kind(name, simple, roles) != "category" and "coded" not in roles:
        return None
    codes, found = _coded(simple)
    first = np.full(len(found), -1, dtype=np.int64)
    # of what is written several times to one place, the last stays
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return require_few(name, {found[i]: int(first[i]) for i in np.flatnonzero(first >= 0)})


def require_few(name: str, levels: dict[Level, int]) -> dict[Level, int]:
    """The levels; raise if they are more than a design can have."""
    if len(levels) > LIMITS.levels:
        raise InvalidInput(
            name, f"at most {LIMITS.levels} levels, each of which is a column", f"{len(levels)} levels",
            f"group them, or write hashed({name}, levels=100)",
        )  # fmt: skip
    return levels


def plain_values(name: str, column: pd.Series, roles: frozenset[str]) -> pd.Series:
    """A column as expressions see it, before its levels are known."""
    simple = simplified(name, column, exact="coded" in roles)
    kind = _kind(name, simple, roles)
    if kind == "date":
        return _days(simple)
    return simple.astype(np.float64) if kind == "number" else simple


def column_values(name: str, column: pd.Series, known: Column) -> pd.Series:
    """A column of any table without missing values, as it was when the model was fitted; what it was not then is refused."""
    import pandas as pd

    simple = simplified(name, column, exact=known.levels is not None)
    if known.kind == "text":
        return simple.astype(object)
    fits = {"number": "biuf", "whole": "biuf", "flag": "biuf", "date": "M", "category": "ObiufM"}[known.kind]
    if not _is(simple, fits):
        raise InvalidInput(
            name, f"a column of {_WORDS[known.kind]}, as when fitting", f"a column of {_described(simple)}",
            "convert the column" + (" with pd.to_datetime" if known.kind == "date" else ""),
        )  # fmt: skip
    if known.levels is not None:
        codes = _known_codes(name, simple, known.levels)
        if known.kind == "category":
            return pd.Series(
                pd.Categorical.from_codes(codes, categories=pd.Index(list(known.levels))), index=column.index
            )
    if known.kind == "date":
        return _days(simple)
    if known.kind == "number":
        # pandas would copy what is float already
        return simple if simple.dtype == np.float64 else simple.astype(np.float64)
    return _exactly(name, simple, np.dtype(bool) if known.kind == "flag" else np.dtype(np.int64))


def level_codes(name: str, column: pd.Series, known: Column) -> Index:
    """The place of each value of a column among its levels; one that was not seen when fitting is refused."""
    return np.asarray(_known_codes(name, simplified(name, column), known.levels or ()), dtype=np.int64)


def _exactly(name: str, simple: pd.Series, dtype: np.dtype[Any]) -> pd.Series:
    """Whole numbers or truth values, whatever number type they came in."""
    if dtype.kind == "i" and _is(simple, "iu"):
        return simple
    values = simple.to_numpy(np.float64)
    if dtype.kind == "i" and values.max(initial=0.0) >= 2.0**63:
        dtype = np.dtype(np.uint64)
    with np.errstate(invalid="ignore"):
        if np.isfinite(values).all() and (values == values.astype(dtype)).all():
            return simple.astype(dtype)
    word = "true and false" if dtype.kind == "b" else "whole numbers"
    raise InvalidInput(name, f"a column of {word}, as when fitting", "other numbers", "convert the column")


def _known_codes(name: str, simple: pd.Series, levels: tuple[Level, ...]) -> Any:
    """The place of each value among the known levels."""
    codes, found = _coded(simple)
    place = {level: i for i, level in enumerate(levels)}
    used = set(np.unique(codes).tolist())
    unseen = [level for i, level in enumerate(found) if i in used and level not in place]
    if unseen:
        raise InvalidInput(
            name, f"one of the levels seen when fitting, [{listed(levels)}]",
            f"[{listed(sorted(unseen, key=str))}]", "recode or drop those rows",
        )  # fmt: skip
    return np.array([place.get(level, -1) for level in found], dtype=np.intp)[codes]
