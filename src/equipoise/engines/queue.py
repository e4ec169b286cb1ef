"""Rows in the order in which chains draw them, for data that are read from files: some steps of all chains at a time.

What a step draws does not depend on where a chain is. So the numbers of the rows of steps to come are drawn ahead, one pass
over the files brings those rows, and the chains consume them in order: they are the chains that they would be in memory, to
the bit. Rows of steps further on than memory has room for wait in a temporary file. For rows drawn by leverage a 64-bit
word takes the place of the number: the share of all weight before the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.arrays import Array, Index, Words
from equipoise.data.fetching import by_number
from equipoise.data.metering import reading
from equipoise.data.reading import Weighed
from equipoise.data.scanned import Scan
from equipoise.data.spill import Spill
from equipoise.engines.engine import Advance, ChainState
from equipoise.engines.numba.compiling import foreteller
from equipoise.engines.pooling import reach
from equipoise.engines.rules import QUEUEINGS, noise_of, urn_for
from equipoise.errors import InvalidInput
from equipoise.theory.dynamics import Dynamics

__all__ = ["Queue", "Turn", "queued", "require_queue"]

# Of `memory`, the share that rows of later turns take before they go to the disk.
_SPOOLED = 32


def require_queue(dynamics: Dynamics, size: int, memory: int) -> None:
    """Refuse a rule that needs all rows at hand where they do not fit, saying how much memory it takes."""
    if dynamics.rule not in QUEUEINGS:
        rule = "batches='epochs'" if dynamics.batches == "epochs" else "replacement=False"
        raise InvalidInput(
            rule, f"left out for rows that do not fit into memory, {memory / 1e9:.3g} GB: it draws from all of them",
            f"{size / 1e9:.3g} GB of rows", "leave it out, or pass a larger memory= to eq.data.scan",
        )  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """How many steps all chains can take, and where in the table the batch of each one's step 0 would lie."""

    steps: int
    queues: tuple[int, ...]


class Queue:
    """What chains will draw, brought from a scan when they need it.

    `noise` are the scales of the injected noise, whose generator is the same; `capacity` is how many rows may wait in
    memory, `touched` how many all chains will draw, as far as it is known. `put` is called with places in the table, the
    rows that go there, and 1/(N p_n) of each (nothing for rows drawn alike); `weight` is what probabilities are
    proportional to, for a rule that draws by weight.
    """

    def __init__(
        self,
        source: Scan[Any],
        dynamics: Dynamics,
        noise: Array,
        capacity: int,
        touched: float,
        put: Callable[[Index, Any, Array], None],
        weight: Callable[[Any], Array] | None = None,
    ) -> None:
        self._source, self._dynamics, self._noise = source, dynamics, noise
        self._capacity, self._touched, self._put = capacity, touched, put
        self._weight, self._weighed = weight, None
        self._first, self._words = 0, np.empty((0, 1, 4), np.uint64)
        self._ready = Spill()

    _weighed: Weighed[Any] | None

    def turn(self, states: Sequence[ChainState], steps: int) -> Turn:
        """Have in place the rows of the next steps of these chains, all at the same step; some of them at least."""
        slots = self._slots(states)
        while slots is None and self._ready.numbers:
            self._next()
            slots = self._slots(states)
        if slots is None:
            self._fill(states, steps)
            slots = tuple(range(len(states)))
        size, length = self._dynamics.batch_size, self._words.shape[1] - 1
        left = self._first + length - states[0].step
        return Turn(min(steps, left), tuple((slot * length - self._first) * size for slot in slots))

    def _slots(self, states: Sequence[ChainState]) -> tuple[int, ...] | None:
        """Whose rows wait for each chain: told by its generator. None where there are none."""
        at = states[0].step - self._first
        if not 0 <= at < self._words.shape[1] - 1:
            return None
        same = [(self._words[:, at] == state.rng).all(axis=1) for state in states]
        return tuple(int(found.argmax()) for found in same) if all(found.any() for found in same) else None

    def _next(self) -> None:
        """Put in place the rows of the next turn that waits on the disk."""
        waiting = self._ready.take(self._ready.numbers[0])
        first, words = next(waiting)
        for places, rows, emphasis in waiting:
            self._put(places, rows, emphasis)
        self._first, self._words = first, words

    def _fill(self, states: Sequence[ChainState], steps: int) -> None:
        """One pass that brings the rows of steps to come: those of the first turn to their places, others to the disk."""
        lengths = self._lengths(len(states), states[0].step, steps)
        each = len(states) * lengths[0] * self._dynamics.batch_size
        self._first, self._words = 0, np.empty((0, 1, 4), np.uint64)
        self._ready = Spill(self._source.memory // _SPOOLED)
        told = self._told(states, lengths)
        with reading(self._source, 1.0 + (self._weight is not None), "bringing rows"):
            for places, rows, emphasis in self._brought(told):
                for k, own in by_number(places // each):
                    some = places[own] - k * each, rows.take(own), emphasis[own] if emphasis.size else emphasis
                    if k:
                        self._ready.add(k, some)
                    else:
                        self._put(*some)
        self._first, self._words = next(self._ready.take(0))

    def _lengths(self, chains: int, first: int, steps: int) -> list[int]:
        """How many steps each turn has of those whose rows are brought together; all but the last have as many."""
        rows = chains * self._dynamics.batch_size
        most = self._capacity // rows
        if most < 1:
            needed = float(rows) * self._source.memory / max(1, self._capacity)
            raise InvalidInput(
                "batch_size", "such that a batch of every chain fits into memory",
                f"{chains} x {self._dynamics.batch_size:,} rows",
                f"use a smaller one or fewer chains, or pass memory='{2 * needed / 1e9:.2g}GB' to eq.data.scan",
            )  # fmt: skip
        total = self._touched / rows
        wanted = max(steps, int(total) - first if np.isfinite(total) else most)
        together = min(wanted, max(most, reach(self._source) // rows))
        return [min(most, together - start) for start in range(0, together, most)]

    def _told(self, states: Sequence[ChainState], lengths: list[int]) -> Iterator[Words]:
        """What the chains will draw in one turn after the other; where each begins and its generators are set aside."""
        tell = foreteller(QUEUEINGS[self._dynamics.rule].foretell, noise_of(self._noise).shake)
        chains, noise = list(map(deepcopy, states)), np.array(self._noise)
        for turn, length in enumerate(lengths):
            drawn = np.empty((len(chains), length, self._dynamics.batch_size), np.uint64)
            words = np.empty((len(chains), length + 1, 4), np.uint64)
            first = int(chains[0].step)
            for state, batches, own in zip(chains, drawn, words, strict=True):
                tell(state.rng, int(state.step), urn_for(self._dynamics, self._source.n, state), batches, noise, own)
                state.step += length
            self._ready.add(turn, (first, words))
            yield drawn.ravel()

    def _brought(self, told: Iterable[Words]) -> Iterator[tuple[Index, Any, Array]]:
        """The rows as they are read: their places, they themselves, and 1/(N p_n) of each."""
        if self._weight is None:
            for places, rows in self._source.fetch(drawn.astype(np.int64) for drawn in told):
                yield places, rows, np.empty(0)
            return
        if self._weighed is None:
            self._weighed = self._source.weighed(self._weight)
        mean = sum(self._weighed.totals) / self._source.n
        shares = ((drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53 for drawn in told)
        for places, rows in self._source.fetch(shares, self._weighed):
            yield places, rows, mean / self._weight(rows)


def queued(
    queue: Queue,
    chain: Callable[[ChainState, Array, int, int], Advance],
    states: Sequence[ChainState],
    steps: int,
    outs: Sequence[Array],
    pool: Executor,
) -> list[Advance]:
    """Run chains on rows that are brought for them; those that diverge are left where they are."""
    done = [Advance(0, diverged=False)] * len(states)
    last = states[0].step + steps
    while live := [c for c, a in enumerate(done) if not a.diverged and states[c].step < last]:
        turn = queue.turn([states[c] for c in live], last - states[live[0]].step)
        rooms = [outs[c][done[c].written :] for c in live]
        counts = [turn.steps] * len(live)
        found = pool.map(chain, [states[c] for c in live], rooms, counts, turn.queues)
        for c, made in zip(live, found, strict=True):
            done[c] = Advance(done[c].written + made.written, made.diverged)
    return done
