"""Linear systems and extreme eigenvalues of a symmetric matrix that is met only through products: O(D) memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh_tridiagonal, eigvalsh_tridiagonal

from equipoise.arrays import Array
from equipoise.linalg import FAINT

__all__ = ["Ends", "Solved", "ends", "solved"]

Product = Callable[[Array], Array]

_LOOK = 20  # steps between two looks at the ends of a spectrum
_SETTLED = 0.1  # residual of an end, of its value, that ends the iteration


class Solved(NamedTuple):
    """Where conjugate gradients for H x = −g ended: x, H x and ‖g + H x‖.

    `least` is the curvature that what is left is counted with: the smallest met, or one along flat directions. `edge`
    says whether x is on the edge of the ball.
    """

    step: Array
    bent: Array
    left: float
    least: float
    edge: bool

    def predicted(self, gradient: Array) -> float:
        """By how much gᵀx + ½ xᵀHx falls."""
        return -float(gradient @ self.step) - 0.5 * float(self.step @ self.bent)

    def decrement(self, gradient: Array) -> float:
        """An upper bound of gᵀ H⁻¹ g, of an x inside: what is left counts as if it all curved least.

        Along flat directions a slope, if any, is never made up for: it is measured as if they curved like the others.
        """
        return max(0.0, -float(gradient @ self.step)) + self.left**2 / self.least


def solved(product: Product, gradient: Array, radius: float, tolerance: float, small: float, most: int) -> Solved:
    """The minimum of gᵀx + ½ xᵀHx in a ball, by conjugate gradients (Steihaug's), given the product v ↦ H v.

    It ends at a ‖g + Hx‖ of `tolerance`, or after `most` products. Where H does not curve upwards along a search
    direction, that is followed to the edge; but not where no more than `small` is left of the gradient: a flat direction
    has a slope of rounding.
    """
    x, bent, left = np.zeros_like(gradient), np.zeros_like(gradient), -gradient
    direction, size = left.copy(), float(left @ left)
    lengths, ratios = list[float](), list[float]()
    for _ in range(most):
        image = product(direction)
        curve, square = float(direction @ image), float(direction @ direction)
        if not curve > FAINT * square:
            if np.sqrt(size) <= small:
                return Solved(x, bent, float(np.sqrt(size)), 1.0, False)
            far = _to_edge(x, direction, radius)
            return Solved(x + far * direction, bent + far * image, float(np.sqrt(size)), 1.0, True)
        length = size / curve
        if np.linalg.norm(x + length * direction) >= radius:
            far = _to_edge(x, direction, radius)
            return Solved(x + far * direction, bent + far * image, float(np.sqrt(size)), 1.0, True)
        x += length * direction
        bent += length * image
        left -= length * image
        last, size = size, float(left @ left)
        lengths.append(length)
        ratios.append(size / last)
        if np.sqrt(size) <= tolerance:
            break
        direction = left + ratios[-1] * direction
    return Solved(x, bent, float(np.sqrt(size)), max(FAINT, _softest(lengths, ratios)), False)


def _to_edge(x: Array, direction: Array, radius: float) -> float:
    """How far along a direction the edge of the ball is."""
    a, b, c = float(direction @ direction), float(x @ direction), float(x @ x) - radius**2
    return (-b + np.sqrt(max(0.0, b * b - a * c))) / a


def _softest(lengths: list[float], ratios: list[float]) -> float:
    """The smallest eigenvalue of the matrix that conjugate gradients made of H on their way."""
    if not lengths:
        return np.inf
    alpha, beta = 1.0 / np.array(lengths), np.array(ratios)
    diagonal = alpha + np.append(0.0, beta[:-1] * alpha[:-1])
    return float(eigvalsh_tridiagonal(diagonal, np.sqrt(beta[:-1]) * alpha[:-1], select="i", select_range=(0, 0))[0])


class Ends(NamedTuple):
    """The smallest eigenvalue that was found, its unit vector, the residual of both, and the largest eigenvalue."""

    value: float
    vector: Array
    residual: float
    largest: float


def ends(
    product: Product,
    dim: int,
    most: int,
    rng: np.random.Generator,
    away: Array | None = None,
    *,
    settled: float = _SETTLED,
    below: float = np.inf,
) -> Ends:
    """The ends of a spectrum, by Lanczos' method from a random vector, orthogonal to the rows of `away`.

    No vector is kept: eigenvalues that come back by rounding do no harm at the ends, and the vector is put together in a
    second run, unless the eigenvalue is not `below` what is looked for. The iteration ends when the smallest eigenvalue is
    known, to a residual of `settled` of its value, or is certainly negative.
    """
    most = min(most, dim - (0 if away is None else len(away)))
    first = _without(rng.standard_normal(dim), away)
    first /= np.linalg.norm(first)
    diagonal, beside = list[float](), list[float]()
    weights: Array = np.ones(1)
    value, largest, residual = np.inf, 0.0, np.inf
    for vector, a, b in _chain(product, first, most, away):
        del vector
        diagonal.append(a)
        beside.append(b)
        count = len(diagonal)
        over = b <= 1e-13 * max(map(abs, diagonal))
        if count % _LOOK and count < most and not over:
            continue
        values, turn = eigh_tridiagonal(diagonal, beside[:-1], select="i", select_range=(0, 0))
        top = eigvalsh_tridiagonal(diagonal, beside[:-1], select="i", select_range=(count - 1, count - 1))
        value, weights, largest = float(values[0]), np.asarray(turn[:, 0], dtype=np.float64), float(top[0])
        residual = abs(b * float(weights[-1]))
        if over or residual <= settled * max(abs(value), FAINT) or value < -max(FAINT, 2.0 * residual):
            break
    found = np.zeros(dim)
    if value > below:
        return Ends(value, found, residual, largest)
    for (vector, _, _), weight in zip(_chain(product, first, len(weights), away), weights, strict=True):
        found += weight * vector
    return Ends(value, found / np.linalg.norm(found), residual, largest)


def _chain(product: Product, first: Array, most: int, away: Array | None) -> Iterator[tuple[Array, float, float]]:
    """Vectors of Lanczos' method, each with its diagonal entry and the one beside."""
    before, vector, b = np.zeros_like(first), first, 0.0
    for _ in range(most):
        following = _without(product(vector), away)
        a = float(vector @ following)
        following -= a * vector + b * before
        b = float(np.linalg.norm(following))
        yield vector, a, b
        before, vector = vector, following / (b or 1.0)


def _without(vector: Array, away: Array | None) -> Array:
    return vector if away is None or not len(away) else vector - (away @ vector) @ away
