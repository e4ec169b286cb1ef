"""From the values on `Dynamics` to what the compiled loops do: one table of batch rules, one of noises (theory §1).

A new rule is a value with its law in `equipoise.theory.dynamics`, a function that fills a batch here, and its line in
`DRAWINGS`; a new noise likewise in `NOISES`. Every engine reads these tables, and none has a flag of its own. What the
gradient estimator changes, a row's residual, differs from engine to engine: `equipoise.engines.numba.table.SIDES` and
`equipoise.engines.jax.loop.GRADIENTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from equipoise.arrays import Array, Words
from equipoise.engines.engine import ChainState
from equipoise.engines.lottery import UNIFORM, Lottery
from equipoise.engines.random import (
    Permutation,
    add_normals,
    distinct_rows,
    inlined,
    internal,
    next_word,
    permute,
    rows_by_lottery,
    rows_with_replacement,
)
from equipoise.linalg import signed_axes, symmetric
from equipoise.theory.dynamics import BatchRule, Dynamics, Epochs, Independent, Leverage

__all__ = [
    "DRAWINGS",
    "IN_ORDER",
    "NOISES",
    "NOWHERE",
    "QUEUEINGS",
    "Coordinates",
    "Draw",
    "Drawing",
    "Noise",
    "Queueing",
    "Shake",
    "Urn",
    "add_nothing",
    "coordinates",
    "draw_any",
    "draw_distinct",
    "noise_of",
    "urn_for",
]


# What no row's number is: the first of a permutation that is to be made again, the place of a row that has none yet.
NOWHERE = np.uint32(2**32 - 1)


class Urn(NamedTuple):
    """What batches are drawn from.

    Attributes
    ----------
    rows
        N.
    period
        Batches of an epoch; 0 where there are none.
    order
        A permutation of the rows, where the rule needs one.
    columns
        The columns of a lottery, where there is one.
    swaps
        Memory as long as a batch.
    shuffle
        The generator as it was at the epoch's start.
    places
        Where each row lies in the table, or `NOWHERE`; empty if row n is at n.
    queue
        Where the batch of step 0 would lie in a table that has rows in the order in which they are drawn.
    """

    rows: int
    period: int
    order: Permutation
    columns: Words
    swaps: Words
    shuffle: Words
    places: Permutation
    queue: int


# (generator, step, urn, batch): fills the batch, and returns how many rows of it were drawn.
Draw = Callable[[Words, int, Urn, Words], int]
# (generator, scales, values, count): adds noise of these scales to the first `count` values.
Shake = Callable[[Words, Array, Array, int], None]


class Drawing(NamedTuple):
    """How a batch rule draws, and whether it does so from a permutation of all rows."""

    draw: Draw
    permutes: bool

    def order(self, rows: int) -> Permutation:
        """The permutation to begin with: 0, 1, …, N − 1, or nothing."""
        return np.arange(rows if self.permutes else 0, dtype=np.uint32)


class Queueing(NamedTuple):
    """How a batch rule draws where rows are too many to hold, and lie in the table in the order in which they are drawn.

    `foretell` tells a drawn row, before it is brought: its number, or a word for its share of all weight. `draw` are the
    same draws in the loop, where the rows are the next ones of the table.
    """

    foretell: Draw
    draw: Draw


class Noise(NamedTuple):
    """How a noise is added, and whether it draws anything."""

    shake: Shake
    drawn: bool


@inlined
def draw_any(rng: Words, step: int, urn: Urn, batch: Words) -> int:  # noqa: ARG001
    """Row numbers drawn with replacement."""
    rows_with_replacement(rng, np.uint64(urn.rows), batch)
    return batch.size


@inlined
def draw_distinct(rng: Words, step: int, urn: Urn, batch: Words) -> int:  # noqa: ARG001
    """Row numbers that differ."""
    distinct_rows(rng, urn.order, urn.swaps, batch)
    return batch.size


@inlined
def draw_weighted(rng: Words, step: int, urn: Urn, batch: Words) -> int:  # noqa: ARG001
    """Row numbers drawn with replacement, each with its own probability."""
    rows_by_lottery(rng, urn.columns, urn.swaps, batch)
    return batch.size


@inlined
def draw_next(rng: Words, step: int, urn: Urn, batch: Words) -> int:
    """The next rows of a permutation, a new one at the start of each epoch; the last batch may be incomplete."""
    position = step % urn.period
    if position == 0:
        urn.shuffle[:] = rng
        permute(rng, urn.order)
    elif urn.order[0] == NOWHERE:
        permute(urn.shuffle.copy(), urn.order)
    first = position * batch.size
    count = min(batch.size, urn.rows - first)
    for k in range(count):
        batch[k] = urn.order[first + k]
    return count


@inlined
def _take_next(step: int, urn: Urn, batch: Words) -> int:
    """The rows that lie next in the table."""
    first = urn.queue + step * batch.size
    for k in range(batch.size):
        batch[k] = first + k
    return batch.size


@inlined
def draw_any_queued(rng: Words, step: int, urn: Urn, batch: Words) -> int:
    """As `draw_any`, of rows that lie in the order in which it draws them."""
    rows_with_replacement(rng, np.uint64(urn.rows), batch)
    return _take_next(step, urn, batch)


@inlined
def draw_words(rng: Words, step: int, urn: Urn, batch: Words) -> int:  # noqa: ARG001
    """A word for every row, which is its share of all weight."""
    for k in range(batch.size):
        batch[k] = next_word(rng)
    return batch.size


@inlined
def draw_words_queued(rng: Words, step: int, urn: Urn, batch: Words) -> int:
    """As `draw_words`, of rows that lie in the order in which it draws them."""
    draw_words(rng, step, urn, batch)
    return _take_next(step, urn, batch)


@internal
def add_nothing(rng: Words, scales: Array, values: Array, count: int) -> None:
    """No noise."""


DRAWINGS: dict[BatchRule, Drawing] = {
    Independent(replacement=True): Drawing(draw_any, permutes=False),
    Independent(replacement=False): Drawing(draw_distinct, permutes=True),
    Leverage(): Drawing(draw_weighted, permutes=False),
    Epochs(drop_last=False): Drawing(draw_next, permutes=True),
    Epochs(drop_last=True): Drawing(draw_next, permutes=True),
}
# Rules whose batches can be told ahead; the others need a permutation of all rows.
QUEUEINGS: dict[BatchRule, Queueing] = {
    Independent(replacement=True): Queueing(draw_any, draw_any_queued),
    Leverage(): Queueing(draw_words, draw_words_queued),
}
NOISES = {True: Noise(add_normals, drawn=True), False: Noise(add_nothing, drawn=False)}


def noise_of(scales: Array) -> Noise:
    """The noise of these standard deviations."""
    return NOISES[bool(scales.any())]


# The places of rows that lie in their order.
IN_ORDER: Permutation = np.empty(0, np.uint32)


def urn_for(
    dynamics: Dynamics,
    rows: int,
    state: ChainState,
    lottery: Lottery = UNIFORM,
    places: Permutation = IN_ORDER,
    queue: int = 0,
) -> Urn:
    """What a chain draws its next batches from; in the middle of an epoch that is the epoch's own permutation."""
    size, rule = dynamics.batch_size, dynamics.rule
    period = 0
    if isinstance(rule, Epochs):
        period = rows // size if rule.drop_last else -(-rows // size)
    order = DRAWINGS[rule].order(rows)
    if period:
        order[0] = NOWHERE
    return Urn(rows, period, order, lottery.columns, np.empty(size, np.uint64), state.shuffle, places, int(queue))


class Coordinates(NamedTuple):
    """Coordinates φ, θ = θ̂ + L φ, in which a step matrix is the identity and the noise to inject is diagonal.

    `root` is L, Λ = L Lᵀ, and `noise` the standard deviations, (D,). Where it is `free`, L times any orthogonal matrix
    would do as well, so that it may be turned for something else.
    """

    root: Array
    noise: Array
    free: bool


def coordinates(step: Array, noise: Array, temperature: float) -> Coordinates:
    """The coordinates of a step matrix Λ and the covariance M injected: L⁻¹ M L⁻ᵀ is diagonal (theory §13).

    Nothing, and Langevin noise (2/β) Λ, are so in all of them, and the triangular root is taken; any other covariance
    takes one eigendecomposition more.
    """
    triangular, dim = cholesky(step, lower=True), len(step)
    langevin = 2.0 * temperature
    if np.abs(noise - langevin * step).max() <= _ROUNDING * langevin * np.abs(step).max():
        return Coordinates(triangular, np.full(dim, np.sqrt(langevin)), free=True)
    half = solve_triangular(triangular, noise, lower=True)
    variances, axes = signed_axes(symmetric(solve_triangular(triangular, half.T, lower=True)))
    return Coordinates(np.ascontiguousarray(triangular @ axes), np.sqrt(np.maximum(variances, 0.0)), free=False)


_ROUNDING = 1e-12  # of the noise relative to the step, below which it is Langevin's
