"""What is kept of rows that are read: a random sample, those at the ends of columns, and those of rare levels.

Of a heavy tail no sample has the few rows that matter most, and of a rare level few or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from equipoise.arrays import Array, Index, Mask
from equipoise.data.columns import Level, simplified
from equipoise.data.frames import compact, stacked

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FEWEST", "Cells", "Far", "Lot"]

FEWEST = 50  # rows of a level in a sample, below which it tells too little of it

_STRIDE = 16  # one of so many numbers is looked at first, to see which may be among the largest
_NONE = (-np.inf, np.inf)  # limits beyond which there is nothing
_CELLS = 1 << 20  # combinations of levels that are counted
_HELD = 4  # times the rows that are kept may be held before the others are let go


@dataclass(frozen=True)
class Lot:
    """A random sample of rows, in order: those with the smallest of random numbers that every row was given.

    Attributes
    ----------
    priorities, frames
        The random numbers and the rows, in pieces that are put together when they are asked for.
    """

    priorities: tuple[Array, ...]
    frames: tuple[pd.DataFrame, ...]

    @property
    def priority(self) -> Array:
        """The random number of every row."""
        return np.concatenate(self.priorities)

    @property
    def frame(self) -> pd.DataFrame:
        """The rows."""
        return stacked(self.frames)

    @property
    def size(self) -> int:
        """How many rows there are."""
        return sum(piece.size for piece in self.priorities)

    def fewer(self, most: int) -> Lot:
        """At most so many of them, in one piece."""
        priority, frame = self.priority, self.frame
        if priority.size > most:
            kept = priority <= np.partition(priority, most - 1)[most - 1]
            priority, frame = priority[kept], frame[kept]
        return Lot((priority,), (frame,))

    def rare(
        self, levels: Mapping[str, Iterable[Level]], together: Iterable[tuple[str, ...]], most: float
    ) -> tuple[Cells, ...]:
        """Columns that go together, where it has few rows of some of their levels; none with more than `most` such rows."""
        found = []
        for names in together:
            known = tuple(tuple(levels[name]) for name in names)
            if np.prod([float(len(each)) for each in known]) > _CELLS:
                continue
            every = Cells(names, known, np.ones([len(each) for each in known], dtype=bool))
            codes = every.codes(self.frame)
            if min(int(code.min(initial=0)) for code in codes) < 0:
                continue  # levels that are written otherwise
            cell = np.ravel_multi_index(codes, every.common.shape)
            counts = np.bincount(cell, minlength=every.common.size).reshape(every.common.shape)
            few = counts < FEWEST
            if few.any() and counts[few].sum() <= most:
                found.append(replace(every, common=~few))
        return tuple(found)

    def merged(self, other: Lot, most: int) -> Lot:
        """A sample of both; up to twice as many as wanted are held, so that few are copied often."""
        both = Lot(self.priorities + other.priorities, self.frames + other.frames)
        return both if both.size <= 2 * most else both.fewer(most)


@dataclass(frozen=True)
class Cells:
    """Combinations of the levels of some columns, and which of them are common."""

    names: tuple[str, ...]
    levels: tuple[tuple[Level, ...], ...]
    common: Mask = field(compare=False)

    def codes(self, frame: pd.DataFrame) -> tuple[Index, ...]:
        """Places of the rows' levels; −1 for any other."""
        import pandas as pd

        def places(known: tuple[Level, ...], values: pd.Series) -> Index:
            index = pd.Index(list(known))
            # whole numbers beside others are floats there, which may round them
            return (index if index.is_unique else pd.Index(list(known), dtype=object)).get_indexer(pd.Index(values))

        named = zip(self.names, self.levels, strict=True)
        return tuple(places(known, simplified(name, frame[name])) for name, known in named)

    def rare(self, frame: pd.DataFrame) -> Index:
        """Places of rows that are of no common one."""
        codes = self.codes(frame)
        known = np.logical_and.reduce([code >= 0 for code in codes])
        return np.flatnonzero(~(known & self.common[codes]))


@dataclass(frozen=True)
class Far:
    """The rows with the largest and the smallest numbers of every column, and those of rare levels.

    Attributes
    ----------
    names
        The columns.
    most
        Rows at each of their ends, at most: fewer where many are equal there.
    limits
        Numbers of every column; all rows beyond them are here.
    frames
        The rows, in pieces; others may be among them.
    rare
        Levels by column, and together, of which all rows are here that are not common; None where none were looked for.
    coded
        Columns of clusters, of which the rows have labels in place of words.
    """

    names: tuple[str, ...]
    most: int
    limits: tuple[tuple[float, float], ...] = ()
    frames: tuple[pd.DataFrame, ...] = field(default=(), repr=False)
    rare: tuple[Cells, ...] | None = None
    coded: tuple[str, ...] = ()

    @property
    def searched(self) -> bool:
        """Whether rows of rare levels were looked for."""
        return self.rare is not None

    @property
    def beyond(self) -> Far:
        """The same limits, and no rows yet: what is beyond them in other tables can be joined to these."""
        return replace(self, frames=())

    def of(self, frame: pd.DataFrame, places: Index | None = None) -> Far:
        """Those of a table, at some of its places or all: beyond the limits, or at its own ends where there are none."""
        if not self.most and not self.rare:
            return self
        columns = [_numbers(frame, name, places) for name in self.names] if self.most else []
        limits = self.limits or tuple(_NONE if v is None else _ends(v, self.most) for v in columns)
        index = np.union1d(_outside(limits, columns), self._of_rare_levels(frame, places))
        chosen = compact(frame.iloc[index if places is None else places[index]], self.coded)
        return replace(self, limits=limits, frames=(chosen,))

    def _of_rare_levels(self, frame: pd.DataFrame, places: Index | None) -> Index:
        """Places of rows with a rare level."""
        rows = frame if places is None else frame.iloc[places]
        found = [cells.rare(rows) for cells in self.rare or () if len(rows)]
        return np.concatenate([np.zeros(0, np.intp), *found])

    def merged(self, other: Far) -> Far:
        """Those of both."""
        if not self.frames or not other.frames:
            return self if self.frames else other
        limits = tuple(map(_further, self.limits, other.limits))
        both = replace(self, limits=limits, frames=self.frames + other.frames)
        return both.fewer() if sum(map(len, both.frames)) > _HELD * 2 * self.most * len(self.names) else both

    def fewer(self) -> Far:
        """No more than are asked for, in one piece."""
        if not self.frames:
            return self
        frame = stacked(self.frames)
        ends = replace(self, limits=()).of(frame).limits
        return replace(self, limits=tuple(map(_further, self.limits, ends))).of(frame)

    def apart(self, sample: pd.DataFrame) -> tuple[pd.DataFrame, Mask]:
        """The rows at an end of a column, and which rows of a sample are none of these."""
        kept, inside = self.fewer(), np.ones(len(sample), dtype=bool)
        inside[_outside(kept.limits, [_numbers(sample, name, None) for name in self.names])] = False
        inside[self._of_rare_levels(sample, None)] = False
        return kept.frames[0] if kept.frames else sample.iloc[:0], inside


def _outside(limits: tuple[tuple[float, float], ...], columns: list[Array | None]) -> Index:
    """Places beyond the limits of a column."""
    found = [
        np.flatnonzero((v < low) | (v > high)) for (low, high), v in zip(limits, columns, strict=False) if v is not None
    ]
    return np.unique(np.concatenate([np.zeros(0, np.intp), *found]))


def _further(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """Limits beyond both."""
    return min(one[0], other[0]), max(one[1], other[1])


def _numbers(frame: pd.DataFrame, name: str, places: Index | None) -> Array | None:
    """A column of numbers; None where it is of something else."""
    dtype = frame[name].dtype
    if not isinstance(dtype, np.dtype) and getattr(dtype, "_is_numeric", False) and dtype.kind != "b":
        return simplified(name, frame[name] if places is None else frame[name].iloc[places]).to_numpy()
    if not isinstance(dtype, np.dtype) or dtype.kind not in "iuf":
        return None
    return frame[name].to_numpy() if places is None else frame[name].to_numpy()[places]


def _ends(v: Array, most: int) -> tuple[float, float]:
    """Numbers beyond which there are at most so many, on either side; all are, of few."""
    if v.size <= 2 * most:
        return np.inf, -np.inf
    if v.size <= 4 * _STRIDE * most:
        ordered = np.partition(v, (most, v.size - 1 - most))
        return float(ordered[most]), float(ordered[v.size - 1 - most])
    # a part of them has no larger ones
    roughly = _ends(v[::_STRIDE], most)
    return _further(roughly, _ends(v[(v < roughly[0]) | (v > roughly[1])], most))
