"""Moments of the loss at its minimiser: J, V, H and the operator K, the only thing the theory ever sees (theory §1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg.blas import dtrmm

from equipoise.dynamics import Dynamics
from equipoise.errors import InvalidInput

if TYPE_CHECKING:
    from equipoise.models.protocol import Model

__all__ = [
    "FLAT",
    "Curvature",
    "DenseCurvature",
    "LinearCurvature",
    "Moments",
    "blocks",
    "curvature_axes",
    "moments",
    "symmetric",
    "weighted_gram",
]

Array = NDArray[np.float64]

# Elements per block of rows: 2 MB of float64, so that a block stays in cache between its uses. A product of few rows with
# many columns is slow, so that blocks of wide rows may grow to 16 MB.
_BLOCK_ELEMENTS = 1 << 18
_LARGEST_BLOCK = 1 << 21

# Eigenvalue of a Hessian scaled to unit diagonal, below which a direction counts as flat.
FLAT = 1e-9


def symmetric(a: Array) -> Array:
    """The symmetric part of a square matrix."""
    return 0.5 * (a + a.T)


def curvature_axes(H: Array) -> tuple[Array, Array]:
    """Eigenvalues of H scaled to unit diagonal, ascending, and the directions (rows) in parameters they belong to."""
    diagonal = np.abs(np.diag(H))
    # of the whole matrix: at a saddle point the diagonal may be zero
    scale = np.sqrt(np.maximum(diagonal, 1e-12 * max(np.abs(H).max(), 1e-200)))
    values, vectors = np.linalg.eigh(H / np.outer(scale, scale))
    return values, vectors.T / scale


def blocks(n: int, dim: int) -> Iterator[slice]:
    """Slices that cover `range(n)` in blocks of bounded memory."""
    size = max(1, _BLOCK_ELEMENTS // dim, min(dim // 2, _LARGEST_BLOCK // dim))
    for start in range(0, n, size):
        yield slice(start, min(n, start + size))


def weighted_gram(x: Array, weight: Array, room: Array | None = None) -> Array:
    """Σ weight_n x_n x_nᵀ; with non-negative weights NumPy sees a matrix times its own transpose, at half the cost.

    `room`, of the shape of x, is where rows are scaled: fresh memory for every block would cost as much as the product.
    """
    if weight.min() < 0.0:
        return np.multiply(x, weight[:, None], out=room).T @ x
    half = np.multiply(x, np.sqrt(weight)[:, None], out=room)
    return half.T @ half


def _quadratic_forms(x: Array, S: Array) -> Iterator[tuple[slice, Array, Array, Array]]:
    """For each block of rows x_n: its slice, x, x_nᵀ S x_n (‖Lᵀ x_n‖² at half the cost when S = L Lᵀ), and room for x."""
    try:
        L = np.linalg.cholesky(symmetric(S))
    except np.linalg.LinAlgError:
        L = None
    space = np.empty(0)
    for rows in blocks(*x.shape):
        part = x[rows]
        space = space if space.size else np.empty_like(part)
        room = space[: len(part)]
        if L is None:
            np.matmul(part, S, out=room)
            yield rows, part, np.einsum("ij,ij->i", room, part), room
        else:
            room[:] = part
            dtrmm(1.0, L, room.T, trans_a=1, lower=1, overwrite_b=1)
            yield rows, part, np.einsum("ij,ij->i", room, room), room


class Curvature(Protocol):
    """Per-observation curvature, met only through its averages against a symmetric matrix."""

    def quadratic(self, S: Array) -> Array:
        """mean J_n S J_n."""
        ...

    def third(self, S: Array) -> Array:
        """∇³L[S] = mean over n of ∇ tr(∇²ℓ_n S)."""
        ...


@dataclass(frozen=True)
class LinearCurvature:
    """Curvature of a linear-predictor loss: J_n = h_n x_n x_nᵀ, third derivative t_n x_n ⊗ x_n ⊗ x_n.

    `quadratic` costs O(N D²) and O(block · D) memory: mean h_n² (x_nᵀ S x_n) x_n x_nᵀ.
    """

    x: Array
    second: Array
    third_: Array

    def quadratic(self, S: Array) -> Array:
        """mean h_n² (x_nᵀ S x_n) x_n x_nᵀ."""
        n, dim = self.x.shape
        total = np.zeros((dim, dim))
        for rows, x, q, room in _quadratic_forms(self.x, S):
            total += weighted_gram(x, q * self.second[rows] ** 2, room)
        return symmetric(total) / n

    def third(self, S: Array) -> Array:
        """mean t_n (x_nᵀ S x_n) x_n."""
        n, dim = self.x.shape
        total = np.zeros(dim)
        for rows, x, q, _ in _quadratic_forms(self.x, S):
            total += (q * self.third_[rows]) @ x
        return total / n


@dataclass(frozen=True)
class DenseCurvature:
    """Curvature from explicit per-observation Hessians (N, D, D), for anyone's own numbers and for tests."""

    hessians: Array
    thirds: Array | None = None

    def quadratic(self, S: Array) -> Array:
        """mean J_n S J_n."""
        n, dim, _ = self.hessians.shape
        total = np.zeros((dim, dim))
        for rows in blocks(n, dim * dim):
            J = self.hessians[rows]
            total += np.einsum("nij,njk->ik", J @ S, J, optimize=True)
        return symmetric(total) / n

    def third(self, S: Array) -> Array:
        """∇³L[S]; unknown (NaN) when no third derivatives were given."""
        if self.thirds is None:
            return np.full(S.shape[0], np.nan)
        return np.einsum("ijk,jk->i", self.thirds, S)


@dataclass(frozen=True)
class Moments:
    """What the theory knows of a model and its data, at the minimiser.

    Attributes
    ----------
    n
        Number of observations N the chain runs on (also when the moments come from a subsample of them).
    params
        The point θ̂ at which they were taken, flat.
    loss_hessian, hessian
        J = mean ∇²ℓ_n and H = J + ∇²R/N.
    score_cov, mean_score
        V, the centred covariance of the scores, and ḡ, their mean.
    noise_ratio
        Residual variance over working variance: what the well-specified linear proxy takes for σ²/s².
    curvature
        The per-observation curvature behind K; None after loading from disk, where the data are not kept.
    names
        Parameter names.
    """

    n: int
    params: Array
    loss_hessian: Array
    hessian: Array
    score_cov: Array
    mean_score: Array
    noise_ratio: float
    curvature: Curvature | None = field(repr=False)
    names: tuple[str, ...] = ()

    @property
    def dim(self) -> int:
        """Number of parameters D."""
        return self.hessian.shape[0]

    def curvature_noise(self, S: ArrayLike) -> Array:
        """K(S) = mean J_n S J_n − J S J."""
        S = np.asarray(S, dtype=np.float64)
        return symmetric(self._curvature().quadratic(S) - self.loss_hessian @ S @ self.loss_hessian)

    def third_derivative(self, S: ArrayLike) -> Array:
        """∇³L(θ̂)[S], a vector."""
        return self._curvature().third(np.asarray(S, dtype=np.float64))

    def gradient_noise(self, S: ArrayLike, dynamics: Dynamics) -> Array:
        """C(S) = b (V + K(S)), the stationary mean of the gradient covariance."""
        return dynamics.noise_factor(self.n) * (self.score_cov + self.curvature_noise(S))

    def _curvature(self) -> Curvature:
        if self.curvature is None:
            raise InvalidInput(
                "moments",
                "made from data",
                "moments loaded from disk, which keep no rows",
                "call eq.moments on the data again",
            )
        return self.curvature

    @classmethod
    def from_arrays(
        cls,
        scores: ArrayLike,
        hessians: ArrayLike,
        prior_hessian: ArrayLike | None = None,
        *,
        thirds: ArrayLike | None = None,
        params: ArrayLike | None = None,
        n: int | None = None,
    ) -> Moments:
        """Moments from per-observation scores (N, D) and Hessians (N, D, D).

        Parameters
        ----------
        scores, hessians
            ∇ℓ_n and ∇²ℓ_n at the minimiser.
        prior_hessian
            ∇²R (D, D), not divided by N; None means no regulariser.
        thirds
            ∇³L (D, D, D), optional; without it the mean bias is unknown.
        params
            The minimiser; zeros by default, so that draws are deviations from it.
        n
            The full number of observations, when the arrays are a subsample.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(50, 2))
        >>> m = Moments.from_arrays(x, x[:, :, None] * x[:, None, :])
        >>> m.n, m.dim
        (50, 2)
        """
        g, J_n = _checked_arrays(scores, hessians)
        rows, dim = g.shape
        n = rows if n is None else n
        J = symmetric(J_n.mean(axis=0))
        prior = np.zeros((dim, dim)) if prior_hessian is None else np.asarray(prior_hessian, dtype=np.float64)
        if prior.shape != (dim, dim):
            raise InvalidInput(
                "prior_hessian", f"of shape {(dim, dim)}", f"shape {prior.shape}", "pass one row per parameter"
            )
        V = np.atleast_2d(np.cov(g, rowvar=False, bias=True))
        return cls(
            n=n,
            params=np.zeros(dim) if params is None else np.asarray(params, dtype=np.float64),
            loss_hessian=J,
            hessian=J + symmetric(prior) / n,
            score_cov=V,
            mean_score=g.mean(axis=0),
            # tr(J⁻¹V)/D: equals σ²/s² for a well-specified linear model with any covariates
            noise_ratio=float(np.trace(np.linalg.lstsq(J, V, rcond=None)[0]) / dim),
            curvature=DenseCurvature(J_n, None if thirds is None else np.asarray(thirds, dtype=np.float64)),
        )


def _checked_arrays(scores: ArrayLike, hessians: ArrayLike) -> tuple[Array, Array]:
    g = np.asarray(scores, dtype=np.float64)
    J_n = np.asarray(hessians, dtype=np.float64)
    if g.ndim != 2 or not g.size:
        raise InvalidInput("scores", "of shape (N, D)", f"shape {g.shape}", "stack one score per row")
    if J_n.shape != (*g.shape, g.shape[1]):
        raise InvalidInput(
            "hessians",
            f"of shape {(*g.shape, g.shape[1])}",
            f"shape {J_n.shape}",
            "stack one Hessian per score",
        )
    for name, array in (("scores", g), ("hessians", J_n)):
        if not np.isfinite(array).all():
            raise InvalidInput(name, "finite", "NaN or infinity", "drop those observations")
    return g, J_n


def moments(model: Model, data: Any, params: Any, *, tuning_rows: int | None = None, seed: int = 0) -> Moments:
    """Moments of `model` on `data` at `params`.

    Parameters
    ----------
    model, data
        The model and its data.
    params
        The minimiser, as in `Fit.params`.
    tuning_rows
        Use this many random rows instead of all; the moments still carry the full number of rows.
    seed
        Chooses those rows.

    Returns
    -------
    Moments
    """
    return model.bind(data).moments(params, tuning_rows=tuning_rows, seed=seed)
