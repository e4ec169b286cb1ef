"""How a pass over parts is made: side by side or one table after the other, by threads of this process or elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from equipoise.data.cluster import slots_of
from equipoise.data.metering import Meter
from equipoise.data.reading import Block, Placed, Reader, Summing
from equipoise.data.source import Executor, in_order
from equipoise.linalg import Sums, fixed_order, tree_sum

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CHUNK", "SHARE", "Passage", "workers_for"]

# Numbers in a chunk, 16 MB: what is decoded and encoded at a time.
CHUNK = 1 << 21
# Times the bytes of a chunk that reading, encoding and summing it take.
SHARE = 6
# Chunks or parts that may wait for their turn, per thread.
_WAITING = 2


@dataclass(frozen=True)
class Passage(Generic[Block]):
    """Reads parts, into what a reader makes of them.

    `memory` are bytes that it may take, `executor` where parts are read (None for threads of this process), `meter` what
    counts the rows.
    """

    reader: Reader[Block]
    parts: tuple[Placed, ...]
    memory: int
    executor: Executor | None
    meter: Meter

    @property
    def workers(self) -> int:
        """Threads that read and sum: one, where a loss of one's own is summed, which has threads itself."""
        return workers_for(self.memory, 1 if self.reader.encoder.design is None else None)

    def summed(self, f: Callable[[Block], Sums], width: int | None) -> Sums:
        """One pass.

        Parts are read side by side where there are enough of them. Otherwise, one after the other: while its next table is
        decoded, what was read is summed.
        """
        summing, workers = Summing(self.reader, f, width), self.workers
        if self.side_by_side(workers):
            return tree_sum(self.results(summing, self.parts, self.parts))
        with fixed_order():
            if workers == 1:
                return tree_sum(self._part_sum(map(summing.table, self.ahead([part]))) for part in self.parts)
            with ThreadPoolExecutor(workers) as pool:
                waiting = _WAITING * workers
                return tree_sum(
                    self._part_sum(in_order(pool, self.ahead([part]), summing.table, waiting)) for part in self.parts
                )

    @staticmethod
    def _part_sum(results: Iterable[Sums | None]) -> Sums:
        return tree_sum(sums for sums in results if sums is not None)

    def side_by_side(self, workers: int) -> bool:
        """Whether whole parts are read at the same time, by threads or elsewhere; otherwise one table after the other."""
        return self.executor is not None or len(self.parts) >= _WAITING * workers > _WAITING

    @property
    def held_rows(self) -> tuple[int, ...]:
        """Over how many rows each sum is that one process holds at the same time: branches of trees, as they grow."""
        chunk, most = self.reader.chunk, max(placed.rows for placed in self.parts)
        workers = 1 if self.executor is not None else self.workers
        growing = [chunk >> k for k in range(1, chunk.bit_length())]
        tables, parts = _branches(chunk, -(-most // chunk)), _branches(most, len(self.parts))
        return (*workers * growing, *(workers if self.side_by_side(workers) else 1) * tables, *parts)

    def ahead(self, parts: Iterable[Placed]) -> Iterator[tuple[Placed, pd.DataFrame]]:
        """The tables of parts, the next one decoded while the last is used."""
        tables = (item for placed in parts for item in self.reader.frames(placed))
        with ThreadPoolExecutor(1) as pool:
            following = pool.submit(next, tables, None)
            while (item := following.result()) is not None:
                self.meter.add(len(item[1]))
                following = pool.submit(next, tables, None)
                yield item

    def results(self, f: Callable[[Any], Any], jobs: Iterable[Any], parts: Iterable[Placed]) -> Iterator[Any]:
        """f of every job, in order, each of which reads one of the parts."""
        if self.executor is not None:
            results = in_order(self.executor, jobs, f, slots_of(self.executor, _WAITING * (os.cpu_count() or 1)))
            for result, placed in zip(results, parts, strict=True):
                self.meter.add(placed.rows)
                yield result
            return
        workers = workers_for(self.memory)
        with fixed_order(), ThreadPoolExecutor(workers) as pool:
            for result, placed in zip(in_order(pool, jobs, f, workers), parts, strict=True):
                self.meter.add(placed.rows)
                yield result


def _branches(rows: int, count: int) -> list[int]:
    """Rows of the sums that wait to be joined while the last of so many, each of so many rows, is made."""
    return [rows << k for k in range(count.bit_length() - 1)]


def workers_for(memory: int, most: int | None = None) -> int:
    """How many may read and sum at a time."""
    return max(1, min(most or os.cpu_count() or 1, memory // (CHUNK * 8 * SHARE)))
