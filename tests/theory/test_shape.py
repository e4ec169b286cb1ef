"""Predicted skewness against quadrature, enumeration, dense tensor equations and simulated chains (theory §14)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from equipoise.theory.dynamics import BatchCumulants
from equipoise.theory.expansion import FullExpansion, RankOneExpansion
from equipoise.theory.shape import Cumulant

N, DIM, B = 5, 2, 2


def symmetrised(X: Any) -> Any:
    """A tensor made symmetric in its last three indices."""
    *rest, i, j, k = range(X.ndim)
    orders = [(i, j, k), (i, k, j), (j, i, k), (j, k, i), (k, i, j), (k, j, i)]
    return sum(X.transpose([*rest, *order]) for order in orders) / 6.0


def third_cumulant(values: Any, weights: Any) -> Any:
    e = values - weights @ values
    return np.einsum("n,ni,nj,nk->ijk", weights, e, e, e)


class Toy:
    """Five rows with derivatives of their own, drawn in one of three ways, in the coordinates of the modes."""

    def __init__(self, rule: str, thirds: float, scores: float, bends: float = 1.0) -> None:
        rng = np.random.default_rng(8)
        self.rule = rule
        root = 0.4 * rng.normal(size=(N, DIM, DIM))
        J = root @ root.transpose(0, 2, 1)
        self.J = J.mean(axis=0) + bends * (J - J.mean(axis=0))
        self.T = thirds * symmetrised(rng.normal(size=(N, DIM, DIM, DIM)))
        self.prior = thirds * symmetrised(rng.normal(size=(DIM, DIM, DIM)))
        self.g = scores * rng.gamma(0.5, size=(N, DIM))
        chances = rng.dirichlet(np.full(N, 3.0)) if rule == "leverage" else np.full(N, 1.0 / N)
        self.e = 1.0 / (N * chances)
        self.rates = np.array([0.55, -0.2])
        self.S, self.mu = np.array([[0.5, 0.2], [0.2, 0.7]]), thirds * np.array([0.3, -0.4])

    def equation(self, plain: bool) -> Cumulant:
        without = self.rule == "without"
        batch = BatchCumulants.without_replacement(B, N) if without else BatchCumulants.with_replacement(1.0 / B)
        rows = FullExpansion(self.g, self.J, self.T, self.e, np.full(N, 1.0 / N), self.prior)
        scatter = np.einsum("n,ni,nj->ij", self.e, self.g, self.g) / N
        mean = self.g.mean(axis=0)
        return Cumulant(self.rates, self.S, self.mu, self.J.mean(axis=0), mean, scatter, rows, batch, plain)

    def batches(self) -> Iterator[tuple[float, Any, Any, Any]]:
        """The probability of every batch, and its weighed mean score, Hessian and third derivative."""
        g, J, T = (a * self.e.reshape((N,) + (1,) * (a.ndim - 1)) for a in (self.g, self.J, self.T))
        if self.rule == "without":
            drawn = [(1.0, list(s)) for s in combinations(range(N), B)]
        else:
            drawn = [(1.0 / self.e[i] / self.e[j], [i, j]) for i, j in product(range(N), repeat=2)]
        total = sum(chance for chance, _ in drawn)
        for chance, s in drawn:
            yield chance / total, g[s].mean(axis=0), J[s].mean(axis=0), T[s].mean(axis=0)

    def after(self, e: Any, weights: Any) -> Any:
        """The third cumulant after one step from a law of these points (n, D)."""
        values, chances = [], []
        mean_g, mean_J = self.g.mean(axis=0), self.J.mean(axis=0)
        for chance, g, J, T in self.batches():
            bent = 0.5 * np.einsum("iab,na,nb->ni", T + self.prior, e, e)
            values.append(e * self.rates - (g - mean_g) - e @ (J - mean_J) - bent)
            chances.append(chance * weights)
        return third_cumulant(np.concatenate(values), np.concatenate(chances))


def normal_points(mean: Any, cov: Any) -> tuple[Any, Any]:
    """Points and weights that integrate polynomials up to degree seven in each coordinate exactly."""
    x, w = np.polynomial.hermite_e.hermegauss(4)
    grid = np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1).reshape(-1, 2)
    return mean + grid @ np.linalg.cholesky(cov).T, (np.outer(w, w) / w.sum() ** 2).ravel()


@pytest.mark.parametrize("rule", ["with", "without", "leverage"])
def test_what_third_derivatives_add_in_a_step_is_that_of_quadrature(rule: str) -> None:
    step = 1e-4
    ups = [Toy(rule, sign * step, 0.0) for sign in (1.0, -1.0)]
    exact = [toy.after(*normal_points(toy.mu, toy.S)) for toy in ups]
    equation = Toy(rule, 1.0, 0.0).equation(plain=False)
    found = equation._source + equation._batches + equation._carried(np.zeros((DIM,) * 3))
    np.testing.assert_allclose(found, (exact[0] - exact[1]) / (2.0 * step), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", ["with", "without", "leverage"])
def test_what_a_step_leaves_of_a_third_cumulant_is_that_of_enumeration(rule: str) -> None:
    rng = np.random.default_rng(4)
    toy, e = Toy(rule, 0.0, 0.0), rng.gamma(0.6, size=(7, DIM))
    weights = rng.dirichlet(np.ones(7))
    e -= weights @ e
    toy.S = np.einsum("n,ni,nj->ij", weights, e, e)
    before = third_cumulant(e, weights)
    kept = before * (1.0 - toy.equation(False)._resistance)
    np.testing.assert_allclose(kept + toy.equation(False)._carried(before), toy.after(e, weights), atol=1e-13)


@pytest.mark.parametrize("rule", ["with", "without", "leverage"])
def test_what_plain_scores_add_in_a_step_is_that_of_quadrature(rule: str) -> None:
    """To first order in the rows' curvatures: what is of second order is left out."""
    step = 1e-4
    exact = [Toy(rule, 0.0, 1.0, sign * step) for sign in (1.0, -1.0)]
    if rule == "leverage":
        # there the weights alone make curvatures differ: rows whose weighed Hessians are alike but for the step
        for toy in exact:
            alike = np.array([[0.3, 0.1], [0.1, 0.2]])
            toy.J = (alike + (toy.J - toy.J.mean(axis=0))) / toy.e[:, None, None]
    once = [toy.after(*normal_points(toy.mu, toy.S)) for toy in exact]
    law = [toy.equation(plain=True)._source for toy in exact]
    np.testing.assert_allclose(law[0] + law[1], once[0] + once[1], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose((law[0] - law[1]) / step, (once[0] - once[1]) / step, rtol=1e-5, atol=1e-6)


def test_the_third_cumulant_is_where_a_step_changes_nothing() -> None:
    equation = Toy("leverage", 1.0, 0.0).equation(plain=False)
    found = equation.solved()
    np.testing.assert_allclose(found, symmetrised(found), atol=1e-12)
    again = found * (1.0 - equation._resistance) + equation._source + equation._batches + equation._carried(found)
    np.testing.assert_allclose(again, found, rtol=1e-8)
    assert np.abs(found - equation.leading()).max() > 0.05 * np.abs(found).max()


def test_rows_of_a_linear_predictor_are_a_case_of_any_rows() -> None:
    rng = np.random.default_rng(6)
    n, dim = 40, 3
    x, g, h, t = rng.normal(size=(n, dim)), *rng.normal(size=(3, n))
    share, e = rng.dirichlet(np.ones(n)), rng.gamma(3.0, size=n)
    one = RankOneExpansion(x, g, h, t, e, share)
    full = FullExpansion(
        g[:, None] * x, np.einsum("n,ni,nj->nij", h, x, x), np.einsum("n,ni,nj,nk->nijk", t, x, x, x), e, share, one.prior
    )  # fmt: skip
    S, X = np.cov(rng.normal(size=(3, 9))), symmetrised(rng.normal(size=(3, 3, 3)))
    for name, arguments in {
        "third": (), "slope": (), "cube": (), "quadratics": (X,), "cubics": (X,), "mixed": (S,), "squares": (S,),
    }.items():  # fmt: skip
        np.testing.assert_allclose(getattr(one, name)(*arguments), getattr(full, name)(*arguments), atol=1e-11)
