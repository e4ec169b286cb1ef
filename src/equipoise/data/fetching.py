"""Rows that are asked for by number: sorted by the part they are in, and put in the order they were asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import Array, Index
from equipoise.data.reading import Block
from equipoise.data.spill import Spill

__all__ = ["by_number", "by_part", "in_turn", "inside", "joined", "singly"]

_SMALL = 1 << 16  # numbers that 16 bits hold


def inside(starts: Array, numbers: NDArray[Any]) -> tuple[Index, Array]:
    """The parts in which rows of these numbers are, and the marks that find them there."""
    marks = numbers + 0.5
    owner = np.searchsorted(starts, marks, side="right") - 1
    return owner, marks - starts[owner]


def by_part(marks: Iterable[tuple[Index, Array]], held: int) -> Spill:
    """Marks with their numbers among all of them, under the number of the part that they are in."""
    waiting, start = Spill(held), 0
    for owner, places in marks:
        if not owner.size:
            continue
        for k, here in by_number(owner):
            waiting.add(k, (here + start, places[here]))
        start += len(owner)
    return waiting


def by_number(numbers: Index) -> Iterator[tuple[int, Index]]:
    """The places of each of some whole numbers from zero on, in order."""
    # small ones are sorted in linear time
    order = np.argsort(numbers.astype(np.uint16) if numbers.max() < _SMALL else numbers, kind="stable")
    counts = np.bincount(numbers)
    ends = np.cumsum(counts)
    for k in np.flatnonzero(counts):
        yield int(k), order[ends[k] - counts[k] : ends[k]]


def joined(blocks: list[Block]) -> Block:
    """Blocks of one source, one after the other."""
    return cast(Block, cast(Any, type(blocks[0])).joined(blocks))


def in_turn(found: Iterable[tuple[Index, Block]]) -> Block:
    """Rows in the order of the marks they were found by."""
    places, blocks = zip(*found, strict=True)
    return joined(list(blocks)).take(np.argsort(np.concatenate(places), kind="stable"))


def singly(block: Block) -> Block:
    """Rows that each stand for one observation."""
    return cast(Block, replace(cast(Any, block), frequency=None))
