"""The log-likelihood of every row at every draw: what leave-one-out criteria are made of."""

from __future__ import annotations

import numpy as np

from equipoise.arrays import Array
from equipoise.calibration.fitstats import log_choices
from equipoise.data.arrays import Rows
from equipoise.errors import InvalidInput
from equipoise.families.response import law_of
from equipoise.models.glm import GLM
from equipoise.models.linear import LinearProblem
from equipoise.models.problem import Problem

__all__ = ["log_likelihood"]

_LARGEST = 1 << 28  # numbers: 2 GB


def log_likelihood(problem: Problem, draws: Array) -> Array:
    """log p(y_n | θ), (chains, draws, rows); a row that stands for several observations comes so many times.

    For a loss of your own it is minus the loss, whatever terms that leaves out.

    Raises
    ------
    InvalidInput
        For a robust loss, which is no likelihood, or more numbers than fit.
    """
    count, length, _ = draws.shape
    if count * length * problem.n > _LARGEST:
        raise InvalidInput(
            "log_likelihood",
            f"at most {_LARGEST:,} numbers",
            f"{count * length:,} draws x {problem.n:,} rows",
            "ask for fewer draws, or leave it out",
        )
    flat = draws.reshape(count * length, -1)
    if isinstance(problem, LinearProblem):
        model = problem.model
        if model.divergence is not None:
            raise InvalidInput(
                "log_likelihood",
                "left out for a robust loss, which is no likelihood",
                repr(model.divergence),
                "drop it",
            )
        parts = [_of_rows(model, block, flat) for block in problem.source.blocks()]
    else:
        parts = [-_losses(problem, flat)]
    return np.concatenate(parts, axis=1).reshape(count, length, -1)


def _of_rows(model: GLM, rows: Rows, draws: Array) -> Array:
    """(draws, observations) of one block of rows."""
    p = np.array([model.constant or 0.0])
    eta = draws @ rows.x.T + (0.0 if rows.offset is None else rows.offset)
    y = np.broadcast_to(rows.y, eta.shape)
    value = -(model.family.loss.value(eta, y, p) + law_of(model.family).left_out(rows.y, p))
    if rows.weights is not None:
        value = rows.weights * value
        if model.family.name == "gaussian":  # a precision weight w is a variance σ²/w
            constant = float(0.5 * np.log(2.0 * np.pi) + np.log(p[0]))
            value = value + 0.5 * np.log(rows.weights) + (rows.weights - 1.0) * constant
    if rows.trials is not None:
        value = value + log_choices(rows.trials, rows.trials * rows.y)
    return value if rows.frequency is None else np.repeat(value, rows.frequency.astype(int), axis=1)


def _losses(problem: Problem, draws: Array) -> Array:
    """(draws, observations) of a loss of one's own."""
    import jax  # only by those who use it

    from equipoise.models.general.problem import GeneralProblem

    assert isinstance(problem, GeneralProblem)  # there is no other kind without a linear predictor
    parts = []
    with jax.enable_x64(True):
        for b in problem.each(len(draws)):
            found = np.asarray(problem.functions.losses(draws, b.rows))[:, : b.size]
            parts.append(np.repeat(found, b.counts.astype(np.int64), axis=1))
    return np.concatenate(parts, axis=1)
