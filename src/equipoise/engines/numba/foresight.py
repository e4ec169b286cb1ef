"""What a chain will draw: it does not depend on where the chain is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import Array, Words
from equipoise.engines.numba.kernel import draw, shake
from equipoise.engines.rules import NOWHERE, Urn

__all__ = ["fill", "foresee", "foretell"]


def fill(rng: Words, step: int, urn: Urn, batches: NDArray[np.int32], sizes: NDArray[np.int32], normals: Array) -> None:
    """What each step draws, in the order in which it draws it: a batch, then normals (in one row, if there are none)."""
    batch, ones = np.empty(batches.shape[1], np.uint64), np.ones(normals.shape[1])
    for t in range(batches.shape[0]):
        sizes[t] = draw(rng, step + t, urn, batch)
        for k in range(sizes[t]):
            batches[t, k] = batch[k]
        shake(rng, ones, normals[min(t, normals.shape[0] - 1)], normals.shape[1])


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


def foretell(
    rng: Words, step: int, urn: Urn, batches: NDArray[np.uint64], noise: Array, words: NDArray[np.uint64]
) -> None:
    """What so many steps will draw, a row of `batches` for each, and the generator before each of them and at the end."""
    values = np.zeros(noise.size)
    for t in range(batches.shape[0]):
        words[t] = rng
        draw(rng, step + t, urn, batches[t])
        shake(rng, noise, values, noise.size)
    words[batches.shape[0]] = rng
