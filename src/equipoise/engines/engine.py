"""How a chain steps: the protocol every engine fulfils, a chain's state, and what comes of advancing it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from equipoise.arrays import Array, Words

__all__ = ["Advance", "ChainState", "Coupling", "Engine", "Guard", "initial_state"]


class Guard(NamedTuple):
    """The ellipsoid (θ−θ̂)ᵀ Σ⁻¹ (θ−θ̂) ≤ R² iterates are pulled back onto (theory §10); an infinite R² turns it off."""

    radius2: float
    cov: Array


@dataclass
class ChainState:
    """Where a chain stands: all it needs to resume bit for bit.

    Arrays are updated in place; `step` counts from 1; `hits` counts the steps on which the guard acted.
    """

    position: Array  # in the engine's own coordinates, (D,)
    velocity: Array  # m, (D,)
    rng: Words  # the four words of the generator
    step: int = 0
    hits: int = 0
    # the generator's words at the start of the epoch, from which its permutation is made again
    shuffle: Words = field(default_factory=lambda: np.zeros(4, np.uint64))


class Advance(NamedTuple):
    """What came of advancing a chain: draws written, and whether an iterate was not finite.

    A chain that diverged stands at that iterate, `state.step` is its number, and the draws written before it are valid.
    """

    written: int
    diverged: bool


def initial_state(position: Array, seed: np.random.SeedSequence) -> ChainState:
    """A chain at rest at `position`, with a generator of its own drawn from `seed`."""
    start = np.array(position, dtype=np.float64)
    return ChainState(start, np.zeros_like(start), seed.generate_state(4, np.uint64).astype(np.uint64))


class Engine(Protocol):
    """Runs chains of one problem with one step matrix."""

    @property
    def identity(self) -> str:
        """A digest of all that determines a run besides the tuning and the options: rows, loss, prior, engine."""
        ...

    def start(self, theta: Array, seed: np.random.SeedSequence) -> ChainState:
        """A chain at θ, at rest."""
        ...

    def advance(
        self,
        states: Sequence[ChainState],
        steps: int,
        thin: int | None,
        outs: Sequence[Array],
        pool: Executor,
        threads: int = 1,
    ) -> list[Advance]:
        """Run steps of every chain in place, and store θ after each step whose number is a multiple of `thin`.

        None stores nothing. No bit depends on how a run is split, or on the number of threads.
        """
        ...


class Coupling(Protocol):
    """Runs a chain and its quadratic proxy on the same batches and noise (theory §8)."""

    def run(self, seed: np.random.SeedSequence, burn_in: int, steps: int, thin: int) -> tuple[Array, int | None]:
        """Pairs (m, 2, D) of parameters, chain first; and the step at which one of them diverged, or None."""
        ...
