"""What passes over the rows of a loss of your own make of the Hessians of a block."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from equipoise.arrays import Array
from equipoise.linalg import Sums, Total, symmetric
from equipoise.models.core import Chances, lots
from equipoise.models.general.written import halves
from equipoise.theory.curvature import emphasis

if TYPE_CHECKING:
    from equipoise.models.general.functions import Functions
    from equipoise.models.general.passes import OfBlock, Padded
    from equipoise.theory.curvature import ImagePass

__all__ = [
    "DIRECTIONS_OF_LEVERAGE",
    "MANY",
    "FileSums",
    "Leverage",
    "ScatterSums",
    "bends_along",
    "bends_of",
    "cross_of",
    "emphasised",
    "from_file",
    "hessians_of",
    "images_of",
    "leverage_of",
    "products",
    "scatter_of",
    "total_leverage",
    "turned",
]

# Leverages of rows are found with this many random directions where there are more parameters than that: they decide what
# is drawn, and are weighed for, so that an estimate of them is as good in all but the noise it leaves.
DIRECTIONS_OF_LEVERAGE, MANY = 8, 200


class FileSums(NamedTuple):
    """Σ J_n S J_n, Σ ∇ tr(∇²ℓ_n S), Σ tr(J_n S)⁴, and of rows that were kept leaves, counts and the chances they had.

    Besides these the sum of leverages by another rule, and the operator written out, where they are asked for.
    """

    quadratic: Array
    third: Array
    fourth: float
    kept: tuple[tuple[Array, ...], ...]
    leverage: float
    squares: Array


class ScatterSums(NamedTuple):
    """Σ g_n g_nᵀ, and the operator written out where it is asked for."""

    total: Array
    squares: Array


class Leverage(NamedTuple):
    """Rows drawn by leverage: H⁻¹, directions v with Σ v vᵀ ≈ H⁻¹ for many parameters, and the mean leverage (theory §13)."""

    inverse: Array
    directions: Array | None
    mean: float = 1.0

    @staticmethod
    def of(inverse: Array, full: int) -> Leverage:
        """Exact for few parameters, of which a subspace has as many as are behind it."""
        dim = len(inverse)
        if full <= MANY:
            return Leverage(inverse, None)
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(DIRECTIONS_OF_LEVERAGE, dim))
        root = np.linalg.cholesky(symmetric(inverse)).astype(np.float64)
        return Leverage(inverse, signs @ root.T / np.sqrt(DIRECTIONS_OF_LEVERAGE))

    def emphasis(self, leverage: Array) -> Array:
        """1/(N p_n)."""
        return emphasis(leverage, self.mean)


def leverage_of(theta: Array, drawn: Leverage, functions: Functions, b: Padded, J: Array | None = None) -> Array:
    """Leverages of a block of rows, whose Hessians may be known."""
    if drawn.directions is not None:
        images = np.asarray(functions.products(theta, b.rows, drawn.directions))[: b.size]
        return np.abs(np.einsum("nkd,kd->n", images, drawn.directions))
    return _sizes(hessians_of(theta, functions, b) if J is None else J, drawn.inverse)


def _shares(theta: Array, drawn: Leverage | None, functions: Functions, b: Padded, J: Array | None = None) -> Array:
    """What each row of a block counts for: its observations, times 1/(N p_n) where they are drawn by leverage."""
    return b.counts if drawn is None else b.counts * drawn.emphasis(leverage_of(theta, drawn, functions, b, J))


def hessians_of(theta: Array, functions: Functions, b: Padded) -> Array:
    """J_n of a block of rows."""
    return np.asarray(functions.hessians(theta, b.rows))[: b.size]


def _quadratic(theta: Array, drawn: Leverage | None, S: Array, J: Array, functions: Functions, b: Padded) -> Array:
    left = J * _shares(theta, drawn, functions, b, J)[:, None, None]
    return np.einsum("nij,njk->ik", left @ S, J, optimize=True)


def products(theta: Array, drawn: Leverage | None, S: Array, functions: Functions, b: Padded) -> Total:
    """Σ J_n S J_n."""
    return Total(_quadratic(theta, drawn, S, hessians_of(theta, functions, b), functions, b))


def bends_of(theta: Array, values: Array, vectors: Array, functions: Functions, b: Padded) -> Total:
    """Σ ∇ tr(∇²ℓ_n S), given the eigenvalues and eigenvectors of S."""
    return Total(np.array(functions.bend_gradient(theta, b.rows, b.mask, values, vectors.T)))


def bends_along(theta: Array, vectors: Array, functions: Functions, b: Padded) -> Total:
    """Σ ∇³ℓ_n[v, v, ·] for each of some vectors."""
    return Total(np.array(functions.bends(theta, b.rows, b.mask, vectors)))


def from_file(
    theta: Array,
    rules: tuple[Leverage | None, Leverage | None],
    S: Array,
    chances: Chances,
    turn: Array | None,
    bends: OfBlock[Total],
    functions: Functions,
    b: Padded,
) -> FileSums:
    """What one reading of files gives for S: by the first rule, and leverages by the other."""
    drawn, other = rules
    J = hessians_of(theta, functions, b)
    v = emphasised(theta, drawn, S, J, functions, b)
    chance = chances(v)
    index = np.flatnonzero(lots(v) < chance)
    leaves = (np.asarray(leaf)[: b.size][index] for leaf in jax.tree.leaves(b.rows))
    return FileSums(
        _quadratic(theta, drawn, S, J, functions, b),
        bends(functions, b).total,
        float(b.counts @ v**4),
        ((*leaves, b.counts[index], chance[index]),),
        0.0 if other is None else float(b.counts @ leverage_of(theta, other, functions, b, J)),
        _squares(theta, drawn, turn, J, functions, b),
    )


def emphasised(theta: Array, drawn: Leverage | None, S: Array, J: Array, functions: Functions, b: Padded) -> Array:
    """|tr(J_n S)| of a block of rows, times √(1/(N p_n)) where they are drawn by leverage."""
    v = _sizes(J, S)
    return v if drawn is None else v * np.sqrt(drawn.emphasis(leverage_of(theta, drawn, functions, b, J)))


def _squares(
    theta: Array, drawn: Leverage | None, turn: Array | None, J: Array, functions: Functions, b: Padded
) -> Array:
    """The operator over a block of rows, written out; nothing where it is not to be."""
    if turn is None:
        return np.zeros((0, 0))
    v = halves(J, turn)
    return (v * _shares(theta, drawn, functions, b, J)[:, None]).T @ v


def total_leverage(theta: Array, drawn: Leverage, functions: Functions, b: Padded) -> Total:
    """Σ |tr(H⁻¹ J_n)|."""
    return Total(np.array(b.counts @ leverage_of(theta, drawn, functions, b)))


def scatter_of(
    theta: Array, drawn: Leverage | None, turn: Array | None, functions: Functions, b: Padded
) -> ScatterSums:
    """Σ g_n g_nᵀ, and the operator written out if it is to be turned."""
    g = np.asarray(functions.scores(theta, b.rows))[: b.size]
    J = np.zeros(0) if turn is None else hessians_of(theta, functions, b)
    shares = _shares(theta, drawn, functions, b, None if turn is None else J)
    return ScatterSums((g * shares[:, None]).T @ g, _squares(theta, drawn, turn, J, functions, b))


def images_of(
    theta: Array,
    drawn: Leverage | None,
    vectors: Array,
    root: Array,
    f: ImagePass[Sums],
    functions: Functions,
    b: Padded,
) -> Sums:
    """Σ f(Rᵀ J_n v)."""
    found = np.asarray(functions.products(theta, b.rows, vectors))[: b.size]
    weights = None if drawn is None else drawn.emphasis(leverage_of(theta, drawn, functions, b))
    return f(found.transpose(1, 0, 2) @ root, weights, b.counts)


def cross_of(theta: Array, basis: Array, functions: Functions, b: Padded) -> Total:
    """Σ J_n r rᵀ g_n for every column r of a basis."""
    scores = np.asarray(functions.scores(theta, b.rows))[: b.size]
    images = np.asarray(functions.products(theta, b.rows, basis.T))[: b.size]
    return Total(np.einsum("nkd,nk->dk", images, b.counts[:, None] * (scores @ basis)))


def _sizes(J: Array, S: Array) -> Array:
    """|tr(J_n S)|."""
    return np.abs(np.einsum("nij,ij->n", J, S))


def turned(T: Array, basis: Array) -> Array:
    """Third derivatives in θ = basis · z."""
    return np.einsum("...ijk,ia,jb,kc->...abc", T, basis, basis, basis, optimize=True)
