"""Text files have no types: a column with numbers in some rows and words in others is a mistake, unless it is one of levels.

What such a column is would depend on the rows that happen to be read first, and a number column with one misspelt value
would become as many levels as it has values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from equipoise.data.marks import Marking, kind_of_labels, mark_columns
from equipoise.data.wording import brief, located
from equipoise.errors import InvalidInput

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Kinds", "Spelling", "both_kinds", "both_spellings", "first_word", "kinds_beside", "spellings"]

# Where a column has its first number (True) and its first word (False), for every column of words.
Spelling: TypeAlias = "dict[str, dict[bool, str]]"
# Where clusters and times have their first number, date or text.
Kinds: TypeAlias = "dict[str, dict[str, str]]"

# How a word begins, as it is shown, that is a number to people who write a comma for the point or between thousands.
_COMMA = re.compile(r"'\s*[-+]?\d+(,\d+)+(\.\d*)?\s*'")


def spellings(frame: pd.DataFrame, roles: Mapping[str, frozenset[str]], label: str) -> Spelling:
    """Where the columns of a text file that are not numbers have numbers and words; columns inside C() may have both.

    Any other that has both, or numbers with commas, is refused with its rows.
    """
    free = [name for name, uses in roles.items() if not uses & {"coded", "hashed"} and _is_text(frame[name])]
    found = {name: _firsts(frame[name].dropna()) for name in free}
    for name, places in found.items():
        _require_one(name, places)
        if _COMMA.match(places.get(False, "")):
            raise InvalidInput(
                name, "numbers with a decimal point, and nothing between thousands", places[False],
                f"write them so, or write C({name}) if they are levels",
            )  # fmt: skip
    return {name: {k: f"{place} of {located(label)}" for k, place in places.items()} for name, places in found.items()}


def both_spellings(first: Spelling, second: Spelling) -> Spelling:
    """Those of two pieces of the same files, the first before the second.

    A column of numbers in one and words in the other is refused, naming column, rows and files.
    """
    if not first or not second:
        return first or second
    both = {name: {**second.get(name, {}), **first.get(name, {})} for name in {**first, **second}}
    for name, places in both.items():
        _require_one(name, places)
    return both


def kinds_beside(frame: pd.DataFrame, marking: Marking, label: str) -> Kinds:
    """What clusters and times are in some rows, none of which is missing; text that is a time is a date."""
    found = {name: kind_of_labels(frame[name], name) for name in mark_columns(marking)}
    dated = {name for name in found if name not in marking.clusters and found[name] == "text"}
    place = f"at row {frame.index[0]} of {located(label)}"
    return {name: {"dates" if name in dated else kind: place} for name, kind in found.items()}


def both_kinds(first: Kinds, second: Kinds) -> Kinds:
    """Those of two pieces of the same data; labels that are of two kinds would be coded as different ones, and are refused."""
    both = {name: {**second.get(name, {}), **first.get(name, {})} for name in {**first, **second}}
    for name, places in both.items():
        if len(places) > 1:
            given = " and ".join(f"{kind} {place}" for kind, place in sorted(places.items()))
            raise InvalidInput(name, "numbers, dates or text throughout", given, "convert it to one of these")
    return both


def first_word(column: pd.Series[Any]) -> str | None:
    """The first value of a column of text that is no number, and its row."""
    return _firsts(column.dropna()).get(False) if _is_text(column) else None


def _is_text(column: pd.Series[Any]) -> bool:
    return not isinstance(column.dtype, np.dtype) or column.dtype.kind == "O"


def _firsts(column: pd.Series[Any]) -> dict[bool, str]:
    """The first number and the first word of a column without missing values, as far as there are any."""
    import pandas as pd

    codes, distinct = pd.factorize(column)
    numeric = pd.to_numeric(pd.Series(distinct, dtype=object), errors="coerce").notna().to_numpy()[codes]
    rows = {kind: np.flatnonzero(numeric == kind)[:1] for kind in (True, False)}
    return {
        kind: f"{brief(repr(column.iloc[row[0]]), 40)} at row {column.index[row[0]]}"
        for kind, row in rows.items()
        if row.size
    }


def _require_one(name: str, places: Mapping[bool, str]) -> None:
    if len(places) > 1:
        raise InvalidInput(
            name, "numbers in every row of a text file, or words in every row", f"{places[True]} and {places[False]}",
            f"correct that value, leave it empty where it is missing, or write C({name}) if all of them are levels",
        )  # fmt: skip
