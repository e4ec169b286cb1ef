"""Rows that together stand for all: those of large v for themselves, others by chance, weighed by how small it was.

v is how much a row weighs in the curvature. A row is kept with probability min(1, max(floor, (v/large)²)), decided by a number
that its own v gives: whatever block it is in, and whoever reads it. So one pass over files brings them beside other sums.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import Array
from equipoise.data.source import Source

__all__ = ["ALIKE", "CORE", "Chances", "height_of", "lots", "standing"]

ALIKE = 0.1  # by how much the mean v⁴ of rows that stand for all may differ from that of all
CORE = 1 << 15  # rows that are kept by their v
_EVEN = 4  # times fewer are kept alike at the least
_HALVINGS = 40  # in which a size is found
_OFTEN = 8  # times that a number comes in a block by chance, at the most
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Chances(NamedTuple):
    """How likely rows are kept: all of them from v = `large` on, and with probability `floor` the smallest."""

    large: float
    floor: float

    @staticmethod
    def of(v: Array, n: int, most: int = CORE) -> Chances:
        """Such that about so many of n rows are kept, by what some rows tell of their sizes."""
        # rows may be larger than any of these; beyond all of them n·mean (v/large)² are kept
        low, high = 0.0, max(float(v.max()), float(np.sqrt(np.mean(v**2) * n / most))) or 1.0
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            kept = n * float(np.mean(np.minimum((v / middle) ** 2, 1.0)))
            low, high = (middle, high) if kept > most else (low, middle)
        return Chances(high, most / (_EVEN * n))

    def __call__(self, v: Array) -> Array:
        """Those of rows with these sizes."""
        return self.by_square(v**2)

    def by_square(self, square: Array) -> Array:
        """Those of rows with these squares of sizes."""
        return np.clip(square / self.large**2, self.floor, 1.0)


def height_of(source: Source[Any]) -> int:
    """How many rows there are to choose from, however many observations each stands for."""
    return int(getattr(source, "height", source.n))


def lots(v: Array) -> Array:
    """Numbers from 0 to 1 that are as good as drawn, from the last digits of others (Fibonacci hashing, twice).

    Rounded to single precision first, so that hardly any depends on the order of a sum. Where factors alone give few sizes,
    rows of one size are told apart by their order.
    """
    digits = v.astype(np.float32).view(np.uint32)
    mixed = (digits + (_before(digits) << np.uint64(32))) * _GOLDEN
    return ((mixed ^ mixed >> np.uint64(32)) * _GOLDEN >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _before(digits: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """How often a number came before; zero throughout where none comes often, which chance makes equal now and then."""
    ordered = np.sort(digits)
    if not np.any(ordered[_OFTEN:] == ordered[:-_OFTEN]):
        return np.zeros(len(digits), np.uint64)
    order, place = np.argsort(digits, kind="stable"), np.arange(len(digits), dtype=np.uint64)
    first = np.maximum.accumulate(np.where(np.diff(ordered, prepend=~ordered[:1]) != 0, place, np.uint64(0)))
    before = np.empty(len(digits), np.uint64)
    before[order] = place - first
    return before


def standing(counts: Array, chance: Array, n: int) -> Array:
    """How many of n observations each row that was kept stands for: those kept by chance share what the others leave."""
    surely, times = chance >= 1.0, counts / chance
    rest = n - float(np.sum(counts[surely]))
    times[~surely] *= rest / max(float(np.sum(times[~surely])), 1.0)
    return times
