"""Functions of the user's on a scan: whether each maps rows one by one, as it must where nobody has all rows at once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.arrays import Index
from equipoise.checks import shown
from equipoise.data.asked import Asked
from equipoise.data.grammar import UserFunction
from equipoise.data.nesting import bare
from equipoise.data.stored import Learnt, thawed
from equipoise.errors import InvalidInput

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["require_rowwise"]

# Of the largest value, what compiled functions may make of the same row in another place.
_ROUNDING = 1e-12


def require_rowwise(asked: Asked, chosen: pd.DataFrame, known: Mapping[str, Mapping[str, Learnt]]) -> None:
    """Refuse, by name, a function whose values at some rows change with the other rows it is given, or with their order."""
    tried = {name: _tried(name, function, asked, len(chosen)) for name, function in asked.context.items()}
    for factor, functions in asked.factors.items():
        if functions & tried.keys():
            state: dict[str, object] = {call: thawed(numbers) for call, numbers in known.items()}
            asked.evaluated(factor, asked.values(chosen), {"C": bare, **tried}, state)


def _tried(name: str, function: UserFunction, asked: Asked, rows: int) -> UserFunction:
    """The function, called for parts of the rows in another order, too."""

    @wraps(function)
    def called(*args: Any, **named: Any) -> Any:
        kept = {key: _cut(given, np.arange(rows)) for key, given in (*enumerate(args), *named.items())}
        whole = function(*args, **named)  # which may change what it is given
        values = _values(whole)
        each = values.shape[:1] == (rows,)
        same = each or not values.ndim
        for part in _parts(values) if each else (np.arange((rows + 1) // 2),):
            given = {key: _cut(column, part) for key, column in kept.items()}
            found = function(*(given[k] for k in range(len(args))), **{name: given[name] for name in named})
            same = same and _same(values[part] if each else values, _values(found))
        if not same:
            raise InvalidInput(
                "context", "functions that map rows one by one, on a scan",
                f"{name}() in {shown(asked.formula)}, whose values change with the other rows, or their order",
                "compute that column before",
            )  # fmt: skip
        return whole

    return called


def _cut(given: Any, part: Index) -> Any:
    """Some rows of an argument; all of one that is not of rows."""
    if hasattr(given, "iloc"):
        return given.iloc[part].reset_index(drop=True)
    return given[part] if np.ndim(given) else given


def _values(found: Any) -> Any:
    import pandas as pd

    return np.asarray(pd.DataFrame(found) if isinstance(found, Mapping) else found)


def _parts(values: Any) -> tuple[Index, ...]:
    """Numbers of rows, from large values to small: every second one, and those at either end, without the other's extremes."""
    import pandas as pd

    first = values.reshape(len(values), -1)[:, 0]
    codes = first if first.dtype.kind in "biuf" else pd.factorize(first)[0]
    order = np.argsort(codes, kind="stable")[::-1]
    third = max(1, len(order) // 3)
    return order[len(order) > 1 :: 2], order[:third], order[-third:]


def _same(one: Any, other: Any) -> bool:
    """Whether values are equal, numbers up to rounding."""
    import pandas as pd

    if one.shape != other.shape:
        return False
    if one.dtype.kind in "biuf" and other.dtype.kind in "biuf":
        one, other = one.astype(np.float64), other.astype(np.float64)
        size = np.abs(one[np.isfinite(one)]).max(initial=0.0)
        return bool(np.isclose(one, other, _ROUNDING, _ROUNDING * size, equal_nan=True).all())
    return bool(((one == other) | (pd.isna(one) & pd.isna(other))).all())
