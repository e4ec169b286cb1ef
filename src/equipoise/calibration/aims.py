"""What a run aims at: a target by name, as a matrix, or as a function of the problem and its moments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh

from equipoise.calibration.options import Aim, Moves, Reading
from equipoise.checks import nearest, shown, users_code
from equipoise.data.wording import listed
from equipoise.errors import InfeasibleTarget, InvalidInput
from equipoise.models.covariance import Covariance
from equipoise.models.problem import Problem
from equipoise.models.robust import CLUSTERED, KINDS, Known, covariance, require_kind
from equipoise.models.verbs import moments as take_moments
from equipoise.models.verbs import require_matrices
from equipoise.theory.moments import Moments
from equipoise.theory.targets import TARGETS, target_matrix

__all__ = ["Target", "aimed", "require_aim", "require_marks_used"]

Target: TypeAlias = "str | ArrayLike | Callable[[Problem, Moments], ArrayLike]"

_NOTHING = 1e-9  # of a variance beside the sandwich's: along such a direction there is none
_PART = 0.1  # of the largest share in a direction, for a parameter to be named


def require_marks_used(target: Target, reading: Reading) -> None:
    """Refuse clusters or times that the target does not look at, naming the targets that do: somebody meant it to."""
    if isinstance(target, str) and target not in (*TARGETS, *KINDS):
        return  # no such target: that is what is said
    for name, given, kinds in (("clusters", reading.clusters, CLUSTERED), ("time", reading.time, ("HAC",))):
        if given is not None and not callable(target) and not (isinstance(target, str) and target in kinds):
            raise InvalidInput(
                name,
                f"left out for a target that does not look at it, {shown(target)}",
                shown(given),
                f"use target={' or '.join(map(repr, kinds))}, or give {name} to eq.data.table or eq.data.rows for later",
            )


def require_aim(problem: Problem, target: Target, aim: Aim, moves: Moves) -> None:
    """Refuse, before anything is computed or read, what a plan would refuse after the fit.

    That is a target that does not exist or cannot be made of this problem, or batches of more rows than the data.
    """
    require_matrices(problem)
    if isinstance(target, str):
        if target not in (*TARGETS, *KINDS):
            kinds = ", ".join((*TARGETS, *KINDS))
            remedy = nearest(target, (*TARGETS, *KINDS)) or "choose one of them"
            raise InvalidInput("target", f"one of {kinds}, a matrix or a function", repr(target), remedy)
        require_kind(problem, target, lags=aim.lags, small_sample=aim.small_sample)
    moves.dynamics(problem.n).require_batch_within(problem.n)


def aimed(
    problem: Problem,
    whole: Moments | None,
    found: Moments,
    target: Target,
    aim: Aim,
    known: Known | None = None,
) -> Covariance:
    """The target of a run, for a problem with its constant settled; `InfeasibleTarget` unless a chain can have it.

    `whole` are the moments of all rows, if they are known, `found` those the chain is tuned with, and `known` the sums
    that were made with the moments, if any.
    """
    if isinstance(target, str):
        # those made from moments alone are of the rows the chain is tuned with
        at = found if whole is not None or target in TARGETS else take_moments(problem, found.params)
        made = covariance(problem, at, target, lags=aim.lags, small_sample=aim.small_sample, known=known)
        _require_enough(made, found, at)
        return replace(made, matrix=target_matrix(made.matrix, found))
    if callable(target):
        with users_code(
            "target", "a function of the problem and its moments", "write def target(problem, moments): ..."
        ):
            matrix = target(problem, found)
        return Covariance(target_matrix(matrix, found), "given function")
    return Covariance(target_matrix(target, found), "given matrix")


def _require_enough(made: Covariance, found: Moments, at: Moments) -> None:
    """Refuse a clustered covariance of too few clusters, or without variance along a parameter of its own clusters."""
    if not made.groups:
        return
    remedy = (
        "To fix: use target='sandwich' or 'HC1' for the draws and cal.vcov(kind='CRV1') for standard errors and tests, "
        "or fewer parameters, or a finer clustering."
    )
    if made.rank < found.dim:
        raise InfeasibleTarget(
            f"target: {made.words} is singular: it has variance along at most {made.rank} of {found.dim} directions, one "
            f"per parameter, and a chain cannot have it as its covariance. {remedy}"
        )
    sandwich = TARGETS["sandwich"](at)
    values, axes = eigh(made.matrix, sandwich)
    if values[0] < _NOTHING:
        size = np.abs(axes[:, 0]) * np.sqrt(np.diag(sandwich))
        names = [name for name, part in zip(found.names, size, strict=True) if part > _PART * size.max()]
        raise InfeasibleTarget(
            f"target: {made.words} is singular: a combination of {listed(names)} has no variance between clusters (as "
            f"that of columns which fit one cluster alone). {remedy}"
        )
