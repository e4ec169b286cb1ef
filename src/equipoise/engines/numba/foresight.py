"""Which rows a chain will draw: what a step draws does not depend on where the chain is."""

from __future__ import annotations

import numpy as np

from equipoise.arrays import Array, Words
from equipoise.engines.numba.kernel import draw, shake
from equipoise.engines.rules import NOWHERE, Urn

__all__ = ["foresee"]


def foresee(rng: Words, step: int, steps: int, urn: Urn, batch: Words, noise: Array, placed: Words, count: int) -> int:
    """Draw what so many steps will draw, and give every row that has no place the next one; returns how many have one.

    `placed` has the row at each place.
    """
    values = np.zeros(noise.size)
    for t in range(steps):
        for k in range(draw(rng, step + t, urn, batch)):
            row = batch[k]
            if urn.places[row] == NOWHERE:
                urn.places[row], placed[count] = count, row
                count += 1
        shake(rng, noise, values, noise.size)
    return count
