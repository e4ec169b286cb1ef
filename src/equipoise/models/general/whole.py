"""A general loss at one point of all its parameters, met only through products with vectors: no D×D and no N×D array.

With G the scores of the rows (N, D): G v is one derivative of every row's loss along v, Gᵀ w the gradient of the losses
weighed by w, and H v a derivative of the gradient along v.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
from scipy.linalg import eigh_tridiagonal, qr

from equipoise.arrays import Array
from equipoise.models.general.problem import GeneralProblem

__all__ = ["Whole", "lanczos", "orthonormal", "principal"]

_CLOSE = 1e-7  # residual of an eigenvector, of the largest eigenvalue, that ends the iteration
_CHECKED = 10  # steps between two looks at the residuals


@dataclass(frozen=True)
class Whole:
    """Products with the Hessian and the scores at θ."""

    problem: GeneralProblem
    theta: Array

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return self.theta.size

    def product(self, v: Array) -> Array:
        """H v, the regulariser's share included."""
        return self.problem.product(self.theta, v)

    def slopes(self, v: Array) -> Array:
        """G v less its mean, (N,)."""
        problem, found = self.problem, []
        with jax.enable_x64(True):
            for b in problem.each(problem.summed):
                each = np.asarray(problem.functions.slopes(self.theta, b.rows, v))[: b.size]
                found.append(np.repeat(each, b.counts.astype(np.int64)))
        made = np.concatenate(found)
        return np.asarray(made - made.mean())

    def pulled(self, w: Array) -> Array:
        """Gᵀ w for weights less their mean."""
        problem, first = self.problem, 0
        away, total = w - w.mean(), np.zeros(self.dim)
        with jax.enable_x64(True):
            for b in problem.each(problem.summed):
                weights, starts = np.zeros(len(b.mask)), np.cumsum(b.counts).astype(np.int64)
                here = away[first : first + starts[-1]]
                weights[: b.size] = np.add.reduceat(here, np.append(0, starts[:-1]))
                total += np.asarray(problem.functions.gradient(self.theta, b.rows, weights)[1])
                first += len(here)
        return total


def lanczos(
    product: Callable[[Array], Array], dim: int, rank: int, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    """The largest eigenvalues of a symmetric matrix, descending, their eigenvectors (rows), and the residuals.

    Every vector is made orthogonal to all before it, so that rounding brings none of them back; where the vectors span all
    that the first of them reaches, a random one follows.
    """
    most = min(dim, 2 * rank + 30)
    vectors = np.empty((most, dim))  # of memory that is taken as it is written
    diagonal, beside = np.zeros(most), np.zeros(most)
    following = rng.standard_normal(dim)
    for j in range(most):
        vectors[j] = following / np.linalg.norm(following)
        following = product(vectors[j])
        diagonal[j] = vectors[j] @ following
        following -= diagonal[j] * vectors[j] + (beside[j - 1] * vectors[j - 1] if j else 0.0)
        following -= (vectors[: j + 1] @ following) @ vectors[: j + 1]
        beside[j] = np.linalg.norm(following)
        scale = np.abs(diagonal[: j + 1]).max() + beside[: j + 1].max()
        if beside[j] <= 1e-13 * scale and j + 1 < most:
            beside[j], following = 0.0, rng.standard_normal(dim)
            for _ in range(2):
                following -= (vectors[: j + 1] @ following) @ vectors[: j + 1]
        count = j + 1
        if count < most and (count < rank + _CHECKED or count % _CHECKED):
            continue
        values, turn = eigh_tridiagonal(diagonal[:count], beside[: count - 1])
        top = np.argsort(values)[::-1][:rank]
        residuals = np.abs(beside[j] * turn[-1, top])
        if residuals.max() <= _CLOSE * np.abs(values).max():
            break
    return values[top].astype(np.float64), turn[:, top].T @ vectors[:count], np.asarray(residuals)


def principal(whole: Whole, rank: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """The largest eigenvalues of the scores' covariance V, their eigenvectors (rows), and estimates of tr(V), one a probe.

    A randomised singular value decomposition of the centred scores, with two rounds of power iteration.
    """
    n = whole.problem.source.n
    count = min(rank + 10, whole.dim, n)
    made = np.stack([whole.pulled(rng.choice([-1.0, 1.0], size=n)) for _ in range(count)])
    traces = np.einsum("kd,kd->k", made, made) / n
    for _ in range(2):
        made = orthonormal(made)
        for row in made:
            row[:] = whole.pulled(whole.slopes(row))
    made = orthonormal(made)
    sides = np.stack([whole.slopes(row) for row in made])  # (count, N): N × a few
    values, turn = np.linalg.eigh(sides @ sides.T / n)
    top = np.argsort(values)[::-1][:rank]
    return values[top].astype(np.float64), turn[:, top].T @ made, traces


def orthonormal(rows: Array) -> Array:
    """An orthonormal basis (rows) of their span; what was given is overwritten."""
    found = qr(rows.T, mode="economic", overwrite_a=True, check_finite=False)[0].T
    return np.asarray(found, order="C")
