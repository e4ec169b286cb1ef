"""The evidence that a point is a minimiser, and the explanations where there is none."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from equipoise.arrays import Array, PyTree
from equipoise.cards import Card
from equipoise.data.wording import named
from equipoise.errors import FitFailed
from equipoise.linalg import FAINT
from equipoise.models.problem import Minimised, Problem, Yardstick

__all__ = [
    "CONVERGED",
    "POLISHED",
    "Fit",
    "converged",
    "finite_or_inf",
    "is_level",
    "polished",
    "require_bounded",
    "require_converged",
    "require_minimum",
    "require_residuals",
    "require_rise",
    "require_say",
]

CONVERGED = 1e-6  # standard errors: far below any Monte Carlo error
POLISHED = 1e-11  # where further Newton steps are rounding
_ROUNDING = 1e-12  # of a loss: below it two are the same
_EXACT = 1e-15  # of the largest number in a sum: its rounding


@dataclass(frozen=True, repr=False)
class Fit(Card):
    """A minimiser and the evidence that it is one.

    Attributes
    ----------
    theta
        The minimiser, flat.
    gradient_norm
        √N · sqrt(∇Lᵀ H⁻¹ ∇L): the distance to the minimiser in posterior standard deviations.
    converged
        Whether that distance is below 1e-6, in units of the scores' own spread √(Σ g² / Σ h), or rounding.
    iterations
        Newton steps taken on the rows of the fit, for all values of an estimated scale together.
    loss
        L(θ̂), constants free of θ left out.
    condition
        Condition number of H scaled to unit diagonal; of more than 400 columns about that of a sample of the rows at the start.
    constant
        The family's constant (gaussian scale, gamma shape, dispersion) in use: estimated when it was left out.
    flat
        Directions (rows) along which a general loss is flat at the minimiser; None when there are none.
    information
        (D, D): what leverages are shares of, Σ w E[ℓ''] x xᵀ at the minimiser, where a fit to files has it; otherwise None.
    params
        The minimiser, in the model's own structure.
    """

    theta: Array
    gradient_norm: float
    converged: bool
    iterations: int
    loss: float
    condition: float
    constant: float | None = None
    flat: Array | None = None
    information: Array | None = field(default=None, repr=False, compare=False)
    params: PyTree = field(default=None, repr=False)


def finite_or_inf(value: float) -> float:
    """A loss, infinite outside its domain: NaN compares with nothing."""
    return value if np.isfinite(value) else np.inf


def polished(yard: Yardstick) -> float:
    """The distance in posterior standard deviations where further Newton steps are rounding."""
    return POLISHED * min(1.0, yard.spread) + 0.01 * POLISHED * yard.spread


def converged(yard: Yardstick, n: int) -> float:
    """The distance in posterior standard deviations that is far below any Monte Carlo error.

    Where the posterior is much wider or narrower than the scores' own spread (weights, a fixed scale), that spread is the
    measure; but rounding errors of all n scores, if they agree in sign, cannot be told from a distance.
    """
    return CONVERGED * yard.spread + 10.0 * float(np.sqrt(n)) * yard.rounding


def require_converged(norm: float, limit: float, iterations: int, theta: Array | None = None) -> None:
    """Raise `FitFailed` unless the distance to the minimiser is small; with θ, from which the search can go on."""
    if norm <= limit:
        return
    state = f"the gradient is still {norm:.2g} posterior standard deviations from zero"
    if not np.isfinite(norm):
        state = "the loss still falls along directions in which it bends downwards"
    further = "raise max_iterations" + (
        "" if theta is None else ", or go on from the lowest point found, which this error carries (init=error.params)"
    )
    raise FitFailed(
        f"the fit did not converge: after {iterations} Newton steps {state}. To fix: {further}, start elsewhere, or add a "
        "prior (prior_precision=...): the loss may have no finite minimiser.",
        theta=theta,
    )


def require_minimum(problem: Problem, spectrum: Array, axes: Array) -> None:
    """Raise `FitFailed` at a stationary point that is not a minimum."""
    if spectrum[0] < -FAINT:
        negative = axes[spectrum < -FAINT]
        names = ", ".join(dict.fromkeys(problem.names[int(np.abs(v).argmax())] for v in negative[:3]))
        raise FitFailed(
            f"the search ended in a saddle point: the Hessian has {len(negative)} direction(s) of negative curvature, mainly "
            f"{names} (smallest scaled eigenvalue {spectrum[0]:.2g}). To fix: start elsewhere (init=, restarts=...), or add "
            "a prior.",
            directions=negative,
        )
    if spectrum[-1] <= FAINT:
        raise FitFailed("the loss does not curve along any direction. To fix: check that it depends on its parameters.")


def require_rise(problem: Problem, theta: Array, axes: Array, drop: float) -> None:
    """Tell a minimum from an asymptote (separated classes, say), whose curvature has all but vanished."""
    lowest = problem.derivatives(theta, 0).value
    for axis in axes:
        # where a parabola would have regained a hundredth of what was won since the start
        if is_level(problem, theta, lowest, np.sqrt(0.02 * drop) * axis):
            raise FitFailed(
                "the loss has no finite minimiser: it keeps falling along "
                f"{problem.names[int(np.abs(axis).argmax())]}. To fix: add a prior, or leave that parameter out."
            )


def is_level(problem: Problem, theta: Array, lowest: float, far: Array) -> bool:
    """Whether the loss does not rise to both sides of its value at θ."""
    ends = [finite_or_inf(problem.derivatives(theta + way, 0).value) for way in (far, -far)]
    # so far out losses are made of large numbers, as large as the one that rose
    rounding = _ROUNDING * abs(lowest) + _EXACT * max((abs(end) for end in ends if np.isfinite(end)), default=0.0)
    return min(ends) <= lowest + rounding


def require_say(problem: Problem, theta: Array, axes: Array, size: Array) -> None:
    """Raise `FitFailed` where a robust loss of a regression is level along one of the directions.

    No columns are collinear, so that the rows that tell such a direction are few, and so far from where they are predicted
    that they have no more say. `size` are the columns' own, by which those of a direction are told.
    """
    lowest = problem.derivatives(theta, 0).value
    for axis in axes:
        if is_level(problem, theta, lowest, axis):
            weight = np.abs(axis) * size
            columns = tuple(name for name, w in zip(problem.names, weight, strict=True) if w > 0.1 * weight.max())
            raise FitFailed(
                f"the loss has no finite minimiser: it is level along {named(columns)}. The few rows that "
                "would tell it are outliers to the robust loss, which have no more say. To fix: merge rare levels or drop "
                "those columns, or add a prior (prior_precision=...).",
                columns,
                directions=axis[None],
                theta=theta,
            )


def require_bounded(problem: Minimised, theta: Array, norm: float, *candidates: Array) -> None:
    """Raise `FitFailed` when the loss never rises along one of the directions or along θ, or one close to it.

    `norm` is how far θ is from a minimiser, if there is one, in posterior standard deviations.
    """
    failure = problem.search.explain(candidates, theta, norm)
    if failure is not None:
        raise failure


def require_residuals(problem: Problem, residuals: bool) -> None:
    """Raise `FitFailed` when nothing is left that a scale could be estimated from."""
    if not residuals:
        raise FitFailed(
            f"the columns fit the response {problem.source.response} exactly: the residuals shrink to nothing, and no scale "
            "can be estimated from them. To fix: pass scale=, or leave out the columns that define the response."
        )
