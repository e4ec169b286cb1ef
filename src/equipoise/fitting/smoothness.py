"""Why a search came no closer to a minimiser: kinks, a scale that goes to zero, or rounding coarser than that of float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from equipoise.arrays import Array
from equipoise.errors import FitFailed
from equipoise.models.problem import Problem

__all__ = ["NotSmooth", "allowed", "require_smooth", "require_steady"]

_LENGTHS = (
    0.1,
    0.03,
    0.01,
    1e-3,
    1e-4,
)  # of the way from the start, over which slopes are compared with second derivatives
_NODES = 8  # points at which second derivatives along a way are averaged
_APART = 0.3  # share by which both differ at a kink; of smooth losses the share falls with the length
_OFTEN = 2  # lengths at which they must
_SEEN = 1e-5  # change of a slope, of the rows' own, that is more than rounding in float32
_NUDGE = 1e-7  # share by which parameters are changed to see rounding in float32
_TRIES = 3
_TIMES = 10.0  # rounding errors that a distance may have
_GROWN = 1e12  # times the largest curvature at the start: no minimum of anybody's is so sharp
_COARSEST = 0.01  # standard errors: rounding beyond which no minimiser is certified


def require_steady(before: Array, here: Array, name: Callable[[int], str]) -> None:
    """Raise if curvatures grew without bound: as a scale goes to zero, the density of what it scales goes to infinity.

    They are those at the start, `before`, and where the search is; `name` is that of a parameter.
    """
    if np.isfinite(here).all() and np.abs(here).max() <= _GROWN * np.abs(before).max():
        return
    scale = name(int(np.where(np.isfinite(here), np.abs(here), np.inf).argmin()))
    raise FitFailed(
        f"the loss has no finite minimiser: it keeps falling along {scale} while its curvature grows without bound, as where a "
        "scale goes to zero together with the effects that it is the scale of. To fix: give the scale a prior that keeps it "
        "from zero (log-normal, in NumPyro dist.LogNormal), or use NUTS."
    )


class NotSmooth(FitFailed):
    """A loss that has no second derivative where its minimum is: no other start would help."""


def require_smooth(problem: Problem, start: Array, theta: Array) -> None:
    """Raise `NotSmooth` if the slope changes around θ, or on the way to it, by other than what second derivatives say.

    Of an absolute value or a hinge they are zero, and the slope jumps.
    """
    scale = 1.0 / np.sqrt(problem.diagonal(theta))
    way = float(np.linalg.norm((theta - start) / scale)) or 1.0
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=theta.size) / np.sqrt(theta.size)
    # without curvature a search may end far from all kinks
    for at in (theta, 0.5 * (theta + start), start):
        if not _jumps(problem, at, scale, way * signs):
            continue
        rows = _jumps(problem.without_prior(), at, scale, way * signs)
        raise _not_smooth("loss" if rows else "regularizer")


def _jumps(problem: Problem, theta: Array, scale: Array, way: Array) -> bool:
    """Whether slope and second derivatives disagree at more than one length."""
    size, found = float(np.linalg.norm(problem.derivatives(theta, 1).gradient * scale)), 0
    size = max(size, float(np.sqrt(theta.size)) * _SEEN)
    for length in _LENGTHS:
        ahead = length * scale * way
        ends = [problem.derivatives(theta + sign * ahead, 1).gradient for sign in (1.0, -1.0)]
        change = scale * (ends[0] - ends[1])
        places = np.linspace(-1.0, 1.0, 2 * _NODES + 1)[1::2]
        smooth = 2.0 * scale * np.mean([problem.product(theta + at * ahead, ahead) for at in places], axis=0)
        larger = max(float(np.linalg.norm(change)), float(np.linalg.norm(smooth)))
        apart = float(np.linalg.norm(change - smooth))
        found += bool(np.isfinite(larger) and larger > _SEEN * size and apart > _APART * larger)
    return found >= _OFTEN


def _not_smooth(what: str) -> NotSmooth:
    remedy = (
        "a Gaussian prior (prior_precision=...), or sqrt(w**2 + small**2) in place of |w|"
        if what == "regularizer"
        else "Huber's loss or sqrt(r**2 + small**2) in place of |r|, softplus in place of a hinge or relu (tanh, "
        "gelu), eq.Pinball for quantiles"
    )
    return NotSmooth(
        f"the {what} is not twice differentiable: around where the search ended its slope jumps by more than its second "
        f"derivatives say, as that of an absolute value (MAE, lasso) or a hinge does, so that there is no curvature to "
        f"calibrate with. To fix: use {remedy}."
    )


def allowed(problem: Problem, theta: Array, distance: Callable[[Array], float]) -> float:
    """How far from zero, in standard errors, rounding alone may leave the slope of this loss: ten times its errors.

    `distance` is that of a gradient, in standard errors. `FitFailed` if the loss rounds so coarsely that nothing can be
    said of its minimiser.
    """
    rng, here, found = np.random.default_rng(0), problem.derivatives(theta, 1).gradient, 0.0
    size = np.maximum(np.abs(theta), _NUDGE / np.sqrt(problem.diagonal(theta)))
    for _ in range(_TRIES):
        nudge = _NUDGE * size * rng.choice([-1.0, 1.0], size=theta.size) * rng.uniform(0.5, 1.5, size=theta.size)
        change = problem.derivatives(theta + nudge, 1).gradient - here - problem.product(theta, nudge)
        found = max(found, distance(change))
    if found > _COARSEST:
        raise FitFailed(
            f"rounding in the loss moves its slope by {found:.2g} posterior standard deviations, too much to tell where its "
            "minimum is. To fix: compute the loss in float64 (leave out casts to float32 or less), or rescale it."
        )
    return _TIMES * found
