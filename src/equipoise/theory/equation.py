"""The stationary equation as a symmetric linear system in the coordinates of the modes, solved without a D²×D² matrix.

The operator S ↦ (E − F) ∘ S − K̃(S) of `Modes` is self-adjoint in the Frobenius product, and positive exactly when the
chain is mean-square stable; conjugate gradients preconditioned by E − F converge in a few dozen noise evaluations even
close to the limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.sparse.linalg import LinearOperator, cg

from equipoise.arrays import Array
from equipoise.linalg import symmetric
from equipoise.theory.modes import Modes
from equipoise.theory.proxy import Noise

__all__ = ["Balanced", "balance", "whitened"]


_RESIDUAL = 1e-13  # relative residual asked of the solver; rounding stops it not far above


class Balanced(NamedTuple):
    """A solution S in the modes' coordinates, its relative residual, and Σ and C(Σ) in the parameters'."""

    spread: Array
    residual: float
    cov: Array
    noise: Array


def whitened(noise: Noise, modes: Modes) -> Callable[[Array], Array] | None:
    """K̃(S) = Rᵀ K(R S Rᵀ) R, the noise that grows with the spread, in the coordinates of the modes."""
    linear = noise.linear
    if linear is None:
        return None
    return noise.turned(modes.basis, modes.dual) or (lambda S: modes.force(linear(modes.outward(S))))


def balance(modes: Modes, noise: Noise, source: Array) -> Balanced:
    """Solve (E − F) ∘ S − K̃(S) = source for a symmetric S.

    Its residual takes the noise at Σ, a pass over the data, which the law of the chain needs as well.
    """
    resistance = modes.first_order - modes.second_order
    spread = whitened(noise, modes)
    if spread is None:
        S = source / resistance
        return Balanced(S, 0.0, symmetric(modes.outward(S)), noise.constant)
    dim = len(source)

    def apply(v: Array) -> Array:
        S = v.reshape(dim, dim)
        return (resistance * S - spread(S)).ravel()

    shape = (dim * dim, dim * dim)
    operator = LinearOperator(shape, matvec=apply, dtype=np.float64)
    scaling = LinearOperator(shape, matvec=lambda v: v / resistance.ravel(), dtype=np.float64)
    v, _ = cg(operator, source.ravel(), rtol=_RESIDUAL, atol=0.0, M=scaling, maxiter=1000)
    S = symmetric(v.reshape(dim, dim))
    cov = symmetric(modes.outward(S))
    C = noise.at(cov)
    rest = resistance * S - modes.force(C - noise.constant) - source
    return Balanced(S, float(np.linalg.norm(rest) / np.linalg.norm(source)), cov, C)
