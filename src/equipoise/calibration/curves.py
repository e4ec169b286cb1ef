"""What a report draws of a run, as numbers: densities, autocorrelation functions, entries of the covariance (theory §6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from equipoise.arrays import Array
from equipoise.calibration.autocorrelation import autocorrelations, bartlett_error, squared_time

if TYPE_CHECKING:
    from equipoise.calibration.calibration import Calibration

__all__ = ["Autocorrelation", "CovarianceEntries", "Density", "autocorrelation", "covariance_entries", "density"]

_PAIRS = 400  # entries of a covariance that can be told apart in a plot
_LAGS = 80
_TIMES = 3.0  # autocorrelation times shown


@dataclass(frozen=True)
class Density:
    """Draws of one parameter as a histogram, and the density of N(estimate, target) on a grid."""

    heights: Array
    edges: Array
    grid: Array
    normal: Array


@dataclass(frozen=True)
class Autocorrelation:
    """Autocorrelations at lags in steps: observed, predicted, and the Monte Carlo error of the first."""

    lags: NDArray[np.int_]
    observed: Array
    predicted: Array
    error: Array


@dataclass(frozen=True)
class CovarianceEntries:
    """Covariances in units of predicted standard deviations, below the diagonal: those furthest from their prediction.

    Beside them a grid of predictions, and the Monte Carlo error of an entry there.
    """

    predicted: Array
    observed: Array
    grid: Array
    error: Array


def density(calibration: Calibration, j: int) -> Density:
    """The draws of one parameter beside the law they should have."""
    draws = calibration.draws[:, :, j].ravel()
    heights, edges = np.histogram(draws, bins=int(np.clip(np.sqrt(draws.size), 8, 40)), density=True)
    center, sd = calibration.tuning.center[j], np.sqrt(calibration.tuning.target[j, j])
    ends = np.append(draws, [center - 3.0 * sd, center + 3.0 * sd])
    grid = np.linspace(*_padded(ends), 120)
    normal = np.exp(-0.5 * ((grid - center) / sd) ** 2) / (sd * np.sqrt(2.0 * np.pi))
    return Density(heights, edges, grid, normal)


def autocorrelation(calibration: Calibration, j: int) -> Autocorrelation:
    """Autocorrelation of one parameter, averaged over the chains, against the predicted curve."""
    chains, law = calibration.chains, calibration.tuning.predicted
    draws = chains.draws[:, :, j]
    tau = max(1.0, float(law.draw_times(chains.thin)[j]) / chains.thin)
    last = int(min(draws.shape[1] // 2, max(8.0, np.ceil(_TIMES * tau))))
    k = np.unique(np.linspace(0, last, _LAGS).astype(int))
    predicted = np.array([law.autocovariance(int(i) * chains.thin)[j, j] for i in k]) / law.cov[j, j]
    observed = autocorrelations(draws, last)[k]
    return Autocorrelation(k * chains.thin, observed, predicted, bartlett_error(tau, k, draws.size))


def covariance_entries(calibration: Calibration) -> CovarianceEntries | None:
    """Observed against predicted covariances; None for one parameter, which has none."""
    expected, d = calibration.tuning.expected, calibration.diagnosis
    if calibration.chains.independent:
        expected = calibration.tuning.target
    sd = np.sqrt(np.diag(expected))
    rows, columns = np.tril_indices(len(sd), -1)
    if not rows.size:
        return None
    scale = np.outer(sd, sd)[rows, columns]
    predicted, observed = expected[rows, columns] / scale, d.cov[rows, columns] / scale
    kept = np.sort(np.argsort(-np.abs(observed - predicted), kind="stable")[:_PAIRS])
    grid = np.linspace(*_padded(np.concatenate([predicted, observed])), 60)
    stored = calibration.draws.shape[0] * calibration.draws.shape[1]
    # Var of an entry ≈ τ₂ (1 + ρ²) / T in these units
    time = float(np.median(squared_time(stored / d.ess)))
    return CovarianceEntries(predicted[kept], observed[kept], grid, np.sqrt(time / stored * (1.0 + grid**2)))


def _padded(values: Array) -> tuple[float, float]:
    """Ends of an axis that shows all values with some room."""
    low, high = float(values.min()), float(values.max())
    pad = 0.04 * (high - low) or 0.04 * max(abs(low), 1.0)
    return low - pad, high + pad
