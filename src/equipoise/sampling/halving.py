"""Whether the shape of the draws has settled: a shorter run at half the step, which must show the same (theory §14)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.arrays import Array
from equipoise.cards import Card
from equipoise.models.problem import Problem
from equipoise.sampling.chains import Chains
from equipoise.sampling.run import resolve_thin, sample
from equipoise.theory.mixing import whole_steps
from equipoise.theory.tuning import Tuning, tune

__all__ = ["HalfStep", "half_rows", "halved"]

_CHAINS = 2
_SHARE, _FEWEST = 0.25, 100.0  # effective draws, of those of the run itself


@dataclass(frozen=True, repr=False)
class HalfStep(Card):
    """What the draws of a run at half the step show, by parameter.

    Attributes
    ----------
    mean, sd, skewness
        Of its draws.
    ess
        Its predicted effective draws.
    rows
        What it cost.
    """

    mean: Array
    sd: Array
    skewness: Array
    ess: float
    rows: float

    @classmethod
    def of(cls, chains: Chains, ess: float) -> HalfStep:
        """What the draws of such a run show."""
        flat = chains.flat()
        mean, sd = flat.mean(axis=0), flat.std(axis=0)
        return cls(mean, sd, (((flat - mean) / sd) ** 3).mean(axis=0), ess, chains.statistics["rows"])


def halved(
    problem: Problem, tuning: Tuning, *, ess: float, seed: int, guard: float | str | None, progress: bool
) -> HalfStep:
    """Run chains at half the step of a tuning with completed noise, beside a run of so many effective draws."""
    ess = max(_FEWEST, _SHARE * ess)
    moments = tuning.predicted.moments
    aim = tuning.target if tuning.internal is None else tuning.internal
    half = tune(moments, aim, tuning.dynamics, noise="completed", step=0.5 * tuning.step)
    thin = resolve_thin("auto", half)
    iact = half.predicted.draw_time(thin)
    draws = whole_steps(ess * iact / (_CHAINS * thin))
    stream = int(np.random.SeedSequence([seed, 0]).generate_state(1)[0])
    run = sample(problem, half, draws=draws, chains=_CHAINS, seed=stream, thin=thin, guard=guard, progress=progress)
    return HalfStep.of(run, _CHAINS * draws * thin / iact)


def half_rows(rows: float, ess: float) -> float:
    """About how many rows such a run draws beside one of so many rows and effective draws: half steps take twice as many."""
    return 2.0 * rows * max(_FEWEST / ess, _SHARE)
