"""Every failure Equipoise raises, in one hierarchy; each carries what it found and says what to do."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from equipoise.sampling.chains import Chains

__all__ = [
    "ChainDiverged",
    "CheckpointMismatch",
    "ClusterLost",
    "EquipoiseError",
    "EquipoiseWarning",
    "FitFailed",
    "InfeasibleTarget",
    "InvalidInput",
    "UnstableStep",
    "warn",
]


class EquipoiseError(Exception):
    """Base class of every error raised by Equipoise; they survive the way back from another process."""

    def __reduce__(self) -> tuple[Callable[..., EquipoiseError], tuple[object, ...]]:
        # the arguments of most are not their message, from which an exception is rebuilt otherwise
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[EquipoiseError], args: tuple[object, ...], state: dict[str, object]) -> EquipoiseError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class EquipoiseWarning(UserWarning):
    """Something was changed or should be known; the message says what was done."""


def warn(message: str) -> None:
    """Warn at the line outside this package that led here: one that asks twice, from two places, is told twice."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "equipoise":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, EquipoiseWarning, stacklevel=level)


class InvalidInput(EquipoiseError, ValueError):
    """An argument does not meet its requirement.

    Examples
    --------
    >>> raise InvalidInput("batch_size", "at most the number of rows, 100", 500, "choose a smaller batch")
    Traceback (most recent call last):
    ...
    equipoise.errors.InvalidInput: batch_size: must be at most the number of rows, 100; got 500. To fix: choose a smaller batch.
    """

    def __init__(self, argument: str, requirement: str, given: object, remedy: str) -> None:
        self.argument, self.requirement, self.given, self.remedy = argument, requirement, given, remedy
        end = "" if remedy.endswith("?") else "."
        super().__init__(f"{argument}: must be {requirement}; got {given}. To fix: {remedy}{end}")

    def at(self, place: str) -> InvalidInput:
        """The same error, saying also where it was found."""
        return InvalidInput(self.argument, self.requirement, f"{self.given}, in {place}", self.remedy)


class FitFailed(EquipoiseError):
    """No usable minimiser was found.

    `columns` names the columns responsible, and `directions` holds those of negative curvature, where known. `params` is the
    lowest point of a search that did not arrive, in the model's own structure (`theta`: flat); None where there is none.
    """

    def __init__(
        self,
        message: str,
        columns: tuple[str, ...] = (),
        directions: NDArray[np.float64] | None = None,
        theta: NDArray[np.float64] | None = None,
    ) -> None:
        self.columns = columns
        self.directions = directions
        self.theta = theta
        self.params: object = None
        super().__init__(message)


class InfeasibleTarget(EquipoiseError):
    """No step matrix reaches the target; `min_inverse_temperature` is the smallest that would, where one exists.

    For a step of one's own `largest_multiple` is that for which noise can be completed; 0 when none is.
    """

    def __init__(
        self,
        message: str,
        min_inverse_temperature: float | None = None,
        directions: NDArray[np.float64] | None = None,
        largest_multiple: float | None = None,
    ) -> None:
        self.min_inverse_temperature = min_inverse_temperature
        self.largest_multiple = largest_multiple
        self.directions = directions
        super().__init__(message)


class UnstableStep(EquipoiseError):
    """The step has no stationary covariance; carries the spectral radius and the largest stable multiple of the step."""

    def __init__(self, spectral_radius: float, largest_multiple: float) -> None:
        self.spectral_radius = spectral_radius
        self.largest_multiple = largest_multiple
        remedy = (
            f"multiply the step by less than {largest_multiple:.6g}, or use a larger batch"
            if largest_multiple > 0.0
            else "no step is stable, because the Hessian is not positive definite: check the fit, or add a prior"
        )
        super().__init__(
            "step: must give a chain with a finite stationary covariance (spectral radius below 1); got spectral radius "
            f"{spectral_radius:.6g}. To fix: {remedy}."
        )


class ChainDiverged(EquipoiseError):
    """A chain left the finite numbers; `chains` holds the draws made before, `step` says when it happened."""

    def __init__(self, chain: int, step: int, chains: Chains | NDArray[np.float64]) -> None:
        self.chain = chain
        self.step = step
        self.chains = chains
        super().__init__(
            f"chain {chain} diverged at step {step}; the finite draws are kept in the .chains attribute of this error. "
            "To fix: where the loss is far from quadratic at the target's scale, take smaller steps (target='posterior', "
            "fidelity=0.99) or a stronger prior (prior_precision=...); else use another batch size and tune again (smaller for "
            "plain gradients, larger for control variates); or guard=6, which keeps draws within six standard deviations, and "
            "read its diagnosis."
        )


class CheckpointMismatch(EquipoiseError):
    """A checkpoint belongs to another run: other data, model, tuning, seed or sampling options."""


class ClusterLost(EquipoiseError):
    """A cluster did not come back with its sums: its scheduler is gone, or workers die one after the other."""
