"""Tuned chains as BlackJAX kernels, and the settings of BlackJAX's own SGLD that a tuning amounts to."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from blackjax.base import SamplingAlgorithm

from equipoise.arrays import PyTree
from equipoise.checks import shown
from equipoise.errors import InvalidInput
from equipoise.interop.gradients import at_rest, flat_gradient, general_model, moved, raveled
from equipoise.interop.moves import move_of
from equipoise.models.general.model import Model
from equipoise.models.general.problem import GeneralProblem
from equipoise.theory.tuning import Tuning

__all__ = ["SGLDSettings", "SGMCMCState", "sgld", "sgmcmc"]

_ROUNDING = 1e-9  # relative to the step and to the noise


class SGMCMCState(NamedTuple):
    """The parameters, in the model's own tree, and the velocity m, flat; the latter empty without momentum."""

    position: PyTree
    velocity: jax.Array


class SGLDSettings(NamedTuple):
    """What `blackjax.sgld(...).step` takes after the minibatch: `step(key, position, batch, *settings)`."""

    step_size: float
    temperature: float


def sgmcmc(tuning: Tuning, model: Model | GeneralProblem) -> SamplingAlgorithm:
    """A tuned chain: step matrix, momentum, injected noise and control variates, as the tuning has them.

    Parameters
    ----------
    tuning
        From `eq.tune`, for batches that are independent or epochs.
    model
        The `eq.Model` it was tuned for, or a problem of one.

    Returns
    -------
    blackjax.base.SamplingAlgorithm
        `init(params)` and `step(key, state, minibatch)`; a minibatch has the data's structure, with rows along the first
        axis, drawn as the tuning's dynamics say. Of a problem whose rows have weights it is `(rows, weights)`.
    """
    move, loss = move_of(tuning), general_model(model)
    slope = flat_gradient(tuning, model)

    def init(position: PyTree, rng_key: jax.Array | None = None) -> SGMCMCState:
        del rng_key
        theta, back = raveled(loss.structure, position)
        # arrays of the kind that steps make of them, so that a scan can carry them
        position = jax.tree.map(jnp.add, position, back(jnp.zeros_like(theta)))
        return SGMCMCState(position, at_rest(move, theta))

    def kernel(rng_key: jax.Array, state: SGMCMCState, minibatch: PyTree) -> SGMCMCState:
        if not isinstance(state, SGMCMCState):
            raise InvalidInput("state", "one of this kernel's", shown(type(state)), "start with kernel.init(params)")
        theta, back = raveled(loss.structure, state.position)
        g = slope(theta, minibatch).astype(theta.dtype)
        change, velocity = moved(move, g, state.velocity, rng_key)
        return SGMCMCState(jax.tree.map(jnp.add, state.position, back(change)), velocity)

    return SamplingAlgorithm(init, kernel)


def sgld(tuning: Tuning) -> SGLDSettings:
    """The step size and temperature with which `blackjax.sgld` is the tuned chain.

    BlackJAX steps by ε times the gradient of the log posterior, −N ∇L, and injects noise of variance 2 T ε: a scalar step λ
    of the mean loss at inverse temperature β is therefore ε = λ/N and T = N/β, which is 0 for SGD. A tuning for control
    variates goes with `blackjax.sgmcmc.gradients.control_variates`.

    Parameters
    ----------
    tuning
        With a scalar step: `eq.tune(..., structure="scalar")`, or `eq.Tuning.at(moments, step, dynamics)`.

    Raises
    ------
    InvalidInput
        If the step is not a multiple of the identity, there is momentum, or the noise is completed.
    """
    step, _, momentum = move_of(tuning)
    scalar, n = float(step[0, 0]), tuning.predicted.moments.n
    one = np.eye(len(step))
    if np.abs(step - scalar * one).max() > _ROUNDING * scalar:
        raise InvalidInput(
            "tuning", "one with a scalar step", f"structure {tuning.structure!r}",
            "use eq.tune(..., structure='scalar'), or eqb.sgmcmc(tuning, model) for the whole matrix",
        )  # fmt: skip
    variance = float(tuning.noise[0, 0])
    if momentum or np.abs(tuning.noise - variance * one).max() > _ROUNDING * variance:
        raise InvalidInput(
            "tuning",
            "one without momentum or completed noise",
            f"momentum {momentum:g}" if momentum else "noise that is not a multiple of the identity",
            "use eqb.sgmcmc(tuning, model)",
        )
    return SGLDSettings(scalar / n, variance * n / (2.0 * scalar))
