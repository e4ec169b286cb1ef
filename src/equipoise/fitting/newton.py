"""Damped Newton for convex losses, with as few passes over the rows as it can.

No step and no decision depends on the units of the parameters or of the loss: Hessians are scaled to a unit diagonal,
distances are measured in standard errors, and differences of the loss too small to see are read off its slopes.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np

from equipoise.arrays import Array
from equipoise.errors import FitFailed
from equipoise.fitting.certificate import Fit, converged, polished, require_bounded, require_converged
from equipoise.fitting.maps import WIDE, Map, infinite, newton_map, sharpened
from equipoise.models.problem import Cored, Derivatives, Minimised, Problem, Yardstick

__all__ = ["Astray", "Rough", "Tilted", "minimise", "moved_information"]

_SLOW = 0.1  # a Hessian is kept while each step with it leaves at most this share of the distance
_STALLED = 0.75  # close to the minimiser, steps that leave more of the distance are rounding: e^(−1/2) is an asymptote
_AWAY = 1e-3  # posterior standard deviations from the minimiser, beyond which a Hessian is made anew at the next step
_NEAR = 0.1  # standard errors from the minimiser, where the loss is a parabola for all that a step can tell
_ALIKE = 1e-10  # losses that differ by less than this share are told apart by their slopes
_LENGTHS = (1.0, 0.1, 0.01, 0.001)  # of the first step tried, from which others are halved
_ASTRAY = 1e3  # times the distance before: a step that seems to lead further away than this is taken back
_UNSEEN = 2e-11  # standard errors that a step taken unseen may leave, with a Hessian that is kept
_FORESEEN = 5e-11  # the same with one made here
_DOUBT = 4.0  # times what is predicted
_KNOWN = 0.02  # of what Newton's step misses, the least that rows which stand for all are trusted to miss
_SUSPECT = 10  # steps after which it is asked at every one whether there is a minimiser
_EPS = float(np.finfo(np.float64).eps)


class Astray(FitFailed):
    """A sample's minimiser is none of all rows: it missed the few that matter most, which those that stand for all have."""

    def __init__(self, core: Minimised) -> None:
        super().__init__(
            "a sample of the rows leads astray. To fix: start elsewhere, or pass scale= where one is estimated."
        )
        self.core = core


class Rough(NamedTuple):
    """What a sample of the rows tells near its minimiser: Newton's map, what distances are compared with, the constant."""

    newton: Map
    yardstick: Yardstick
    constant: float | None


@dataclass(frozen=True)
class _Place:
    """A point on the way, its Newton step, and the distance to the minimiser before and now.

    `missed` is by how much Newton's step would have missed the point, where rows that stand for all led to it.
    """

    theta: Array
    here: Derivatives
    map: Map
    direction: Array
    norm: float
    last: float
    yard: Yardstick | None
    n: int
    in_memory: bool
    squared: bool
    own_last: bool
    own_before: bool
    missed: float = 0.0

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
        stalled = self.own_last and self.norm > _STALLED * self.last  # distances by other maps do not compare
        return self.polished or (self.converged and stalled)

    @property
    def polished(self) -> bool:
        """Whether the step from here, which is certain, is no more than rounding makes of others."""
        return self.yard is not None and self.map.own and self.norm <= polished(self.yard)

    @property
    def settling(self) -> bool:
        """Whether the next step, by how much the last one gained, leaves nothing that could be seen."""
        if self.yard is None or not self.map.own:
            return False
        least = polished(self.yard)
        if self.converged and self._kept <= max(_UNSEEN * self.yard.spread, least):
            return True
        foreseen = max(_FORESEEN * self.yard.spread, least)
        return not self.in_memory and self.map.fresh and _DOUBT * self._quadratic <= foreseen

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
        return max(self.norm, _KNOWN * self.missed) * (self.norm / self.last) ** 2 if self.own_before else np.inf

    @property
    def worn(self) -> bool:
        """Whether a Hessian from elsewhere should be made anew; a sample's, where its step leads close by."""
        slow = not self.map.fresh and self.norm > _SLOW * self.last
        if not self.in_memory:
            return slow or not self.map.own or self.norm > _AWAY
        return slow or (self.norm > 1.0 if self.map.own else self.norm < 1.0 / _SLOW)


def minimise(
    problem: Minimised, start: Array, max_iterations: int = 100, rough: Rough | None = None, newton: Map | None = None
) -> Fit:
    """Damped Newton from `start`, with the map of these rows close to it, if that is known.

    With many rows a Hessian costs several gradients. Then that of a sample leads to within a standard deviation of the
    minimiser; one made there serves all further steps, as long as they converge fast, and certifies. The steps end where
    they no longer shrink: how well a Hessian is known decides how many are needed, and not where they lead; a last step that
    will leave nothing that could be seen is taken unseen. Rows that are read from files cost more than a Hessian of
    them: there it is made at every step that is not yet close, and steps are those of some rows which stand for all.
    """
    keep, core = rough is not None, None
    with np.errstate(over="ignore", invalid="ignore"):
        if rough is not None and not problem.source.in_memory and not problem.quadratic and isinstance(problem, Cored):
            place, core = _begun(problem, start, rough)
        else:
            place = _started(problem, start, newton, rough)
        for iteration in range(max_iterations + 1):
            if iteration >= _SUSPECT or place.done or (keep and place.settling):
                _require_minimum(problem, core, place)
            following = None
            if keep and not place.done and place.settling:
                place = _settled(place, core)
            elif not place.done and iteration < max_iterations:
                following = (_leapt(problem, place, core) if core else None) or _next(problem, place, keep)
            if following is None:
                break
            place = following
        yard = place.yard or problem.search.yardstick(place.theta)
    require_converged(place.norm, converged(yard, problem.n), iteration)
    theta = place.theta + place.direction if place.polished else place.theta  # a step that is known costs nothing
    information = None if problem.source.in_memory else place.here.information
    return Fit(theta, place.norm, True, iteration, place.here.value, place.map.condition, information=information)


def _started(problem: Minimised, start: Array, newton: Map | None, rough: Rough | None) -> _Place:
    """The first point, with the map that is known or the one of its own."""
    newton = newton if rough is None else rough.newton
    here = problem.derivatives(start, 1 if newton is not None and problem.source.in_memory else 2)
    newton = newton_map(problem, here.hessian) if newton is None or here.hessian.size else newton
    place = _placed(problem, start, here, newton, None, None if rough is None else rough.yardstick)
    if rough is not None:
        _require_close(place, rough)
    return place


def moved_information(some: Cored, theta: Array, before: Cored, origin: Array) -> Array:
    """By how much what leverages are shares of moves on a short way, by some rows that stand for all."""
    return some.information(theta) - before.information(origin)


def _begun(problem: Cored, start: Array, rough: Rough) -> tuple[_Place, Cored]:
    """The first point, and some rows that stand for all; raises `Astray` with these where the point is no good."""
    here, core = problem.core(start)
    try:
        place = _placed(problem, start, here, newton_map(problem, here.hessian), None, rough.yardstick)
        _require_close(place, rough)
    except FitFailed as failure:
        raise Astray(core) from failure
    return place, core


def _require_minimum(problem: Minimised, core: Minimised | None, place: _Place) -> None:
    """Raise `FitFailed` where there is no minimiser; where rows that stand for all have one, all rows have."""
    candidates = place.direction, place.map.soft, -place.map.soft
    if core is None or core.search.explain(candidates, place.theta, place.norm) is not None:
        require_bounded(problem, place.theta, place.norm, *candidates)


def _require_close(place: _Place, rough: Rough) -> None:
    """Raise `FitFailed` where a sample's minimiser is not one of all rows, by far."""
    if place.norm > np.sqrt(place.n) * rough.yardstick.spread:
        raise FitFailed("the sample's minimiser is no better than any other start. To fix: start elsewhere.")


@dataclass(frozen=True)
class Tilted:
    """The loss of some rows with slope and curvature of all of them at a point: L_some(θ) + θᵀt + ½ (θ−o)ᵀ B (θ−o)."""

    some: Minimised
    origin: Array
    tilt: Array
    bend: Array

    @staticmethod
    def at(
        problem: Minimised, some: Minimised, origin: Array, here: Derivatives | None = None
    ) -> tuple[Tilted, Derivatives]:
        """That of a problem, some of whose rows these are; and its derivatives at the point, if they are not known."""
        here, there = here or problem.derivatives(origin, 2), some.derivatives(origin, 2)
        return Tilted(some, origin, here.gradient - there.gradient, here.hessian - there.hessian), here

    def __getattr__(self, name: str) -> Any:
        return getattr(self.some, name)

    def derivatives(self, theta: Array, order: int) -> Derivatives:
        """Those of the sum."""
        value, gradient, hessian, _ = self.some.derivatives(theta, order)
        away = theta - self.origin
        pull = self.bend @ away
        return Derivatives(
            value + float(self.tilt @ theta) + 0.5 * float(away @ pull),
            gradient + self.tilt + pull if order else gradient,
            hessian + self.bend if order > 1 else hessian,
        )


def _foreseen(place: _Place, core: Minimised) -> Array:
    """The minimiser of some rows that stand for all, with slope and curvature of all at a point.

    As Newton's step, but for how the loss bends further away, of which those rows know all but a little.
    """
    tilted, _ = Tilted.at(core, core, place.theta, place.here)
    return minimise(cast(Minimised, tilted), place.theta).theta


def _leapt(problem: Minimised, place: _Place, core: Minimised) -> _Place | None:
    """Where some rows that stand for all lead; None where that is no better."""
    if not place.here.hessian.size:
        return None
    try:
        theta = _foreseen(place, core)
        here = problem.derivatives(theta, 2)
        found = _placed(problem, theta, here, newton_map(problem, here.hessian), place, place.yard)
    except FitFailed:
        return None
    beside = place.theta + place.direction - theta
    missed = float(np.sqrt(problem.n * max(0.0, float(beside @ here.hessian @ beside))))
    return replace(found, missed=missed) if found.norm <= 0.5 * place.norm else None


def _settled(place: _Place, core: Cored | None) -> _Place:
    """Where a step leads that is taken unseen."""
    value = place.here.value + 0.5 * float(place.here.gradient @ place.direction)
    theta, information = place.theta + place.direction, place.here.information
    if core is not None and place.missed:
        with suppress(FitFailed):  # Newton's step is nearly as good so close by
            theta = _foreseen(place, core)
    if information is not None and not place.squared:
        information = None if core is None else information + moved_information(core, theta, core, place.theta)
    here = place.here._replace(value=value, information=information)
    return replace(place, theta=theta, here=here, norm=place.following, direction=np.zeros_like(theta))


def _placed(
    problem: Minimised, theta: Array, here: Derivatives, newton: Map, before: _Place | None, yard: Yardstick | None
) -> _Place:
    """A point with its Newton step; what distances are compared with is looked up where the minimiser may be close."""
    last = np.inf if before is None else before.norm
    if not np.isfinite(here.gradient).all():
        raise infinite()
    direction = newton.step(here.gradient)
    norm = float(np.sqrt(max(0.0, -float(here.gradient @ direction)) * problem.n))
    if yard is None and (norm < 1.0 or norm > _STALLED * last):
        yard = problem.search.yardstick(theta)
    own_last = before is not None and before.map.own
    own_before = before is not None and before.map.own and before.map.fresh
    about = problem.n, problem.source.in_memory, problem.quadratic, own_last, own_before
    return _Place(theta, here, newton, direction, norm, last, yard, *about)


def _next(problem: Minimised, place: _Place, keep: bool) -> _Place | None:
    """The point that a damped step leads to; None where none is better. With `keep`, a Hessian serves several steps."""
    wide = place.theta.size > WIDE and place.in_memory and isinstance(problem, Problem)
    order, failure = 1 if wide or (keep and not place.worn) else 2, None
    for longest in _LENGTHS:
        found = _line_search(problem, order, place, longest)
        if found is None and (place.map.own or (wide and place.converged)):
            return None  # of many columns, no Hessian is made for a step that is rounding
        # the step of a sample's Hessian may be no good: one made here is
        theta, here = found or (place.theta, problem.derivatives(place.theta, 2))
        try:
            newton = place.map._replace(fresh=False)
            if here.hessian.size:
                newton = newton_map(problem, here.hessian)
            elif wide and isinstance(problem, Problem):
                newton = sharpened(problem, theta, place.map, place.norm)
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
