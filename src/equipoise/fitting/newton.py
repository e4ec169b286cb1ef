"""Damped Newton for convex losses, with as few passes over the rows as it can."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from equipoise.arrays import Array
from equipoise.errors import FitFailed
from equipoise.fitting.certificate import CONVERGED, POLISHED, Fit, require_bounded
from equipoise.models.problem import Derivatives, Problem

__all__ = ["minimise"]

_SLOW = 0.1  # a Hessian is kept while each step with it leaves at most this share of the distance
_COLLINEAR = 1e-14  # smallest eigenvalue of the Hessian scaled to unit diagonal


def minimise(problem: Problem, start: Array, max_iterations: int = 100, rough: Array | None = None) -> Fit:
    """Damped Newton from `start`; the parameters of the result are flat.

    With many rows a Hessian costs several gradients. Then `rough`, that of a sample of them, leads to within a standard
    deviation of the minimiser; one made there serves all further steps, as long as they converge fast, and certifies.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        theta, previous, own = start, np.inf, rough is None
        here = problem.derivatives(theta, 2 if rough is None else 1)
        newton, condition = _newton_map(problem, here.hessian if rough is None else rough)
        for iteration in range(max_iterations + 1):
            direction = newton(here.gradient)
            norm = float(np.sqrt(max(0.0, -float(here.gradient @ direction)) * problem.n))
            done = own and norm <= POLISHED
            if iteration >= 10 or done:
                require_bounded(problem, theta, direction)
            if done or iteration == max_iterations:
                break
            # the sample's is given up where its step should lead to within a standard deviation
            renew = rough is None or norm > _SLOW * previous or (norm > 1.0 if own else norm < 1.0 / _SLOW)
            found = _line_search(problem, 2 if renew else 1, theta, direction, here, norm)
            if found is None:
                break
            previous, (theta, here) = norm, found
            if renew:
                previous, own = np.inf, True
                newton, condition = _newton_map(problem, here.hessian)
    if norm > CONVERGED:
        raise FitFailed(
            f"the fit did not converge: after {iteration} Newton steps the gradient is still {norm:.2g} posterior standard "
            "deviations from zero. To fix: rescale extreme columns, add a prior (prior_precision=...), or raise "
            "max_iterations."
        )
    return Fit(theta, norm, True, iteration, here.value, condition)


def _newton_map(problem: Problem, H: Array) -> tuple[Callable[[Array], Array], float]:
    """∇L ↦ −H⁻¹∇L and the condition of H, scaled to a unit diagonal; raises when columns are collinear."""
    diagonal = np.diag(H)
    scale = np.sqrt(np.where(diagonal > 0.0, diagonal, 1.0))
    unit = H / np.outer(scale, scale)
    if not np.isfinite(unit).all():
        raise FitFailed(
            "the loss is not finite near its start: predictors overflow. To fix: rescale the columns of X to unit size."
        )
    values, vectors = np.linalg.eigh(unit)
    if values[0] <= _COLLINEAR:
        null = np.abs(vectors[:, 0]) / scale * scale.max() if np.any(diagonal <= 0.0) else np.abs(vectors[:, 0])
        columns = tuple(name for name, v in zip(problem.names, null, strict=True) if v > 0.1 * null.max())
        raise FitFailed(
            f"the Hessian is singular: columns {', '.join(columns)} are collinear (or constant zero). To fix: drop one of "
            "them, or add a prior (prior_precision=...).",
            columns,
        )
    factor = cho_factor(unit)
    return lambda gradient: -cho_solve(factor, gradient / scale) / scale, float(values[-1] / values[0])


def _line_search(
    problem: Problem,
    order: int,
    theta: Array,
    direction: Array,
    here: Derivatives,
    norm: float,
) -> tuple[Array, Derivatives] | None:
    """The longest halved step that lowers the loss enough, and the derivatives there up to `order`.

    None when rounding allows no more progress.
    """
    slope, length = float(here.gradient @ direction), 1.0
    # differences of the loss below this are rounding
    noise = 1e-14 * max(1.0, abs(here.value))
    found = problem.derivatives(theta + direction, order)  # nearly always accepted, and then no pass is lost
    while length > 1e-10:
        trial = theta + length * direction
        loss = found.value if length == 1.0 else problem.derivatives(trial, 0).value
        if np.isfinite(loss) and loss <= here.value + 1e-4 * length * slope + noise:
            return trial, found if length == 1.0 else problem.derivatives(trial, order)
        length *= 0.5
    trial = theta + 1e-10 * direction
    return None if norm <= CONVERGED else (trial, problem.derivatives(trial, order))
