"""The minimiser, with a certificate: damped Newton for convex losses, a trust region and restarts for the others."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np

from equipoise.arrays import Array
from equipoise.checks import whole
from equipoise.data.metering import reading
from equipoise.errors import EquipoiseWarning, FitFailed, InvalidInput
from equipoise.files import available_memory
from equipoise.fitting.certificate import Fit, finite_or_inf
from equipoise.fitting.ending import ended_alone
from equipoise.fitting.following import followed
from equipoise.fitting.maps import WIDE, Map, newton_map, require_other
from equipoise.fitting.newton import Astray, Rough, minimise
from equipoise.fitting.scaling import settled_together
from equipoise.fitting.settling import settle
from equipoise.fitting.smoothness import NotSmooth
from equipoise.fitting.together import jointly
from equipoise.fitting.trust import FEW, by_products, descend
from equipoise.models.binding import verb
from equipoise.models.linear import LinearProblem
from equipoise.models.problem import Problem

__all__ = ["LARGEST", "Fit", "fit", "fit_unseen", "scaled_together"]

_RESTARTS = 4  # further starts for a general loss whose own start fails
_SAMPLE = 20_000  # rows that give a start; with twice as many or fewer, all are used at once
_TIMES = 4  # as many rows as columns, at least: of fewer, the minimiser is no better than any other start
LARGEST = 100_000  # rows that give it where passes are expensive
_PASSES = 3  # over files that a fit is expected to take
_MATRICES = 4  # of D×D numbers that Newton's method holds at once


@verb
def fit(
    problem: Problem,
    *,
    tuning_rows: int | None = None,
    seed: int = 0,
    max_iterations: int = 100,
    restarts: int | None = None,
) -> Fit:
    """Minimise the loss.

    Parameters
    ----------
    problem
        A bound problem, or a model and its data.
    tuning_rows
        Look for the minimum on this many random rows first (the offline subsample of the tuning procedure). The result
        is still the minimiser for all rows, with the same certificate: a few further passes polish it.
    seed
        Chooses those rows.
    max_iterations
        Newton steps before giving up.
    restarts
        For losses that need not be convex: further starts to try, the lowest loss being kept. When left out, a general
        loss of up to 300 parameters is restarted only if its own start fails, one of more is not, and a β-divergence is
        started from all its robust starts.

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
    max_iterations = whole("max_iterations", max_iterations, 1, "100 is enough for most losses")
    seed = whole("seed", seed, 0, "pass an int")
    restarts = None if restarts is None else whole("restarts", restarts, 0, "leave it out", "None or ")
    return ended_alone(problem, fit_unseen(problem, tuning_rows, seed, max_iterations, restarts))


def fit_unseen(
    problem: Problem,
    tuning_rows: int | None = None,
    seed: int = 0,
    max_iterations: int = 100,
    restarts: int | None = None,
) -> Fit:
    """The minimum; from files with a last step taken unseen, which moments taken there can correct."""
    part = None if tuning_rows is None else problem.subsample(tuning_rows, seed)
    if part is None and not problem.source.in_memory:
        part = _part(problem)
    with np.errstate(over="ignore", invalid="ignore"), reading(problem.source, _PASSES, "fitting"):
        try:
            result = _searched(problem, part, restarts, max_iterations)
        except FitFailed as failure:
            failure.params = None if failure.theta is None else problem.layout.unflatten(failure.theta)
            raise
    return replace(result, params=problem.layout.unflatten(result.theta))


def _searched(problem: Problem, part: Problem | None, restarts: int | None, max_iterations: int) -> Fit:
    """The minimum, by what suits the loss and its size."""
    if not problem.search.convex:
        return _polished(problem, part, restarts, max_iterations)
    if 8.0 * _MATRICES * len(problem.names) ** 2 > available_memory():
        # a better start would take a matrix
        return settle(problem, np.zeros(len(problem.names)), by_products, max_iterations)
    return _convex(problem, max_iterations, part)[0]


def _convex(problem: Problem, max_iterations: int, part: Problem | None = None) -> tuple[Fit, Map | None]:
    """The minimum; for many rows, from that of a part of them and with its Hessian, which saves most of the passes.

    Of many columns one Hessian costs more than all else: Newton's map at the first start then serves to the end, and is given
    back.
    """
    part = _part(problem) if part is None else part
    if part is not None:
        try:
            return _from_sample(problem, part, max_iterations)
        except FitFailed as failure:  # a sample may be separated or collinear where the whole is not
            require_other(problem, part, failure)
    starts = problem.search.starts()
    # with one constant for all: losses with different scales do not compare
    here = problem.settled(starts[0])
    first = min(starts, key=lambda theta: finite_or_inf(here.derivatives(theta, 0).value))
    wide = first.size > WIDE and problem.source.in_memory
    known = newton_map(here, here.derivatives(first, 2).hessian) if wide else None
    return settle(problem, first, partial(_led, newton=known), max_iterations), known


def _from_sample(problem: Problem, part: Problem, max_iterations: int) -> tuple[Fit, Map | None]:
    """The minimum from that of a part of the rows; where that leads astray, from that of rows which stand for all."""
    try:
        return _from_minimum(problem, part, *_quietly(part, max_iterations), max_iterations)
    except Astray as astray:
        core = _on_core(problem, astray)
        return _from_minimum(problem, core, *_quietly(core, max_iterations), max_iterations)


def _quietly(part: Problem, max_iterations: int) -> tuple[Fit, Map | None]:
    """The minimum of a part; what is said of its constant need not be so of all rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EquipoiseWarning)
        return _convex(part, max_iterations)


def _on_core(problem: Problem, astray: Astray) -> LinearProblem:
    """The problem on the rows that stand for all where a sample leads astray."""
    return replace(cast(LinearProblem, problem), source=cast(LinearProblem, astray.core).source)


def _from_minimum(
    problem: Problem, part: Problem, start: Fit, known: Map | None, max_iterations: int
) -> tuple[Fit, Map | None]:
    """The minimum of all rows from that of a part of them; Newton's map of many columns may be known."""
    if not problem.source.in_memory and problem.joint() is not None:
        return jointly(cast(LinearProblem, problem), cast(LinearProblem, part), start, max_iterations), None
    there = part.at_constant(start.constant)
    newton = known or newton_map(problem, there.derivatives(start.theta, 2).hessian)
    rough = Rough(newton._replace(own=False), there.search.yardstick(start.theta), start.constant)
    if scaled_together(problem):
        linear, some = cast(LinearProblem, problem), cast(LinearProblem, part)
        return settled_together(linear, some, start, rough.yardstick, max_iterations), known
    return settle(problem, start.theta, partial(minimise, rough=rough), max_iterations, rough), known


def _part(problem: Problem) -> Problem | None:
    """A random part of the rows that gives a good start; None where there are too few to gain by it."""
    rows = problem.source.n
    if not problem.source.in_memory:
        if isinstance(problem, LinearProblem):
            return problem.standing(LARGEST)
        return problem.subsample(min(rows, LARGEST), seed=None)
    count = max(_SAMPLE, _TIMES * len(problem.names))
    return None if rows <= 2 * count else problem.subsample(count, seed=None)


def _led(problem: Problem, theta: Array, max_iterations: int, newton: Map | None) -> Fit:
    """The minimum from θ, close to which Newton's map may be known, or else from where the problem's relaxations lead."""
    try:
        return minimise(problem, theta, max_iterations, newton=newton)
    except FitFailed:
        relaxed = _relaxed_starts(problem, max_iterations)
        if not relaxed:
            raise
        return minimise(problem, relaxed[0], max_iterations)


def _polished(problem: Problem, part: Problem | None, restarts: int | None, max_iterations: int) -> Fit:
    """The lowest minimum; with a part of the rows, the one next to the lowest minimum of the part."""
    if part is not None:
        try:
            start = _best(part, restarts, max_iterations)
            if problem.source.in_memory:
                return settle(problem, start.theta, descend, max_iterations)
            if not isinstance(problem, LinearProblem):
                return followed(problem, part, start, max_iterations)
            try:
                return _from_part(problem, part, start, max_iterations)
            except Astray as astray:
                core = _on_core(problem, astray)
                return _from_part(problem, core, _best(core, restarts, max_iterations), max_iterations, last=True)
        except FitFailed as failure:  # a part may have no minimum where the whole has one
            require_other(problem, part, failure)
    return _best(problem, restarts, max_iterations)


def _from_part(problem: LinearProblem, part: Problem, start: Fit, max_iterations: int, last: bool = False) -> Fit:
    """The minimum of rows in files next to that of a part, by Newton's method where that gets there; may raise `Astray`."""
    there = part.at_constant(start.constant)
    try:
        yard = there.search.yardstick(start.theta)
        if scaled_together(problem):
            return settled_together(problem, cast(LinearProblem, part), start, yard, max_iterations)
        newton = newton_map(problem, there.derivatives(start.theta, 2).hessian, own=False)
        rough = Rough(newton, yard, start.constant)
        return settle(problem, start.theta, partial(minimise, rough=rough), max_iterations, rough)
    except FitFailed as failure:
        if isinstance(failure, Astray) and not last:
            raise
        return settle(problem, start.theta, descend, max_iterations)


def scaled_together(problem: Problem) -> bool:
    """Whether rows in files have a robust scale that moves with θ."""
    if problem.source.in_memory or not isinstance(problem, LinearProblem):
        return False
    return problem.model.open and problem.model.divergence is not None


def _best(problem: Problem, restarts: int | None, max_iterations: int) -> Fit:
    """The lowest minimum reached from the problem's starts, looked for in the data's own unit."""
    scaled = problem.search.scaled()
    if scaled is None:
        return _lowest(problem, restarts, max_iterations)
    try:
        found = _lowest(scaled.problem, restarts, max_iterations)
    except FitFailed as failure:
        failure.theta = None if failure.theta is None else failure.theta * scaled.params
        failure.directions = None if failure.directions is None else failure.directions * scaled.params
        raise
    theta = found.theta * scaled.params
    constant = None if found.constant is None else found.constant * scaled.params
    return replace(
        found,
        theta=theta,
        constant=constant,
        gradient_norm=found.gradient_norm * float(np.sqrt(scaled.loss)),
        loss=problem.at_constant(constant).derivatives(theta, 0).value,
        flat=None if found.flat is None else found.flat * scaled.params,
    )


def _lowest(problem: Problem, restarts: int | None, max_iterations: int) -> Fit:
    """The lowest minimum reached from the problem's starts."""
    starts = [*_relaxed_starts(problem, max_iterations), *problem.search.starts()]
    exhaustive = problem.search.exhaustive if restarts is None else True
    if restarts is not None:
        starts = starts[: 1 + restarts]
    elif not exhaustive:
        # the weights of a network that was trained elsewhere are not found again by chance
        starts = starts[: 1 + (_RESTARTS if starts[0].size <= FEW else 0)]
    found: list[Fit] = []
    failure: FitFailed | InvalidInput | None = None
    for theta in starts:
        try:
            found.append(settle(problem, theta, descend, max_iterations))
        except NotSmooth:
            raise  # no other start would help
        except (FitFailed, InvalidInput) as error:  # one may lead to where half of the rows are fitted exactly
            failure = failure or error
        if found and not exhaustive:
            break
    if not found:
        assert failure is not None  # there is at least one start
        raise failure
    # with one constant for all: losses with different scales do not compare
    scales = [result.constant for result in found if result.constant is not None]
    here = problem.at_constant(min(scales, default=None))
    losses = [finite_or_inf(here.derivatives(result.theta, 0).value) for result in found]
    return found[int(np.argmin(losses))]


def _relaxed_starts(problem: Problem, max_iterations: int) -> list[Array]:
    """Where a robust loss is likely to have its minimum: that of each of its relaxations, one leading to the next."""
    found: list[Array] = []
    for relaxation in problem.search.relaxations():
        try:
            theta = found[0] if found else problem.search.starts()[0]
            parts = relaxation(theta)
            part = next(parts, None)
            while part is not None:
                theta = settle(part, theta, minimise, max_iterations).theta
                part = _next(parts, theta)
            found.append(theta)
        except (FitFailed, InvalidInput):  # a share of counts may be fitted exactly, and leave no scale
            continue
    return found


def _next(parts: Generator[Problem, Array, None], theta: Array) -> Problem | None:
    try:
        return parts.send(theta)
    except StopIteration:
        return None
