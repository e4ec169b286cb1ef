"""The workloads: W1 linear, W2 Poisson and W3 logistic regression, and the cells (one batch size each) run on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import equipoise as eq

__all__ = ["WORKLOADS", "Array", "Cell", "Prepared", "Workload", "make_cell", "make_data", "prepare", "smaller"]

Array = NDArray[np.float64]
# Rows made at a time: the data are the only array of their size.
_BLOCK = 1 << 16
# Standard deviation of the linear predictor: moderate effects, so that no family is near an edge.
_SPREAD = {"gaussian": 1.0, "poisson": 0.5, "bernoulli": 1.0}


@dataclass(frozen=True)
class Workload:
    """What to fit, and how the chain is run on it.

    Attributes
    ----------
    name, family
        W1, W2 or W3, and the family of `eq.glm`.
    rows, dim
        N and D.
    batches
        Batch sizes, one cell each.
    thin
        Steps per stored iterate.
    """

    name: str
    family: str
    rows: int
    dim: int
    batches: tuple[int, ...]
    thin: int = 1


WORKLOADS = (
    Workload("W1", "gaussian", 5000, 50, (16, 500)),
    Workload("W2", "poisson", 5000, 50, (16, 500)),
    Workload("W3", "bernoulli", 1_000_000, 100, (1000, 10_000), thin=10),
)


def smaller(workload: Workload) -> Workload:
    """The workload at a size for checks of correctness: the same names, a fraction of a second."""
    return Workload(workload.name, workload.family, 400, 4, (20,), min(workload.thin, 2))


def make_data(family: str, rows: int, dim: int, seed: int = 0) -> tuple[Array, Array]:
    """A well-specified regression: an intercept and independent normal covariates, made block by block."""
    rng = np.random.default_rng([seed, rows, dim])
    beta = rng.normal(size=dim)
    beta *= _SPREAD[family] / np.linalg.norm(beta)
    x, y = np.empty((rows, dim)), np.empty(rows)
    for start in range(0, rows, _BLOCK):
        block = slice(start, min(rows, start + _BLOCK))
        rng.standard_normal(out=x[block])
        x[block, 0] = 1.0
        eta = x[block] @ beta
        if family == "gaussian":
            y[block] = eta + rng.standard_normal(len(eta))
        elif family == "poisson":
            y[block] = rng.poisson(np.exp(eta))
        else:
            y[block] = rng.random(len(eta)) < 1.0 / (1.0 + np.exp(-eta))
    return x, y


@dataclass(frozen=True)
class Prepared:
    """A workload with its data, fit and moments."""

    workload: Workload
    x: Array
    y: Array
    model: Any
    moments: eq.Moments
    scale: float

    def tune(self, batch: int, target: str = "sandwich", **dynamics: Any) -> eq.Tuning:
        """The step matrix for one batch size."""
        return eq.tune(self.moments, target, eq.Dynamics(batch, **dynamics))


def prepare(workload: Workload, seed: int = 0) -> Prepared:
    """Make the data, fit, and take the moments."""
    x, y = make_data(workload.family, workload.rows, workload.dim, seed)
    problem = eq.bind(eq.glm(workload.family), (x, y))
    fitted = eq.fit(problem)
    settled = problem.at_constant(fitted.constant)
    scale = 1.0 if fitted.constant is None else fitted.constant
    return Prepared(workload, x, y, settled.model, eq.moments(problem, fitted), scale)


@dataclass(frozen=True)
class Cell:
    """One workload at one batch size: all that a contender needs to run the same chain.

    Peers run it in the whitened coordinates θ = L φ, Λ = L Lᵀ, on rows Lᵀ x_n, as our engine does: a step is then
    φ ← φ − (1/B) Σ ℓ'(x̃_nᵀφ, y_n) x̃_n, without the D² product, and only stored iterates are mapped back.
    """

    prepared: Prepared
    tuning: eq.Tuning
    dtype: str
    root: Array
    white: NDArray[Any]
    y: NDArray[Any]

    @property
    def family(self) -> str:
        """The family."""
        return self.prepared.workload.family

    @property
    def batch(self) -> int:
        """B."""
        return self.tuning.dynamics.batch_size

    @property
    def thin(self) -> int:
        """Steps per stored iterate."""
        return self.prepared.workload.thin

    @property
    def start(self) -> NDArray[Any]:
        """The minimiser in whitened coordinates."""
        return np.asarray(np.linalg.solve(self.root, self.tuning.center), dtype=self.dtype)

    @property
    def label(self) -> str:
        """Such as `W1 B=16`, with the storage when it is not float64."""
        short = "" if self.dtype == "float64" else " float32"
        return f"{self.prepared.workload.name} B={self.batch}{short}"

    def parameters(self, positions: NDArray[Any]) -> Array:
        """θ = L φ for many φ."""
        return positions.astype(np.float64, copy=False) @ self.root.T


def make_cell(prepared: Prepared, batch: int, dtype: str = "float64") -> Cell:
    """Tune to the sandwich for a batch size, and whiten the rows for the peers."""
    tuning = prepared.tune(batch)
    root = np.asarray(np.linalg.cholesky(tuning.step), dtype=np.float64)
    white = np.empty(prepared.x.shape, dtype=dtype)
    for start in range(0, len(white), _BLOCK):
        block = slice(start, start + _BLOCK)
        white[block] = prepared.x[block] @ root
    return Cell(prepared, tuning, dtype, root, white, prepared.y.astype(dtype))
