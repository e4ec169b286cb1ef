"""Passes over the rows of a loss of your own: they travel to where the rows are, and are made in float64 there.

What a pass makes of a block is a function of the model's compiled functions and the block, with a name of its own, so that it
can be sent and told from others. A process that is sent the same model again has it compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple

import jax
import numpy as np

from equipoise.arrays import Array
from equipoise.data.fields import Columns
from equipoise.linalg import Sums, Total
from equipoise.models.passes import BothSums

if TYPE_CHECKING:
    from equipoise.models.general.functions import Functions
    from equipoise.models.general.problem import GeneralProblem

__all__ = [
    "LossSums",
    "OfBlock",
    "Padded",
    "PaddedPass",
    "ScoreSums",
    "bend",
    "loss",
    "roomy",
    "scored",
    "slope",
    "together",
]


class Padded(NamedTuple):
    """A block of rows in the user's structure, filled up to the common length.

    `mask` is how many observations each stands for: none, where it only fills up. `size` is the number of rows that do
    not, and `counts` the same of them.
    """

    rows: object
    mask: jax.Array
    size: int
    counts: Array


OfBlock = Callable[["Functions", Padded], Sums]


@dataclass(frozen=True)
class PaddedPass(Generic[Sums]):
    """f of a block, filled up: to the `longest` one of rows in memory, of others to one of few lengths, whoever reads it.

    `problem` has no rows of its own, and `identity` stands for it.
    """

    problem: GeneralProblem = field(compare=False)
    identity: str
    f: OfBlock[Sums]
    longest: int | None

    def __call__(self, block: Columns) -> Sums:
        """The sums over one block."""
        with jax.enable_x64(True):
            padded = self.problem.padded(block, self.longest or roomy(block.height))
            return self.f(self.problem.functions, padded)


def roomy(height: int) -> int:
    """The next length that is compiled for: four for every doubling.

    Examples
    --------
    >>> [roomy(height) for height in (1, 5, 9, 100, 1000, 1024)]
    [1, 5, 10, 112, 1024, 1024]
    """
    step = 1 << max(0, (height - 1).bit_length() - 3)
    return -(-height // step) * step


class LossSums(NamedTuple):
    """The loss and its gradient."""

    value: float
    gradient: Array


class ScoreSums(NamedTuple):
    """The scores, and their outer products."""

    score: Array
    scatter: Array


def loss(theta: Array, functions: Functions, b: Padded) -> LossSums:
    """Σ ℓ."""
    return LossSums(float(functions.value(theta, b.rows, b.mask)), np.zeros(0))


def slope(theta: Array, functions: Functions, b: Padded) -> LossSums:
    """Σ ℓ and Σ ∇ℓ."""
    value, gradient = functions.gradient(theta, b.rows, b.mask)
    return LossSums(float(value), np.array(gradient))


def scored(theta: Array, functions: Functions, b: Padded) -> ScoreSums:
    """Σ g and Σ g gᵀ."""
    g = np.asarray(functions.scores(theta, b.rows))[: b.size]
    return ScoreSums(b.counts @ g, (b.counts[:, None] * g).T @ g)


def bend(theta: Array, functions: Functions, b: Padded) -> Total:
    """Σ ∇²ℓ."""
    return Total(np.array(functions.hessian(theta, b.rows, b.mask)))


def together(one: OfBlock[Sums], other: OfBlock[Total], functions: Functions, b: Padded) -> BothSums:
    """The sums of two passes in one."""
    return BothSums(one(functions, b), other(functions, b))
