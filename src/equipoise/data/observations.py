"""Observations of any kind, for losses that look at a row themselves: arrays with one leading axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import Array, Index
from equipoise.cards import Card
from equipoise.data.marks import Marks, marked
from equipoise.data.source import chosen_rows, digest_of, drawn_rows, drawn_shares, ordered_reduce
from equipoise.linalg import Sums

if TYPE_CHECKING:
    from equipoise.data.design import Design

__all__ = ["Columns"]

# Numbers that a pass makes of one block of columns: the largest intermediate.
_COLUMN_ELEMENTS = 1 << 22


@dataclass(frozen=True, eq=False, repr=False)
class Columns(Card):
    """N observations of any kind: arrays with one leading axis, for losses that look at a row themselves.

    Attributes
    ----------
    leaves
        The arrays.
    names
        One name per array.
    marks
        The clusters each row belongs to and its time, or None.
    """

    leaves: tuple[NDArray[np.generic], ...]
    names: tuple[str, ...]
    response: str = "y"
    design: Design | None = None
    marks: Marks | None = None

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.leaves[0].shape[0])

    @property
    def height(self) -> int:
        """Number of rows."""
        return self.n

    def take(self, index: Index | slice) -> Columns:
        """The rows at `index`; for a slice, views of them."""
        marks = None if self.marks is None else self.marks.take(index)
        return replace(self, leaves=tuple(leaf[index] for leaf in self.leaves), marks=marks)

    @property
    def in_memory(self) -> bool:
        """They are."""
        return True

    def whole(self) -> Columns:
        """They are in memory."""
        return self

    def blocks(self, width: int | None = None) -> Iterator[Columns]:
        """Views of the rows, at most `width` numbers to be made of each."""
        size = max(1, min(self.n, _COLUMN_ELEMENTS // max(1, width or 1)))
        for start in range(0, self.n, size):
            yield self.take(slice(start, min(self.n, start + size)))

    def reduce(self, f: Callable[[Columns], Sums], width: int | None = None) -> Sums:
        """Σ f(block) in a fixed order, one block after the other: what looks at such rows has threads of its own."""
        return ordered_reduce(list(self.blocks(width)), f, threads=1)

    @staticmethod
    def joined(parts: Sequence[Columns]) -> Columns:
        """Blocks of one source, one after the other."""
        leaves = zip(*(part.leaves for part in parts), strict=True)
        marks = [part.marks for part in parts if part.marks is not None]
        return replace(
            parts[0],
            leaves=tuple(np.concatenate(leaf) for leaf in leaves),
            marks=Marks.joined(marks) if marks else None,
        )

    def sample(self, count: int, seed: int | None) -> Columns:
        """`count` rows drawn without replacement, in their original order."""
        return self.take(chosen_rows(self.n, count, seed or 0))

    def pool(self, count: int, seed: int, weight: Callable[[Columns], Array] | None = None) -> Columns:
        """`count` rows drawn with replacement, in the order in which they are drawn."""
        if weight is None:
            return self.take(drawn_rows(self.n, count, seed))
        total = np.cumsum(np.concatenate([weight(part) for part in self.blocks()]))
        drawn = np.searchsorted(total, drawn_shares(count, seed) * total[-1], side="right")
        return self.take(np.minimum(drawn, self.n - 1))

    def marked(self, clusters: object = None, time: object = None) -> Columns:
        """The rows with clusters and times beside them."""
        return replace(self, marks=marked(self.n, self.marks, clusters, time))

    def by_time(self) -> Columns:
        """The rows in the order of their times; rows of the same time as they are."""
        if self.marks is None or self.marks.time is None:
            return self
        return self.take(np.argsort(self.marks.time, kind="stable"))

    def fingerprint(self) -> str:
        """A digest of every number."""
        return digest_of(self.leaves)
