"""Which rows of a table take part: those that count for something and of which nothing is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from equipoise.arrays import Array, Index, Mask
from equipoise.data.columns import numbers
from equipoise.data.frames import incomplete, require_complete
from equipoise.data.numeric import require_weights
from equipoise.errors import InvalidInput

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Taking", "every_row_missing", "taking_part", "weightless"]


@dataclass(frozen=True)
class Taking:
    """The rows that take part: the formula's columns, weights and others beside them, marks, and how many were dropped."""

    chosen: pd.DataFrame
    beside: pd.DataFrame
    marks: dict[str, pd.DataFrame]
    dropped: int

    @property
    def marked(self) -> dict[str, pd.DataFrame | pd.Series]:
        """Clusters and times, as far as given."""
        return {name: frame if name == "clusters" else frame.iloc[:, 0] for name, frame in self.marks.items()}

    @property
    def numbers(self) -> dict[str, Array]:
        """Weights, frequency and offset, as far as given, checked."""
        if not len(self.beside):
            return {str(name): np.empty(0) for name in self.beside.columns}
        given = {str(name): numbers(str(name), self.beside[name]) for name in self.beside.columns}
        require_weights(given.get("weights"), given.get("frequency"), self.beside.index.to_numpy())
        return given

    @property
    def times(self) -> Index | None:
        """How many observations each row stands for; None for one each."""
        given = self.numbers
        return given["frequency"].astype(np.int64) if "frequency" in given else None

    def at(self, kept: Mask) -> Taking:
        """Those of the rows that have a value; raises if none has."""
        if not kept.any():
            raise every_row_missing()
        return self.left(kept, self.dropped + int((~kept).sum()))

    def left(self, kept: Mask, dropped: int) -> Taking:
        """Some of the rows, so many of the others having missing values."""
        if kept.all():
            return Taking(self.chosen, self.beside, self.marks, dropped)
        marks = {name: frame[kept] for name, frame in self.marks.items()}
        return Taking(self.chosen[kept], self.beside[kept], marks, dropped)


def taking_part(
    chosen: pd.DataFrame,
    beside: pd.DataFrame,
    marks: dict[str, pd.DataFrame],
    missing: str,
    called: Mapping[str, object],
) -> Taking:
    """The rows whose weight and frequency are not zero, once those with missing values were dropped or refused.

    `called` are the columns that stand beside, by what they are for; what is no name of one is passed over.
    """
    weighted = np.ones(len(chosen), dtype=bool)
    for name in ("weights", "frequency"):
        if name in beside:
            nothing = np.timedelta64(0) if beside[name].dtype.kind == "m" else 0
            weighted &= ~(beside[name] == nothing).fillna(False).to_numpy(dtype=bool)
    part = Taking(chosen, beside, marks, 0).left(weighted, 0)
    frames = (part.chosen, part.beside, *part.marks.values())
    if missing == "raise":
        names = {use: column for use, column in called.items() if isinstance(column, str)}
        for frame in frames:
            require_complete(
                frame, "drop or fill those rows, or fit with missing='drop'", names if frame is part.beside else {}
            )
        return part
    kept = ~np.any([incomplete(frame) for frame in frames], axis=0)
    return part.left(kept, int((~kept).sum()))


def every_row_missing() -> InvalidInput:
    """The error for a table of which nothing is left."""
    return InvalidInput(
        "data", "a table with rows left to fit", "missing values in every row", "fill them, or use other columns"
    )


def weightless(names: list[str]) -> InvalidInput:
    """The error for weights that leave out every row."""
    return InvalidInput(", ".join(names), "positive for some row", "zero for every row", "check the weights")
