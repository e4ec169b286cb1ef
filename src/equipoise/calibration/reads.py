"""Where the rows of a run come from, and how often they are read: known before the first step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from equipoise.calibration.candidates import Candidate
from equipoise.data.scanned import Scan
from equipoise.engines.pooling import pool_bytes, pools_needed
from equipoise.fitting.fit import LARGEST, scaled_together
from equipoise.models.linear import LinearProblem
from equipoise.models.problem import Problem
from equipoise.models.robust import summed_with_moments
from equipoise.sampling.halving import half_rows
from equipoise.theory.tuning import Tuning

if TYPE_CHECKING:
    from equipoise.calibration.options import Moves

__all__ = ["Reads", "expected_passes", "reads_of", "with_reading"]

# Passes that a fit takes from the minimum of a sample: of squared loss or of all rows, of regressions (robust scale: one more),
# and of other losses.
_SQUARED, _LINEAR, _OTHERS = 1, 2, 3
# Targets that take a pass of their own where their sums do not go with the moments: over leverages, by cluster, over time.
_APART = ("HC2", "HC3", "CRV1", "CRV3", "HAC")
_SECONDS = 5e-9  # that a pass takes for each number it reads
_GIGA = 1e9


@dataclass(frozen=True)
class Reads:
    """How files are read for a run: which, how large they are as far as that is known, and what reading may take.

    `passes` is how often they were read until the plan was made, the first time included; `pools` how often they will be
    for the rows of all steps, those at half the step included where a shape is checked by them; `seconds` what one pass
    takes.
    """

    where: str
    bytes: int
    memory: int
    passes: float
    pools: float
    seconds: float

    def __str__(self) -> str:
        size = f"{self.bytes / _GIGA:.3g} GB" if self.bytes >= _GIGA else f"{1000 * self.bytes / _GIGA:.3g} MB"
        return f"{self.where}, {size}" if self.bytes else self.where

    @property
    def words(self) -> str:
        """How often and at what cost."""
        pools = f"{self.pools:,.0f} more for the rows of all steps" if self.pools else "none more"
        cost = f"about {self.seconds:.2g} s each, at most {self.memory / _GIGA:.3g} GB of memory"
        return f"{self.passes:.0f} passes until here, {pools}; {cost}"


def expected_passes(problem: Problem, target: object, moves: Moves) -> float:
    """How many passes over files come before the first step; constants and heavy tails may take one or two more."""
    fit = _LINEAR + scaled_together(problem) if isinstance(problem, LinearProblem) else _OTHERS
    fit = _SQUARED if problem.quadratic or problem.source.n <= LARGEST else fit
    kind = target if isinstance(target, str) else ""
    aim = kind in _APART and not summed_with_moments(problem, kind)
    bare = moves.chosen in ("sgmcmc", "gaussian") and moves.proxy != "dq-exact"
    return float(fit + 1 + aim + (0 if bare else 1))


def reads_of(problem: Problem, rows: float, ess: float, tuning: Tuning, sampler: str) -> Reads | None:
    """How the files of a problem are read for so many rows of all chains and effective draws; None for rows in memory."""
    source = problem.source
    if not isinstance(source, Scan):
        return None
    size, by_leverage = tuning.dynamics.batch_size, tuning.dynamics.batches == "leverage"
    runs = [] if sampler == "gaussian" else [rows, half_rows(rows, ess)] if tuning.fidelity else [rows]
    pools = sum(_pools(source, len(problem.names), each, size, by_leverage) for each in runs)
    return Reads(
        source.where, source.bytes, source.memory, source.passes, pools, source.meter.pass_seconds(source.read_rows)
    )


def _pools(source: Scan, dim: int, rows: float, batch_size: int, by_leverage: bool) -> float:  # type: ignore[type-arg]
    """Passes for so many rows: one where all rows fit, or those that are drawn; by leverage, which are never held, one more."""
    size = pool_bytes(source, dim)
    if by_leverage:
        return 1.0 + pools_needed(source, rows, size, batch_size)
    return 1.0 if source.n * size <= source.memory else pools_needed(source, rows, size, batch_size)


def with_reading(problem: Problem, considered: list[Candidate]) -> list[Candidate]:
    """Chains with the time that reading their rows takes; drawing by leverage reads all rows once more."""
    source = problem.source
    if not isinstance(source, Scan):
        return considered
    # by what passes take on the machine of the benchmarks: a clock would choose another chain at another run
    each, found = _SECONDS * source.encoder.width * source.read_rows, []
    for candidate in considered:
        by_leverage = candidate.batches == "leverage"
        pools = _pools(source, len(problem.names), candidate.rows, candidate.batch_size, by_leverage)
        note = f"{pools:,.0f} passes over the files" if pools > 1.0 and np.isfinite(pools) else candidate.note
        chain = candidate.sampler != "gaussian"
        found.append(replace(candidate, seconds=candidate.seconds + pools * each, note=note) if chain else candidate)
    return found
