"""The minimiser, with a certificate: damped Newton for convex losses, a trust region and restarts for the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from equipoise.arrays import Array
from equipoise.checks import whole
from equipoise.errors import FitFailed
from equipoise.linalg import FLAT, curvature_axes

if TYPE_CHECKING:
    from equipoise.models.problem import Model, Problem

__all__ = ["Fit", "descend", "fit", "minimise"]


_CONVERGED = 1e-6  # standard deviations of the posterior: far below any Monte Carlo error
_POLISHED = 1e-11  # where further Newton steps are rounding
_SLOW = 0.1  # a Hessian is kept while each step with it leaves at most this share of the distance
_FADED = 1e-8  # of the curvature at the start: below it, a minimum may be an asymptote
_RESTARTS = 4  # further starts for a general loss whose own start fails
_SAMPLE = 20_000  # rows that give a start; with twice as many or fewer, all are used at once
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
        Newton steps taken on the rows of the fit, for all values of an estimated scale together.
    loss
        L(θ̂), constants free of θ left out.
    condition
        Condition number of H scaled to unit diagonal.
    constant
        The family's constant (gaussian scale, gamma shape, dispersion) in use: estimated when it was left out.
    flat
        Directions (rows) along which a general loss is flat at the minimiser; None when there are none.
    """

    params: Any
    gradient_norm: float
    converged: bool
    iterations: int
    loss: float
    condition: float
    constant: float | None = None
    flat: Array | None = None


def fit(
    model: Model,
    data: Any,
    *,
    tuning_rows: int | None = None,
    seed: int = 0,
    max_iterations: int = 100,
    restarts: int | None = None,
) -> Fit:
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
    restarts
        For losses that need not be convex: further starts to try, the lowest loss being kept. When left out, a general
        loss is restarted only if its own start fails, and a β-divergence is started from all its robust starts.

    Returns
    -------
    Fit

    Raises
    ------
    FitFailed
        If the data are separated, columns are collinear, or Newton does not converge; columns are named. For a general
        loss, if only saddle points are found; their negative directions are in the error.

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
        result = _convex(problem, max_iterations) if problem.convex else _best(problem, restarts, max_iterations)
    constant = problem.constant_at(result.params)
    return replace(result, params=problem.unflatten(result.params), constant=constant)


def _convex(problem: Problem, max_iterations: int) -> Fit:
    """The minimum; for many rows, from that of a sample of them and with its Hessian, which saves most of the passes."""
    rough = None
    if problem.size > 2 * _SAMPLE:
        try:
            part = problem.subsample(_SAMPLE, seed=0)
            start = _convex(part, max_iterations).params
            rough = part.settled(start).derivatives(start)[2]
        except FitFailed:
            pass  # a sample may be separated or collinear where the whole is not
    if rough is None:
        start = min(problem.starts(), key=lambda theta: _finite_or_inf(problem.value(theta)))
    return _settle(problem, start, partial(minimise, rough=rough), max_iterations)


def _settle(problem: Problem, theta: Array, solver: Callable[[Problem, Array, int], Fit], max_iterations: int) -> Fit:
    """Minimise; a constant estimated from the residuals (the gaussian scale) moves with θ: repeat until both agree."""
    result = solver(problem.settled(theta), theta, max_iterations)
    iterations = result.iterations
    for _ in range(max_iterations):
        previous, theta = theta, result.params
        if np.allclose(theta, previous, rtol=1e-13, atol=0.0) or problem.settled(theta) is problem:
            break
        result = solver(problem.settled(theta), theta, max_iterations)
        iterations += result.iterations
    return replace(result, iterations=iterations)


def _best(problem: Problem, restarts: int | None, max_iterations: int) -> Fit:
    """The lowest minimum reached from the problem's starts."""
    starts = [*_relaxed_starts(problem, max_iterations), *problem.starts()]
    exhaustive = problem.every_start if restarts is None else True
    if restarts is not None:
        starts = starts[: 1 + whole("restarts", restarts, 0, "leave it out", "None or ")]
    elif not exhaustive:
        starts = starts[: 1 + _RESTARTS]
    found, failure = [], None
    for theta in starts:
        try:
            found.append(_settle(problem, theta, descend, max_iterations))
        except FitFailed as error:
            failure = failure or error
        if found and not exhaustive:
            break
    if not found:
        assert failure is not None  # there is at least one start
        raise failure
    return min(found, key=lambda result: result.loss)


def _relaxed_starts(problem: Problem, max_iterations: int) -> list[Array]:
    """Where a robust loss is likely to have its minimum: the log loss's, and that of the rows it fits best.

    Rows are trimmed and the log loss fitted again, until the rest agree: outliers leave one by one.
    """
    if problem.relaxed is None:
        return []
    found: list[Array] = []
    for share in (1.0, 0.9, 0.75, 0.5):
        try:
            theta = found[0] if found else problem.relaxed.starts()[0]
            for _ in range(1 if share == 1.0 else 10):
                part = problem.relaxed if share == 1.0 else problem.relaxed.trimmed(theta, share)
                theta = _settle(part, theta, minimise, max_iterations).params
            found.append(theta)
        except FitFailed:
            continue
    return found


def descend(problem: Problem, start: Array, max_iterations: int = 100) -> Fit:
    """A minimum of a loss that need not be convex: trust-region Newton, then Newton steps in the curved directions.

    Raises
    ------
    FitFailed
        If it ends in a saddle point (the error carries the directions of negative curvature) or does not converge.
    """
    from scipy.optimize import minimize  # slow to import, and convex losses do without

    last: tuple[bytes, tuple[float, Array, Array]] = (b"", (0.0, start, start))

    def at(theta: Array) -> tuple[float, Array, Array]:
        nonlocal last
        if last[0] != theta.tobytes():
            value, gradient, H = problem.derivatives(theta)
            # NaN compares with nothing: outside the loss's domain the trust region would never shrink
            last = (theta.tobytes(), (_finite_or_inf(value), gradient, H))
        return last[1]

    options: Any = {
        "gtol": 1e-8,
        "maxiter": 10 * max_iterations,
        "initial_trust_radius": 1.0,
        # it doubles only while the quadratic model predicts well, so that parameters of any size are reached
        "max_trust_radius": 1e12,
    }
    first = at(start)
    if not all(np.isfinite(part).all() for part in first):
        raise FitFailed(
            "the loss or one of its derivatives is not finite at the start. To fix: start elsewhere (init=), and look for "
            "sqrt, log, or division at zero."
        )
    rough = minimize(  # type: ignore[call-overload]
        lambda t: at(t)[0],
        start,
        jac=lambda t: at(t)[1],
        hess=lambda t: at(t)[2],
        method="trust-exact",
        options=options,
    )
    theta, iterations, norm = rough.x, int(rough.nit), np.inf
    for _ in range(20):
        value, gradient, H = at(theta)
        direction, spectrum, axes = _curved_direction(gradient, H)
        # along flat directions a slope, if any, is never made up for: measure it as if they curved like the others
        slope = axes[np.abs(spectrum) <= FLAT] @ gradient
        decrement = max(0.0, -float(gradient @ direction)) + float(slope @ slope)
        previous, norm = norm, float(np.sqrt(decrement * problem.n))
        if norm <= _POLISHED or norm >= previous or not np.isfinite(at(theta + direction)[0]):
            break
        theta, iterations = theta + direction, iterations + 1
    _require_minimum(problem, spectrum, axes, norm, iterations)
    if np.any(np.diag(H) < _FADED * np.diag(first[2])):
        _require_rise(problem, theta, axes[spectrum > FLAT], first[0] - value)
    flat = axes[np.abs(spectrum) <= FLAT]
    curved = spectrum[spectrum > FLAT]
    condition = float(curved[-1] / curved[0])
    return Fit(theta, norm, True, iterations, value, condition, flat=flat if len(flat) else None)


def _curved_direction(gradient: Array, H: Array) -> tuple[Array, Array, Array]:
    """The Newton step within the directions of positive curvature, with the spectrum and its axes."""
    values, axes = curvature_axes(H)
    up = values > FLAT
    return -((axes[up] @ gradient) / values[up]) @ axes[up], values, axes


def _require_minimum(problem: Problem, spectrum: Array, axes: Array, norm: float, iterations: int) -> None:
    if norm > _CONVERGED:
        raise FitFailed(
            f"the fit did not converge: after {iterations} steps the gradient is still {norm:.2g} posterior standard "
            "deviations from zero. To fix: start elsewhere, raise max_iterations, or add a prior: the loss may have no "
            "finite minimiser."
        )
    if spectrum[0] < -FLAT:
        negative = axes[spectrum < -FLAT]
        names = ", ".join(dict.fromkeys(problem.names[int(np.abs(v).argmax())] for v in negative[:3]))
        raise FitFailed(
            f"the search ended in a saddle point: the Hessian has {len(negative)} direction(s) of negative curvature, mainly "
            f"{names} (smallest scaled eigenvalue {spectrum[0]:.2g}). To fix: start elsewhere (init=, restarts=...), or add "
            "a prior.",
            directions=negative,
        )
    if spectrum[-1] <= FLAT:
        raise FitFailed("the loss does not curve along any direction. To fix: check that it depends on its parameters.")


def _require_rise(problem: Problem, theta: Array, axes: Array, drop: float) -> None:
    """Tell a minimum from an asymptote (separated classes, say), whose curvature has all but vanished."""
    lowest = problem.value(theta)
    for axis in axes:
        for far in (1.0, -1.0):
            # where a parabola would have regained a hundredth of what was won since the start
            if _finite_or_inf(problem.value(theta + far * np.sqrt(0.02 * drop) * axis)) <= lowest:
                raise FitFailed(
                    "the loss has no finite minimiser: it keeps falling along "
                    f"{problem.names[int(np.abs(axis).argmax())]}. To fix: add a prior, or leave that parameter out."
                )


def minimise(problem: Problem, start: Array, max_iterations: int = 100, rough: Array | None = None) -> Fit:
    """Damped Newton from `start`; the parameters of the result are flat.

    With many rows a Hessian costs several gradients. Then `rough`, that of a sample of them, leads to within a standard
    deviation of the minimiser; one made there serves all further steps, as long as they converge fast, and certifies.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        theta, previous, own = start, np.inf, rough is None
        value, gradient, H = problem.derivatives(theta) if rough is None else (*problem.gradient(theta), rough)
        newton, condition = _newton_map(problem, H)
        for iteration in range(max_iterations + 1):
            direction = newton(gradient)
            norm = float(np.sqrt(max(0.0, -float(gradient @ direction)) * problem.n))
            done = own and norm <= _POLISHED
            if iteration >= 10 or done:
                _require_bounded(problem, theta, direction)
            if done or iteration == max_iterations:
                break
            # the sample's is given up where its step should lead to within a standard deviation
            renew = rough is None or norm > _SLOW * previous or (norm > 1.0 if own else norm < 1.0 / _SLOW)
            evaluate = problem.derivatives if renew else problem.gradient
            found = _line_search(problem, evaluate, theta, direction, value, gradient, norm)
            if found is None:
                break
            previous, (theta, (value, gradient, *made)) = norm, found
            if made:
                previous, own = np.inf, True
                newton, condition = _newton_map(problem, made[0])
    if norm > _CONVERGED:
        raise FitFailed(
            f"the fit did not converge: after {iteration} Newton steps the gradient is still {norm:.2g} posterior standard "
            "deviations from zero. To fix: rescale extreme columns, add a prior (prior_precision=...), or raise "
            "max_iterations."
        )
    return Fit(theta, norm, True, iteration, value, condition)


def _finite_or_inf(value: float) -> float:
    return value if np.isfinite(value) else np.inf


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
    evaluate: Callable[[Array], tuple[Any, ...]],
    theta: Array,
    direction: Array,
    value: float,
    gradient: Array,
    norm: float,
) -> tuple[Array, tuple[Any, ...]] | None:
    """The longest halved step that lowers the loss enough, and what `evaluate` finds there, the loss first.

    None when rounding allows no more progress.
    """
    slope, length = float(gradient @ direction), 1.0
    # differences of the loss below this are rounding
    noise = 1e-14 * max(1.0, abs(value))
    found = evaluate(theta + direction)  # nearly always accepted, and then no pass is lost
    while length > 1e-10:
        trial = theta + length * direction
        loss = found[0] if length == 1.0 else problem.value(trial)
        if np.isfinite(loss) and loss <= value + 1e-4 * length * slope + noise:
            return trial, found if length == 1.0 else evaluate(trial)
        length *= 0.5
    trial = theta + 1e-10 * direction
    return None if norm <= _CONVERGED else (trial, evaluate(trial))


def _require_bounded(problem: Problem, theta: Array, direction: Array) -> None:
    for candidate in (direction, theta):
        columns = problem.explain(theta, candidate)
        if columns is not None:
            raise FitFailed(
                f"the loss has no finite minimiser: the data are separated by {', '.join(columns)}, whose coefficients "
                "grow without bound. To fix: drop or merge those columns, or add a prior (prior_precision=...).",
                columns,
            )
