"""The data sets of the paper, simulated and real, as the text describes them and as the released scripts make them.

The two differ, and the printed numbers belong to the scripts: covariates there have a variance of 1/(c N), with c drawn
for each of them, and the responses carry an offset of 1 that no model has.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import equipoise as eq
from equipoise.arrays import Array, Index
from equipoise.errors import InvalidInput

if TYPE_CHECKING:
    from equipoise.models.glm import GLM

__all__ = ["SETTINGS", "MissingData", "Study", "boston", "diabetes", "german", "heteroskedastic", "linear", "poisson"]


SETTINGS = ("released", "described")
_GERMAN_HELP = (
    "the German credit data is not shipped: save it as a semicolon-separated file with the column Creditability and twenty "
    "integer columns, and pass it with --german-csv PATH"
)
_BOSTON_HELP = "the Boston housing data comes with the package mlxtend: pip install mlxtend"
_DIABETES_HELP = "the Diabetes data comes with the package scikit-learn: pip install scikit-learn"


class MissingData(InvalidInput):
    """A data set that is not at hand; the message says how to get it."""

    def __init__(self, argument: str, remedy: str) -> None:
        super().__init__(argument, "data that is at hand", "none", remedy)


@dataclass(frozen=True)
class Study:
    """A model and the (X, y) it is fitted to, named as in the tables, and how the paper ran its chains there.

    `truth` is the parameter the data were made with, where there is one; `epochs` are passes over the data per chain, of
    which a share is discarded at the start.
    """

    dataset: str
    loss: str
    model: GLM
    data: tuple[Array, Array]
    truth: Array | None
    epochs: int
    discarded: float

    @property
    def rows(self) -> int:
        """Number of observations."""
        return len(self.data[1])

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return self.data[0].shape[1]


def linear(setting: str, loss: str, seed: int, rows: int = 5000) -> Study:
    """Heteroskedastic responses with outliers: y ~ N(xᵀθ⋆, 1 + ‖x‖²), a fraction shifted and inflated."""
    rng = np.random.default_rng([seed, 1])
    if setting == "described":
        dim, fraction, shift, offset = 50, 0.01, 5.0, 0.0
        x = rng.standard_normal((rows, dim))
    else:
        dim, fraction, shift, offset = 20, 0.1, 10.0, 1.0
        x = rng.standard_normal((rows, dim)) / np.sqrt(rng.integers(1, 4, size=dim) * rows)
    theta = rng.standard_normal(dim)
    outlier = rng.random(rows) < fraction
    spread = np.sqrt(1.0 + np.sum(x**2, axis=1)) * np.where(outlier, 5.0, 1.0)
    y = offset + x @ theta + shift * outlier + spread * rng.standard_normal(rows)
    return Study("simulated-linear", loss, _gaussian(loss, 1.0), (x, y), theta, 30, 0.5)


def heteroskedastic(dim: int, rows: int, seed: int) -> tuple[Array, Array]:
    """y ~ N(xᵀθ⋆, 1 + ‖x‖²) with x and θ⋆ standard normal: the misspecified model without outliers."""
    rng = np.random.default_rng([seed, 2])
    x, theta = rng.standard_normal((rows, dim)), rng.standard_normal(dim)
    return x, x @ theta + np.sqrt(1.0 + np.sum(x**2, axis=1)) * rng.standard_normal(rows)


def poisson(setting: str, seed: int, rows: int = 5000, dim: int = 50) -> Study:
    """Counts y ~ Poisson(exp(xᵀθ⋆)).

    With θ⋆ ~ N(0, I), as the text has it, exp(xᵀθ⋆) spans e^±20 and no method can run; θ⋆ ~ N(0, I/D) is the nearest
    reading that is well posed.
    """
    rng = np.random.default_rng([seed, 3])
    x = rng.standard_normal((rows, dim))
    if setting == "described":
        theta, offset = rng.standard_normal(dim) / np.sqrt(dim), 0.0
    else:
        x /= np.sqrt(rng.integers(1, 6, size=dim) * rows)
        theta, offset = 0.1 * rng.standard_normal(dim), 1.0
    y = rng.poisson(np.exp(offset + x @ theta)).astype(np.float64)
    return Study("simulated-poisson", "log", eq.glm("poisson"), (x, y), theta, 500, 0.1)


def boston(loss: str) -> Study:
    """506 tracts, twelve standardised covariates, the response as it is and no intercept; scale from least squares."""
    try:
        from mlxtend.data import boston_housing_data
    except ModuleNotFoundError as error:
        raise MissingData("boston", _BOSTON_HELP) from error
    raw, y = boston_housing_data()
    x = _standardise(np.delete(raw, 3, axis=1))
    residuals = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    return Study("boston", loss, _gaussian(loss, float(residuals.std())), (x, y), None, 500, 0.5)


def german(path: Path | None, seed: int = 0) -> Study:
    """800 of the 1000 applicants, as many of each kind; twenty standardised covariates and an intercept."""
    if path is None:
        raise MissingData("german_csv", _GERMAN_HELP)
    try:
        raw = np.loadtxt(path, delimiter=";", skiprows=1)
    except (OSError, ValueError) as error:
        raise MissingData("german_csv", f"{_GERMAN_HELP} ({error})") from error
    rng = np.random.default_rng([seed, 4])
    kept = np.concatenate([_share(rng, np.flatnonzero(raw[:, 0] == kind), 0.8) for kind in (0, 1)])
    x = np.column_stack([np.ones(len(kept)), _standardise(raw[kept, 1:])])
    return Study("german-credit", "log", eq.glm("poisson"), (x, raw[kept, 0]), None, 500, 0.1)


def diabetes() -> dict[str, Array]:
    """442 patients, ten measurements and the progression of the disease, all standardised."""
    try:
        from sklearn.datasets import load_diabetes
    except ModuleNotFoundError as error:
        raise MissingData("diabetes", _DIABETES_HELP) from error
    raw = load_diabetes()
    return {"x": _standardise(raw.data), "y": _standardise(raw.target)}


def _gaussian(loss: str, scale: float) -> GLM:
    return eq.glm("gaussian", scale=scale, divergence=None if loss == "log" else eq.Beta(1.5))


def _standardise(a: Array) -> Array:
    return (a - a.mean(axis=0)) / a.std(axis=0)


def _share(rng: np.random.Generator, rows: Index, share: float) -> Index:
    return np.sort(rng.permutation(rows)[: round(share * len(rows))])
