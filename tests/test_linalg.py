"""Products over rows at half the cost, against the products themselves."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from equipoise.linalg import fixed_order, quadratic_forms, weighted_gram

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


def test_any_thread_holds_blas_to_one_thread_and_lets_it_go() -> None:
    from threadpoolctl import ThreadpoolController

    found: list[list[int]] = []
    libraries = [library for library in ThreadpoolController().lib_controllers if library.user_api == "blas"]

    def look() -> None:
        found.append([library.num_threads for library in libraries])

    def use() -> None:
        with fixed_order():
            look()

    before = [library.num_threads for library in libraries]
    use()
    for _ in range(2):  # after this thread, others; threadpoolctl listens to one of them
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
    look()
    assert found == [[1] * len(before)] * 3 + [before]
