"""A minimum of a loss that need not be convex: a trust region, then Newton in the curved directions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from equipoise.arrays import Array, Mask
from equipoise.errors import FitFailed
from equipoise.fitting.certificate import (
    Fit,
    converged,
    finite_or_inf,
    polished,
    require_converged,
    require_minimum,
    require_rise,
    require_say,
)
from equipoise.fitting.maps import whitening
from equipoise.fitting.products import separation, steered
from equipoise.fitting.region import lowest
from equipoise.fitting.smoothness import allowed, require_smooth, require_steady
from equipoise.linalg import FAINT, FLAT, curvature_axes, symmetric
from equipoise.models.problem import Derivatives, Problem

__all__ = ["FEW", "by_products", "descend"]

_RISEN = 1e-9  # of the loss: more is no rounding
_FADED = 1e-8  # of the curvature at the start: below it, a minimum may be an asymptote
FEW = 300  # parameters up to which every step has its matrix
_SOME = 1500  # and up to which one is made at the end, to name every flat direction
_POLISHING = 20  # Newton steps after the trust region
_LEVEL = 1e-8  # length of a gradient at which the trust region is left
_SHORTEST, _FURTHEST = 1e-16, 1e12  # its smallest radius, in which nothing but rounding is left, and its largest


@dataclass
class _Frame:
    """The loss in coordinates z of its metric, θ = start + T z: a ball there is the same whatever the units of θ."""

    problem: Problem
    start: Array
    basis: Array | None
    last: tuple[bytes, Derivatives] = (b"", Derivatives(0.0, np.zeros(0), np.zeros(0)))

    def theta(self, z: Array) -> Array:
        """The parameters at z."""
        return self.start + (z if self.basis is None else self.basis @ z)

    def directions(self, axes: Array) -> Array:
        """Directions (rows) in parameters."""
        return axes if self.basis is None else axes @ self.basis.T

    def own(self, z: Array) -> Derivatives:
        """Loss, gradient and Hessian in the parameters; asked for one after the other, they come from one pass."""
        if self.last[0] != z.tobytes():
            found = self.problem.derivatives(self.theta(z), 2)
            # outside the loss's domain the trust region would otherwise never shrink
            self.last = z.tobytes(), found._replace(value=finite_or_inf(found.value))
        return self.last[1]

    def name(self, k: int) -> str:
        """Of the parameter that z_k moves most."""
        return self.problem.names[int(np.abs(self.directions(np.eye(1, self.start.size, k))).argmax())]

    def at(self, z: Array) -> Derivatives:
        """Loss, gradient and Hessian in z."""
        value, gradient, H, _ = self.own(z)
        if self.basis is None:
            return Derivatives(value, gradient, H)
        return Derivatives(value, gradient @ self.basis, symmetric(self.basis.T @ H @ self.basis))


def descend(problem: Problem, start: Array, max_iterations: int = 100) -> Fit:
    """A minimum of a loss that need not be convex: trust-region Newton, then Newton steps in the curved directions.

    `FitFailed` if it ends in a saddle point (it carries the directions of negative curvature) or does not converge.
    """
    if (start.size > FEW or problem.search.dear) and problem.search.metric() is None:
        return by_products(problem, start, max_iterations)
    metric = problem.search.metric()
    frame = _Frame(problem, start, None if metric is None else whitening(problem, metric))
    first = frame.at(np.zeros(start.size))
    _require_start(*first[:3])
    bends = np.diag(first.hessian)
    z, iterations = _trusted(frame, max_iterations, bends)
    return _certified(frame, z, iterations, first.value, bends)


def by_products(problem: Problem, start: Array, max_iterations: int) -> Fit:
    """The same for more parameters than there is time for a matrix at every step; of some more, one at the end."""
    first = problem.derivatives(start, 1)
    _require_start(*first[:3])
    found = steered(problem, start, max_iterations)
    if start.size <= _SOME:
        frame = _Frame(problem, found.theta, None)
        return _certified(frame, np.zeros(start.size), found.iterations, first.value, problem.diagonal(start), start)
    if not found.converged:
        _require_close(problem, start, found, lambda g: separation(problem, found.theta, g))
    return replace(found, converged=True)


def _require_start(*parts: float | Array) -> None:
    if not all(np.isfinite(part).all() for part in parts):
        raise FitFailed(
            "the loss or one of its derivatives is not finite at the start. To fix: start elsewhere (init=), and look for "
            "sqrt, log, or division at zero."
        )


def _certified(frame: _Frame, z: Array, iterations: int, value: float, bends: Array, start: Array | None = None) -> Fit:
    """Polish a point that a search ended at, and say what is known of it.

    `value` and `bends` are the loss at the start, and about its second derivatives there; `start` is where the search
    began, if not at the frame's origin.
    """
    problem, before = frame.problem, value
    yard = problem.search.yardstick(frame.theta(z))
    z, norm, steps = _settled(frame, z, polished(yard))
    theta, iterations = frame.theta(z), iterations + steps
    value, gradient, H, _ = frame.at(z)
    spectrum, axes = curvature_axes(H)
    axes, inner = frame.directions(axes), axes
    close, faded = norm <= converged(yard, problem.n), np.abs(np.diag(H)) < _FADED * bends
    up = spectrum > FLAT * spectrum[-1]
    if faded.any():  # an asymptote, which looks like a kink from afar, or by rounding like a saddle
        way = frame.directions(np.where(faded, z if start is None else theta - start, 0.0))
        require_rise(problem, theta, np.vstack([_onward(problem, theta, way), axes[up]]), before - value)
    if frame.basis is not None:
        curves, ways = np.linalg.eigh(H)
        level = frame.directions(ways.T[curves <= FAINT * curves[-1]])
        require_say(problem, theta, level, 1.0 / np.linalg.norm(frame.basis, axis=1))
    if not close:
        require_steady(bends, np.diag(H), frame.name)
        rough = Fit(theta, norm, False, iterations, value, np.nan)
        _require_close(
            problem, frame.start if start is None else start, rough, lambda g: _distance(frame, spectrum, inner, g)
        )
    require_minimum(problem, spectrum, axes)
    if norm <= polished(yard):  # a step that is known costs nothing
        theta = frame.theta(z + _newton_step(gradient, spectrum, inner, up))
    flat = axes[~up]
    found = flat if len(flat) else None
    return Fit(theta, norm, True, iterations, value, _condition(frame.own(z).hessian), flat=found)


def _newton_step(gradient: Array, spectrum: Array, axes: Array, up: Mask) -> Array:
    """Along some of the directions that curve."""
    return -((axes[up] @ gradient) / spectrum[up]) @ axes[up]


def _onward(problem: Problem, theta: Array, way: Array) -> Array:
    """The way that led to θ (one row), in units of its curvature, if any is left: past separated classes the loss falls."""
    curve = float(way @ problem.product(theta, way))
    return (way / np.sqrt(curve) if curve > 0.0 else way)[None][: int(way.any())]


def _distance(frame: _Frame, spectrum: Array, axes: Array, gradient: Array) -> float:
    """Of a gradient in the parameters, in standard errors along the directions that curve."""
    inner = gradient if frame.basis is None else gradient @ frame.basis
    up = spectrum > FLAT * spectrum[-1]
    return float(np.sqrt(frame.problem.n * np.sum((axes[up] @ inner) ** 2 / spectrum[up])))


def _require_close(problem: Problem, start: Array, found: Fit, distance: Callable[[Array], float]) -> None:
    """Raise `FitFailed`, saying why, unless the distance to the minimiser is what the loss's own rounding leaves."""
    require_smooth(problem, start, found.theta)
    limit = converged(problem.search.yardstick(found.theta), problem.n)
    limit += allowed(problem, found.theta, distance)
    require_converged(found.gradient_norm, limit, found.iterations, found.theta)


def _condition(H: Array) -> float:
    """Of a Hessian scaled to unit diagonal, along the directions it curves in."""
    spectrum = curvature_axes(H)[0]
    curved = spectrum[spectrum > FLAT * spectrum[-1]]
    return float(curved[-1] / curved[0])


def _trusted(frame: _Frame, max_iterations: int, bends: Array) -> tuple[Array, int]:
    """Where the trust region ends, and after how many steps."""
    from scipy.optimize import minimize  # slow to import, and convex losses do without

    options = {
        "gtol": _LEVEL,
        "maxiter": 10 * max_iterations,
        "initial_trust_radius": 1.0,
        # it doubles only while the quadratic model predicts well, so that parameters of any size are reached
        "max_trust_radius": _FURTHEST,
    }

    def bend(z: Array) -> Array:
        H = frame.at(z).hessian
        if not np.isfinite(H).all():  # SciPy would fail over it
            require_steady(bends, np.sum(H, axis=0), frame.name)
        return H

    try:
        rough = minimize(  # type: ignore[call-overload]
            lambda z: frame.at(z).value,
            np.zeros(frame.start.size),
            jac=lambda z: frame.at(z).gradient,
            hess=bend,
            method="trust-exact",
            options=options,
        )
    except UnboundLocalError:
        # SciPy has no step where its factorisations fail again and again, as with a scale that goes to zero
        return _stepped(frame, max_iterations, bends)
    return rough.x, int(rough.nit)


def _stepped(frame: _Frame, max_iterations: int, bends: Array) -> tuple[Array, int]:
    """The same with exact steps, which no curvature makes fail."""
    z, radius = np.zeros(frame.start.size), 1.0
    here, steps = frame.at(z), 0
    while np.linalg.norm(here.gradient) >= _LEVEL and radius > _SHORTEST and steps < 10 * max_iterations:
        if not np.isfinite(here.hessian).all():
            require_steady(bends, np.sum(here.hessian, axis=0), frame.name)
        if np.finfo(float).eps * np.abs(here.hessian).max() > np.abs(bends).max() > 0.0:
            break  # curvatures such as those at the start are lost in rounding
        move, gain = lowest(here.gradient, here.hessian, radius)
        if not gain > 0.0 or np.array_equal(z + move, z):
            break
        there = frame.at(z + move)
        share, steps = (here.value - there.value) / gain, steps + 1
        if share < 0.25:
            radius *= 0.25
        elif share > 0.75 and np.linalg.norm(move) > 0.9 * radius:
            # it doubles only while the quadratic model predicts well, so that parameters of any size are reached
            radius = min(2.0 * radius, _FURTHEST)
        if share > 0.15:
            z, here = z + move, there
    return z, steps


def _settled(frame: _Frame, z: Array, limit: float) -> tuple[Array, float, int]:
    """Newton steps to the minimum: where, how far from zero, and how many.

    A faint curvature may be real (columns that are nearly collinear), or what a slope in other directions makes of a flat one
    (the product of two parameters). The latter fades with the slope, so that those directions are told apart, and those that
    curve followed, once the others are at their minimum as far as rounding allows.
    """
    z, norm, steps = _polished(frame, z, limit, FAINT)
    spectrum = curvature_axes(frame.at(z).hessian)[0]
    size = np.abs(spectrum) / spectrum[-1]
    if not np.any((size > FLAT) & (size <= FAINT)):
        return z, norm, steps
    z, _, more = _polished(frame, z, 0.0, FAINT)
    z, norm, last = _polished(frame, z, limit, FLAT)
    return z, norm, steps + more + last


def _polished(frame: _Frame, z: Array, limit: float, faint: float) -> tuple[Array, float, int]:
    """Newton steps in the curved directions until they no longer shrink: where, how far from zero, and how many."""
    norm, steps = np.inf, 0
    for _ in range(_POLISHING):
        value, gradient, H, _ = frame.at(z)
        spectrum, axes = curvature_axes(H)
        up = spectrum > faint * spectrum[-1]
        direction = _newton_step(gradient, spectrum, axes, up)
        # along flat directions a slope, if any, is never made up for: measure it as if they curved like the others
        slope = axes[~up & (np.abs(spectrum) <= FAINT * spectrum[-1])] @ gradient
        decrement = max(0.0, -float(gradient @ direction)) + float(slope @ slope)
        previous, norm = norm, float(np.sqrt(decrement * frame.problem.n))
        if norm <= limit or norm >= previous:
            break
        # on the way to an asymptote the curvature is next to nothing, and a step without it may lead anywhere
        if not frame.at(z + direction).value <= value + decrement + _RISEN * abs(value):
            break
        z, steps = z + direction, steps + 1
    return z, norm, steps
