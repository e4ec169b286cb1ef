"""Rows from files larger than memory: read block by block at every pass, encoded the same way each time.

The data are cut into parts (`equipoise.data.parts`), each part into chunks of a fixed number of rows, and these into the
blocks that a pass sums over. Where the cuts are depends on the files and on the columns alone, and sums are added in a
tree of that shape: no bit depends on threads, on `memory` or on who reads which part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, cast

import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import Array, Index
from equipoise.cards import Card
from equipoise.checks import shown
from equipoise.data.fetching import by_part, in_turn, inside, joined, singly
from equipoise.data.kept import Far, Lot
from equipoise.data.ledger import pass_key
from equipoise.data.marks import Marks
from equipoise.data.metering import Meter
from equipoise.data.passage import CHUNK, SHARE, Passage, workers_for
from equipoise.data.places import files_of, row_name, where
from equipoise.data.reading import (
    Block,
    Encoder,
    Picking,
    Placed,
    Reader,
    Weighed,
    Weighing,
    Weight,
    every_observation,
    every_row,
)
from equipoise.data.source import Executor, chosen_rows, drawn_rows, drawn_shares
from equipoise.errors import InvalidInput
from equipoise.linalg import Sums

if TYPE_CHECKING:
    import pandas as pd

    from equipoise.data.design import Design

__all__ = ["ENOUGH", "Scan"]

# Of `memory`, the share that marks of rows to be read take before they go to the disk.
_SPOOLED = 32
# Rows of which a pass is made to see what it makes.
_FEW = 50
# Rows of the first pass's sample that do for any number of them, where others would take a pass.
ENOUGH = 2048


@dataclass(frozen=True, eq=False, repr=False)
class Scan(Card, Generic[Block]):
    """Rows that are read from where they are at every pass; make one with `eq.data.scan`.

    Attributes
    ----------
    parts
        Where they are, in order; those without rows that take part are left out.
    encoder
        What is made of them.
    lot, far
        A random sample of the tables, and rows at the ends of their columns, kept from the first pass.
    identity
        The digest that is its fingerprint.
    clusters, clock
        The columns that say which rows belong together and when they were observed; `marked` has them in its blocks.
    extremes
        Smallest and largest response, where the first pass saw it; None otherwise.
    memory
        Bytes that reading and summing may take.
    executor
        Where parts are read; None for threads of this process.
    """

    parts: tuple[Placed, ...]
    encoder: Encoder[Block]
    lot: Lot
    far: Far
    identity: str
    clusters: tuple[str, ...]
    clock: str | None
    extremes: tuple[float, float] | None
    memory: int
    executor: Executor | None = None
    meter: Meter = field(default_factory=Meter, repr=False)

    def _facts(self) -> dict[str, object]:
        return {"n": self.n, "where": self.where, "response": self.response, "names": self.names, "memory": self.memory}

    @property
    def n(self) -> int:
        """Number of observations: of rows that take part, each as often as its frequency says."""
        return sum(placed.observations for placed in self.parts)

    @property
    def height(self) -> int:
        """Number of rows that take part."""
        return sum(placed.kept for placed in self.parts)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns."""
        return self.encoder.names

    @property
    def response(self) -> str:
        """What the response is called."""
        return self.encoder.label

    @property
    def design(self) -> Design | None:
        """How the tables became columns."""
        return self.encoder.design

    @property
    def of_trials(self) -> bool:
        """Whether the response is a share of trials."""
        return "trials" in self.encoder.asked.beside

    @property
    def in_memory(self) -> bool:
        """Every pass reads the rows from where they are."""
        return False

    @property
    def marks(self) -> Marks | None:
        """Names of what its blocks carry beside their rows, and of no row the values."""
        clusters, clock = self.encoder.clusters, self.encoder.clock
        if not clusters and clock is None:
            return None
        return Marks(clusters, np.zeros((0, len(clusters)), dtype=np.int64), None, clock or "time")

    @property
    def passes(self) -> float:
        """How many times the data were read so far, the first time included; a part of them counts in part."""
        return self.meter.rows / self.read_rows

    @property
    def read_rows(self) -> int:
        """Rows that a pass reads, those included that do not take part."""
        return sum(placed.rows for placed in self.parts)

    def row_name(self, number: int) -> str:
        """What a row that takes part is called in messages."""
        return row_name(self.parts, number)

    @property
    def where(self) -> str:
        """What is read, in words."""
        return where(self.parts)

    @property
    def bytes(self) -> int:
        """How large the files are; 0 where that is not known."""
        return sum(files_of(self.parts).values())

    def marked(self, clusters: object = None, time: object = None) -> Scan[Block]:
        """The same rows in blocks that carry their clusters and times: those of these names, or all that are kept.

        Raises
        ------
        InvalidInput
            If they are not kept: they are named when the scan is made, so that missing ones are known.
        """
        names = self._kept("clusters", clusters, self.clusters)
        clock = self._kept("time", time, () if self.clock is None else (self.clock,))
        encoder = replace(cast(Any, self.encoder), clusters=names, clock=clock[0] if clock else None)
        return replace(self, encoder=encoder)

    @staticmethod
    def _kept(argument: str, given: object, kept: tuple[str, ...]) -> tuple[str, ...]:
        names = kept if given is None else (given,) if isinstance(given, str) else given
        if not isinstance(names, (list, tuple)) or not set(map(str, names)) <= set(kept):
            known = f"one of {', '.join(kept)}" if kept else "given when the data were read"
            raise InvalidInput(argument, known, shown(given), f"scan the files with {argument}=, a name of a column")
        return tuple(names)

    def by_time(self) -> Scan[Block]:
        """They cannot be sorted: as they are."""
        return self

    def blocks(self, width: int | None = None) -> Iterator[Block]:
        """The rows in blocks, the next table being decoded meanwhile."""
        for item in self._passage.ahead(self.parts):
            yield from self._reader.encoded(item).blocks(width)

    def reduce(self, f: Callable[[Block], Sums], width: int | None = None) -> Sums:
        """Σ f(block) on all cores or on the executor, in a fixed order; a pass that is kept from before is not repeated."""
        ledger, key = self.meter.ledger, None
        if ledger is not None:
            marks = self.marks
            cuts = self._reader.chunk, None if marks is None else (marks.names, marks.clock)
            key = pass_key(self.identity, f, width, cuts)
        if ledger is None or key is None:
            with self.meter.timed():
                return self._passage.summed(f, width)
        found = ledger.recall(key, lambda: f(self.sample(min(self.lot.size, _FEW), None)))
        if found is None:
            with self.meter.timed():
                found = self._passage.summed(f, width)
            ledger.keep(key, found)
        return found

    def take(self, index: Index | slice) -> Block:
        """The rows of these numbers, in this order, in memory; only the parts that have them are read."""
        if isinstance(index, slice):
            index = np.arange(*index.indices(self.height))
        starts = np.array([float(placed.first_row) for placed in self.parts])
        return in_turn(self._found([inside(starts, index)], every_row))

    def sample(self, count: int, seed: int | None) -> Block:
        """`count` observations drawn without replacement, in their original order, in memory; one pass.

        They are the ones that the same rows in memory would give. Without a seed they are taken from what the first pass
        kept, and cost no pass: fewer than `count` where little memory let it keep fewer, if it kept some thousands.
        """
        if seed is None and 0 < min(count, ENOUGH) <= self.lot.size:
            frame = self.lot.fewer(count).frame.reset_index(drop=True)
            return singly(joined([self._encoded(frame)]))
        return self._observed(chosen_rows(self.n, count, seed or 0))

    def standing(self, count: int) -> tuple[Block, Block]:
        """Rows that stand for all, from what the first passes kept, each as often as its frequency says.

        Those at the ends of columns and of rare levels stand for themselves, about `count` others for the rest.
        """
        frame = self.lot.fewer(count).frame.reset_index(drop=True)
        far, inside = self.far.apart(frame)
        ends, others = (cast(Any, self._encoded(some.reset_index(drop=True))) for some in (far, frame[inside]))
        rest = (self.n - float(ends.counts.sum())) / max(1, others.height)
        return replace(ends, frequency=ends.counts), replace(others, frequency=np.full(others.height, rest))

    def _encoded(self, frame: pd.DataFrame) -> Block:
        """Rows that the first pass kept; where one of them is unsound, reading all says in which file and row it is."""
        try:
            return self.encoder(frame, "the sample").take(slice(None))
        except InvalidInput:
            for _ in self.blocks():
                pass
            raise

    def pool(self, count: int, seed: int, weight: Callable[[Block], Array] | None = None) -> Block:
        """`count` observations drawn with replacement, in the order in which they are drawn, in memory.

        Parameters
        ----------
        count
            How many; they must fit into `memory`.
        seed
            Chooses them.
        weight
            Makes of a block one number per row, to which the probability of each of its observations is proportional;
            it costs one further pass. All are as likely without it.

        Raises
        ------
        InvalidInput
            If they do not fit into memory.
        """
        self._require_room("count", count)
        if weight is None:
            return self._observed(drawn_rows(self.n, count, seed))
        return in_turn(self.fetch([drawn_shares(count, seed)], self.weighed(weight)))

    def weighed(self, weight: Callable[[Block], Array]) -> Weighed[Block]:
        """Weights of observations that `fetch` finds by the share of all weight before them; one pass."""
        totals = list(self._passage.results(Weighing(self._reader, Weight(weight)), self.parts, self.parts))
        return Weighed(weight, tuple(totals))

    def fetch(
        self, marks: Iterable[NDArray[Any]], weighed: Weighed[Block] | None = None
    ) -> Iterator[tuple[Index, Block]]:
        """Observations as they are read, some at a time: where among all marks, and the rows; at most one pass.

        Parameters
        ----------
        marks
            Arrays of numbers of observations; or, with weights, of shares of all weight. One after the other is asked for,
            and what is not read yet waits on the disk where it is much.
        weighed
            The weights; each observation is at the shares between what lies before it and what it ends with.
        """
        if weighed is None:
            starts = np.array([float(placed.first_observation) for placed in self.parts])
            found = self._found((inside(starts, some) for some in marks), every_observation)
        else:
            found = self._found(map(weighed.places, marks), Weight(weighed.weight))
        return ((places, singly(block)) for places, block in found)

    @property
    def held_rows(self) -> tuple[int, ...]:
        """Over how many rows each of the sums is that one process holds at the same time in a pass."""
        return self._passage.held_rows

    @property
    def at_once(self) -> float:
        """The largest share of all rows that `fetch` has in memory at a time, if it is asked for all of them."""
        workers = workers_for(self.memory)
        if not self._passage.side_by_side(workers):
            return min(1.0, self._reader.chunk / max(1, self.height))
        # those that are read or wait, and one that is used
        together = min(len(self.parts), workers + 1)
        return min(1.0, together * max(placed.observations for placed in self.parts) / max(1, self.n))

    def whole(self) -> Block:
        """All rows, in memory.

        Raises
        ------
        InvalidInput
            If they do not fit into `memory`.
        """
        self._require_room("memory", self.height)
        return joined(list(self.blocks(1)))

    @property
    def size(self) -> int:
        """Bytes that all rows would take in memory."""
        return self.height * self.encoder.width * 8

    def fingerprint(self) -> str:
        """A digest of what the files say of their rows, and of what is made of them.

        Of Parquet files these are the types, sizes, extremes and missing values of every column of every row group, a sum
        over all numbers that the first pass read, and nothing of where they are. Of rows that come otherwise it is a sum
        over all values.
        """
        return self.identity

    @property
    def _reader(self) -> Reader[Block]:
        chunk = max(1, min(CHUNK, self.memory // (8 * SHARE)) // self.encoder.width)
        return Reader(self.encoder, chunk)

    @property
    def _passage(self) -> Passage[Block]:
        return Passage(self._reader, self.parts, self.memory, self.executor, self.meter)

    def _observed(self, numbers: Index) -> Block:
        return in_turn(self.fetch([numbers]))

    def _found(
        self, marks: Iterable[tuple[Index, Array]], upto: Callable[[Any], Array]
    ) -> Iterator[tuple[Index, Block]]:
        """The rows of parts at the marks inside them, each with its number among the marks, as they are read."""
        waiting, picking = by_part(marks, self.memory // _SPOOLED), Picking(self._reader, upto)
        needed, every = [self.parts[k] for k in waiting.numbers], deque[Index]()

        def jobs() -> Iterator[tuple[Placed, Array]]:
            for k in waiting.numbers:
                places, inside = (np.concatenate(each) for each in zip(*waiting.take(k), strict=True))
                order = np.argsort(inside, kind="stable")
                every.append(places[order])
                yield self.parts[k], inside[order]

        if self._passage.side_by_side(workers_for(self.memory)):
            for blocks in self._passage.results(picking, jobs(), needed):
                yield every.popleft(), joined(blocks)
            return
        for job in jobs():
            places, done = every.popleft(), 0
            for block in picking.tables(job):
                yield places[done : done + block.height], block
                done += block.height
            self.meter.add(job[0].rows)

    def _require_room(self, argument: str, count: int) -> None:
        size = count * self.encoder.width * 8
        if size > self.memory:
            raise InvalidInput(
                argument, f"so that the rows fit into memory, {self.memory / 1e9:.3g} GB",
                f"{count:,} rows, which take {size / 1e9:.3g} GB", "pass a larger memory= to eq.data.scan, or fewer rows",
            )  # fmt: skip
