"""Whether rows are at every pass what they were at the first: sums over all of their values.

Each value has a code of 64 bits, each row a hash of its codes, and these are added up: the sum is the same in whatever pieces
and order rows are read, and another one if a value changes, or goes to another row. Later passes read fewer columns than the
first. So there is one sum for what losses look at, which every pass reads, and one for each of the other columns beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.words import word_codes

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Seen", "both_seen", "ordered_sum", "rows_seen", "summed"]

Codes = NDArray[np.uint64]
# Sums by the column that they are for; that of all columns which every pass reads is under None.
Seen = dict[str | None, int]

# What is counted in, the code of a missing value, and the largest whole number up to which floats have every one.
_CIRCLE, _MISSING, _EXACT = 1 << 64, np.uint64(0x7FF8_DEAD_0000_0001), 1 << 53
# Odd numbers that spread bits, by Steele, Lea and Flood (2014).
_SPREAD = np.uint64(0xBF58_476D_1CE4_E5B9), np.uint64(0x94D0_49BB_1331_11EB)


def rows_seen(frame: pd.DataFrame, entering: Collection[str], words: bool = True) -> dict[str | None, Codes]:
    """Hashes of rows: of the columns that enter, and of each other column beside them; of their words only where asked for."""
    import pandas as pd

    entered, beside = np.zeros(len(frame), dtype=np.uint64), {}
    for name in map(str, frame.columns):
        if not words and isinstance(frame[name].dtype, (pd.StringDtype, pd.CategoricalDtype)):
            continue
        coded = _codes(frame[name]) * _factor(name)
        if name in entering:
            entered += coded
        else:
            beside[name] = coded
    entered = _mixed(entered)
    return {None: entered, **{name: _mixed(coded + entered) for name, coded in beside.items()}}


def summed(hashes: Mapping[str | None, Codes]) -> Seen:
    """The sums of the rows of a table."""
    return {name: int(rows.sum()) for name, rows in hashes.items()}


def both_seen(first: Seen, second: Seen) -> Seen:
    """The sums of both, where nothing has none."""
    if not first or not second:
        return first or second
    return {name: (total + second[name]) % _CIRCLE for name, total in first.items()}


def ordered_sum(hashes: Mapping[str | None, Codes], first: int, part: int) -> int:
    """A sum over the rows of a table that is another one if they are in other places; its first one is at `first` of a part."""
    places = (2 * np.arange(first, first + len(hashes[None]), dtype=np.uint64) + 1) * np.uint64(2 * part + 1)
    return int(sum(int(np.dot(rows, places)) for rows in hashes.values())) % _CIRCLE


@cache
def _factor(name: str) -> np.uint64:
    """What the codes of a column are multiplied by."""
    return np.uint64(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") | 1)


def _mixed(codes: Codes) -> Codes:
    """Codes of which every bit depends on every bit, made in place."""
    for shift, spread in zip((30, 27), _SPREAD, strict=True):
        codes ^= codes >> np.uint64(shift)
        codes *= spread
    codes ^= codes >> np.uint64(31)
    return codes


def _codes(column: pd.Series[Any]) -> Codes:
    """A code for each value, which depends on nothing else: neither on the type nor on other values of the column."""
    import pandas as pd

    kind = column.dtype
    if isinstance(kind, np.dtype) and kind.kind in "biuf":
        return _number_codes(column.to_numpy())
    if isinstance(kind, np.dtype) and kind.kind in "mM":
        return column.to_numpy().view(np.uint64)
    if isinstance(kind, pd.DatetimeTZDtype):
        return _codes(column.dt.tz_convert("UTC").dt.tz_localize(None))
    if isinstance(kind, pd.CategoricalDtype):
        used = column.cat.remove_unused_categories() if len(kind.categories) > len(column) else column
        return np.append(_codes(pd.Series(used.cat.categories)), _MISSING)[used.cat.codes.to_numpy()]
    if pd.api.types.is_integer_dtype(kind) and not isinstance(kind, pd.SparseDtype):
        whole = column.to_numpy(np.uint64 if pd.api.types.is_unsigned_integer_dtype(kind) else np.int64, na_value=0)
        return np.where(column.isna().to_numpy(), _MISSING, _number_codes(whole))
    if isinstance(kind, pd.StringDtype):
        return word_codes(column, int(_MISSING))
    try:
        places, values = pd.factorize(column)
    except TypeError:  # lists and the like
        places, values = pd.factorize(column.astype(str))
    return np.append(_value_codes(np.asarray(values, dtype=object)), _MISSING)[places]


def _number_codes(values: NDArray[Any]) -> Codes:
    """The bits of floats, one kind of NaN; whole numbers that floats would round have their own."""
    near = np.ascontiguousarray(values, dtype=np.float64)
    codes: Codes = near.view(np.uint64)
    if values.dtype.kind == "f":
        # a sum tells whether there can be any
        with np.errstate(all="ignore"):
            doubtful = bool(np.isnan(near.sum()))
        return np.where(np.isnan(near), _MISSING, codes) if doubtful else codes
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8 and values.size:
        ends = int(values.min()), int(values.max())
        if max(-ends[0], ends[1]) > _EXACT:
            return np.where((values < -_EXACT) | (values > _EXACT), values.view(np.uint64), codes)
    return codes


def _value_codes(values: NDArray[np.object_]) -> Codes:
    """Codes of values of any type, each of them there once."""
    import pandas as pd

    if pd.api.types.infer_dtype(values, skipna=False) == "string":
        return pd.util.hash_array(values, categorize=False)
    return np.array([_value_code(value) for value in values], dtype=np.uint64)


def _value_code(value: Any) -> int:
    """That of one value: of a number the same as in a column of numbers, of anything else a hash of its text."""
    import pandas as pd

    if isinstance(value, (float, np.floating)):
        return int(np.float64(value).view(np.uint64))
    if isinstance(value, (int, np.integer, np.bool_, Decimal)):
        exact = Decimal(value if isinstance(value, Decimal) else int(value))
        if exact == exact.to_integral_value() and _EXACT < abs(exact) < _CIRCLE:
            return int(exact) % _CIRCLE
        near = np.float64(exact)
        if Decimal(repr(float(near))) == exact:
            return int(near.view(np.uint64))
    text = value if isinstance(value, str) else f"{type(value).__name__} {value}"
    return int(pd.util.hash_array(np.array([text], dtype=object), categorize=False)[0])
