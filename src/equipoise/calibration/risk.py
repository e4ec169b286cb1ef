"""Test loss of a chain before it runs, and the weight decay and batch size it recommends (theory §7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from equipoise.arrays import Array
from equipoise.cards import Card
from equipoise.checks import instance, positive
from equipoise.data.scanned import Scan
from equipoise.errors import InvalidInput, UnstableStep
from equipoise.fitting.fit import Fit, fit
from equipoise.models.binding import bind, held_whole, verb
from equipoise.models.problem import Derivatives, Problem
from equipoise.models.verbs import moments, settle
from equipoise.theory.dynamics import Dynamics
from equipoise.theory.moments import Moments
from equipoise.theory.stationary import Stationary, stationary

__all__ = ["ExpectedLoss", "Optimum", "expected_test_loss", "optimal_batch_size", "optimal_weight_decay"]


@dataclass(frozen=True, repr=False)
class ExpectedLoss(Card):
    """E L_test(θ) under a stationary law, and its parts.

    Attributes
    ----------
    at_minimiser
        L_test(θ̂).
    bias
        ∇L_testᵀ E(θ − θ̂).
    variance
        ½ tr(∇²L_test Σ).
    """

    at_minimiser: float
    bias: float
    variance: float

    @property
    def value(self) -> float:
        """The expected loss."""
        return self.at_minimiser + self.bias + self.variance

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True, repr=False)
class Optimum(Card):
    """The best value of a setting, and the curve it was read from.

    Attributes
    ----------
    best
        The setting recommended.
    loss
        Expected test loss there.
    grid, losses
        Settings tried, ascending, and their expected test losses; infinite where the chain is unstable.
    """

    best: float
    loss: float
    grid: Array
    losses: Array


@verb
def expected_test_loss(problem: Problem, fit: Fit, law: Stationary) -> ExpectedLoss:
    """Expected mean loss of the chain's iterates on test data, without running it.

    ``E L_test(θ) = L_test(θ̂) + ∇L_testᵀ bias + ½ tr(∇²L_test Σ)`` (theory eq. 7.2), exact for squared loss.
    It is in the units of the loss: for the gaussian family (y − η)²/(2s²), so that the mean squared error is 2s² times
    it. The prior is not part of it.

    Parameters
    ----------
    problem
        The model that was fitted with test data of the same kind, or a problem bound to them.
    fit, law
        The minimiser and the stationary law of the chain around it.

    Returns
    -------
    ExpectedLoss
        Its value and parts; `float()` gives the value.
    """
    instance("law", law, Stationary, "take one from eq.stationary, or tuning.predicted")
    return _expected(_tested(problem, fit), law)


@verb
def optimal_weight_decay(
    problem: Problem,
    test_data: object,
    step: ArrayLike,
    dynamics: Dynamics,
    *,
    low: float = 1e-3,
    high: float | None = None,
) -> Optimum:
    """The prior precision γ (R = ½ γ ‖θ − m‖²) that minimises the chain's expected test loss at a fixed step.

    It fits the model at some sixty values of γ. Rows in files are therefore read into memory first if they take at most a
    quarter of the `memory` for reading; else every fit takes passes of its own.

    Parameters
    ----------
    problem
        The model with its training data, or a problem bound to them; its own prior precision is replaced, its prior mean
        is kept.
    test_data
        Test data of the same kind.
    step, dynamics
        The chain whose test loss is asked for.
    low, high
        Range searched besides γ = 0; by default up to the number of training rows times the largest curvature.

    Returns
    -------
    Optimum
    """
    instance("dynamics", dynamics, Dynamics, "make them with eq.Dynamics(batch_size=...)")
    problem = _at_hand(problem)
    base = problem.at_constant(fit(problem.with_precision(0.0)).constant)
    test = _at_hand(bind(base.model, test_data))
    low, high = positive("low", low), None if high is None else positive("high", high)
    if high is None:
        plain = base.with_precision(0.0)
        found = moments(plain, fit(plain))
        high = found.n * float(np.linalg.eigvalsh(found.hessian)[-1])
    if low >= high:
        raise InvalidInput("low, high", "positive and ascending", f"{low}, {high}", "for example low=0.001, high=1000")

    def loss(gamma: float) -> float:
        decayed = base.with_precision(gamma)
        fitted = fit(decayed)
        law = _law(moments(decayed, fitted), step, dynamics)
        return np.inf if law is None else expected_test_loss(test, fitted, law).value

    grid = np.concatenate([[0.0], np.geomspace(low, high, 41)])
    losses = np.array([loss(g) for g in grid])
    return _refined(loss, grid, losses)


@verb
def optimal_batch_size(
    problem: Problem,
    test_data: object,
    step: ArrayLike,
    dynamics: Dynamics,
    *,
    tolerance: float = 0.01,
) -> Optimum:
    """The smallest batch whose expected test loss is within `tolerance` of the best over all batch sizes.

    At a fixed step the expected test loss falls as the batch grows, but ever more slowly; beyond this size larger
    batches only cost more.

    Parameters
    ----------
    problem, test_data, step
        As for `optimal_weight_decay`.
    dynamics
        Its batch size is replaced.
    tolerance
        Relative excess of the expected test loss that is accepted.

    Returns
    -------
    Optimum
    """
    tolerance = positive("tolerance", tolerance, "0.01 accepts one per cent more than the best loss")
    instance("dynamics", dynamics, Dynamics, "make them with eq.Dynamics(batch_size=...)")
    fitted = fit(problem)
    found, tested = moments(problem, fitted), _tested(bind(problem.model, test_data), fitted)
    grid = np.unique(np.geomspace(1, found.n, 60).astype(int))
    laws = (_law(found, step, replace(dynamics, batch_size=int(size))) for size in grid)
    losses = np.array([np.inf if law is None else _expected(tested, law).value for law in laws])
    best = losses.min()
    if not np.isfinite(best):
        raise InvalidInput("step", "stable for some batch size", step, "use a smaller step: see eq.max_stable_step")
    enough = int(np.argmax(losses <= best + tolerance * abs(best)))
    return Optimum(float(grid[enough]), float(losses[enough]), grid.astype(np.float64), losses)


def _at_hand(problem: Problem) -> Problem:
    """The same problem on rows in memory, if they are in files and small."""
    source = problem.source
    if not isinstance(source, Scan) or not held_whole(source):
        return problem
    return cast(Problem, replace(cast(Any, problem), source=source.whole()))


def _tested(problem: Problem, fitted: Fit) -> Derivatives:
    """The test loss around the minimiser, without the prior."""
    here, params = settle(problem.without_prior(), fitted)
    return here.derivatives(here.flatten(params), 2)


def _expected(tested: Derivatives, law: Stationary) -> ExpectedLoss:
    """Its mean under a law."""
    bias = float(tested.gradient @ np.nan_to_num(law.mean_bias))
    return ExpectedLoss(tested.value, bias, 0.5 * float(np.sum(tested.hessian * law.cov)))


def _law(found: Moments, step: ArrayLike, dynamics: Dynamics) -> Stationary | None:
    """The law of a chain; None where it is unstable."""
    try:
        return stationary(found, step, dynamics)
    except UnstableStep:
        return None


def _refined(loss: Callable[[float], float], grid: Array, losses: Array) -> Optimum:
    """Golden-section search, in the logarithm, between the neighbours of the best grid point."""
    from scipy.optimize import minimize_scalar  # slow to import, rarely needed

    i = int(np.argmin(losses))
    if not np.isfinite(losses[i]):
        raise InvalidInput("step", "stable for some weight decay", "an unstable step", "see eq.max_stable_step")
    best, value = float(grid[i]), float(losses[i])
    if i > 0:
        low, high = grid[max(1, i - 1)], grid[min(i + 1, len(grid) - 1)]
        found = minimize_scalar(
            lambda u: loss(float(np.exp(u))),
            bounds=(np.log(low), np.log(high)),
            method="bounded",
            options={"xatol": 1e-6},
        )
        if found.fun < value:
            best, value = float(np.exp(found.x)), float(found.fun)
    return Optimum(best, value, grid, losses)
