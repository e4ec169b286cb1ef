"""What a chain would do, before it runs: the law of a given step, or of the one tuned to a target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import numpy as np

from equipoise.arrays import Array
from equipoise.calibration.aims import aimed
from equipoise.calibration.options import Aim, Moves, PlanOptions, options_of
from equipoise.cards import Card
from equipoise.fitting.fit import fit
from equipoise.models.problem import Problem
from equipoise.models.verbs import moments
from equipoise.theory.limit import max_stable_step
from equipoise.theory.moments import Moments
from equipoise.theory.stationary import Stationary, stationary
from equipoise.theory.tuning import tune

__all__ = ["Preview", "preview"]


@dataclass(frozen=True, repr=False)
class Preview(Card):
    """The law of a chain and the moments of its problem, beside the target it is compared with and what that is called."""

    moments: Moments
    law: Stationary
    target: Array
    target_name: str

    @property
    def names(self) -> tuple[str, ...]:
        """Parameter names."""
        return self.moments.names or tuple(f"x{j}" for j in range(self.moments.dim))

    @property
    def sd(self) -> Array:
        """Predicted standard deviations."""
        return np.sqrt(np.diag(self.law.cov))

    @property
    def target_sd(self) -> Array:
        """Standard deviations of the target."""
        return np.sqrt(np.diag(self.target))

    @property
    def sd_ratio(self) -> Array:
        """Predicted standard deviations over the target's."""
        return self.sd / self.target_sd

    @property
    def shift(self) -> Array:
        """Predicted mean bias in standard deviations."""
        return self.law.mean_bias / self.sd

    @property
    def ess_per_thousand(self) -> Array:
        """Effective draws of each parameter in a thousand steps."""
        return 1000.0 / self.law.draw_times()

    @property
    def scalar(self) -> float | None:
        """The step size where the step is a multiple of the identity, else None."""
        size = float(self.law.step[0, 0])
        return size if np.array_equal(self.law.step, size * np.eye(self.moments.dim)) else None

    @property
    def largest_stable(self) -> float:
        """The largest stable step size; for a matrix, the largest stable multiple of it."""
        return max_stable_step(self.moments, self.law.dynamics, None if self.scalar is not None else self.law.step)

    @property
    def distance(self) -> float:
        """Relative Frobenius distance of the predicted covariance from the target."""
        return float(np.linalg.norm(self.law.cov - self.target) / np.linalg.norm(self.target))

    @property
    def burn_in(self) -> int:
        """Steps until a chain that starts at the estimate has its second moments to one per cent."""
        return self.law.burn_in(np.zeros(self.moments.dim), 0.01)


def preview(
    problem: Problem, target: str, step: float | None, *, seed: int = 0, **options: Unpack[PlanOptions]
) -> Preview:
    """The law of a scalar step, or without one of the matrix tuned to the target."""
    rows = options.get("tuning_rows")
    moves = options_of(Moves, options, PlanOptions)
    fitted = fit(problem, tuning_rows=rows, seed=seed)
    found = moments(problem, fitted, tuning_rows=rows, seed=seed)
    aim = options_of(Aim, options, PlanOptions)
    here = problem.at_constant(fitted.constant)
    dynamics, wanted = moves.dynamics(found.n), aimed(here, found if rows is None else None, found, target, aim).matrix
    law = tune(found, wanted, dynamics).predicted if step is None else stationary(found, step, dynamics)
    return Preview(found, law, wanted, target)
