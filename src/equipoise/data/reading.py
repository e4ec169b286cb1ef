"""Reading parts of a scan, wherever that is: encoding, summing, and picking rows out of them.

Everything here travels: a part, an encoder and a function are sent to whoever reads the part, and sums or rows come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

import numpy as np

from equipoise.arrays import Array, Index
from equipoise.data.encoding import LazyRows
from equipoise.data.marks import Marking
from equipoise.data.parts import Part, numbered
from equipoise.data.sameness import Seen, both_seen, differs, rows_seen
from equipoise.data.wording import brief
from equipoise.errors import InvalidInput
from equipoise.linalg import Sums, fixed_order, tree_sum

if TYPE_CHECKING:
    import pandas as pd

    from equipoise.data.asked import Asked
    from equipoise.data.design import Design

__all__ = [
    "Block",
    "Encoder",
    "Picking",
    "Placed",
    "Reader",
    "Summing",
    "Weighed",
    "Weighing",
    "Weight",
    "every_observation",
    "every_row",
    "require_same",
]


class Observations(Protocol):
    """A block of rows in memory: `Rows` or `Columns`."""

    @property
    def n(self) -> int:
        """Number of observations."""
        ...

    @property
    def height(self) -> int:
        """Number of rows."""
        ...

    @property
    def counts(self) -> Array:
        """How many observations each row stands for."""
        ...

    def take(self, index: Index | slice) -> Self:
        """The rows at `index`."""
        ...

    def blocks(self, width: int | None = None) -> Iterator[Self]:
        """The rows in blocks that a pass sums over."""
        ...


Block = TypeVar("Block", bound=Observations)
Made = TypeVar("Made", bound=Observations, covariant=True)


class Encoder(Marking, Protocol[Made]):
    """Makes blocks of rows of tables as they are read, with what goes beside them."""

    @property
    def asked(self) -> Asked:
        """What is read, and which rows take part."""
        ...

    @property
    def columns(self) -> list[str]:
        """The columns to read."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """The columns it makes."""
        ...

    @property
    def label(self) -> str:
        """What the response is called."""
        ...

    @property
    def design(self) -> Design | None:
        """How a table becomes columns."""
        ...

    @property
    def width(self) -> int:
        """Numbers of each row."""
        ...

    def __call__(self, frame: pd.DataFrame, place: str) -> Made:
        """The rows of a table that take part; `place` is where it is from."""
        ...


@dataclass(frozen=True)
class Placed:
    """A part, what was found in it, and where its rows and observations start among those of all parts.

    `seen` are sums over its values, where it would not notice itself that these have changed.
    """

    part: Part
    rows: int
    kept: int
    observations: int
    first_row: int
    first_observation: int
    seen: Seen | None = None


@dataclass(frozen=True)
class Reader(Generic[Block]):
    """Reads parts; it travels to where they are."""

    encoder: Encoder[Block]
    chunk: int

    def frames(self, placed: Placed) -> Iterator[tuple[Placed, pd.DataFrame]]:
        """The tables of a part, whose rows must be those of the first pass."""
        seen, entering, before = Seen(), self.encoder.asked.entering, placed.seen
        for frame in self._tables(placed):
            now = Seen(len(frame)) if before is None else rows_seen(frame, entering)[1]
            seen = both_seen(seen, now)
            yield placed, frame
        if before is not None and seen.rows == before.rows and differs(before, seen):
            # perhaps by rounding, which takes longer to tell
            watched = (rows_seen(frame, entering, watched=before)[1] for frame in self._tables(placed))
            seen = reduce(both_seen, watched, Seen())
        require_same(placed.part.label, before or Seen(placed.rows), seen)

    def _tables(self, placed: Placed) -> Iterator[pd.DataFrame]:
        return numbered(placed.part, self.encoder.columns, self.chunk)

    def encoded(self, item: tuple[Placed, pd.DataFrame]) -> Block:
        """The rows of one table."""
        placed, frame = item
        return self.encoder(frame, placed.part.label)

    def chunks(self, placed: Placed) -> Iterator[Block]:
        """The rows of a part."""
        return (made for made in map(self.encoded, self.frames(placed)) if made.height)


def require_same(label: str, before: Seen, now: Seen) -> None:
    """Raise where a part has other rows than it had: more or fewer, or others as far as sums over both are known."""
    if before.rows != now.rows:
        given = f"{now.rows:,} rows of {brief(label)}, where there were {before.rows:,} before"
    elif differs(before, now):
        given = f"other values in {brief(label)} than before"
    else:
        return
    remedy = "pass data that do not change, and a function that returns a fresh iterator each time"
    raise InvalidInput("data", "the same at every pass", given, remedy)


@dataclass(frozen=True)
class Summing(Generic[Block, Sums]):
    """Σ f over the blocks of one part, or of one table."""

    reader: Reader[Block]
    f: Callable[[Block], Sums]
    width: int | None

    def __call__(self, placed: Placed) -> Sums:
        """Of a part, which is not empty."""
        with fixed_order():
            return tree_sum(self._of(chunk) for chunk in self.reader.chunks(placed))

    def table(self, item: tuple[Placed, pd.DataFrame]) -> Sums | None:
        """Of one table; None where no row takes part."""
        chunk = self.reader.encoded(item)
        return self._of(chunk) if chunk.height else None

    def _of(self, chunk: Block) -> Sums:
        parts = chunk.passing(self.width) if isinstance(chunk, LazyRows) else chunk.blocks(self.width)
        return tree_sum(map(self.f, parts))


@dataclass(frozen=True)
class Picking(Generic[Block]):
    """Chosen rows of one part: by the number of a row, of an observation, or by the sum of weights up to them."""

    reader: Reader[Block]
    upto: Callable[[Block], Array]

    def __call__(self, job: tuple[Placed, Array]) -> list[Block]:
        """All of them, one table after the other."""
        return list(self.tables(job))

    def tables(self, job: tuple[Placed, Array]) -> Iterator[Block]:
        """The rows at which running totals first exceed the ascending marks, those of one table at a time."""
        placed, marks = job
        if self.upto in (every_row, every_observation) and placed.rows == placed.kept == placed.observations:
            yield from self._numbered(placed, marks)
            return
        start, done = 0.0, 0
        for chunk in self.reader.chunks(placed):
            total = start + np.cumsum(self.upto(chunk))
            stop = int(np.searchsorted(marks, total[-1], side="left"))
            if stop > done:
                yield chunk.take(np.searchsorted(total, marks[done:stop], side="right"))
            start, done = float(total[-1]), stop
            if done == marks.size and placed.seen is None:
                break

    def _numbered(self, placed: Placed, marks: Array) -> Iterator[Block]:
        """The same of a part whose rows all take part, once each: only those that are chosen are encoded."""
        start, done = 0, 0
        for item in self.reader.frames(placed):
            frame = item[1]
            stop = int(np.searchsorted(marks, start + len(frame), side="left"))
            if stop > done:
                places = marks[done:stop].astype(np.int64) - start
                # each once, since rows are told apart by their numbers; they ascend
                new = np.diff(places, prepend=-1) != 0
                rows = self.reader.encoded((placed, frame.iloc[places[new]]))
                yield rows.take(slice(None) if new.all() else np.cumsum(new) - 1)
            start, done = start + len(frame), stop
            if done == marks.size and placed.seen is None:
                break


@dataclass(frozen=True)
class Weighing(Generic[Block]):
    """The sum of weights over one part, added as `Picking` adds them."""

    reader: Reader[Block]
    upto: Callable[[Block], Array]

    def __call__(self, placed: Placed) -> float:
        """Of a part."""
        total = 0.0
        for chunk in self.reader.chunks(placed):
            total = float((total + np.cumsum(self.upto(chunk)))[-1])
        return total


def every_row(block: Observations) -> Array:
    """One for every row."""
    return np.ones(block.height)


def every_observation(block: Observations) -> Array:
    """One for every observation."""
    return block.counts


@dataclass(frozen=True)
class Weight(Generic[Block]):
    """A weight for every observation, those of one row together."""

    weight: Callable[[Block], Array]

    def __call__(self, block: Block) -> Array:
        """Of the rows of a block."""
        return np.concatenate([self.weight(part) for part in block.blocks()]) * every_observation(block)


@dataclass(frozen=True)
class Weighed(Generic[Block]):
    """Weights of all observations, and what those of each part add up to."""

    weight: Callable[[Block], Array]
    totals: tuple[float, ...]

    def places(self, shares: Array) -> tuple[Index, Array]:
        """The parts in which shares of all weight lie, and how much weight of the part is before each."""
        totals = np.array(self.totals)
        starts = np.concatenate([[0.0], np.cumsum(totals)])
        marks = shares * starts[-1]
        # rounding must not carry a mark beyond the part that it is in
        owner = np.clip(np.searchsorted(starts, marks, side="right") - 1, 0, len(totals) - 1)
        return owner, np.minimum(marks - starts[owner], np.nextafter(totals, 0.0)[owner])
