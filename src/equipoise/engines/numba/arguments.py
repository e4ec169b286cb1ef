"""What the loop of the linear engine is called with, and what it returns: named tuples, which the compiler knows.

The rows and the draws are not in them: arrays that may be laid out in several ways are arguments of their own, because
Numba takes an array for one of another layout, but not a named tuple that holds it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import Array, Words

__all__ = ["Chain", "Clock", "Ellipsoid", "Lift", "Reached", "Recursion", "Scratch", "Share"]


class Recursion(NamedTuple):
    """The numbers of the recursion: what the loss takes as `p`, κ, and the standard deviations of the noise by coordinate.

    `pull` is a, and then c or the columns of C, of the share a + c ∘ φ or a + C φ that no batch changes; rows of whole
    vectors.
    """

    constants: tuple[float, ...] | Array
    pull: Array
    momentum: float
    noise: Array


class Ellipsoid(NamedTuple):
    """φᵀ G φ ≤ R², and the largest eigenvalue of G, which spares the form while ‖φ‖² is small."""

    radius2: float
    metric: Array
    bound: float


class Chain(NamedTuple):
    """Where a chain stands, φ and m padded with zeros, and its generator; all changed in place."""

    phi: Array
    m: Array
    rng: Words


class Scratch(NamedTuple):
    """Memory for a step.

    `batch` are places of rows in the table, in whole groups, of which some were `drawn`; `work` the strips of a block;
    `stage` iterates that wait to be stored, before and after they are lifted; `partials` sums of parts, if a batch is
    summed in parts.
    """

    batch: Words
    drawn: NDArray[np.int64]
    work: Array
    stage: Array
    partials: Array


class Clock(NamedTuple):
    """The step a chain is at, how many to take, how many per stored draw, and how many rows to ask for ahead."""

    step: int
    steps: int
    thin: int
    ahead: int


class Share(NamedTuple):
    """What a call does of a step, and the parts of the batch it sums."""

    phase: int
    first: int
    last: int


class Lift(NamedTuple):
    """The columns of L, then θ̂, in whole vectors; and of each vector of a column, how many columns are not zero there."""

    columns: Array
    reach: NDArray[np.int64]


class Reached(NamedTuple):
    """The step reached, guard hits, draws stored, and whether every iterate was finite."""

    step: int
    hits: int
    stored: int
    finite: bool
