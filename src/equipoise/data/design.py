"""How a table became a design matrix, kept so that new tables are encoded the same way."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.arrays import Array
from equipoise.cards import Card
from equipoise.checks import shown
from equipoise.data.columns import Column, Level, column_values, numbers
from equipoise.data.evaluation import as_numbers, evaluated, specified
from equipoise.data.formula import Reading, parsed
from equipoise.data.frames import as_frame, picked, require_complete, require_finite
from equipoise.data.grammar import UserFunction
from equipoise.data.stored import (
    Learnt,
    column_record,
    damaged,
    frozen,
    level_record,
    loaded,
    read_columns,
    read_levels,
    read_names,
    read_transforms,
)
from equipoise.data.wording import brief, listed
from equipoise.errors import InvalidInput

if TYPE_CHECKING:
    import pandas as pd
    from formulaic import Formula, ModelSpec

__all__ = ["Design", "learnt_encoding", "vector", "without_offset"]

_FORMAT = 1
_KEYS = (
    "format", "formula", "columns", "names", "transforms", "categories", "offset", "array_offset", "dropped",
    "response_levels",
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class Design(Card):
    """How a table became a design matrix.

    It holds no rows and nothing of formulaic's: it pickles, copies, and is saved as JSON.

    Attributes
    ----------
    formula
        The formula as given.
    columns
        What each column on the right-hand side was.
    names
        The names of the design matrix's columns.
    transforms
        The numbers that calls such as `center(x)` or `bs(x, df=4)` learnt from the table.
    categories
        The levels of each coded factor, by its expression.
    offset
        The name of the offset column, or None.
    array_offset
        Whether the offset was given as an array, so that new tables need one too.
    dropped
        How many rows with missing values were left out.
    response_levels
        The names of the response's two levels, coded as 0 and 1, or None for a numeric response.
    context
        Functions of the user's that the formula calls. A design with any cannot be saved.
    """

    formula: str
    columns: dict[str, Column]
    names: tuple[str, ...]
    transforms: dict[str, dict[str, Learnt]] = field(default_factory=dict)
    categories: dict[str, tuple[Level, ...]] = field(default_factory=dict)
    offset: str | None = None
    array_offset: bool = False
    dropped: int = 0
    response_levels: tuple[Level, Level] | None = None
    context: Mapping[str, UserFunction] = field(default_factory=dict)

    @property
    def needed(self) -> list[str]:
        """The columns of a new table that are looked at, each once."""
        return list(dict.fromkeys([*self.columns, *([] if self.offset is None else [self.offset])]))

    def encode(self, frame: pd.DataFrame, offset: object = None) -> tuple[pd.DataFrame, pd.Series | None]:
        """Design matrix and offset (or None) of a new table.

        Parameters
        ----------
        frame
            A table with the columns of the right-hand side, and the offset column if there was one.
        offset
            (M,) offset, where the model was fitted with an array of them.

        Raises
        ------
        InvalidInput
            If a column is absent or of another kind than when fitting, a value missing, or a level unseen.
        """
        import pandas as pd

        sides, reading = parsed(self.formula, self.context)
        if set(reading.predictors) != set(self.columns):
            raise damaged("columns", "those of its formula", sorted(self.columns))
        given = as_frame(frame)
        chosen = picked(given, self.needed)
        require_complete(chosen)
        matrix = self.matrix(sides, chosen)
        require_finite(matrix)
        matrix, known = without_offset(matrix, reading.offsets)
        if tuple(matrix.columns) != self.names:
            raise damaged("formula", "one that makes the columns it was fitted with", list(matrix.columns))
        shift = self._shift(chosen, offset)
        if known is not None:
            shift = known if shift is None else shift + known
        series = None if shift is None else pd.Series(shift, index=given.index, name=self.offset or "offset")
        return matrix.set_axis(given.index, axis=0), series

    def matrix(self, sides: Formula, chosen: pd.DataFrame) -> pd.DataFrame:
        """The design matrix of columns without missing values, given the two sides of the formula."""
        import pandas as pd

        values = {name: column_values(name, chosen[name], known) for name, known in self.columns.items()}
        spec = specified(sides.rhs, self.transforms, self.categories)
        made = evaluated(spec, pd.DataFrame(values, index=chosen.index), self.formula, self.context)
        return as_numbers(made, self.formula)

    def _shift(self, chosen: pd.DataFrame, offset: object) -> Array | None:
        if self.offset is not None:
            if offset is not None:
                raise InvalidInput(
                    "offset", "left out for a table with an offset column", "an offset", f"put it in {self.offset!r}"
                )
            return numbers(self.offset, chosen[self.offset])
        if self.array_offset and offset is None:
            raise InvalidInput(
                "offset", "given, as it was when fitting", "None", "pass one number per row, or zeros for no offset"
            )
        if offset is None:
            return None
        return numbers("offset", vector("offset", offset, len(chosen)))

    def to_json(self) -> str:
        """The design as text, from which `from_json` makes one that encodes alike to the last bit.

        Raises
        ------
        InvalidInput
            If the formula calls functions of the user's, or a level is neither text, number, date nor interval.
        """
        if self.context:
            raise InvalidInput(
                "context", "empty for a design to be saved", f"the functions {listed(sorted(self.context))}",
                "compute those columns before, and fit to them without context=",
            )  # fmt: skip
        levels = self.response_levels
        record = {
            "format": _FORMAT,
            "formula": self.formula,
            "columns": {name: column_record(column) for name, column in self.columns.items()},
            "names": list(self.names),
            "transforms": self.transforms,
            "categories": {factor: [level_record(v) for v in known] for factor, known in self.categories.items()},
            "offset": self.offset,
            "array_offset": self.array_offset,
            "dropped": self.dropped,
            "response_levels": None if levels is None else [level_record(level) for level in levels],
        }
        return json.dumps(record, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Design:
        """A design from the text that `to_json` made; any other is refused, as is what formulas may not have."""
        record = loaded(text, _KEYS)
        if record["format"] != _FORMAT or isinstance(record["format"], bool):
            raise damaged("format", f"{_FORMAT}, the one this version reads", record["format"])
        sides, reading = parsed(record["formula"], {})
        factors = {factor.expr for term in sides.rhs for factor in term.factors}
        categories = record["categories"]
        if not isinstance(categories, dict) or not set(categories) <= factors:
            raise damaged("categories", "of the factors in its formula", categories)
        return cls(
            formula=reading.text,
            columns=read_columns(record["columns"], reading.predictors),
            names=read_names(record["names"]),
            transforms=read_transforms(record["transforms"], reading.learns),
            categories={
                factor: read_levels(known, f"factor {brief(factor, 40)}") for factor, known in categories.items()
            },
            **_read_details(record),
        )


def _read_details(record: Mapping[str, object]) -> dict[str, Any]:
    """The fields of a stored design that stand for themselves."""
    offset, array_offset, dropped = record["offset"], record["array_offset"], record["dropped"]
    if (
        not (offset is None or isinstance(offset, str))
        or not isinstance(array_offset, bool)
        or (offset and array_offset)
    ):
        raise damaged("offset", "a column name, an array or nothing", [offset, array_offset])
    if not isinstance(dropped, int) or isinstance(dropped, bool) or not 0 <= dropped < 2**63:
        raise damaged("dropped", "a number of rows", dropped)
    levels = record["response_levels"]
    names = None if levels is None else read_levels(levels, "response_levels")
    if names is not None and len(names) != 2:
        raise damaged("response_levels", "two levels or nothing", levels)
    return {"offset": offset, "array_offset": array_offset, "dropped": dropped, "response_levels": names}


def without_offset(matrix: pd.DataFrame, offsets: Collection[str]) -> tuple[pd.DataFrame, Array | None]:
    """A design matrix without the terms `offset(...)`, and their sum; None where there are none."""
    if not offsets:
        return matrix, None
    return matrix.drop(columns=list(offsets)), matrix[list(offsets)].to_numpy(dtype=np.float64).sum(axis=1)


def learnt_encoding(reading: Reading, spec: ModelSpec) -> dict[str, Any]:
    """What formulaic learnt from a table, as fields of a `Design`; of two terms of one name it keeps one, which is refused."""
    every, state = [str(name) for name in spec.column_names], spec.transform_state
    for offset in reading.offsets:
        if offset not in every:
            raise InvalidInput(
                "formula", "one whose offsets are each a column of numbers",
                f"{brief(offset)} in {shown(reading.text)}, which is made of text, levels or several columns",
                "offset a column of numbers, or write it as a term",
            )  # fmt: skip
    names = tuple(name for name in every if name not in reading.offsets)
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise InvalidInput(
            "formula", "one whose terms have different names", f"[{listed(doubled)}] twice", "rename that column"
        )
    return {
        "names": names,
        "transforms": {call: frozen(function, state[call]) for call, function in reading.learns.items()},
        "categories": {
            str(factor): tuple(v.item() if isinstance(v, np.generic) else v for v in kept["categories"])
            for factor, (_, kept) in spec.encoder_state.items()
            if "categories" in kept
        },
    }


def vector(name: str, values: object, rows: int) -> pd.Series:
    """One value per row, from a list, array or Series of that length; the index of a Series is ignored."""
    import pandas as pd

    try:
        series = pd.Series(values).reset_index(drop=True)
    except (TypeError, ValueError) as error:
        raise InvalidInput(name, "a column name or one number per row", shown(values), "pass a vector") from error
    if len(series) != rows or not hasattr(values, "__len__"):
        raise InvalidInput(
            name, f"a column name or one number per row of the table, {rows}", f"{len(series)} values",
            "match it to the table",
        )  # fmt: skip
    return series.rename(name)
