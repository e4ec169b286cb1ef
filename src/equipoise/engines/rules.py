"""From the values on `Dynamics` to what the compiled loops do: one table of batch rules, one of noises (theory §1).

A new rule is a value with its law in `equipoise.theory.dynamics`, a function that fills a batch here, and its line in
`DRAWINGS`; a new noise likewise in `NOISES`. Every engine reads these tables, and none has a flag of its own. What the
gradient estimator changes, a row's residual, differs from engine to engine: `equipoise.engines.numba.table.SIDES` and
`equipoise.engines.jax.loop.GRADIENTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import NamedTuple

import numpy as np

from equipoise.arrays import Array, Words
from equipoise.engines.random import Permutation, add_normals, distinct_rows, internal, rows_with_replacement
from equipoise.theory.dynamics import BatchRule, Independent

__all__ = [
    "DRAWINGS",
    "NOISES",
    "Draw",
    "Drawing",
    "Noise",
    "Shake",
    "add_nothing",
    "draw_any",
    "draw_distinct",
    "noise_of",
]

# (generator, number of rows, permutation, swaps, batch): fills the batch; the two before it are memory to work with.
Draw = Callable[[Words, int, Permutation, Words, Words], None]
# (generator, scale, values, count): adds noise of that scale to the first `count` values.
Shake = Callable[[Words, float, Array, int], None]


class Drawing(NamedTuple):
    """How a batch rule draws, and whether it does so from a permutation of all rows."""

    draw: Draw
    permutes: bool

    def order(self, rows: int) -> Permutation:
        """The permutation to begin with: 0, 1, …, N − 1, or nothing."""
        return np.arange(rows if self.permutes else 0, dtype=np.uint32)


class Noise(NamedTuple):
    """How a noise is added, and whether it draws anything."""

    shake: Shake
    drawn: bool


@internal
def draw_any(rng: Words, count: int, order: Permutation, swaps: Words, batch: Words) -> None:  # noqa: ARG001
    """Row numbers drawn with replacement."""
    rows_with_replacement(rng, np.uint64(count), batch)


@internal
def draw_distinct(rng: Words, count: int, order: Permutation, swaps: Words, batch: Words) -> None:  # noqa: ARG001
    """Row numbers that differ."""
    distinct_rows(rng, order, swaps, batch)


@internal
def add_nothing(rng: Words, scale: float, values: Array, count: int) -> None:
    """No noise."""


DRAWINGS: dict[BatchRule, Drawing] = {
    Independent(replacement=True): Drawing(draw_any, permutes=False),
    Independent(replacement=False): Drawing(draw_distinct, permutes=True),
}
NOISES = {True: Noise(add_normals, drawn=True), False: Noise(add_nothing, drawn=False)}


def noise_of(temperature: float) -> tuple[Noise, float]:
    """The noise, and its scale √(2/β) in coordinates in which the step matrix is the identity."""
    return NOISES[temperature > 0.0], sqrt(2.0 * temperature)
