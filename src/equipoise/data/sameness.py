"""Whether rows are at every pass what they were at the first: sums over all of their values.

Each value has a code of 64 bits, each row a hash of its codes, and these are added up: the sum is the same in whatever pieces
and order rows are read, and another one if a value changes, or goes to another row. Later passes read fewer columns than the
first. So there is one sum for what losses look at, which every pass reads, and one for each of the other columns beside it.

Queries that average on several threads round otherwise each time. So each row has an angle, too, to which every value adds: the
sum of all points on the circle hardly moves with rounding, and by about as much as a value did where one has changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.parts import ArrowPart, CSVPart, FragmentPart, Part, TablePart
from equipoise.data.words import word_codes

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Seen", "both_seen", "differs", "notices_changes", "ordered_sum", "rows_seen"]

Codes = NDArray[np.uint64]

# What is counted in, the code of a missing value, and the largest whole number up to which floats have every one.
_CIRCLE, _MISSING, _EXACT = 1 << 64, np.uint64(0x7FF8_DEAD_0000_0001), 1 << 53
# Odd numbers that spread bits, by Steele, Lea and Flood (2014).
_SPREAD = np.uint64(0xBF58_476D_1CE4_E5B9), np.uint64(0x94D0_49BB_1331_11EB)
# Of a column's median size, what is next to nothing; and how far a number turns when it grows e-fold, or from that to nothing.
_SMALL, _TURN = 1e-4, 32.0
# Whole numbers from which on they are names, of which every digit counts.
_NAMES = float(1 << 31)
# By how much sums of angles may differ for rounding, altogether and for every row.
_ROUNDING, _EACH = 1e-6, 1e-12


@dataclass(frozen=True)
class Seen:
    """Sums over some rows, by the column that they are for; that of all columns which every pass reads is under None.

    `exact` are those of hashes, `near` those of angles, as far as they are asked for, and `sizes` what numbers are measured by.
    """

    rows: int = 0
    exact: Mapping[str | None, int] = field(default_factory=dict)
    near: Mapping[str | None, complex] = field(default_factory=dict)
    sizes: Mapping[str, float] = field(default_factory=dict)


def notices_changes(where: Part) -> bool:
    """Whether a part looks itself whether its rows are what they were: files have a size and a time, tables do not change."""
    return where.identity is not None or isinstance(where, (ArrowPart, CSVPart, FragmentPart, TablePart))


def rows_seen(
    frame: pd.DataFrame, entering: Collection[str], words: bool = True, watched: Seen | None = None
) -> tuple[dict[str | None, Codes], Seen]:
    """Hashes of rows, of the columns that enter and of each other one beside them, with their sums.

    Without `words` only of numbers. Angles are made where what was seen before is given, and measured as then.
    """
    import pandas as pd

    columns = {str(name): frame[name] for name in frame.columns}
    if not words:
        left_out = (pd.StringDtype, pd.CategoricalDtype)
        columns = {name: column for name, column in columns.items() if not isinstance(column.dtype, left_out)}
    codes = {name: _codes(column) for name, column in columns.items()}
    entered, beside = np.zeros(len(frame), dtype=np.uint64), {}
    for name, coded in codes.items():
        if name in entering:
            entered += coded * _factor(name)
        else:
            beside[name] = coded * _factor(name)
    entered = _mixed(entered)
    hashes: dict[str | None, Codes] = {
        None: entered,
        **{name: _mixed(coded + entered) for name, coded in beside.items()},
    }
    exact = {name: int(rows.sum()) for name, rows in hashes.items()}
    if watched is None:
        return hashes, Seen(len(frame), exact)
    numbers = {name: found for name, column in columns.items() if (found := _numbers(column)) is not None}
    sizes = {name: watched.sizes[name] if name in watched.sizes else _size(v) for name, v in numbers.items()}
    # a column that is of no numbers in one piece, and of some in another, has a size from there on
    turns = {name: _turns(codes[name], numbers.get(name), sizes.get(name, 1.0)) for name in codes}
    angle = sum((turn * _share(name) for name, turn in turns.items() if name in entering), np.zeros(len(frame)))
    angles: dict[str | None, NDArray[np.float64]] = {
        None: angle,
        **{name: angle + turns[name] * _share(name) for name in beside},
    }
    near = {name: complex(np.cos(some).sum(), np.sin(some).sum()) for name, some in angles.items()}
    return hashes, Seen(len(frame), exact, near, {**watched.sizes, **sizes})


def both_seen(first: Seen, second: Seen) -> Seen:
    """The sums of both."""
    if not first.rows or not second.rows:
        return first if first.rows else replace(second, sizes={**first.sizes, **second.sizes})
    exact = {name: (total + second.exact[name]) % _CIRCLE for name, total in first.exact.items()}
    near = {name: total + second.near[name] for name, total in first.near.items()}
    return Seen(first.rows + second.rows, exact, near, second.sizes)


def differs(before: Seen, now: Seen) -> bool:
    """Whether rows are others than before, in the columns that are read now, by more than rounding."""
    limit = _ROUNDING + _EACH * now.rows
    return any(
        before.exact[name] != total and not (name in now.near and abs(before.near[name] - now.near[name]) <= limit)
        for name, total in now.exact.items()
    )


def _numbers(column: pd.Series[Any]) -> NDArray[np.float64] | None:
    """A column of numbers as floats; None of anything else."""
    import pandas as pd

    kind = column.dtype
    if isinstance(kind, np.dtype):
        return column.to_numpy(np.float64) if kind.kind in "biuf" else None
    if isinstance(kind, pd.CategoricalDtype) or not pd.api.types.is_numeric_dtype(kind):
        return None
    return column.to_numpy(np.float64, na_value=np.nan)


def _size(v: NDArray[np.float64]) -> float:
    """The median size of the numbers that are not zero."""
    known = np.abs(v[np.isfinite(v) & (v != 0.0)])
    return float(np.median(known)) if known.size else 1.0


def _turns(codes: Codes, v: NDArray[np.float64] | None, size: float) -> NDArray[Any]:
    """By how much every value turns its row: numbers by their logarithm, and by a code whatever is none, or a name."""
    if v is None:
        return 2.0 * np.pi * 2.0**-64 * _mixed(codes.copy())
    with np.errstate(all="ignore"):
        made = _TURN * np.arcsinh(v / (_SMALL * size))
        names = ~np.isfinite(v) | ((np.abs(v) >= _NAMES) & (np.floor(v) == v))
    return np.where(names, 2.0 * np.pi * 2.0**-64 * _mixed(codes.copy()), made) if names.any() else made


@cache
def _share(name: str) -> float:
    """What the turns of a column are multiplied by: from 1/2 to 1."""
    return 0.5 + float(_factor(name) >> np.uint64(12)) * 2.0**-53


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
    if pd.api.types.is_float_dtype(kind) and not isinstance(kind, pd.SparseDtype):
        return _number_codes(column.to_numpy(np.float64, na_value=np.nan))
    if isinstance(kind, pd.ArrowDtype) and kind.kind in "mM":
        import pyarrow as pa

        held = pa.array(column.array)
        held = held.cast(pa.timestamp("ms")) if pa.types.is_date(held.type) else held
        return held.cast(pa.int64()).fill_null(0).to_numpy().view(np.uint64)
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
