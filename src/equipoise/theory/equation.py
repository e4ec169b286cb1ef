"""The stationary equation as a symmetric linear system in the coordinates of the modes, solved without a D²×D² matrix.

The operator S ↦ (E − F) ∘ S − K̃(S) of `Modes` is self-adjoint in the Frobenius product, and positive exactly when the
chain is mean-square stable; conjugate gradients preconditioned by E − F converge in a few dozen noise evaluations even
close to the limit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.sparse.linalg import LinearOperator, cg

from equipoise.arrays import Array
from equipoise.linalg import symmetric
from equipoise.theory.modes import Modes
from equipoise.theory.proxy import Noise

__all__ = ["balance", "whitened"]


_RESIDUAL = 1e-13  # relative residual asked of the solver; rounding stops it not far above


def whitened(noise: Noise, modes: Modes) -> Callable[[Array], Array] | None:
    """K̃(S) = Rᵀ K(R S Rᵀ) R, the noise that grows with the spread, in the coordinates of the modes."""
    linear = noise.linear
    if linear is None:
        return None
    return lambda S: modes.force(linear(modes.outward(S)))


def balance(modes: Modes, noise: Noise, source: Array) -> tuple[Array, float]:
    """Solve (E − F) ∘ S − K̃(S) = source for a symmetric S; returns it with its relative residual."""
    resistance = modes.first_order - modes.second_order
    spread = whitened(noise, modes)
    if spread is None:
        return source / resistance, 0.0
    dim = len(source)

    def apply(v: Array) -> Array:
        S = v.reshape(dim, dim)
        return (resistance * S - spread(S)).ravel()

    shape = (dim * dim, dim * dim)
    operator = LinearOperator(shape, matvec=apply, dtype=np.float64)
    scaling = LinearOperator(shape, matvec=lambda v: v / resistance.ravel(), dtype=np.float64)
    v, _ = cg(operator, source.ravel(), rtol=_RESIDUAL, atol=0.0, M=scaling, maxiter=1000)
    S = symmetric(v.reshape(dim, dim))
    return S, float(np.linalg.norm(apply(S.ravel()) - source.ravel()) / np.linalg.norm(source))
