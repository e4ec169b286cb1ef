"""How far a chain is from its proxy: the theorem's bound, and two brackets measured on one run (theory §8)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from equipoise.arrays import Array
from equipoise.calibration.diagnostics import autocorrelation_time
from equipoise.errors import ChainDiverged, InvalidInput
from equipoise.fitting.fit import Fit
from equipoise.sampling.run import guard_radius2, resolve_burn_in
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

if TYPE_CHECKING:
    from equipoise.models.glm import GLM
    from equipoise.models.linear import LinearProblem

__all__ = ["CoupledDistance", "coupled_distance", "wasserstein_bound"]


# Stored pairs: enough for the moments, few enough to keep.
_PAIRS = 20_000
# Steps after which the fourth-moment recursion with momentum has reached its limit, or has none.
_LIMIT_STEPS = 50_000


@dataclass(frozen=True)
class CoupledDistance:
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


def wasserstein_bound(
    model: GLM,
    data: Any,
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
    model, data, fit
        The model, its data, and its minimiser.
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
    if t is not None and (int(t) != t or t < 1):
        raise InvalidInput("t", "a whole number, at least 1", t, "leave it out for the stationary bound")
    _require_linear(model)
    problem = model.at_constant(fit.constant).bind(data)
    if problem.model.divergence is not None:
        raise InvalidInput(
            "model",
            "one with a log loss: the bounds' constants are not known for robust losses",
            repr(problem.model.divergence),
            "use eq.coupled_distance, which measures the distance",
        )
    theta = problem.flatten(fit.params)
    dynamics.require_batch_within(problem.n)
    constants = bound_constants(problem, theta, radius)
    Lam = step_matrix(step, len(theta))
    B, beta, kappa = dynamics.batch_size, dynamics.inverse_temperature, dynamics.momentum
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
    cov = None if std is None else covariance_error(std, _proxy_norm(problem, theta, Lam, dynamics))
    return WassersteinBound(headline, fourth, limit, finite, heavy, std, cov)


def bound_constants(problem: LinearProblem, theta: Array, radius: float | None) -> BoundConstants:
    """The constants of theory §8 for the losses ℓ_n + R/N, so that their scores average to zero at the minimiser."""
    x, loss = problem.rows.x, problem.loss_at(theta)
    low, high, steep, scope = problem.curvature_range(theta, radius)
    norms = np.linalg.norm(x, axis=1)
    prior = problem.precision / problem.n
    eta, y, p = problem.predictor(theta), problem.rows.y, loss.constants
    weights = 1.0 if problem.rows.weights is None else problem.rows.weights
    scores = (weights * loss.d1(eta, y, p))[:, None] * x + prior @ (theta - problem.mean)
    third = steep * norms**3
    spectrum = np.linalg.eigvalsh(problem.gram(weights * loss.d2(eta, y, p)) + prior)
    return BoundConstants(
        smoothness=float(np.max(high * norms**2) + np.linalg.eigvalsh(prior)[-1]),
        strong_convexity=float(np.linalg.eigvalsh(problem.gram(low) + prior)[0]),
        third_mean=float(np.mean(third)),
        third_mean_square=float(np.mean(third**2)),
        score_fourth=float(np.mean(np.sum(scores**2, axis=1) ** 2)),
        hessian_min=float(spectrum[0]),
        hessian_max=float(spectrum[-1]),
        dim=len(theta),
        convex=bool(np.all(low >= 0.0)),
        scope=scope,
    )


def coupled_distance(
    model: GLM, data: Any, tuning: Tuning, steps: int = 100_000, seed: int = 0, *, guard: float | str | None = "auto"
) -> CoupledDistance:
    """Measure the distance between a chain and its proxy on the same batches and noise.

    ``Gelbrich ≤ W₂(π_θ, π_ψ) ≤ (E‖θ − ψ‖²)^½`` (theory eq. 8.4). Both are zero, up to rounding, for squared loss.

    Parameters
    ----------
    model, data, tuning
        As for `eq.sample`; use `eq.Tuning.at` for a step of your own.
    steps
        Steps after burn-in.
    seed, guard
        As for `eq.sample`.

    Returns
    -------
    CoupledDistance
    """
    # numba is imported only by those who sample
    from equipoise.engines.numba.linear import advance_coupled
    from equipoise.engines.numba.whiten import linear_engine

    if steps < 2:
        raise InvalidInput("steps", "at least 2", steps, "1000 or more give a useful estimate")
    _require_linear(model)
    problem = model.bind(data)
    engine = linear_engine(problem, tuning, guard_radius2(problem, tuning, guard))
    program, p = engine.program, engine.program.loss.constants
    weights = 1.0 if problem.rows.weights is None else problem.rows.weights
    score, curvature = (weights * d(program.base, program.y, p) for d in (program.loss.d1, program.loss.d2))
    state = engine.start(tuning.center, np.random.SeedSequence(seed))
    shadow = np.zeros((2, tuning.dim))
    burn_in, thin = resolve_burn_in("auto", tuning), max(1, steps // _PAIRS)
    pairs = np.empty((steps // thin + 1, 2, tuning.dim))
    written = advance_coupled(program, state, shadow, score, curvature, burn_in, 0, pairs)
    if written >= 0:
        written = advance_coupled(program, state, shadow, score, curvature, steps, thin, pairs)
    if written < 0:
        raise ChainDiverged(0, state.step, engine.parameters(pairs[: -1 - written, 0]))
    chain, proxy = (engine.parameters(pairs[:written, i]) for i in (0, 1))
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


def _require_linear(model: Any) -> None:
    if not hasattr(model, "family"):
        raise InvalidInput(
            "model",
            "one from eq.glm, whose derivatives have known bounds",
            "a loss of your own",
            "compare eq.diagnose(chains, tuning) instead",
        )


def _limit(constants: BoundConstants, step: Array, dynamics: Dynamics, t: int | None) -> float | None:
    """The limit of the fourth-moment recursion with momentum; None for finite t, or where it does not settle."""
    if t is not None:
        return None
    lam = float(np.linalg.eigvalsh(step)[-1])
    path = fourth_moment_path(
        constants, lam, dynamics.batch_size, dynamics.inverse_temperature, _LIMIT_STEPS, dynamics.momentum
    )
    settled = np.isfinite(path[-1]) and path[-1] <= path[-2] * (1.0 + 1e-12)
    return float(path[-1]) if settled else None


def _without_momentum(bound: Bound, kappa: float) -> Bound:
    failed = Assumption("no momentum", False, f"κ = {kappa:g}: see the momentum bound")
    return replace(bound, value=None, terms={}, assumptions=(*bound.assumptions, failed))


def _exact(bound: Bound) -> Bound:
    """Squared loss: the proxy is the chain, whatever the step."""
    holds = Assumption("quadratic losses", True, "third derivatives are zero, so the proxy is the chain itself")
    return replace(bound, value=0.0, terms={}, assumptions=(holds,))


def _proxy_norm(problem: LinearProblem, theta: Array, step: Array, dynamics: Dynamics) -> float:
    return float(np.linalg.norm(stationary(problem.moments(theta), step, dynamics).cov, 2))
