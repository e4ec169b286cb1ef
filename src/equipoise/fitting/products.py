"""A minimum for very many parameters, by products with vectors alone: Newton's steps by conjugate gradients in a trust region.

Nothing of D×D numbers is made; memory is a few vectors and a block of rows. Parameters are measured by about their
curvature, so that no step depends on their units. The certificate is that of the dense search: the distance to the minimiser
in standard errors by a linear system, negative curvature and flat directions by Lanczos' method.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from equipoise.arrays import Array
from equipoise.fitting.certificate import (
    CONVERGED,
    Fit,
    converged,
    finite_or_inf,
    require_minimum,
    require_rise,
)
from equipoise.fitting.krylov import Ends, Solved, ends, solved
from equipoise.linalg import FAINT
from equipoise.models.problem import Derivatives, Problem
from equipoise.progress import Progress

__all__ = ["separation", "steered"]

_GOAL = 1e-8  # standard errors from the minimiser, where the search ends: a hundredth of what is asked
_STALLED = 0.75  # of the distance left by a step close to the minimiser: rounding
_NEAR = 1e-2  # standard errors from the minimiser, where a step that does not lower the loss is rounding
_ALIKE = 1e-10  # losses that differ by less than this share are told apart by their slopes
_SYSTEM = 2000  # products for a step, at most
_SPECTRUM = 400  # products for an end of the spectrum, at most
_ABOUT = 0.5  # residual of that end, of its value: its sign is what matters
_RENEWED = 8  # steps after which parameters are measured anew
_FURTHEST = 1e12  # radius of the trust region, in units of about unit curvature
_ESCAPES = 20  # saddle points that are left
_NAMED = 4  # flat directions that are looked for
_ROUGH = 0.1  # residual of a system, of its right-hand side, far from the minimiser
_FINE = 1e-4  # and close to it, at least
_FADED = 1e-8  # of the curvature at the start: below it, a minimum may be an asymptote
_FEWEST, _GROWTH = 1000, 8  # rows of the first part that leads to the minimum of all, and by how much parts grow
_WORTH = 1e8  # numbers in rows times parameters, from which on parts are worth it
_PART_STEPS = 15  # on a part


@dataclass
class _Chart:
    """The loss in coordinates in which it curves by about one, and what was computed of it so far."""

    problem: Problem
    scale: Array
    bar: Progress
    products: int = 0
    steps: int = 0
    told: str = field(default="")

    @property
    def n(self) -> int:
        """Number of observations."""
        return self.problem.n

    def at(self, theta: Array) -> Derivatives:
        """Loss and slope in the coordinates."""
        value, gradient, *_ = self.problem.derivatives(theta, 1)
        return Derivatives(finite_or_inf(value), gradient * self.scale, np.zeros(0))

    def bends(self, theta: Array) -> Callable[[Array], Array]:
        """Products with the Hessian at θ."""

        def product(v: Array) -> Array:
            self.products += 1
            self.bar.update(self.products, f"{self.told}, {self.products} Hessian-vector products")
            return self.scale * self.problem.product(theta, self.scale * v)

        return product

    def tell(self, value: float, norm: float) -> None:
        """Note where the search is, for those who watch."""
        where = f", {norm:.2g} standard errors away" if np.isfinite(norm) else ""
        rows = f" on {self.problem.source.n:,} of {self.n:,} rows" if self.problem.source.n < self.n else ""
        self.told = f"fitting{rows}, step {self.steps}, loss {value:.6g}{where}"


@dataclass(frozen=True)
class _Place:
    """A point with its loss and slope, the radius that is trusted around it, and how far the minimiser is."""

    theta: Array
    here: Derivatives
    radius: float
    norm: float = np.inf


def steered(problem: Problem, start: Array, max_iterations: int) -> Fit:
    """A minimum by products; `converged` says whether the distance is as small as asked.

    `max_iterations` is a tenth of the trust region's steps before giving up. `FitFailed` if it ends in a saddle point
    that cannot be left, or on an asymptote.
    """
    with Progress("fitting", None, problem.source.in_memory) as bar:
        first = _scale(problem, start)
        chart = _Chart(problem, first, bar)
        theta = _led(chart, start)
        chart.scale = first if theta is start else _scale(problem, theta)
        here = chart.at(theta)
        place = _Place(theta, here, max(1.0, float(np.linalg.norm(here.gradient))))
        for _ in range(_ESCAPES + 1):
            place = _renewed(chart, _searched(chart, place, 10 * max_iterations, _GOAL))
            lowest, flat, largest = _spectrum(chart, place.theta)
            left = _left(chart, place, lowest)
            if left is None:
                break
            place = left
        axes = np.stack([lowest.vector * chart.scale, np.zeros(start.size)])
        require_minimum(problem, np.array([lowest.value, largest]), axes)
    limit = converged(problem.search.yardstick(place.theta), problem.n)
    if place.norm <= limit:
        _require_risen(first, chart, place, start)
    curved = lowest.value if lowest.value > FAINT else FAINT
    named = flat * chart.scale if len(flat) else None
    return Fit(
        place.theta, place.norm, place.norm <= limit, chart.steps, place.here.value, largest / curved, flat=named
    )


def separation(problem: Problem, theta: Array, gradient: Array) -> float:
    """√N · sqrt(gᵀ H⁻¹ g) of a gradient, with the Hessian at θ."""
    scale = _scale(problem, theta)
    inner = gradient * scale
    size = float(np.linalg.norm(inner))
    found = solved(lambda v: scale * problem.product(theta, scale * v), inner, np.inf, 0.1 * size, size, _SYSTEM)
    return float(np.sqrt(problem.n * found.decrement(inner)))


def _scale(problem: Problem, theta: Array) -> Array:
    return 1.0 / np.sqrt(problem.diagonal(theta))


def _led(chart: _Chart, start: Array) -> Array:
    """Where random parts of the rows lead, each eight times the last, if the loss of all rows is lower there.

    On a part the minimum is looked for no closer than its rows determine it.
    """
    problem, theta = chart.problem, start
    rows = problem.source.n
    parts, size = list[int](), rows // _GROWTH
    while size >= _FEWEST and rows * start.size >= _WORTH:
        parts, size = [size, *parts], size // _GROWTH
    for k, size in enumerate(parts):
        part = problem.subsample(size, seed=k)
        some = replace(chart, problem=part, scale=_scale(part, theta))
        here = some.at(theta)
        place = _Place(theta, here, max(1.0, float(np.linalg.norm(here.gradient))))
        found = _searched(some, place, _PART_STEPS, float(np.sqrt(rows / size)))
        chart.products, chart.steps = some.products, some.steps
        following = problem if k + 1 == len(parts) else problem.subsample(parts[k + 1], seed=k + 1)
        if finite_or_inf(following.derivatives(found.theta, 0).value) < following.derivatives(theta, 0).value:
            theta = found.theta
    return theta


def _searched(chart: _Chart, place: _Place, most: int, goal: float) -> _Place:
    """Steps of the trust region until the distance is as small as the goal, or no step makes it smaller."""
    for _ in range(most):
        product, gradient = chart.bends(place.theta), place.here.gradient
        size = float(np.linalg.norm(gradient))
        if size == 0.0:
            return replace(place, norm=0.0)
        fine = _ROUGH if place.norm > 1.0 else min(_ROUGH, max(_FINE, 0.3 * goal / place.norm))
        rounding = CONVERGED / np.sqrt(chart.n)
        step = solved(product, gradient, place.radius, fine * size, rounding, _SYSTEM)
        norm = np.inf if step.edge else float(np.sqrt(chart.n * step.decrement(gradient)))
        chart.tell(place.here.value, norm)
        if norm <= goal or (norm <= CONVERGED and norm > _STALLED * place.norm):
            return replace(place, norm=norm)
        following = _moved(chart, replace(place, norm=norm), step)
        if following is None or (following.theta is place.theta and norm <= _NEAR):
            return replace(place, norm=norm)
        moved, place = following.theta is not place.theta, following
        chart.steps += moved
        if moved and chart.steps % _RENEWED == 0:
            place = _renewed(chart, place)
    return place


def _renewed(chart: _Chart, place: _Place) -> _Place:
    """The same place in coordinates made for it: the curvature may be another one than at the start."""
    before, chart.scale = chart.scale, _scale(chart.problem, place.theta)
    change = chart.scale / before
    here = place.here._replace(gradient=place.here.gradient * change)
    return replace(place, here=here, radius=place.radius / float(np.median(change)))


def _moved(chart: _Chart, place: _Place, step: Solved) -> _Place | None:
    """The place after a step that lowers the loss as its parabola says, or nearly; the same with a smaller radius otherwise.

    A step whose loss differs by no more than rounding is judged by its slope. None where no radius is small enough.
    """
    theta = place.theta + chart.scale * step.step
    trial, length = chart.at(theta), float(np.linalg.norm(step.step))
    predicted, actual = step.predicted(place.here.gradient), place.here.value - trial.value
    if max(predicted, abs(actual)) <= _ALIKE * abs(place.here.value):
        slope = abs(float(place.here.gradient @ step.step))
        ratio = 1.0 if abs(float(trial.gradient @ step.step)) <= 0.5 * slope else 0.0
    else:
        ratio = actual / predicted if np.isfinite(trial.value) and np.isfinite(trial.gradient).all() else 0.0
    radius = place.radius
    if ratio < 0.25:
        radius = 0.25 * length
    elif ratio > 0.75 and step.edge:
        radius = min(2.0 * radius, _FURTHEST)
    if ratio > 0.1:
        return _Place(theta, trial, max(radius, 2.0 * length if not step.edge else radius), place.norm)
    if radius <= 1e-12 * (1.0 + float(np.linalg.norm(place.theta / chart.scale))):
        return None
    return replace(place, radius=radius)


def _spectrum(chart: _Chart, theta: Array) -> tuple[Ends, Array, float]:
    """The lowest end of the spectrum, flat directions (rows, orthonormal), and the largest eigenvalue."""
    rng, flat, dim = np.random.default_rng(0), np.zeros((0, theta.size)), theta.size
    product, largest = chart.bends(theta), 0.0
    chart.told = f"looking for directions of negative curvature after {chart.steps} steps"
    for _ in range(_NAMED + 1):
        lowest = ends(product, dim, _SPECTRUM, rng, flat, settled=_ABOUT, below=FAINT)
        largest = max(largest, lowest.largest)
        if abs(lowest.value) > FAINT or len(flat) == min(_NAMED, dim - 1):
            break
        flat = np.vstack([flat, lowest.vector])
    return lowest, flat, largest


def _left(chart: _Chart, place: _Place, lowest: Ends) -> _Place | None:
    """A lower place along a direction of negative curvature; None without one, or where it leads nowhere."""
    if lowest.value >= -FAINT:
        return None
    downhill = -1.0 if float(place.here.gradient @ lowest.vector) > 0.0 else 1.0
    length = min(max(1.0, place.radius), _FURTHEST)
    while length > 1e-8:
        for sign in (downhill, -downhill):
            theta = place.theta + sign * length * chart.scale * lowest.vector
            here = chart.at(theta)
            if here.value < place.here.value + 0.1 * lowest.value * length**2 and np.isfinite(here.gradient).all():
                return _Place(theta, here, length)
        length *= 0.5
    return None


def _require_risen(first: Array, chart: _Chart, place: _Place, start: Array) -> None:
    """Tell a minimum from an asymptote, where the curvature has all but vanished on the way."""
    if not np.any(first**2 < _FADED * chart.scale**2):
        return
    way = (place.theta - start) / chart.scale
    curve = float(way @ chart.bends(place.theta)(way)) if way.any() else 0.0
    if curve > 0.0:
        drop = chart.problem.derivatives(start, 0).value - place.here.value
        require_rise(chart.problem, place.theta, (chart.scale * way / np.sqrt(curve))[None], drop)
