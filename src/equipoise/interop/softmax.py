"""The softmax loss of a linear predictor for each class, in coordinates without a flat direction."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.arrays import Array
from equipoise.errors import InvalidInput

if TYPE_CHECKING:
    from equipoise.models.general.model import Model as LossModel

__all__ = ["contrasts", "softmax"]


@lru_cache(maxsize=32)
def contrasts(classes: int) -> Array:
    """An orthonormal basis of the vectors that sum to zero, as columns: with them no direction of a softmax is flat."""
    centred = np.eye(classes) - 1.0 / classes
    return np.ascontiguousarray(np.linalg.svd(centred)[0][:, : classes - 1])


@lru_cache(maxsize=16)
def softmax(classes: int, precision: tuple[float, ...]) -> LossModel:
    """The softmax loss of rows x with class y; kept, since compiling it takes longer than a fit of few rows."""
    try:
        import jax.numpy as jnp
        from jax.nn import logsumexp

        from equipoise.models.general.model import Model as LossModel
    except ImportError as error:
        raise InvalidInput(
            "jax", "installed for more than two classes", "no such package", "run: pip install 'equipoise[general]'"
        ) from error
    basis = contrasts(classes)

    def loss(params: Any, observation: Any) -> Any:
        eta = jnp.asarray(basis) @ (params @ observation["x"])
        return logsumexp(eta) - eta[observation["y"]]

    init = np.zeros((classes - 1, len(precision)))
    return LossModel(loss, init=init, prior_precision=np.tile(precision, classes - 1))
