"""Designs as JSON: what transforms learnt, levels and columns, written exactly and read strictly."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

import numpy as np

from equipoise.checks import shown
from equipoise.data.columns import KINDS, Column, Level
from equipoise.data.grammar import FUNCTIONS, LIMITS
from equipoise.data.wording import brief
from equipoise.errors import InvalidInput

__all__ = [
    "Learnt",
    "column_record",
    "damaged",
    "frozen",
    "level_record",
    "loaded",
    "read_columns",
    "read_levels",
    "read_names",
    "read_transforms",
    "thawed",
]

Learnt: TypeAlias = "bool | float | list[float] | list[list[float]] | None"

_MOST_CHARACTERS = 20_000_000
_MOST_NAMES = 100_000
_LONGEST_NAME = 20_000


def damaged(part: str, requirement: str, given: object) -> InvalidInput:
    """The error for a stored design that was not written by `Design.to_json`."""
    try:
        words = shown(given)
    except RecursionError:
        words = "something nested very deeply"
    return InvalidInput("design", f"a saved one, whose {part} is {requirement}", words, "save the run again")


# --- What transforms learnt ---------------------------------------------------------------------------


def frozen(function: str, state: Mapping[str, object]) -> dict[str, Learnt]:
    """The state of one of formulaic's transforms as plain numbers."""
    return {key: _plain(state[key]) for key in FUNCTIONS[function].learns}


def _plain(value: object) -> Learnt:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, dict):  # the coefficients of poly(), by degree
        return [float(value[degree]) for degree in range(len(value))]
    array = np.asarray(value, dtype=np.float64)
    return float(array) if array.ndim == 0 else array.tolist()


def thawed(state: Mapping[str, Learnt]) -> dict[str, Any]:
    """The same state as formulaic keeps it, to the last bit."""
    out: dict[str, Any] = {}
    for key, value in state.items():
        if key in {"alpha", "norms2"}:
            out[key] = {degree: np.float64(number) for degree, number in enumerate(_list(value))}
        elif key == "constraints" and value is not None:
            out[key] = np.array(value, dtype=np.float64)
        else:
            out[key] = np.float64(value) if isinstance(value, float) else value
    return out


def _list(value: Learnt) -> list[Any]:
    return value if isinstance(value, list) else []


def read_transforms(value: object, calls: Mapping[str, str]) -> dict[str, dict[str, Learnt]]:
    """What the calls of a formula learnt, from JSON; exactly those calls, each with exactly its numbers."""
    given = _mapping("transforms", value)
    if set(given) != set(calls):
        raise damaged("transforms", "of the calls in its formula", sorted(given))
    return {call: _read_state(given[call], FUNCTIONS[function].learns, call) for call, function in calls.items()}


def _read_state(value: object, keys: tuple[str, ...], call: str) -> dict[str, Learnt]:
    state = _mapping(f"state of {brief(call, 40)}", value)
    if set(state) != set(keys):
        raise damaged(f"state of {brief(call, 40)}", f"made of {', '.join(keys)}", sorted(state))
    for key in keys:
        if not _STATE[key](state[key]):
            raise damaged(f"{key} in {brief(call, 40)}", "as it was saved", state[key])
    return {key: float(state[key]) if type(state[key]) is int else state[key] for key in keys}


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < 2**64 if isinstance(value, int) else math.isfinite(value)


def _is_row(value: object) -> bool:
    return isinstance(value, list) and 0 < len(value) <= LIMITS.levels and all(type(v) is float for v in value)


def _is_matrix(value: object) -> bool:
    rows = value if isinstance(value, list) else []
    return 0 < len(rows) <= LIMITS.levels and all(_is_row(row) and len(row) == len(rows[0]) for row in rows)


def _or_none(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or check(value)


_STATE: dict[str, Callable[[object], bool]] = {
    "lower_bound": _is_number,
    "upper_bound": _is_number,
    "ddof": _is_number,
    "center": _or_none(_is_number),
    "scale": _or_none(_is_number),
    "knots": _is_row,
    "alpha": _is_row,
    "norms2": _is_row,
    "cyclic": lambda value: isinstance(value, bool),
    "constraints": _or_none(_is_matrix),
}


# --- Levels and columns -------------------------------------------------------------------------------


def level_record(level: Level) -> object:
    """A level as JSON holds it: text, a number, a truth value, a date or an interval of these; any other is refused."""
    import pandas as pd

    if isinstance(level, np.generic):
        level = level.item()
    if isinstance(level, (str, bool)) or (isinstance(level, (int, float)) and math.isfinite(level)):
        return level
    if isinstance(level, pd.Timestamp):
        return {"date": level.isoformat()}
    if isinstance(level, pd.Interval):
        return {"interval": [level_record(level.left), level_record(level.right), level.closed]}
    raise InvalidInput(
        "formula", "over text, numbers, dates or intervals to be saved", f"a level of type {type(level).__name__}",
        "convert the column to text before fitting",
    )  # fmt: skip


def _read_level(value: object, depth: int = 0) -> Level:
    import pandas as pd

    if isinstance(value, bool) or _is_number(value) or (isinstance(value, str) and len(value) <= _LONGEST_NAME):
        return value
    try:
        match value:
            case {"date": str(text), **rest} if not rest and len(text) < 40:
                date = pd.Timestamp(text)
                if not pd.isna(date) and date.tzinfo is None:
                    return date
            case {"interval": [left, right, str(closed)], **rest} if not rest and depth == 0:
                return pd.Interval(_read_level(left, 1), _read_level(right, 1), closed=closed)  # type: ignore[arg-type]
    except (ValueError, TypeError, OverflowError) as error:
        raise damaged("levels", "text, numbers, dates or intervals", value) from error
    raise damaged("levels", "text, numbers, dates or intervals", value)


def read_levels(value: object, part: str) -> tuple[Level, ...]:
    """A list of different levels, from JSON."""
    if not isinstance(value, list) or not 0 < len(value) <= LIMITS.levels:
        raise damaged(part, f"a list of 1 to {LIMITS.levels} levels", value)
    levels = tuple(_read_level(v) for v in value)
    if len(set(levels)) != len(levels):
        raise damaged(part, "a list of different levels", value)
    return levels


def column_record(column: Column) -> dict[str, object]:
    """A column as JSON holds it."""
    levels = None if column.levels is None else [level_record(level) for level in column.levels]
    return {"kind": column.kind, "levels": levels}


def read_columns(value: object, expected: Mapping[str, object]) -> dict[str, Column]:
    """The columns of a formula, from JSON; exactly those it uses."""
    given = _mapping("columns", value)
    if set(given) != set(expected):
        raise damaged("columns", "those of its formula", sorted(given))
    return {name: _read_column(name, given[name]) for name in expected}


def _read_column(name: str, value: object) -> Column:
    part = f"column {brief(name, 40)!r}"
    given = _mapping(part, value)
    if set(given) != {"kind", "levels"} or given["kind"] not in KINDS:
        raise damaged(part, f"one of {', '.join(KINDS)}, with its levels", value)
    kind, levels = given["kind"], given["levels"]
    if (levels is None and kind == "category") or (levels is not None and kind in {"date", "text"}):
        raise damaged(part, "one with levels exactly where they belong", value)
    return Column(kind, None if levels is None else read_levels(levels, part))


def read_names(value: object) -> tuple[str, ...]:
    """The names of the design's columns, from JSON."""
    if not isinstance(value, list) or not 0 < len(value) <= _MOST_NAMES:
        raise damaged("names", "a list of names", value)
    if not all(isinstance(name, str) and len(name) <= _LONGEST_NAME for name in value) or len(set(value)) < len(value):
        raise damaged("names", "a list of different names", value)
    return tuple(value)


# --- JSON itself --------------------------------------------------------------------------------------


def loaded(text: object, keys: Collection[str]) -> dict[str, Any]:
    """The object in a JSON text, not absurdly long, that has exactly the given keys, each once; any other text is refused."""
    if not isinstance(text, str) or len(text) > _MOST_CHARACTERS:
        raise damaged("text", "a string of reasonable length", type(text).__name__)
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise damaged("text", "JSON", text) from error
    record = _mapping("text", found)
    if set(record) != set(keys):
        raise damaged("text", f"an object of {', '.join(sorted(keys))}", sorted(record))
    return record


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def _refused(word: str) -> None:
    raise ValueError(f"{word} is not a number")


def _mapping(part: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise damaged(part, "an object", value)
    return value
