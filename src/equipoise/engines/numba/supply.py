"""Rows in whitened coordinates, written into a table: all of them, or those that chains are about to draw (theory §10)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from equipoise.arrays import Array, Index
from equipoise.data.arrays import Rows
from equipoise.data.source import Source
from equipoise.engines.engine import ChainState
from equipoise.engines.lottery import Lottery
from equipoise.engines.numba.compiling import foreseer
from equipoise.engines.numba.linear import LinearProgram
from equipoise.engines.numba.table import SIDES, RowTable
from equipoise.engines.rules import DRAWINGS, NOWHERE, noise_of, urn_for
from equipoise.errors import InvalidInput
from equipoise.families.family import ScalarLoss
from equipoise.linalg import blocks, cores, in_fixed_order

if TYPE_CHECKING:
    from equipoise.theory.dynamics import Gradient
    from equipoise.theory.tuning import Tuning

__all__ = ["Supply", "Whitener"]

# Rows are numbered by 32 bits.
_MOST = 1 << 32
# Numbers of a product, which is in cache, and what its height is a multiple of: the tiles of any BLAS.
_PRODUCT, _MULTIPLE = 1 << 15, 64
# Rows that are taken from the data at once.
_BROUGHT = 4096


@dataclass(frozen=True)
class Whitener:
    """Writes rows Lᵀ x_n into a table, and beside each its predictor at θ̂, response and weight.

    The bits of a row do not depend on which rows are whitened with it: products have one shape, whatever they are of.
    """

    loss: ScalarLoss
    estimator: Gradient
    root: Array
    center: Array
    emphasis: Array
    table: RowTable
    room: Array

    @staticmethod
    def of(loss: ScalarLoss, root: Array, tuning: Tuning, lottery: Lottery, storage: str, count: int) -> Whitener:
        """With a table for so many observations, still to be written."""
        if count >= _MOST:
            raise InvalidInput(
                "data", "fewer than 2³² observations to sample from", f"{count:,}",
                "sum smaller frequencies, or use sampler='gaussian'",
            )  # fmt: skip
        center, estimator = tuning.center, tuning.dynamics.estimator
        table = RowTable.blank(count, len(center), storage)
        height = max(_MULTIPLE, _PRODUCT // len(center) // _MULTIPLE * _MULTIPLE)
        room = np.zeros((2, height, len(center)))
        return Whitener(loss, estimator, root, center, lottery.weights, table, room)

    def put(self, where: slice | Index, rows: Rows, emphasis: Array) -> None:
        """Write rows to their places; `emphasis` is 1/(N p_n) of each, or empty."""
        (block, product), base = self.room, np.empty(rows.height)
        size = len(block)
        for first in range(0, rows.height, size):
            here = slice(first, min(first + size, rows.height))
            count, x = here.stop - first, rows.x[here]
            if count < size or not x.flags.c_contiguous:
                block[:count] = x
                x = block
            base[here] = (x @ self.center)[:count]
            places = slice(where.start + first, where.start + here.stop) if isinstance(where, slice) else where[here]
            if count == size and isinstance(places, slice):
                np.matmul(x, self.root, out=self.table.room(places))
                continue
            np.matmul(x, self.root, out=product)
            self.table.put(places, product[:count])
        base = base if rows.offset is None else base + rows.offset
        weights = np.ones(rows.height) if rows.weights is None else rows.weights
        weights = weights * emphasis if emphasis.size else weights
        self.table.sides[where] = SIDES[self.estimator](self.loss, base, rows.y, weights)

    def put_all(self, source: Source[Rows]) -> None:
        """Write every observation in its own place."""
        start = 0
        for rows in _expanded(source):
            here = slice(start, start + rows.height)
            self.put(here, rows, self.emphasis[here])
            start += rows.height


class Supply:
    """Whitens rows when a chain first needs them, in the order in which it does.

    What a step draws does not depend on where a chain is, so that the rows of steps to come are known before they are run.
    """

    def __init__(self, whitener: Whitener, source: Rows) -> None:
        self.whitener, self.source = whitener, source
        self.places = np.full(source.n, NOWHERE)
        # memory that is not written is not used
        self._placed, self._count = np.empty(source.n, np.uint64), 0

    @in_fixed_order
    def bring(self, program: LinearProgram, states: Sequence[ChainState], steps: int) -> None:
        """Have in place all rows that these chains will draw in so many steps."""
        dynamics, before = program.dynamics, self._count
        foresee = foreseer(DRAWINGS[dynamics.rule].draw, noise_of(program.noise).shake)
        batch, noise = np.empty(dynamics.batch_size, np.uint64), np.array(program.noise)
        for state in map(deepcopy, states):
            urn = urn_for(dynamics, self.source.n, state, program.lottery, self.places)
            now = int(state.step), int(steps)
            self._count = int(foresee(state.rng, *now, urn, batch, noise, self._placed, self._count))
        starts = range(before, self._count, _BROUGHT)
        workers = min(cores(), len(starts))
        if workers < 2:
            self._put(self.whitener, starts)
        else:
            own = [replace(self.whitener, room=np.zeros_like(self.whitener.room)) for _ in range(workers)]
            with ThreadPoolExecutor(workers) as pool:
                list(pool.map(self._put, own, (starts[k::workers] for k in range(workers))))

    def _put(self, whitener: Whitener, starts: Iterable[int]) -> None:
        """Whiten the rows at the places from each of `starts` on."""
        emphasis = whitener.emphasis
        for first in starts:
            index = self._placed[first : min(first + _BROUGHT, self._count)].astype(np.intp)
            here = slice(first, first + index.size)
            whitener.put(here, self.source.take(index), emphasis[index] if emphasis.size else emphasis)


def _expanded(source: Source[Rows]) -> Iterator[Rows]:
    """The observations of a source, a row for each, in the blocks that a source of such rows would have."""
    size = next(blocks(source.n, len(source.names))).stop
    held: list[Rows] = []
    room = size
    for block in source.blocks():
        if block.frequency is None and not held:
            yield block
            continue
        index = np.repeat(np.arange(block.height), block.counts.astype(np.int64))
        alone = replace(block, frequency=None)
        while index.size:
            held.append(alone.take(index[:room]))
            index, room = index[room:], room - held[-1].height
            if room == 0:
                yield Rows.joined(held)
                held, room = [], size
    if held:
        yield Rows.joined(held)
