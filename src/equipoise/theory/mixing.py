"""Mixing: autocovariances, averages, transients and the Monte Carlo floor, in the coordinates of the modes (theory §6).

With momentum the state of a mode is the pair (position z, momentum m̃) and its mean dynamics the 2×2 matrix M; then
Ξ_k = [M^k u]₁ with u = (Cov(z, z), Cov(m̃, z)). Without momentum M acts on the first entry alone.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from equipoise.arrays import Array
from equipoise.errors import EquipoiseError
from equipoise.theory.modes import Modes

__all__ = ["autocovariance", "burn_in", "covariance_noise", "iterate_average", "thinned", "whole_steps"]

_ROUNDING = 1e-9  # of a number of steps that was predicted


def _joint(modes: Modes, S: Array) -> Array:
    """(Cov(z, z), Cov(m̃, z)) as (2, D, D).

    From z_t = z_{t−1} − m̃_t + noise at stationarity:
    Cov(m̃_i, z_j) = ((κ d_i − d_j) S_ij) / (1 − κ²) + (R⁻¹ M R⁻ᵀ)_ij / (1 + κ).
    """
    k, d = modes.momentum, modes.rates
    if k == 0.0 or not modes.discrete:
        return np.stack([S, np.zeros_like(S)])
    cross = np.subtract.outer(k * d, d) * S / (1.0 - k * k) + modes.noise / (1.0 + k)
    return np.stack([S, cross])


def autocovariance(modes: Modes, S: Array, lag: int) -> Array:
    """Ξ_k in the modes' coordinates."""
    power = np.linalg.matrix_power(modes.transition, lag)
    return np.einsum("ia,aij->ij", power[:, 0, :], _joint(modes, S))


def iterate_average(modes: Modes, S: Array, k: int) -> Array:
    """k⁻² [k S + W + Wᵀ], W = Σ_{j<k} (k−j) Ξ_j.

    The weighted sum of powers is a block of the k-th power of an augmented matrix, found by repeated squaring: no
    subtraction, hence no cancellation, for any k.
    """
    M = modes.transition
    Z = np.zeros((M.shape[0], 6, 6))
    # (p, s, w) ↦ (M p, s + M p, w + s): powers, their sum, and the sum of the sums
    Z[:, 0:2, 0:2] = Z[:, 2:4, 0:2] = M
    Z[:, 2:4, 2:4] = Z[:, 4:6, 2:4] = Z[:, 4:6, 4:6] = np.eye(2)
    weights = np.linalg.matrix_power(Z, k)[:, 4, 0:2]
    W = np.einsum("ia,aij->ij", weights, _joint(modes, S))
    return S / k + (W + W.T) / (float(k) * k)


def burn_in(distance2: float, decay: float, tolerance: float) -> int:
    """Steps until second moments are relatively, and the mean in standard deviations, within `tolerance`.

    With E[e₀e₀ᵀ] ⪯ r² Σ, r² = e₀ᵀΣ⁻¹e₀: the second moment's relative error is at most max(1, r²) decay^t and the mean's
    distance at most r decay^{t/2}.
    """
    if decay <= 0.0:
        return 1
    if decay >= 1.0:
        raise EquipoiseError(
            "step: the slowest direction of this chain forgets its start too slowly for double precision to tell. To fix: "
            "use noise='completed' with structure='full' in eq.tune, whose step forgets alike along all directions, or other "
            "units of parameters."
        )
    rate = -math.log(decay)
    moment = math.log(max(1.0, distance2) / tolerance) / rate
    mean = 2.0 * math.log(math.sqrt(distance2) / tolerance) / rate if distance2 > 0.0 else 0.0
    return whole_steps(max(moment, mean, 1.0))


def whole_steps(count: float) -> int:
    """The least whole number that is at least so many, but for rounding.

    >>> whole_steps(250.0 * (1.0 + 1e-15)), whole_steps(250.01)
    (250, 251)
    """
    return math.ceil(count - _ROUNDING * abs(count))


def covariance_noise(modes: Modes, S: Array, thin: int, metric: Array) -> float:
    """Σ over all lags of ‖Ξ_k‖²_F + tr(Ξ_k)², at multiples of `thin`; T times E‖Σ̂−Σ‖²_F.

    `metric` is RᵀR, or RᵀD⁻²R for the norm of D⁻¹ΞD⁻¹.

    Both are sums over pairs of modes of (M_i ⊗ M_j)^k applied to a 4-vector, a geometric series per pair.
    """
    B = np.linalg.matrix_power(modes.transition, thin)
    U = _joint(modes, S)
    G = metric
    v = np.einsum("ij,aij->ia", G, U)
    total = 0.0
    for i in range(len(G)):
        # w[j, a, b] = G_ij Σ_cc' G_cc' u_ic,a u_jc',b + v_i,a v_j,b
        left = U[:, i, :] @ G
        w = G[i][:, None, None] * np.einsum("ac,bjc->jab", left, U) + v[i][None, :, None] * v[:, None, :]
        w = w.reshape(-1, 4, 1)
        pair = np.einsum("ac,jbd->jabcd", B[i], B).reshape(-1, 4, 4)
        later = np.linalg.solve(np.eye(4) - pair, pair @ w)
        total += float((w + 2.0 * later)[:, 0, 0].sum())
    return total


def thinned(tau: ArrayLike, thin: int) -> Array:
    """Steps per effective draw if one draw in `thin` is stored, for autocorrelations φ^k, φ = (τ−1)/(τ+1), τ the time.

    With a = φ^thin it is thin (1+a)/(1−a); where successive draws are uncorrelated or alternate, every stored one counts.
    """
    time = np.asarray(tau, dtype=np.float64)
    if thin == 1:
        return time
    a = np.maximum((time - 1.0) / (time + 1.0), 0.0) ** thin
    with np.errstate(divide="ignore"):
        spaced: Array = thin * (1.0 + a) / (1.0 - a)
    return spaced
