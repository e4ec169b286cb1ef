"""What rows in memory have in common, whatever a row is: how often each counts, its marks, and draws of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np

from equipoise.arrays import Array, Index
from equipoise.cards import Card
from equipoise.data.marks import Marks, marked
from equipoise.data.source import chosen_rows, drawn_rows, drawn_shares

__all__ = ["Held"]


class Held(Card, ABC):
    """Rows in memory: a dataclass with frequencies and marks beside its arrays."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    frequency: Array | None
    marks: Marks | None

    @property
    @abstractmethod
    def height(self) -> int:
        """Number of rows that are stored."""

    @abstractmethod
    def take(self, index: Index | slice) -> Self:
        """The rows at `index`; for a slice, views of them."""

    @abstractmethod
    def blocks(self, width: int | None = None) -> Iterator[Self]:
        """The rows in order, in blocks."""

    @property
    def n(self) -> int:
        """Number of observations N: of rows, each as often as its frequency says."""
        return self.height if self.frequency is None else round(float(self.frequency.sum()))

    @property
    def counts(self) -> Array:
        """The frequency of every row, ones where there is none."""
        return np.ones(self.height) if self.frequency is None else self.frequency

    @property
    def in_memory(self) -> bool:
        """They are."""
        return True

    def whole(self) -> Self:
        """They are in memory."""
        return self

    def observed(self, numbers: Index | slice) -> Self:
        """The observations of these numbers, a row for each."""
        if self.frequency is None:
            return self.take(numbers)
        index = np.arange(self.n)[numbers] if isinstance(numbers, slice) else numbers
        return replace(self, frequency=None).take(np.searchsorted(np.cumsum(self.frequency), index, side="right"))

    def sample(self, count: int, seed: int | None) -> Self:
        """`count` observations drawn without replacement, in their original order, a row for each."""
        return self.observed(chosen_rows(self.n, count, seed or 0))

    def pool(self, count: int, seed: int, weight: Callable[[Self], Array] | None = None) -> Self:
        """`count` observations drawn with replacement, in the order in which they are drawn, a row for each."""
        if weight is None:
            return self.observed(drawn_rows(self.n, count, seed))
        total = np.cumsum(np.concatenate([weight(part) * part.counts for part in self.blocks()]))
        drawn = np.searchsorted(total, drawn_shares(count, seed) * total[-1], side="right")
        return replace(self, frequency=None).take(np.minimum(drawn, self.height - 1))

    def marked(self, clusters: object = None, time: object = None) -> Self:
        """The rows with clusters and times beside them, by name where they are kept or as arrays."""
        return replace(self, marks=marked(self.height, self.marks, clusters, time))

    def by_time(self) -> Self:
        """The rows in the order of their times; rows of the same time as they are."""
        if self.marks is None or self.marks.time is None or bool(np.all(np.diff(self.marks.time) >= 0.0)):
            return self
        return self.take(np.argsort(self.marks.time, kind="stable"))
