"""Rows of unequal probabilities in constant time: Walker's aliases, in whole numbers and therefore exact (theory §13).

Row n has k_n of the N·2ˢ tickets. N columns of 2ˢ tickets each hold a row and, above a limit, one alias, so that a
column and a place in it make a draw. All sums are of integers: no probability is rounded after the tickets are given out,
and a row's weight 2ˢ/k_n is that of the probability it is really drawn with.

References
----------
Walker, An efficient method for generating discrete random variables with general distributions (1977).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import Array, Words

__all__ = ["UNIFORM", "Lottery"]

_HALF = 32  # bits of a limit, and of an alias


class Lottery(NamedTuple):
    """What rows are drawn with, and 1/(N p_n), (N,), which their terms are multiplied by for it.

    Of each of N columns, the high 32 bits are the limit from which on its alias is drawn, the low ones the alias.
    """

    columns: Words
    weights: Array

    @staticmethod
    def of(emphasis: Array) -> Lottery:
        """The lottery in which row n is drawn in proportion to 1/emphasis_n."""
        tickets, bits = _tickets(1.0 / emphasis)
        unit = np.int64(1) << np.int64(bits)
        limits, aliases = np.zeros(len(tickets), np.uint64), np.arange(len(tickets), dtype=np.uint64)
        poor, rich = np.flatnonzero(tickets < unit), np.flatnonzero(tickets >= unit)
        # the columns of poor rows are filled up one after the other, by one rich row after the other
        lacks, spares = np.cumsum(unit - tickets[poor]), np.cumsum(tickets[rich] - unit)
        before = lacks - (unit - tickets[poor])
        aliases[poor] = rich[np.searchsorted(spares, before, side="right")]
        limits[poor] = _limit(tickets[poor], bits)
        # a rich row gives until its spares are used up, and a last time out of its own column, which the next one fills
        last = np.searchsorted(lacks, spares, side="right")
        short = np.flatnonzero(last < len(lacks))
        limits[rich[short]] = _limit(unit - (lacks[last[short]] - spares[short]), bits)
        aliases[rich[short]] = rich[short + 1]
        return Lottery(limits << np.uint64(_HALF) | aliases, float(unit) / tickets)


# What rows that are drawn alike need: nothing.
UNIFORM = Lottery(np.empty(0, np.uint64), np.empty(0))


def _tickets(shares: Array) -> tuple[NDArray[np.int64], int]:
    """Tickets in proportion to the shares, N·2ˢ in all, and s: as many as a limit and sums of 64-bit numbers hold."""
    count = len(shares)
    bits = min(_HALF, 62 - int(count - 1).bit_length())
    tickets = np.maximum(1, np.rint(shares * (float(1 << bits) / shares.mean()))).astype(np.int64)
    # what rounding left over goes to all rows alike, and the rest of that to the first ones
    each, rest = divmod((count << bits) - int(tickets.sum()), count)
    tickets += each
    tickets[:rest] += 1
    return tickets, bits


def _limit(tickets: NDArray[np.int64], bits: int) -> Words:
    """The 32 bits that stand for so many tickets of a column."""
    return tickets.astype(np.uint64) << np.uint64(_HALF - bits)
