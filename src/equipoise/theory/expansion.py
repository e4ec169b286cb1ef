"""Scores, Hessians and third derivatives of some rows, met through the averages that the shape of a chain depends on.

Rows are as they are drawn: a row drawn by leverage is weighed by e_n = 1/(N p_n), and a mean over draws of a product of k
of its terms is the mean over all rows of e_n^(k−1) times the product.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from equipoise.arrays import Array
from equipoise.linalg import Total, blocks, cores, fixed_order, symmetric, tree_sum

__all__ = ["Expansion", "FullExpansion", "RankOneExpansion", "expanded_rows"]

_ROWS = 20_000  # rows that are looked at, at most
_WORK, _WRITTEN = 1 << 29, 1 << 27  # operations of an average, at most: D³ of each row, or D⁴ where it is written out


def expanded_rows(n: int, dim: int, written_out: bool = True) -> int:
    """How many of n rows an expansion takes: all, or as many as are affordable; more where they are not written out."""
    return max(1, min(n, _ROWS, _WRITTEN // dim**4 if written_out else _WORK // dim**3))


class Expansion(Protocol):
    """Averages of products of the rows' derivatives, in some coordinates: tensors (D, D, D)."""

    @property
    def cost(self) -> float:
        """Operations of an average, about."""
        ...

    @property
    def prior(self) -> Array:
        """What the regulariser adds to the mean third derivative."""
        ...

    def third(self) -> Array:
        """mean T_n."""
        ...

    def slope(self) -> Array:
        """mean e (J_n)_ij (g_n)_k."""
        ...

    def cube(self) -> Array:
        """mean e² g_n ⊗ g_n ⊗ g_n."""
        ...

    def quadratics(self, X: Array) -> Array:
        """mean e J_n X_i J_n for each of some symmetric X_i."""
        ...

    def cubics(self, X: Array) -> Array:
        """mean e² of J_n applied to each index of a symmetric X."""
        ...

    def mixed(self, S: Array) -> Array:
        """mean e [½ (J_n)_ij T_n[S]_k + (J_n S T_nk)_ij]."""
        ...

    def squares(self, S: Array) -> Array:
        """mean e² [½ (J_n S J_n)_jk T_n[S]_i + (J_n S T_ni S J_n)_jk]."""
        ...


@dataclass(frozen=True)
class RankOneExpansion:
    """Rows of a linear predictor: g_n = g x, J_n = h x xᵀ, T_n = t x ⊗ x ⊗ x, with columns (n, D) and scalar derivatives (n,).

    `emphasis` is e_n, and `share` that of the observations each row stands for; they sum to one.
    """

    x: Array
    g: Array
    h: Array
    t: Array
    emphasis: Array
    share: Array

    @property
    def cost(self) -> float:
        """D³ of each row."""
        return float(len(self.x)) * self.x.shape[1] ** 3

    @property
    def prior(self) -> Array:
        """A Gaussian prior has no third derivative."""
        return np.zeros((self.x.shape[1],) * 3)

    def third(self) -> Array:
        """mean t x x x."""
        return self._tensor(self.t)

    def slope(self) -> Array:
        """mean e h g x x x."""
        return self._tensor(self.emphasis * self.h * self.g)

    def cube(self) -> Array:
        """mean e² g³ x x x."""
        return self._tensor(self.emphasis**2 * self.g**3)

    def quadratics(self, X: Array) -> Array:
        """mean e h² (xᵀ X_i x) x xᵀ."""
        weight, forms = self.emphasis * self.h**2 * self.share, _packed(X).T

        def part(rows: slice, pairs: Array) -> Array:
            return (pairs @ forms * weight[rows, None]).T @ pairs

        return self._sum(part)

    def cubics(self, X: Array) -> Array:
        """mean e² h³ X[x, x, x] x x x."""
        weight, forms = self.emphasis**2 * self.h**3 * self.share, _packed(X).T

        def part(rows: slice, pairs: Array) -> Array:
            x = self.x[rows]
            scalar = np.einsum("ni,ni->n", pairs @ forms, x)
            return (x * (weight[rows] * scalar)[:, None]).T @ pairs

        return self._sum(part)

    def mixed(self, S: Array) -> Array:
        """3/2 mean e h t (xᵀSx) x x x."""
        return self._tensor(1.5 * self.emphasis * self.h * self.t * self._forms(S))

    def squares(self, S: Array) -> Array:
        """3/2 mean e² h² t (xᵀSx)² x x x."""
        return self._tensor(1.5 * self.emphasis**2 * self.h**2 * self.t * self._forms(S) ** 2)

    def _forms(self, S: Array) -> Array:
        return np.einsum("ni,ni->n", self.x @ S, self.x)

    def _tensor(self, weight: Array) -> Array:
        """mean of weight · x x x."""
        scaled = self.x * (weight * self.share)[:, None]
        return self._sum(lambda rows, pairs: scaled[rows].T @ pairs)

    def _sum(self, part: Part) -> Array:
        """Σ part over blocks of rows, given the products of every pair of a row's columns, on all cores in a fixed order."""
        n, dim = self.x.shape

        def made(rows: slice) -> Total:
            return Total(part(rows, _pairs(self.x[rows])))

        with fixed_order(), ThreadPoolExecutor(cores()) as pool:
            total = tree_sum(pool.map(made, blocks(n, dim * dim))).total
        first, second = np.triu_indices(dim)
        full = np.empty((len(total), dim, dim))
        full[:, first, second] = full[:, second, first] = total
        return full


class Part(Protocol):
    """A matrix with a column for every pair of columns, made of a block of rows."""

    def __call__(self, rows: slice, pairs: Array, /) -> Array:
        """Of these rows."""
        ...


def _pairs(x: Array) -> Array:
    """x_i x_j, i ≤ j, of each row: half of what the products of all columns take."""
    n, dim = x.shape
    made, start = np.empty((n, dim * (dim + 1) // 2)), 0
    for i in range(dim):
        np.multiply(x[:, i : i + 1], x[:, i:], out=made[:, start : start + dim - i])
        start += dim - i
    return made


def _packed(X: Array) -> Array:
    """What x_i x_j, i ≤ j, are multiplied by in the form xᵀ X_k x of each matrix."""
    first, second = np.triu_indices(X.shape[1])
    return np.where(first == second, X[:, first, second], X[:, first, second] + X[:, second, first])


@dataclass(frozen=True)
class FullExpansion:
    """Rows of any loss, written out: g_n (n, D), J_n (n, D, D), T_n (n, D, D, D).

    Emphasis and share are as of `RankOneExpansion`; `prior` is the regulariser's third derivative over N.
    """

    g: Array
    J: Array
    T: Array
    emphasis: Array
    share: Array
    prior: Array

    @property
    def cost(self) -> float:
        """D⁴ of each row."""
        return float(len(self.g)) * self.g.shape[1] ** 4

    def third(self) -> Array:
        """mean T_n."""
        return np.einsum("n,nijk->ijk", self.share, self.T)

    def slope(self) -> Array:
        """mean e J_n ⊗ g_n."""
        return np.einsum("nij,nk->ijk", self.J, self.g * self._weight(1))

    def cube(self) -> Array:
        """mean e² g_n ⊗ g_n ⊗ g_n."""
        return np.einsum("ni,nj,nk->ijk", self.g * self._weight(2), self.g, self.g, optimize=True)

    def quadratics(self, X: Array) -> Array:
        """mean e J_n X_i J_n."""
        scaled = self.J * self._weight(1)[:, :, None]
        return np.stack([symmetric(np.tensordot(scaled @ Xi, self.J, ([0, 2], [0, 1]))) for Xi in X])

    def cubics(self, X: Array) -> Array:
        """mean e² of J_n applied to each index."""
        half = np.einsum("nia,abc->nibc", self.J * self._weight(2)[:, :, None], X, optimize=True)
        half = np.einsum("nibc,njb->nijc", half, self.J, optimize=True)
        return np.einsum("nijc,nkc->ijk", half, self.J, optimize=True)

    def mixed(self, S: Array) -> Array:
        """mean e [½ (J_n)_ij T_n[S]_k + (J_n S T_nk)_ij]."""
        bent = np.einsum("nkab,ab->nk", self.T, S, optimize=True) * self._weight(1)
        first = 0.5 * np.einsum("nij,nk->ijk", self.J, bent, optimize=True)
        left = (self.J @ S) * self._weight(1)[:, :, None]
        return first + np.einsum("nia,nkaj->ijk", left, self.T, optimize=True)

    def squares(self, S: Array) -> Array:
        """mean e² [½ (J_n S J_n)_jk T_n[S]_i + (J_n S T_ni S J_n)_jk]."""
        left = self.J @ S
        bent = np.einsum("niab,ab->ni", self.T, S, optimize=True) * self._weight(2)
        first = 0.5 * np.einsum("njk,ni->ijk", left @ self.J, bent, optimize=True)
        half = np.einsum("nja,niab->nijb", left * self._weight(2)[:, :, None], self.T, optimize=True)
        return first + np.einsum("nijb,nkb->ijk", half, left, optimize=True)

    def _weight(self, power: int) -> Array:
        return (self.emphasis**power * self.share)[:, None]
