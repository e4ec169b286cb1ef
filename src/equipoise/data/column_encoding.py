"""From tables as they are read to columns for a loss of one's own, of types that were frozen before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from equipoise.data.asked import Asked
from equipoise.data.columns import simplified
from equipoise.data.encoding import as_in_memory, lighter, marks_of
from equipoise.data.fields import Columns
from equipoise.data.learning import Lessons
from equipoise.data.marks import mark_columns
from equipoise.data.numeric import require_moderate
from equipoise.data.wording import placed_in
from equipoise.errors import InvalidInput

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ColumnEncoder", "column_encoder"]


@dataclass(frozen=True)
class ColumnEncoder:
    """Makes observations of a table: for each name of `shape` a column, or several as a matrix, of its type.

    `asked` says what is read and which rows take part, `whole` whether all do; clusters and clock are columns that blocks
    carry beside.
    """

    asked: Asked
    shape: Mapping[str, str | tuple[str, ...]]
    types: Mapping[str, np.dtype[Any]]
    whole: bool
    clusters: tuple[str, ...] = ()
    clock: str | None = None

    @property
    def columns(self) -> list[str]:
        """The columns to read."""
        return list(dict.fromkeys([*self.asked.needed, *mark_columns(self)]))

    @property
    def names(self) -> tuple[str, ...]:
        """One name per array, sorted as JAX sorts the keys of a dictionary; weights are the last."""
        return (*sorted(self.shape), *(["weights"] if "weights" in self.asked.beside else []))

    @property
    def design(self) -> None:
        """Columns are taken as they are."""
        return

    @property
    def label(self) -> str:
        """What looks at such rows knows its response itself."""
        return "y"

    @property
    def width(self) -> int:
        """Numbers of each row."""
        return len(self.columns) + 1

    def __call__(self, frame: pd.DataFrame, place: str) -> Columns:
        """The rows of a table that take part; `place` is where it is from."""
        with placed_in(place):
            part = None if self.whole and not self.asked.beside else self.asked.taking(frame)
            chosen = frame if part is None else part.chosen
            given = {} if part is None else part.numbers
            leaves = [self._leaf(name, chosen) for name in sorted(self.shape)]
            leaves += [given["weights"]] if "weights" in given else []
            marks = marks_of(self, frame, chosen.index)
            return Columns(tuple(leaves), self.names, marks=marks, frequency=given.get("frequency"))

    def _leaf(self, name: str, chosen: pd.DataFrame) -> NDArray[np.generic]:
        columns, kind = self.shape[name], self.types[name]
        if isinstance(columns, str):
            made = _numeric(columns, chosen[columns]).astype(kind, copy=False)
        else:
            made = np.empty((len(chosen), len(columns)), dtype=kind)
            for j, column in enumerate(columns):
                made[:, j] = _numeric(column, chosen[column])
        if kind.kind == "f" and made.size:
            require_moderate(f"columns {name}", made, chosen.index.to_numpy())
        return made


def _numeric(name: str, column: pd.Series[Any]) -> NDArray[Any]:
    if not len(column):
        return np.empty(0)
    simple = simplified(name, column)
    if simple.dtype.kind not in "biuf":
        raise InvalidInput(name, "a column of numbers", f"a column of {simple.dtype}", "encode it, or use a formula")
    return simple.to_numpy(np.float64 if simple.dtype.kind == "u" else None)


def column_encoder(asked: Asked, lessons: Lessons, shape: Mapping[str, str | tuple[str, ...]]) -> ColumnEncoder:
    """Freeze the types of columns, given what was found in all of the data."""
    witness = as_in_memory(lessons.witness, lessons)
    types = {}
    for name, columns in shape.items():
        every = [columns] if isinstance(columns, str) else columns
        types[name] = np.result_type(*(_numeric(column, witness[column]).dtype for column in every))
    return ColumnEncoder(lighter(asked, lessons), shape, types, sum(lessons.kept) == sum(lessons.rows))
