"""A quick way to a design matrix made of columns, functions of them, levels and products of these, without formulaic."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import Array, Index
from equipoise.data.columns import Column, column_values, level_codes
from equipoise.data.design import Design
from equipoise.data.frames import require_finite
from equipoise.linalg import by_columns

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Inputs", "Recipe", "recipe_for"]

# What evaluates an expression, given the columns.
Evaluate = Callable[[str, Mapping[str, Any]], Any]
# Rows that are filled at a time.
_STRIPE = 2048


class Inputs(NamedTuple):
    """The columns that a recipe needs: values, places among their levels, and how many rows there are."""

    values: dict[str, NDArray[Any]]
    codes: dict[str, Index]
    height: int

    def take(self, index: Index | slice) -> Inputs:
        """The rows at `index`."""
        height = len(range(*index.indices(self.height))) if isinstance(index, slice) else len(index)
        values, codes = ({name: held[index] for name, held in part.items()} for part in (self.values, self.codes))
        return Inputs(values, codes, height)


@dataclass(frozen=True)
class Recipe:
    """How each column of a design matrix is made.

    `ones` are those that are 1; `numbers` those that are a column of the table, or an expression in some; `levels` has
    for each column with levels the column of the matrix that indicates each, or −1; `products` are of columns, and of
    levels given by column and place.
    """

    width: int
    ones: tuple[int, ...]
    numbers: tuple[tuple[int, str], ...]
    levels: Mapping[str, tuple[int, ...]]
    products: tuple[tuple[int, tuple[str | tuple[str, int], ...]], ...]

    def inputs(self, chosen: pd.DataFrame, known: Mapping[str, Column], evaluate: Evaluate) -> Inputs:
        """What it needs of columns without missing values; an expression that is infinite or undefined somewhere is refused."""
        every = [*(name for _, name in self.numbers), *(part for _, parts in self.products for part in parts)]
        plain = {part for part in every if isinstance(part, str)}
        coded = {*self.levels, *(part[0] for part in every if not isinstance(part, str))}
        values: dict[str, Any] = {
            name: column_values(name, chosen[name], known[name]).to_numpy() for name in sorted(plain & known.keys())
        }
        if plain - known.keys():
            every_column = {name: column_values(name, chosen[name], column) for name, column in known.items()}
            labels = sorted(plain - known.keys())
            found = {made: evaluate(made, every_column) for made in dict.fromkeys(map(_expression, labels))}
            for label in labels:
                values[label] = _numbers(label, _column(found[_expression(label)], label), chosen)
        return Inputs(
            values, {name: level_codes(name, chosen[name], known[name]) for name in sorted(coded)}, len(chosen)
        )

    @property
    def plain(self) -> bool:
        """Whether every number is one of the table."""
        return not self.products and all(name.isidentifier() for _, name in self.numbers)

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

    def _fill(self, x: Array, inputs: Inputs, places: Mapping[str, Index]) -> None:
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


def _expression(label: str) -> str:
    """What makes a column of the matrix: itself, or the call of which it is one of several, as in `poly(x, 2)[1]`."""
    # a level may hold the colon at which labels are split, as a time of day does
    return label[: label.rindex("[")] if label.endswith("]") and "[" in label else label


def _column(found: Any, label: str) -> Any:
    """Of what an expression makes, the column of this label."""
    if not label.endswith("]"):
        return found
    held, key = getattr(found, "__wrapped__", found), label[label.rindex("[") + 1 : -1]
    if not isinstance(held, dict):
        about = getattr(found, "__formulaic_metadata__", None)
        held = dict(zip(about.column_names if about else range(held.shape[1]), np.asarray(held).T, strict=True))
    return {str(name): column for name, column in held.items()}[key]


def _numbers(label: str, found: Any, chosen: pd.DataFrame) -> Array:
    """The values of a column that an expression makes, each finite."""
    import pandas as pd

    values = np.asarray(found, dtype=np.float64)
    require_finite(pd.DataFrame({label: values}, index=chosen.index, copy=False))
    return values


def recipe_for(design: Design, expressions: Collection[str]) -> Recipe | None:
    """The recipe that the names of a design's columns suggest, which is to be tried; None where they suggest none.

    Expressions are those that depend on their own row alone; which of them are numbers is tried, too.
    """
    words = {word for label in design.names for word in (label, *label.split(":"))}
    parts_of: dict[str, str | tuple[str, int]] = {
        word: word for word in sorted(words) if word in expressions or _expression(word) in expressions
    }
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
