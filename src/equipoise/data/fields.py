"""Observations of any kind, for losses that look at a row themselves: arrays with one leading axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import Array, Index
from equipoise.data.held import Held
from equipoise.data.marks import Marks
from equipoise.data.source import digest_of, ordered_reduce
from equipoise.linalg import Sums

if TYPE_CHECKING:
    from equipoise.data.design import Design

__all__ = ["Columns"]

# Numbers that a pass makes of one block of columns: the largest intermediate.
_COLUMN_ELEMENTS = 1 << 22


@dataclass(frozen=True, eq=False, repr=False)
class Columns(Held):
    """N observations of any kind: arrays with one leading axis, for losses that look at a row themselves.

    Attributes
    ----------
    leaves
        The arrays.
    names
        One name per array.
    marks
        The clusters each row belongs to and its time, or None.
    frequency
        How many observations each row stands for, (rows,) or None for one each.
    """

    leaves: tuple[NDArray[np.generic], ...]
    names: tuple[str, ...]
    response: str = "y"
    design: Design | None = None
    marks: Marks | None = None
    frequency: Array | None = None

    @property
    def height(self) -> int:
        """Number of rows that are stored."""
        return int(self.leaves[0].shape[0])

    def take(self, index: Index | slice) -> Columns:
        """The rows at `index`; for a slice, views of them."""
        marks = None if self.marks is None else self.marks.take(index)
        frequency = None if self.frequency is None else self.frequency[index]
        return replace(self, leaves=tuple(leaf[index] for leaf in self.leaves), marks=marks, frequency=frequency)

    def blocks(self, width: int | None = None) -> Iterator[Columns]:
        """Views of the rows, at most `width` numbers to be made of each."""
        size = max(1, min(self.height, _COLUMN_ELEMENTS // max(1, width or 1)))
        for start in range(0, self.height, size):
            yield self.take(slice(start, min(self.height, start + size)))

    def reduce(self, f: Callable[[Columns], Sums], width: int | None = None) -> Sums:
        """Σ f(block) in a fixed order, one block after the other: what looks at such rows has threads of its own."""
        return ordered_reduce(list(self.blocks(width)), f, threads=1)

    @staticmethod
    def joined(parts: Sequence[Columns]) -> Columns:
        """Blocks of one source, one after the other."""
        leaves = zip(*(part.leaves for part in parts), strict=True)
        marks = [part.marks for part in parts if part.marks is not None]
        counted = any(part.frequency is not None for part in parts)
        return replace(
            parts[0],
            leaves=tuple(np.concatenate(leaf) for leaf in leaves),
            marks=Marks.joined(marks) if marks else None,
            frequency=np.concatenate([part.counts for part in parts]) if counted else None,
        )

    def fingerprint(self) -> str:
        """A digest of every number."""
        return digest_of([*self.leaves, *([] if self.frequency is None else [self.frequency])])
