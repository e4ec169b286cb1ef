"""Which chain is the cheapest for a target: what each would cost, from moments alone (theory §6, §13, §14).

An effective draw of a plain chain costs λ_max(Σ⁻¹H⁻¹(V + K(Σ))H⁻¹) rows, about all of them; of a control-variate chain
B (2−γ)/γ, with the smallest batch B for which the tails are no heavier than a normal law's by more than a little.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from equipoise.arrays import Array
from equipoise.calibration.options import Length, Moves
from equipoise.sampling.budget import leverage_seconds, predicted_seconds
from equipoise.theory.completion import MARGIN, largest_fidelity_step
from equipoise.theory.dynamics import Dynamics
from equipoise.theory.mixing import whole_steps
from equipoise.theory.moments import Moments
from equipoise.theory.tails import smallest_batch

__all__ = ["Candidate", "cheapest", "consider"]

_SPREAD = 0.8  # the largest bρ of a chain with γ = 1
_CURVED = 0.07  # standard deviations of predicted mean shift, root mean square over directions, beyond which full
# Newton steps overshoot
_CAREFUL = 0.5  # and γ there: measured, the covariance's error is then near its smallest on losses of all kinds
_TAILS = 0.3  # the largest excess kurtosis, in the worst direction
_SMALLEST, _FAITHFUL = 4, 16  # rows in a batch, and in one of a chain with a fidelity


@dataclass(frozen=True)
class Candidate:
    """A way to make the draws, and its predicted cost.

    Attributes
    ----------
    sampler, batches, batch_size
        What it is: see `eq.calibrate` and `eq.Dynamics`.
    gamma
        γ of a control-variate chain's step γH⁻¹; 0 for others.
    rows_per_draw, rows, seconds
        Rows per effective draw, rows for all draws, and the time of the sampling with what it needs to begin.
    chosen
        Whether it makes the draws.
    note
        What is to be said of it.
    """

    sampler: str
    batches: str
    batch_size: int
    gamma: float
    rows_per_draw: float
    rows: float
    seconds: float
    chosen: bool = False
    note: str = ""

    def __str__(self) -> str:
        name = f"{self.sampler}, {self.batches}" if self.batches == "leverage" else self.sampler
        cost = f"{self.rows_per_draw:>10,.0f} rows a draw {self.rows:>14,.0f} rows {_time(self.seconds):>9}"
        mark = "  <- taken" if self.chosen else ""
        return f"{name:<26} B {self.batch_size:>6,} {cost}{mark}{'  ' + self.note if self.note else ''}"


def consider(
    moments: Moments, target: Array, moves: Moves, length: Length, fidelity: float, quadratic: bool
) -> list[Candidate]:
    """Every chain that is worth considering for the target, and independent draws, which are only shown."""
    found: list[Candidate] = []
    if moves.chosen in ("auto", "control-variate"):
        ideal = largest_fidelity_step(fidelity) if fidelity else _comfortable(moments, target, quadratic)
        found += _control_variates(moments, target, moves, length, ideal, _FAITHFUL if fidelity else _SMALLEST)
    # plain gradients without noise along some direction have no variance there, whatever their step
    if moves.chosen in ("auto", "sgmcmc") and not (fidelity and moves.chosen == "auto") and not len(moments.quiet):
        found.append(_plain(moments, target, moves, length))
    if moves.chosen == "auto":
        found.append(Candidate("gaussian", "", 0, 0.0, 0.0, 0.0, 0.0, note="taken only if asked for: not a chain"))
    return found


def cheapest(candidates: list[Candidate]) -> Candidate:
    """The chain that takes the least time."""
    return min((c for c in candidates if c.sampler != "gaussian"), key=lambda c: c.seconds)


def _plain(moments: Moments, target: Array, moves: Moves, length: Length) -> Candidate:
    """The chain the options describe, at the cost of plain gradients."""
    dynamics = moves.dynamics(moments.n)
    rows = max(
        moments.relative_noise(moments.score_cov + moments.curvature_noise(target), target), float(dynamics.batch_size)
    )
    return _candidate("sgmcmc", dynamics, 0.0, rows, moments.dim, length)


def _comfortable(moments: Moments, target: Array, quadratic: bool) -> float:
    """γ for a loss this far from quadratic at the scale of the target: by the size of the predicted mean shift."""
    if quadratic:
        return 1.0
    shift = -0.5 * np.linalg.solve(moments.hessian, moments.third_derivative(target))
    size = float(np.sqrt(shift @ np.linalg.solve(target, shift) / len(shift)))
    return _CAREFUL if size > _CURVED else 1.0


def _control_variates(
    moments: Moments, target: Array, moves: Moves, length: Length, ideal: float, smallest: int
) -> list[Candidate]:
    rules = ("independent", "leverage") if moves.batches == "auto" else (moves.batches,)
    if not moves.replacement and moves.batches == "auto":
        rules = ("independent",)
    found: list[Candidate] = []
    for batches in rules:
        if found and not _may_save(found[0], moments, ideal, smallest):
            continue
        size, gamma = _smallest_batch(moments, target, moves, batches, ideal, smallest)
        dynamics = moves.control_variate(size, batches)
        # what drawing by leverage takes before the first step, besides
        setup = leverage_seconds(moments.n, moments.dim) if batches == "leverage" else 0.0
        rows = size * max(1.0, (2.0 - gamma) / gamma)
        found.append(_candidate("control-variate", dynamics, gamma, rows, moments.dim, length, setup))
    return found


def _may_save(uniform: Candidate, moments: Moments, ideal: float, smallest: int) -> bool:
    """Whether leverage could be faster at all: its ρ is about D at the least, and it takes passes over the data first."""
    least = max(smallest, moments.dim / _spread(ideal)) * max(1.0, (2.0 - ideal) / ideal)
    best = uniform.seconds * least / uniform.rows_per_draw + leverage_seconds(moments.n, moments.dim)
    return best < uniform.seconds


def _spread(gamma: float) -> float:
    """The largest bρ that goes together with γ."""
    return min(1.0 / gamma - 1.0, 1.8 / gamma - 1.0) if gamma < 1.0 else _SPREAD


def _smallest_batch(
    moments: Moments, target: Array, moves: Moves, batches: str, ideal: float, smallest: int
) -> tuple[int, float]:
    """The smallest batch that has light enough tails, or the given one; and γ."""
    n, one = moments.n, moves.control_variate(1, batches)
    rho = moments.curvature_number(target, one)

    def step(size: int) -> float:
        b = moves.control_variate(size, batches).noise_factor(n)
        return min(ideal, MARGIN * 2.0 / (1.0 + b * rho))

    if not isinstance(moves.batch_size, str):
        replace(one, batch_size=moves.batch_size).require_batch_within(n)
        return int(moves.batch_size), step(moves.batch_size)
    tails = moments.tails(target, one)

    def light(size: int) -> bool:
        b = moves.control_variate(size, batches).noise_factor(n)
        return b * rho <= _spread(ideal) and tails.kurtosis(step(size), 1.0 / size) <= _TAILS

    size = smallest_batch(light, min(smallest, n), n) or n
    return size, step(size)


def _candidate(
    sampler: str, dynamics: Dynamics, gamma: float, rows_per_draw: float, dim: int, length: Length, setup: float = 0.0
) -> Candidate:
    B = dynamics.batch_size
    steps = whole_steps(length.ess * rows_per_draw / B / length.chains)
    seconds = setup + predicted_seconds(length.chains, steps, B, dim)
    return Candidate(sampler, dynamics.batches, B, gamma, rows_per_draw, float(length.chains * steps * B), seconds)


def _time(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.2g} s" if seconds < 99.5 else f"{seconds:.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 36000 else f"{seconds / 3600:,.0f} h"
