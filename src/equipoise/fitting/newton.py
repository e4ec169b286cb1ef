"""Damped Newton for convex losses, with as few passes over the rows as it can.

No step and no decision depends on the units of the parameters or of the loss: Hessians are scaled to a unit diagonal,
distances are measured in standard errors, and differences of the loss too small to see are read off its slopes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from equipoise.arrays import Array
from equipoise.errors import FitFailed
from equipoise.fitting.certificate import Fit, converged, polished, require_bounded, require_converged
from equipoise.fitting.krylov import ends
from equipoise.linalg import FLAT
from equipoise.models.problem import Derivatives, Minimised, Problem, Yardstick

__all__ = ["Rough", "minimise", "whitening"]

_SLOW = 0.1  # a Hessian is kept while each step with it leaves at most this share of the distance
_STALLED = 0.75  # close to the minimiser, steps that leave more of the distance are rounding: e^(−1/2) is an asymptote
_AWAY = 1e-3  # posterior standard deviations from the minimiser, beyond which a Hessian is made anew at the next step
_NEAR = 0.1  # standard errors from the minimiser, where the loss is a parabola for all that a step can tell
_ALIKE = 1e-10  # losses that differ by less than this share are told apart by their slopes
_LENGTHS = (1.0, 0.1, 0.01, 0.001)  # of the first step tried, from which others are halved
_ASTRAY = 1e3  # times the distance before: a step that seems to lead further away than this is taken back
_UNSEEN = 2e-10  # standard errors that a step taken unseen may leave
_DOUBT = 4.0  # times what is predicted
_SUSPECT = 10  # steps after which it is asked at every one whether there is a minimiser
_EPS = float(np.finfo(np.float64).eps)
_WIDE = 400  # columns from which on a matrix costs more than products with many vectors
_SOLVED, _PRODUCTS = 1e-5, 100  # error of a step by products, of its size, and how many it may take
_TRIED = 60  # steps of Lanczos' method for an end of a spectrum
_SUSPICIOUS = 1e-12  # an estimate of the smallest eigenvalue, in units of the largest, below which all are computed


class Rough(NamedTuple):
    """What a sample of the rows tells near its minimiser: a Hessian, what distances are compared with, the constant."""

    hessian: Array
    yardstick: Yardstick
    constant: float | None


class _Map(NamedTuple):
    """∇L ↦ −H⁻¹∇L, where H bends least, its condition, whether it is that of all rows, and whether it was made here.

    `solve` is v ↦ H⁻¹v by the last matrix that was made, which is H itself but for `sharpened` maps.
    """

    step: Callable[[Array], Array]
    soft: Array
    condition: float
    own: bool
    fresh: bool
    solve: Callable[[Array], Array]


@dataclass(frozen=True)
class _Place:
    """A point on the way, its Newton step, and the distance to the minimiser before and now."""

    theta: Array
    here: Derivatives
    map: _Map
    direction: Array
    norm: float
    last: float
    yard: Yardstick | None
    n: int
    in_memory: bool
    squared: bool
    own_before: bool

    @property
    def near(self) -> bool:
        """Whether the loss is a parabola from here."""
        return self.yard is not None and self.norm <= _NEAR * self.yard.spread

    @property
    def converged(self) -> bool:
        """Whether the minimiser is close enough."""
        return self.yard is not None and self.norm <= converged(self.yard, self.n)

    @property
    def done(self) -> bool:
        """Whether rounding is all that is left, and that is certain."""
        if self.yard is None or not self.map.own:
            return False
        return self.norm <= polished(self.yard) or (self.converged and self.norm > _STALLED * self.last)

    @property
    def settling(self) -> bool:
        """Whether the next step, by how much the last one gained, leaves nothing that could be seen."""
        if self.yard is None or not self.map.own:
            return False
        unseen = max(_UNSEEN * self.yard.spread, polished(self.yard))
        if self.converged and self._kept <= unseen:
            return True
        return not self.in_memory and self.map.fresh and _DOUBT * self._quadratic <= unseen

    @property
    def following(self) -> float:
        """The distance after one more step."""
        return min(self._quadratic, self._kept) if self.map.fresh else self._kept

    @property
    def _kept(self) -> float:
        """With a Hessian that is kept: twice as much stays as with one that is new."""
        return 2.0 * self.norm * self.norm / self.last

    @property
    def _quadratic(self) -> float:
        """With one made here, as the last one was: Newton's method squares distances. Of squared loss, rounding is left."""
        if self.squared:
            return _EPS * self.map.condition * self.norm
        return self.norm * (self.norm / self.last) ** 2 if self.own_before else np.inf

    @property
    def worn(self) -> bool:
        """Whether a Hessian from elsewhere should be made anew; a sample's, where its step leads close by."""
        slow = not self.map.fresh and self.norm > _SLOW * self.last
        if not self.in_memory:
            return slow or not self.map.own or self.norm > _AWAY
        return slow or (self.norm > 1.0 if self.map.own else self.norm < 1.0 / _SLOW)


def minimise(problem: Minimised, start: Array, max_iterations: int = 100, rough: Rough | None = None) -> Fit:
    """Damped Newton from `start`.

    With many rows a Hessian costs several gradients. Then that of a sample leads to within a standard deviation of the
    minimiser; one made there serves all further steps, as long as they converge fast, and certifies. The steps end where
    they no longer shrink: how well a Hessian is known decides how many are needed, and not where they lead; a last step that
    will leave nothing that could be seen is taken unseen. Rows that are read from files cost more than a Hessian of
    them: there it is made at every step that is not yet close.
    """
    keep = rough is not None
    with np.errstate(over="ignore", invalid="ignore"):
        here = problem.derivatives(start, 2 if rough is None else 1)
        newton = _newton_map(problem, here.hessian) if rough is None else _newton_map(problem, rough.hessian, own=False)
        place = _placed(problem, start, here, newton, None, None if rough is None else rough.yardstick)
        if rough is not None and place.norm > np.sqrt(problem.n) * rough.yardstick.spread:
            raise FitFailed("the sample's minimiser is no better than any other start. To fix: start elsewhere.")
        for iteration in range(max_iterations + 1):
            if iteration >= _SUSPECT or place.done or (keep and place.settling):
                require_bounded(problem, place.theta, place.norm, place.direction, place.map.soft, -place.map.soft)
            following = None
            if keep and not place.done and place.settling:
                place = _settled(place)
            elif not place.done and iteration < max_iterations:
                following = _next(problem, place, keep)
            if following is None:
                break
            place = following
        yard = place.yard or problem.search.yardstick(place.theta)
    require_converged(place.norm, converged(yard, problem.n), iteration)
    return Fit(place.theta, place.norm, True, iteration, place.here.value, place.map.condition)


def _settled(place: _Place) -> _Place:
    """Where a step leads that is taken unseen."""
    value = place.here.value + 0.5 * float(place.here.gradient @ place.direction)
    here = place.here._replace(value=value)
    return replace(place, theta=place.theta + place.direction, here=here, norm=place.following)


def _placed(
    problem: Minimised, theta: Array, here: Derivatives, newton: _Map, before: _Place | None, yard: Yardstick | None
) -> _Place:
    """A point with its Newton step; what distances are compared with is looked up where the minimiser may be close."""
    last = np.inf if before is None else before.norm
    if not np.isfinite(here.gradient).all():
        raise _infinite()
    direction = newton.step(here.gradient)
    norm = float(np.sqrt(max(0.0, -float(here.gradient @ direction)) * problem.n))
    if yard is None and (norm < 1.0 or norm > _STALLED * last):
        yard = problem.search.yardstick(theta)
    own_before = before is not None and before.map.own and before.map.fresh
    about = problem.n, problem.source.in_memory, problem.quadratic, own_before
    return _Place(theta, here, newton, direction, norm, last, yard, *about)


def _next(problem: Minimised, place: _Place, keep: bool) -> _Place | None:
    """The point that a damped step leads to; None where none is better. With `keep`, a Hessian serves several steps."""
    wide = place.theta.size > _WIDE and place.in_memory and isinstance(problem, Problem)
    order, failure = 1 if wide or (keep and not place.worn) else 2, None
    for longest in _LENGTHS:
        found = _line_search(problem, order, place, longest)
        if found is None and place.map.own:
            return None
        # the step of a sample's Hessian may be no good: one made here is
        theta, here = found or (place.theta, problem.derivatives(place.theta, 2))
        try:
            newton = place.map._replace(fresh=False)
            if here.hessian.size:
                newton = _newton_map(problem, here.hessian)
            elif wide and isinstance(problem, Problem):
                newton = _sharpened(problem, theta, place.map)
            # far from the minimiser, the rows' scores spread as much as they are wrong
            known = place.yard if keep or place.near else None
            following = _placed(problem, theta, here, newton, place, known)
            if following.norm <= _ASTRAY * max(1.0, place.norm):
                return following
        except FitFailed as singular:
            failure = singular
            soft = () if singular.directions is None else (singular.directions[0], -singular.directions[0])
            require_bounded(problem, theta, np.inf, place.direction, *soft)
        # the loss fell to where it hardly bends, and its step leads nowhere: not so far
    if failure is not None:
        raise failure
    return following


def _sharpened(problem: Problem, theta: Array, known: _Map) -> _Map:
    """The map of the Hessian at θ, by conjugate gradients that an older one leads: of many columns, a matrix costs more."""

    def step(gradient: Array) -> Array:
        x, left = np.zeros_like(gradient), gradient.copy()
        near = known.solve(left)
        direction, size = near, float(left @ near)
        end = _SOLVED**2 * size
        for _ in range(_PRODUCTS):
            image = problem.product(theta, direction)
            curve = float(direction @ image)
            if not curve > 0.0:
                break
            x += size / curve * direction
            left -= size / curve * image
            near = known.solve(left)
            last, size = size, float(left @ near)
            if not size > end:
                break
            direction = near + size / last * direction
        return -x

    return known._replace(step=step, own=True, fresh=False)


class _Unit(NamedTuple):
    """A matrix scaled to a unit diagonal, by how much, and its eigenvalues and axes."""

    matrix: Array
    scale: Array
    values: Array
    axes: Array

    @property
    def singular(self) -> bool:
        """Whether some direction counts as flat."""
        return bool(self.values[0] <= FLAT * self.values[-1])


def _unit(H: Array) -> _Unit:
    """A positive semi-definite matrix in its own units."""
    unit, scale = _unit_diagonal(H)
    values, axes = np.linalg.eigh(unit)
    return _Unit(unit, scale, values, axes)


def _unit_diagonal(H: Array) -> tuple[Array, Array]:
    """A matrix scaled to a unit diagonal, and by how much."""
    diagonal = np.diag(H)
    scale = np.sqrt(np.where(diagonal > 0.0, diagonal, 1.0))
    unit = H / scale / scale[:, None]
    if not np.isfinite(unit).all():
        raise _infinite()
    return unit, scale


def whitening(problem: Minimised, metric: Array) -> Array:
    """T with TᵀMT = I; raises when columns are collinear."""
    unit = _unit(metric)
    if unit.singular:
        raise _collinear(problem, unit)
    return unit.axes / np.sqrt(unit.values) / unit.scale[:, None]


def _newton_map(problem: Minimised, H: Array, own: bool = True) -> _Map:
    """The map of a Hessian; raises when it is singular."""
    quick = _quick_map(H, own) if len(H) > _WIDE else None
    if quick is not None:
        return quick
    unit = _unit(H)
    matrix, scale, values, axes = unit
    if unit.singular:
        metric = problem.search.metric()
        level = unit if metric is None else _unit(metric)
        raise _collinear(problem, level) if level.singular else _level(axes[:, :1].T / scale)
    return _map_of(cho_factor(matrix), scale, axes[:, 0], float(values[-1] / values[0]), own)


def _map_of(factor: tuple[Array, bool], scale: Array, soft: Array, condition: float, own: bool) -> _Map:
    """The map of a matrix in units of its diagonal, by its Cholesky factor."""

    def solve(v: Array) -> Array:
        return np.asarray(cho_solve(factor, v / scale) / scale)

    return _Map(lambda g: -solve(g), soft / scale, condition, own, True, solve)


def _quick_map(H: Array, own: bool) -> _Map | None:
    """The map of a large Hessian with an estimate of its condition; None where columns may be collinear.

    All eigenvalues of 5000 columns would take minutes. Lanczos' method on the inverse finds the smallest one at once.
    """
    matrix, scale = _unit_diagonal(H)
    try:
        factor = cho_factor(matrix)
    except LinAlgError:
        return None
    rng = np.random.default_rng(0)
    inverse = ends(lambda v: -cho_solve(factor, v), len(H), _TRIED, rng)
    largest = -ends(lambda v: -(matrix @ v), len(H), _TRIED, rng).value
    if not -1.0 / inverse.value > _SUSPICIOUS * largest:
        return None
    return _map_of(factor, scale, inverse.vector, -largest * inverse.value, own)


def _infinite() -> FitFailed:
    """What to say of a start whose loss overflows."""
    return FitFailed(
        "the loss is not finite near its start: predictors overflow. To fix: look for rows far from all others, or rescale "
        "the columns of X to unit size."
    )


def _collinear(problem: Minimised, unit: _Unit) -> FitFailed:
    """What to say of columns that are not determined."""
    diagonal = np.diag(unit.matrix)
    blame = np.where(diagonal > 0.0, 0.0, 1.0) if np.any(diagonal <= 0.0) else np.abs(unit.axes[:, 0])
    columns = tuple(name for name, v in zip(problem.names, blame, strict=True) if v > 0.1 * blame.max())
    return FitFailed(
        f"the Hessian is singular: columns {', '.join(columns)} are collinear (or constant zero). To fix: drop one of "
        "them, subtract its mean from a column that hardly varies, or add a prior (prior_precision=...) and use "
        "target='posterior'.",
        columns,
    )


def _level(directions: Array) -> FitFailed:
    """What to say of a loss that hardly bends where the columns do not explain it."""
    return FitFailed(
        "the loss hardly bends along some direction, though no columns are collinear: too few rows lie where it does. To "
        "fix: pass a larger scale=, for a robust loss, or add a prior (prior_precision=...).",
        directions=directions,
    )


def _line_search(problem: Minimised, order: int, place: _Place, longest: float) -> tuple[Array, Derivatives] | None:
    """The longest halved step that lowers the loss enough, and the derivatives there up to `order`.

    A step whose loss differs by no more than rounding is judged by its slope: of a convex loss, that tells as much. None
    when no step is any good.
    """
    theta, here, direction = place.theta, place.here, place.direction
    slope, length = float(here.gradient @ direction), longest
    # the first is nearly always accepted, and then no pass is lost
    trial = theta + length * direction
    found = problem.derivatives(trial, order)
    alike = place.near or abs(found.value - here.value) <= _ALIKE * abs(here.value)
    if alike and np.isfinite(found.value) and float(found.gradient @ direction) <= -0.5 * slope:
        return trial, found
    if place.converged and not found.value <= here.value + 1e-4 * length * slope:
        return None
    while length > 1e-10:
        trial = theta + length * direction
        loss = found.value if length == longest else problem.derivatives(trial, 0).value
        if np.isfinite(loss) and loss <= here.value + 1e-4 * length * slope:
            return trial, found if length == longest else problem.derivatives(trial, order)
        length *= 0.5
    return None
