"""Products over rows at half the cost, against the products themselves."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.linalg import quadratic_forms, weighted_gram

RNG = np.random.default_rng(5)
orders = pytest.mark.parametrize("order", ["C", "F"])


def rows(order: str) -> np.ndarray:
    return np.asarray(RNG.normal(size=(57, 9)) * 10.0 ** RNG.uniform(-4, 4, 9), order=order)


@orders
@pytest.mark.parametrize("weights", ["positive", "mixed", "negative", "zero"])
def test_a_weighted_gram_is_the_sum_of_outer_products(order, weights) -> None:
    x, w = rows(order), RNG.normal(size=57)
    w = {"positive": np.abs(w), "mixed": w, "negative": -np.abs(w), "zero": np.zeros(57)}[weights]
    size = (np.abs(w)[:, None] * x**2).sum(axis=0)
    expected = sum(w[n] * np.outer(x[n], x[n]) for n in range(57))
    found = weighted_gram(x, w)
    np.testing.assert_array_less(np.abs(found - expected), 1e-13 * np.sqrt(np.outer(size, size)) + 1e-300)


@orders
@pytest.mark.parametrize("definite", [True, False])
def test_quadratic_forms_are_those_of_every_row(order, definite) -> None:
    x, a = rows(order), RNG.normal(size=(9, 9))
    scale = 1.0 / np.abs(x).max(axis=0)
    S = (a @ a.T if definite else a + a.T) * np.outer(scale, scale)
    expected = np.array([row @ S @ row for row in x])
    root = np.linalg.cholesky(S) if definite else None
    np.testing.assert_allclose(quadratic_forms(x, S, root), expected, atol=1e-12 * np.abs(expected).max())
