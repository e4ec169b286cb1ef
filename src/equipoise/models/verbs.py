"""The verb that takes moments of a problem."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Protocol, runtime_checkable

from equipoise.checks import whole
from equipoise.errors import InvalidInput
from equipoise.files import available_memory
from equipoise.linalg import cores
from equipoise.models.binding import verb
from equipoise.models.problem import CUSTOM, Problem
from equipoise.theory.moments import Moments

__all__ = ["Fitted", "moments", "require_matrices", "settle"]

_MATRICES = 6  # of D×D numbers that are held at once where moments are taken and a step is tuned
# Operations for each of N·D² numbers of moments, of a loss of one's own and of a linear predictor's; for each of D³ of
# tuning; how many a core does in a second; and the hours that are too many.
_OWN, _LINEAR, _FACTORS, _SPEED, _MOST_HOURS = 20.0, 4.0, 100.0, 2e10, 24.0


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
    """Refuse, before anything is computed, a problem whose D×D matrices do not fit into memory, or take more than a day.

    Raises
    ------
    InvalidInput
        With what they take, and what to do instead.
    """
    dim = sum(prod(shape) for _, shape in problem.layout.variables)
    needed, free = 8.0 * _MATRICES * dim * dim, available_memory()
    own = problem.model.title.name == CUSTOM
    work = (_OWN if own else _LINEAR) * float(problem.source.n) * dim**2 + _FACTORS * float(dim) ** 3
    hours = work / (_SPEED * cores()) / 3600.0
    if needed > free or hours > _MOST_HOURS:
        linear = "leave out columns, or write the regression as an eq.Model and use eq.subspace; eq.fit alone takes it"
        general = (
            "use a subspace, eq.subspace(model, data, params, rank=50), or some layers alone, eq.Model(trainable=...)"
        )
        raise InvalidInput(
            "model",
            f"one whose covariance matrices fit into the {free / 1e9:.3g} GB of memory available, and take less than a day",
            f"{dim:,} parameters: {needed / 1e9:,.3g} GB for {_MATRICES} matrices of {dim:,} x {dim:,}, and about "
            f"{hours:,.2g} hours",
            general if own else linear,
        )


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
