"""Autocorrelation of draws: integrated times, the function itself with its error, agreement of chains (theory §6)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.fft import next_fast_len

from equipoise.arrays import Array

__all__ = [
    "WINDOW",
    "autocorrelation_time",
    "autocorrelations",
    "bartlett_error",
    "per_stored_draw",
    "split_rhat",
    "squared_time",
]

WINDOW = 5.0  # autocorrelation times summed over: Sokal's window, bias e^{−2·5}
_MOST = 1.0 - 1e-9  # the largest autocorrelation between stored draws that is told apart from 1


def autocorrelation_time(draws: Array) -> float:
    """Integrated autocorrelation time of one quantity, in stored draws, from (chains, draws).

    Autocovariances are averaged over the chains and summed up to the first lag M ≥ 5 τ(M).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> 0.9 < autocorrelation_time(rng.normal(size=(4, 5000))) < 1.1
    True
    """
    n = draws.shape[1]
    acov = _autocovariances(draws - draws.mean(axis=1, keepdims=True)) / n
    if acov[0] <= 0.0:
        return 1.0
    tau = 2.0 * np.cumsum(acov / acov[0]) - 1.0
    # five lags at least: the sums of a chain that alternates swing below zero before they settle
    enough = np.arange(n) >= WINDOW * np.maximum(tau, 1.0)
    window = int(np.argmax(enough)) if enough.any() else n - 1
    # draws may repel each other, but an estimate this far below 1 is noise of a short run
    return max(float(tau[window]), 0.1)


def autocorrelations(draws: Array, last: int) -> Array:
    """Lags 0 to `last` of one quantity from (chains, draws), averaged over chains about their common mean."""
    n = draws.shape[1]
    acov = _autocovariances(draws - draws.mean())[: last + 1] / (n - np.arange(last + 1))
    return acov / acov[0] if acov[0] > 0.0 else np.zeros(last + 1)


def bartlett_error(tau: float, lag: NDArray[np.int_], draws: int) -> Array:
    """Bartlett's standard error of an autocorrelation at each lag, for autocorrelations φ^k with time τ ≥ 1."""
    phi = (tau - 1.0) / (tau + 1.0)
    p = phi ** (2.0 * lag)
    return np.sqrt(np.maximum((1 + phi**2) * (1 - p) / (1 - phi**2) - 2 * lag * p, 0.0) / draws)


def squared_time(tau: Array) -> Array:
    """τ₂ = Σ φ^{2|k|} = (τ + 1/τ) / 2: what takes the place of τ for a variance, for autocorrelations φ^|k|."""
    at_least_one = np.maximum(tau, 1.0)
    return 0.5 * (at_least_one + 1.0 / at_least_one)


def per_stored_draw(tau: Array, thin: int, length: int) -> Array:
    """Variance of a mean of `length` draws, one every `thin` steps, times `length`, for unit variance.

    For autocorrelations φ^k with φ = (τ−1)/(τ+1), and a = φ^thin: (1+a)/(1−a) − 2a(1−a^n)/(n(1−a)²).
    """
    a = np.clip(((tau - 1.0) / (tau + 1.0)) ** thin, -_MOST, _MOST)
    return (1.0 + a) / (1.0 - a) - 2.0 * a * (1.0 - a**length) / (length * (1.0 - a) ** 2)


def split_rhat(draws: Array) -> Array:
    """Split potential scale reduction of each parameter: between-half against within-half variance; NaN if too short."""
    count, length, dim = draws.shape
    half = length // 2
    if half < 2:
        return np.full(dim, np.nan)
    parts = draws[:, : 2 * half].reshape(2 * count, half, dim)
    within = parts.var(axis=1, ddof=1).mean(axis=0)
    between = parts.mean(axis=1).var(axis=0, ddof=1)
    return np.sqrt((half - 1) / half + between / np.maximum(within, np.finfo(float).tiny))


def _autocovariances(centred: Array) -> Array:
    """Sums of products at every lag, averaged over chains."""
    n = centred.shape[1]
    # the transform of a length with a large prime factor takes five times as long
    size = next_fast_len(2 * n, real=True)
    power = np.abs(np.fft.rfft(centred, n=size, axis=1)) ** 2
    return np.fft.irfft(power.mean(axis=0), n=size)[:n]
