"""The verb that takes moments of a problem."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Protocol, runtime_checkable

from equipoise.checks import whole
from equipoise.errors import InvalidInput, warn
from equipoise.files import available_memory
from equipoise.models.binding import verb
from equipoise.models.problem import CUSTOM, Problem
from equipoise.theory.moments import Moments

__all__ = ["Fitted", "moments", "require_matrices", "settle"]

_MATRICES = 6  # of D×D numbers that are held at once where moments are taken and a step is tuned
# Seconds of D³ and of N·D²: fit, moments, tuning and its law at D = 500 and 1000 on one core.
_CUBIC, _PER_ROW = 1.5e-8, 1e-9
_LONG, _DAY = 1.0, 24.0  # hours that are told of beforehand, and that are refused
_GENERAL = "use a subspace, eq.subspace(model, data, params, rank=50), or some layers alone (trainable=...)"
_LINEAR = (
    "leave out columns, or write it as an eq.Model and use eq.subspace(model, data, params); eq.fit alone takes it"
)


@runtime_checkable
class Fitted(Protocol):
    """A minimiser with the constant it was found with."""

    @property
    def params(self) -> object:
        """In the model's own structure."""
        ...

    @property
    def constant(self) -> float | None:
        """The loss's constant; None when it has none."""
        ...


def settle(problem: Problem, params: object) -> tuple[Problem, object]:
    """The problem with the constant of a fit, and its parameters; parameters alone leave the problem as it is."""
    if isinstance(params, Fitted):
        return problem.at_constant(params.constant), params.params
    return problem, params


def require_matrices(problem: Problem) -> None:
    """Refuse, before anything is computed, D×D matrices that do not fit into memory or take days; warn of hours."""
    dim = sum(prod(shape) for _, shape in problem.layout.variables)
    needed, free = 8.0 * _MATRICES * dim * dim, available_memory()
    hours = (_CUBIC * dim + _PER_ROW * problem.n) * float(dim) ** 2 / 3600.0
    alternative = _GENERAL if problem.model.title.name == CUSTOM else _LINEAR
    size = f"{dim:,} x {dim:,}"
    cost = f"{_short(needed / 1e9)} GB for {_MATRICES} matrices of {size}, and about {_short(hours)} hours"
    if needed > free or hours > _DAY:
        raise InvalidInput(
            "model",
            f"one whose covariance matrices fit into the {free / 1e9:.3g} GB of memory available, and take less than a day",
            f"{dim:,} parameters: {cost}",
            alternative,
        )
    if hours > _LONG:
        warn(f"{dim:,} parameters take {cost}. To be faster: {alternative}.")


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}"


@verb
def moments(problem: Problem, params: object, *, tuning_rows: int | None = None, seed: int = 0) -> Moments:
    """Moments of a problem at its minimiser.

    Parameters
    ----------
    problem
        A bound problem, or a model and its data.
    params
        The fit, or parameters like `Fit.params`. A fit brings the constant it was found with; without one, a constant
        that is still open is estimated at the parameters.
    tuning_rows
        Use this many random rows instead of all; the moments still carry the full number of rows.
    seed
        Chooses those rows.

    Returns
    -------
    Moments
    """
    seed = whole("seed", seed, 0, "pass an int")
    require_matrices(problem)
    here, values = settle(problem, params)
    theta = here.flatten(values)
    found = (here if tuning_rows is None else here.subsample(tuning_rows, seed)).moments(theta)
    return replace(found, loss=here.model.title.name)
