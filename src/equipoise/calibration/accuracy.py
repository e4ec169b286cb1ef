"""How far a chain is from its proxy: the theorem's bound, and two brackets measured on one run (theory §8)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from equipoise.arrays import Array
from equipoise.calibration.diagnostics import autocorrelation_time
from equipoise.cards import Card
from equipoise.checks import instance, positive, whole
from equipoise.errors import ChainDiverged, InvalidInput
from equipoise.fitting.certificate import Fit
from equipoise.models.binding import verb
from equipoise.models.problem import Problem
from equipoise.models.verbs import settle
from equipoise.sampling.run import require_match, resolve_burn_in, resolve_guard
from equipoise.theory.bounds import (
    Assumption,
    Bound,
    BoundConstants,
    WassersteinBound,
    covariance_error,
    finite_time_bound,
    fourth_moment_bound,
    fourth_moment_path,
    gelbrich,
    momentum_bound,
    stationary_bound,
)
from equipoise.theory.dynamics import Dynamics
from equipoise.theory.modes import step_matrix
from equipoise.theory.stationary import stationary
from equipoise.theory.tuning import Tuning

__all__ = ["CoupledDistance", "coupled_distance", "wasserstein_bound"]


# Stored pairs: enough for the moments, few enough to keep.
_PAIRS = 20_000
# Steps after which the fourth-moment recursion with momentum has reached its limit, or has none.
_LIMIT_STEPS = 50_000


@dataclass(frozen=True, repr=False)
class CoupledDistance(Card):
    """Gelbrich ≤ W₂ ≤ coupling, from a chain and its proxy driven by the same batches and noise.

    Attributes
    ----------
    gelbrich
        Lower bound: distance of the Gaussians with the two runs' moments.
    coupling
        Upper bound: root mean squared distance between the two runs.
    coupling_error
        Monte Carlo standard error of `coupling`.
    steps
        Steps after burn-in.
    """

    gelbrich: float
    coupling: float
    coupling_error: float
    steps: int


@verb
def wasserstein_bound(
    problem: Problem,
    fit: Fit,
    step: ArrayLike,
    dynamics: Dynamics,
    t: int | None = None,
    *,
    radius: float | None = None,
) -> WassersteinBound:
    """Bound the 2-Wasserstein distance between a chain and its quadratic proxy.

    Stationary (theory eq. 8.3): ``W₂ ≤ (A₀ λ²/B² + 2 A₁ λ/(Bβ) + A₂/β²)^½``; with `t`, after that many steps (eq. 8.1).

    Parameters
    ----------
    problem
        A bound problem, or a model and its data.
    fit
        Its minimiser.
    step
        The bounds hold for a multiple of the identity.
    dynamics
        Batch size, momentum, temperature.
    t
        Steps from a common start at the minimiser; the stationary laws when left out.
    radius
        Take L, M and μ over the ball of this radius around the minimiser; otherwise globally where the family allows
        it, and at the minimiser elsewhere. The result says which.

    Returns
    -------
    WassersteinBound
        With value None, and the reason, where an assumption fails.
    """
    if t is not None:
        t = whole("t", t, 1, "leave it out for the stationary bound")
    if radius is not None:
        radius = positive("radius", radius)
    instance("dynamics", dynamics, Dynamics, "make them with eq.Dynamics(batch_size=...)")
    for name, given, known in (("gradient", dynamics.gradient, "plain"), ("batches", dynamics.batches, "independent")):
        if given != known:
            remedy = "use eq.coupled_distance, which measures the distance"
            raise InvalidInput(name, f"{known!r}: the bounds' constants are known for no other", repr(given), remedy)
    here, params = settle(problem, fit)
    theta = here.flatten(params)
    dynamics.require_batch_within(here.n)
    constants = here.bound_constants(theta, radius)
    Lam = step_matrix(step, len(theta))
    B, beta, kappa = dynamics.batch_size, dynamics.beta, dynamics.momentum
    fourth = fourth_moment_bound(constants, Lam, B, beta)
    limit = stationary_bound(constants, Lam, B, beta)
    finite = None if t is None else finite_time_bound(constants, Lam, B, beta, t)
    heavy = None
    if kappa > 0.0:
        heavy = momentum_bound(constants, Lam, B, kappa, t, 0.0, _limit(constants, Lam, dynamics, t), beta)
        fourth, limit = _without_momentum(fourth, kappa), _without_momentum(limit, kappa)
        finite = None if finite is None else _without_momentum(finite, kappa)
    headline = heavy or finite or limit
    if constants.third_mean_square == 0.0:
        headline = _exact(headline)
    std = headline.value
    cov = None
    if std is not None:
        cov = covariance_error(std, float(np.linalg.norm(stationary(here.moments(theta), Lam, dynamics).cov, 2)))
    return WassersteinBound(headline, fourth, limit, finite, heavy, std, cov)


@verb
def coupled_distance(
    problem: Problem, tuning: Tuning, steps: int = 100_000, seed: int = 0, *, guard: float | str | None = "auto"
) -> CoupledDistance:
    """Measure the distance between a chain and its proxy on the same batches and noise.

    ``Gelbrich ≤ W₂(π_θ, π_ψ) ≤ (E‖θ − ψ‖²)^½`` (theory eq. 8.4). Both are zero, up to rounding, for squared loss.

    Parameters
    ----------
    problem, tuning
        As for `eq.sample`; use `eq.Tuning.at` for a step of your own.
    steps
        Steps after burn-in.
    seed, guard
        As for `eq.sample`.

    Returns
    -------
    CoupledDistance
    """
    steps = whole("steps", steps, 2, "1000 or more give a useful estimate")
    require_match(problem, tuning)
    pair = problem.coupling(tuning, resolve_guard(problem, tuning, guard))
    stream = np.random.SeedSequence(whole("seed", seed, 0, "pass an int"))
    pairs, lost = pair.run(stream, resolve_burn_in("auto", tuning), steps, max(1, steps // _PAIRS))
    chain, proxy = pairs[:, 0], pairs[:, 1]
    if lost is not None:
        raise ChainDiverged(0, lost, chain)
    squared = np.sum((chain - proxy) ** 2, axis=1)
    mean = float(squared.mean())
    error = float(np.sqrt(squared.var() * autocorrelation_time(squared[None]) / len(squared)))
    lower = gelbrich(
        chain.mean(axis=0),
        np.cov(chain, rowvar=False, bias=True),
        proxy.mean(axis=0),
        np.cov(proxy, rowvar=False, bias=True),
    )
    upper = float(np.sqrt(mean))
    # the bracket holds for the empirical laws themselves; only rounding can turn it round, when both are zero
    return CoupledDistance(min(lower, upper), upper, error / (2.0 * upper) if upper > 0.0 else 0.0, steps)


def _limit(constants: BoundConstants, step: Array, dynamics: Dynamics, t: int | None) -> float | None:
    """The limit of the fourth-moment recursion with momentum; None for finite t, or where it does not settle."""
    if t is not None:
        return None
    lam = float(np.linalg.eigvalsh(step)[-1])
    path = fourth_moment_path(constants, lam, dynamics.batch_size, dynamics.beta, _LIMIT_STEPS, dynamics.momentum)
    settled = np.isfinite(path[-1]) and path[-1] <= path[-2] * (1.0 + 1e-12)
    return float(path[-1]) if settled else None


def _without_momentum(bound: Bound, kappa: float) -> Bound:
    failed = Assumption("no momentum", False, f"κ = {kappa:g}: see the momentum bound")
    return replace(bound, value=None, terms={}, assumptions=(*bound.assumptions, failed))


def _exact(bound: Bound) -> Bound:
    """Squared loss: the proxy is the chain, whatever the step."""
    holds = Assumption("quadratic losses", True, "third derivatives are zero, so the proxy is the chain itself")
    return replace(bound, value=0.0, terms={}, assumptions=(holds,))
