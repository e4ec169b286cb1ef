"""Closed loop: correct the internal target with what a pilot run shows, for losses that are not quadratic (theory §11)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from equipoise.arrays import Array
from equipoise.cards import Card
from equipoise.errors import InfeasibleTarget
from equipoise.linalg import symmetric
from equipoise.models.problem import Problem
from equipoise.sampling.run import resolve_burn_in, resolve_thin, sample
from equipoise.theory.moments import Moments
from equipoise.theory.tuning import Tuning, tune

__all__ = ["Pilot", "Refinement", "refine"]


_ROUNDS = 4
_FLOOR = 0.004  # Monte Carlo error wanted of a pilot's covariance
_FLOORS = 2.0  # and how many of them count as a difference
_CHAINS = 2  # of a pilot
_FEWEST = 50  # draws of a pilot's chain: fewer say nothing
_LEAST = 0.1  # share of the internal target that one correction must leave in every direction


@dataclass(frozen=True, repr=False)
class Pilot(Card):
    """One pilot run: its covariance's relative error against the target, the Monte Carlo floor, and rows touched.

    Both are in units of the target's standard deviations.
    """

    error: float
    floor: float
    rows: float

    @property
    def settled(self) -> bool:
        """Whether the error is no more than Monte Carlo error would make it."""
        return self.error <= _FLOORS * self.floor


@dataclass(frozen=True, repr=False)
class Refinement(Card):
    """What the pilots found.

    Attributes
    ----------
    pilots
        In order: the first is of the unrefined step; the step in use is that of the best.
    words
        What was done, for people.
    """

    pilots: tuple[Pilot, ...]
    words: str

    @property
    def before(self) -> float:
        """Error of the unrefined step."""
        return self.pilots[0].error if self.pilots else 0.0

    @property
    def after(self) -> float:
        """Error of the step in use, as its own pilot measured it.

        It is the smallest of several noisy ones, so a fresh run may show up to about one floor more.
        """
        return min(pilot.error for pilot in self.pilots) if self.pilots else 0.0


def refine(
    problem: Problem,
    moments: Moments,
    tuning: Tuning,
    *,
    seed: int,
    rows: float,
    guard: float | str | None,
    progress: bool,
) -> tuple[Tuning, Refinement]:
    """Tune to an internal target Γ ← Γ + (Σ_target − Σ_observed) until pilots agree with the target.

    Parameters
    ----------
    problem, moments, tuning
        The run as planned.
    seed
        Of the run; pilots use streams of their own.
    rows
        Rows the run itself will touch: all pilots together touch no more.
    guard, progress
        As for `eq.sample`.

    Returns
    -------
    Tuning, Refinement
        The tuning in use: its target is the one asked for, `internal` is Γ, and its predicted law is that of Γ, as the
        quadratic proxy has it. And what was found on the way.
    """
    if problem.quadratic and tuning.dynamics.batches != "epochs":
        return tuning, Refinement((), "nothing to refine: for squared loss the prediction is exact")
    tried: list[tuple[Pilot, Tuning]] = []
    current, stopped = tuning, ""
    for index in range(_ROUNDS):
        draws = _affordable(current, rows / _ROUNDS)
        if draws < _FEWEST:
            stopped = "the run is too short for pilots of its own cost: ask for more effective draws"
            break
        pilot, observed = _pilot(problem, current, draws, seed, index, guard, progress)
        tried.append((pilot, current))
        if pilot.settled or index == _ROUNDS - 1:
            break
        try:
            current = _next(moments, current, observed)
        except InfeasibleTarget:
            stopped = "a further correction is out of reach at this temperature"
            break
    if not tried:
        return tuning, Refinement((), f"not tried: {stopped}")
    best, chosen = min(tried, key=lambda entry: entry[0].error)
    pilots = tuple(pilot for pilot, _ in tried)
    return chosen, Refinement(pilots, _words(pilots, best, stopped))


def _next(moments: Moments, current: Tuning, observed: Array) -> Tuning:
    """The tuning to the corrected internal target; what it is for stays what it was."""
    target = current.target
    internal = _corrected(target if current.internal is None else current.internal, target - observed)
    if current.predicted.completion is None:
        tuned = tune(moments, internal, current.dynamics, current.proxy)
    else:
        tuned = _completed(moments, internal, current)
    return replace(tuned, target=target, internal=internal, structure=current.structure, fidelity=current.fidelity)


def _completed(moments: Moments, internal: Array, current: Tuning) -> Tuning:
    """The step stays, or is halved where it makes too much noise by itself: what is injected changes."""
    for share in (1.0, 0.5):
        try:
            return tune(moments, internal, current.dynamics, noise="completed", step=share * current.step)
        except InfeasibleTarget:
            continue
    return tune(moments, internal, current.dynamics, noise="completed", step=0.25 * current.step)


def _affordable(tuning: Tuning, rows: float) -> int:
    """Draws of each of a pilot's chains: enough for the error wanted of it, within so many rows, burn-in included."""
    thin = resolve_thin("auto", tuning)
    wanted = (tuning.predicted.covariance_floor(1, thin, standardised=True) / _FLOOR) ** 2 / _CHAINS
    steps = rows / (_CHAINS * tuning.dynamics.batch_size) - resolve_burn_in("auto", tuning)
    return int(min(wanted, steps / thin))


def _pilot(
    problem: Problem,
    tuning: Tuning,
    draws: int,
    seed: int,
    index: int,
    guard: float | str | None,
    progress: bool,
) -> tuple[Pilot, Array]:
    thin, law, target = resolve_thin("auto", tuning), tuning.predicted, tuning.target
    stream = int(np.random.SeedSequence([seed, 1 + index]).generate_state(1)[0])
    run = sample(problem, tuning, draws=draws, chains=_CHAINS, seed=stream, thin=thin, guard=guard, progress=progress)
    observed = np.atleast_2d(np.cov(run.flat(), rowvar=False))
    scale = np.sqrt(np.diag(target))
    unit = np.outer(scale, scale)
    error = float(np.linalg.norm((observed - target) / unit) / np.linalg.norm(target / unit))
    floor = law.covariance_floor(_CHAINS * draws, thin, standardised=True)
    return Pilot(error, floor, run.statistics["rows"]), observed


def _corrected(internal: Array, change: Array) -> Array:
    """internal + change, shortened so that it stays well inside the positive definite matrices."""
    root = np.linalg.cholesky(internal)
    half = np.linalg.solve(root, np.linalg.solve(root, change).T)
    lowest = float(np.linalg.eigvalsh(symmetric(half))[0])
    length = 1.0 if lowest > _LEAST - 1.0 else (_LEAST - 1.0) / lowest
    return symmetric(internal + length * change)


def _words(pilots: tuple[Pilot, ...], best: Pilot, stopped: str) -> str:
    first = pilots[0]
    cost = f"{len(pilots)} pilot run(s) of {sum(p.rows for p in pilots):,.0f} rows in all"
    if first.settled:
        return (
            f"not needed: a pilot's covariance is within {first.error:.1%} of the target, and it would see errors above "
            f"{_FLOORS * first.floor:.1%} ({cost}; more effective draws pay for longer pilots)"
        )
    fell = f"the covariance's error fell from {first.error:.1%} to {best.error:.1%}"
    more = f"; {stopped}" if stopped else ""
    return f"{fell} (Monte Carlo floor {best.floor:.1%}; {cost}{more})"
