"""Draws of several chains, in flat parameters and in the model's own structure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from equipoise.arrays import Array
from equipoise.cards import Card
from equipoise.checks import checked_options, finite_array, instance, positive, whole
from equipoise.engines.engine import ChainState
from equipoise.errors import InvalidInput
from equipoise.models.layout import FlatLayout, Wide
from equipoise.models.problem import Layout
from equipoise.theory.tuning import Tuning

__all__ = ["Chains", "Statistics", "group_of", "no_statistics"]

_SAME = 1e-6  # of N H Σ from the identity, for the posterior's covariance

_PART = 1 << 24  # numbers in a part of the draws' parameters: 128 MB

# steps (of each chain), rows (touched by all), seconds (of sampling, not of compiling), guard_hits and guard_rate (share
# of the steps)
Statistics = dict[str, float]


def no_statistics() -> Statistics:
    """Those of draws that no chain was run for."""
    return dict.fromkeys(("steps", "rows", "seconds", "guard_hits", "guard_rate"), 0.0)


def group_of(tuning: Tuning) -> str:
    """What draws of a tuning are called."""
    moments = tuning.predicted.moments
    sd = np.sqrt(np.diag(tuning.target))
    # in units of standard deviations, so that those of the parameters do not matter
    away = moments.n * (moments.hessian * np.outer(sd, sd)) @ (tuning.target / np.outer(sd, sd)) - np.eye(tuning.dim)
    return "posterior" if np.abs(away).max() <= _SAME else "draws"


@dataclass(frozen=True, repr=False)
class Chains(Card):
    """Draws of several chains.

    Attributes
    ----------
    draws
        (chains, draws, D), always flat; rows after a divergence are NaN.
    names
        Parameter names.
    thin, burn_in, seed
        Steps per stored draw, steps discarded before the first, and the seed.
    layout
        How flat vectors become the model's own parameters.
    statistics
        steps (of each chain), rows (touched by all chains), seconds, guard_hits and guard_rate.
    state
        Where each chain stands.
    independent
        Whether the draws are independent ones from a normal law: no chain was run.
    group
        What draws are called elsewhere: `posterior` where the target is the posterior's covariance, and else `draws`.
    """

    draws: Array
    names: tuple[str, ...]
    thin: int
    burn_in: int
    seed: int
    layout: Layout = field(repr=False)
    statistics: Statistics = field(default_factory=no_statistics)
    state: tuple[ChainState, ...] = field(default=(), repr=False)
    independent: bool = False
    group: str = "draws"

    @classmethod
    @checked_options
    def from_draws(cls, draws: ArrayLike, tuning: Tuning, thin: int = 1) -> Chains:
        """Draws made elsewhere, so that `eq.diagnose` can compare them with a tuning.

        Parameters
        ----------
        draws
            (chains, draws, D), or (draws, D) for one chain.
        tuning
            What they were made with.
        thin
            Steps between two of them.
        """
        instance("tuning", tuning, Tuning, "make one with eq.tune, or eq.Tuning.at for a step of your own")
        array = finite_array("draws", draws, "leave out draws that are not finite")
        array = array[None] if array.ndim == 2 else array
        if array.ndim != 3 or array.shape[1] < 2 or array.shape[2] != tuning.dim:
            raise InvalidInput(
                "draws",
                f"(chains, draws, {tuning.dim}), at least two draws",
                f"shape {np.shape(draws)}",
                "reshape them",
            )
        every = whole("thin", thin, 1, "pass an int")
        names = tuning.predicted.moments.names or tuple(f"x{j}" for j in range(tuning.dim))
        still = [name for name, values in zip(names, array.T, strict=True) if np.ptp(values) == 0.0]
        if still:
            raise InvalidInput(
                "draws",
                "moving in every parameter",
                f"one value throughout for {', '.join(still[:5])}",
                "store a copy of each iterate",
            )
        return cls(array, names, every, 0, 0, FlatLayout(names), group=group_of(tuning))

    def tree(self, gb: float = 4.0) -> object:
        """The draws in the model's own parameter structure, with leading axes (chains, draws).

        Parameters
        ----------
        gb
            The largest result that is made: draws on a subspace of very many parameters may be larger than memory. `trees`
            gives them in parts.
        """
        needed = 8e-9 * self.draws.shape[0] * self.draws.shape[1] * self._full
        if needed > positive("gb", gb):
            raise InvalidInput(
                "gb",
                f"at least the {needed:,.3g} GB that draws of {self._full:,} parameters take",
                f"{gb:g}",
                "take them in parts (for part in chains.trees(): ...), use evaluate for predictions, or pass a larger gb",
            )
        return self.layout.unflatten(self.draws)

    def trees(self, size: int | None = None) -> Iterator[object]:
        """The draws in the model's own parameter structure in parts, each with leading axis (draws,), chain after chain.

        Parameters
        ----------
        size
            Draws in a part; by default as many as take 128 MB.
        """
        count = max(1, _PART // self._full) if size is None else whole("size", size, 1, "leave it out")
        flat = self.flat()
        for start in range(0, len(flat), count):
            yield self.layout.unflatten(flat[start : start + count])

    @property
    def _full(self) -> int:
        """Numbers in the parameters of one draw."""
        return self.layout.full if isinstance(self.layout, Wide) else self.draws.shape[-1]

    def to_arviz(self) -> Any:
        """The draws as ArviZ data, one variable per parameter; sandwich draws are not called a posterior."""
        from equipoise.interop.arviz import to_arviz

        return to_arviz(self)

    def flat(self) -> Array:
        """All chains joined, (chains · draws, D)."""
        return self.draws.reshape(-1, self.draws.shape[-1])
