"""The minimiser, with a certificate: damped Newton, and a diagnosis when there is no minimiser to find."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from equipoise.errors import FitFailed

if TYPE_CHECKING:
    from equipoise.models.protocol import Model, Problem

__all__ = ["Fit", "fit", "minimise"]

Array = NDArray[np.float64]

_CONVERGED = 1e-6  # standard deviations of the posterior: far below any Monte Carlo error
_POLISHED = 1e-11  # where further Newton steps are rounding
_COLLINEAR = 1e-14  # smallest eigenvalue of the Hessian scaled to unit diagonal


@dataclass(frozen=True)
class Fit:
    """A minimiser and the evidence that it is one.

    Attributes
    ----------
    params
        The minimiser, in the model's own structure.
    gradient_norm
        √N · sqrt(∇Lᵀ H⁻¹ ∇L): the distance to the minimiser in posterior standard deviations.
    converged
        Whether that distance is below 1e-6.
    iterations
        Newton steps taken.
    loss
        L(θ̂), constants free of θ left out.
    condition
        Condition number of H scaled to unit diagonal.
    constant
        The family's constant (gaussian scale, gamma shape, dispersion) in use: estimated when it was left out.
    """

    params: Any
    gradient_norm: float
    converged: bool
    iterations: int
    loss: float
    condition: float
    constant: float | None = None


def fit(model: Model, data: Any, *, tuning_rows: int | None = None, seed: int = 0, max_iterations: int = 100) -> Fit:
    """Minimise the loss.

    Parameters
    ----------
    model, data
        The model and its data.
    tuning_rows
        Fit on this many random rows instead of all (the offline subsample of the tuning procedure).
    seed
        Chooses those rows.
    max_iterations
        Newton steps before giving up.

    Returns
    -------
    Fit

    Raises
    ------
    FitFailed
        If the data are separated, columns are collinear, or Newton does not converge; columns are named.

    Examples
    --------
    >>> import equipoise as eq
    >>> result = eq.fit(eq.glm("poisson"), (np.ones((4, 1)), [1, 2, 3, 2]))
    >>> round(float(np.exp(result.params[0])), 6)
    2.0
    """
    problem = model.bind(data)
    if tuning_rows is not None:
        problem = problem.subsample(tuning_rows, seed)
    with np.errstate(over="ignore", invalid="ignore"):
        theta = min(problem.starts(), key=lambda start: _finite_or_inf(problem.value(start)))
        result = minimise(problem.settled(theta), theta, max_iterations)
        # a constant estimated from the residuals (the gaussian scale) moves with θ: repeat until both agree
        for _ in range(max_iterations):
            previous, theta = theta, result.params
            if np.allclose(theta, previous, rtol=1e-13, atol=0.0) or problem.settled(theta) is problem:
                break
            result = minimise(problem.settled(theta), theta, max_iterations)
    constant = problem.constant_at(result.params)
    return replace(result, params=problem.unflatten(result.params), constant=constant)


def minimise(problem: Problem, start: Array, max_iterations: int = 100) -> Fit:
    """Damped Newton from `start`; the parameters of the result are flat."""
    with np.errstate(over="ignore", invalid="ignore"):
        theta = start
        value, gradient, H = problem.derivatives(theta)
        for iteration in range(max_iterations + 1):
            direction, condition = _newton_direction(problem, gradient, H)
            norm = float(np.sqrt(max(0.0, -float(gradient @ direction)) * problem.n))
            if iteration >= 10 or norm <= _POLISHED:
                _require_bounded(problem, theta, direction)
            if norm <= _POLISHED or iteration == max_iterations:
                break
            trial = _line_search(problem, theta, direction, value, gradient, norm)
            if trial is None:
                break
            theta = trial
            value, gradient, H = problem.derivatives(theta)
    if norm > _CONVERGED:
        raise FitFailed(
            f"the fit did not converge: after {iteration} Newton steps the gradient is still {norm:.2g} posterior standard "
            "deviations from zero. To fix: rescale extreme columns, add a prior (prior_precision=...), or raise "
            "max_iterations."
        )
    return Fit(theta, norm, True, iteration, value, condition)


def _finite_or_inf(value: float) -> float:
    return value if np.isfinite(value) else np.inf


def _newton_direction(problem: Problem, gradient: Array, H: Array) -> tuple[Array, float]:
    """−H⁻¹∇L, in coordinates that give H a unit diagonal; raises when columns are collinear."""
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
    direction = -cho_solve(cho_factor(unit), gradient / scale) / scale
    return direction, float(values[-1] / values[0])


def _line_search(
    problem: Problem, theta: Array, direction: Array, value: float, gradient: Array, norm: float
) -> Array | None:
    """The longest halved step that lowers the loss enough; None when rounding allows no more progress."""
    slope, length = float(gradient @ direction), 1.0
    # differences of the loss below this are rounding
    noise = 1e-14 * max(1.0, abs(value))
    while length > 1e-10:
        trial = theta + length * direction
        found = problem.value(trial)
        if np.isfinite(found) and found <= value + 1e-4 * length * slope + noise:
            return trial
        length *= 0.5
    return None if norm <= _CONVERGED else theta + 1e-10 * direction


def _require_bounded(problem: Problem, theta: Array, direction: Array) -> None:
    for candidate in (direction, theta):
        columns = problem.explain(theta, candidate)
        if columns is not None:
            raise FitFailed(
                f"the loss has no finite minimiser: the data are separated by {', '.join(columns)}, whose coefficients "
                "grow without bound. To fix: drop or merge those columns, or add a prior (prior_precision=...).",
                columns,
            )
