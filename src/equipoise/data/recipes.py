"""A quick way to a design matrix made of columns, their levels and products of these, without formulaic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import Array, Index
from equipoise.data.columns import Column, column_values, level_codes
from equipoise.data.design import Design
from equipoise.linalg import by_columns

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Inputs", "Recipe", "recipe_for"]

# Rows that are filled at a time.
_STRIPE = 2048


class Inputs(NamedTuple):
    """The columns that a recipe needs: values, places among their levels, and how many rows there are."""

    values: dict[str, NDArray[Any]]
    codes: dict[str, NDArray[Any]]
    height: int

    def take(self, index: Index | slice) -> Inputs:
        """The rows at `index`."""
        height = len(range(*index.indices(self.height))) if isinstance(index, slice) else len(index)
        values, codes = ({name: held[index] for name, held in part.items()} for part in (self.values, self.codes))
        return Inputs(values, codes, height)


@dataclass(frozen=True)
class Recipe:
    """How each column of a design matrix is made.

    Attributes
    ----------
    width
        Number of columns.
    ones
        Those that are 1.
    numbers
        Those that are a column of the table.
    levels
        For each column with levels, the column of the matrix that indicates each level, or −1.
    products
        Those that are a product: of columns, and of levels, given by column and place.
    """

    width: int
    ones: tuple[int, ...]
    numbers: tuple[tuple[int, str], ...]
    levels: Mapping[str, tuple[int, ...]]
    products: tuple[tuple[int, tuple[str | tuple[str, int], ...]], ...]

    def inputs(self, chosen: pd.DataFrame, known: Mapping[str, Column]) -> Inputs:
        """What it needs of columns without missing values."""
        every = [*(name for _, name in self.numbers), *(part for _, parts in self.products for part in parts)]
        plain = {part for part in every if isinstance(part, str)}
        coded = {*self.levels, *(part[0] for part in every if not isinstance(part, str))}
        return Inputs(
            {name: column_values(name, chosen[name], known[name]).to_numpy() for name in sorted(plain)},
            {name: level_codes(name, chosen[name], known[name]) for name in sorted(coded)},
            len(chosen),
        )

    def matrix(self, inputs: Inputs, out: Array | None = None) -> Array:
        """The design matrix, in the memory given if any."""
        x = np.empty((inputs.height, self.width)) if out is None else out
        places = {name: np.array(columns, dtype=np.int64) for name, columns in self.levels.items()}
        # columns are scattered into rows while these stay in cache
        stripe = inputs.height if by_columns(x) else _STRIPE
        for start in range(0, inputs.height, max(1, stripe)):
            here = slice(start, start + stripe)
            self._fill(x[here], inputs.take(here), places)
        return x

    def _fill(self, x: Array, inputs: Inputs, places: Mapping[str, Any]) -> None:
        """Some rows of the matrix."""
        values, codes, _ = inputs
        if self.levels:
            x[:] = 0.0
        for j in self.ones:
            x[:, j] = 1.0
        for j, name in self.numbers:
            x[:, j] = values[name]
        for name, columns in places.items():
            column = columns[codes[name]]
            row = np.flatnonzero(column >= 0)
            x[row, column[row]] = 1.0
        for j, parts in self.products:
            first = parts[0]
            x[:, j] = values[first] if isinstance(first, str) else codes[first[0]] == first[1]
            for part in parts[1:]:
                x[:, j] *= values[part] if isinstance(part, str) else codes[part[0]] == part[1]


def recipe_for(design: Design) -> Recipe | None:
    """The recipe that the names of a design's columns suggest, which is to be tried; None where they suggest none."""
    parts_of: dict[str, str | tuple[str, int]] = {}
    for name, column in design.columns.items():
        if column.kind in {"number", "date"} and column.levels is None:
            parts_of[name] = name
        for place, level in enumerate(column.levels or ()):
            for factor in (name, f"C({name})"):
                parts_of[f"{factor}[T.{level}]"] = parts_of[f"{factor}[{level}]"] = (name, place)
    ones, numbers, products = [], [], []
    levels = {name: [-1] * len(column.levels) for name, column in design.columns.items() if column.levels}
    for j, label in enumerate(design.names):
        parts = (parts_of[label],) if label in parts_of else tuple(parts_of.get(word, "") for word in label.split(":"))
        if label == "Intercept":
            ones.append(j)
        elif "" in parts:
            return None
        elif len(parts) > 1 or (not isinstance(parts[0], str) and levels[parts[0][0]][parts[0][1]] >= 0):
            products.append((j, parts))
        elif isinstance(parts[0], str):
            numbers.append((j, parts[0]))
        else:
            levels[parts[0][0]][parts[0][1]] = j
    used = {name: tuple(columns) for name, columns in levels.items() if max(columns) >= 0}
    return Recipe(len(design.names), tuple(ones), tuple(numbers), used, tuple(products))
