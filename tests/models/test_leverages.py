"""Rows of a loss of one's own drawn by leverage: tr(H⁻¹J_n), and the averages of rows drawn so, by brute force (theory §13)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.models.general import blockwise, curvature
from equipoise.models.general.curvature import GeneralCurvature
from equipoise.models.general.factored import FactoredCurvature, factored_curvature

LEVERAGE = eq.Dynamics(5, batches="leverage")


def network(p, o):
    """Two hidden units: a Hessian of full rank, and indefinite."""
    hidden = jnp.tanh(o["x"] @ p["w"])
    return 0.5 * (o["y"] - hidden @ p["v"]) ** 2


def regression(p, o):
    """Seen through one number of each row: a Hessian of rank one, negative for large residuals."""
    return jnp.log1p((o["y"] - o["x"] @ p) ** 2)


def case_of(loss, count=70):
    rng = np.random.default_rng(7)
    if loss is network:
        x, init = rng.normal(size=(count, 2)), {"v": np.array([0.5, -0.4]), "w": 0.6 * rng.normal(size=(2, 2))}
    else:
        x, init = rng.standard_t(3, size=(count, 6)), 0.2 * rng.normal(size=6)
    problem = eq.Model(loss, init, prior_precision=0.5).bind({"x": x, "y": x[:, 0] + rng.normal(size=count)})
    theta = problem.flatten(init)
    root = rng.normal(size=(theta.size, theta.size))
    return problem, theta, root @ root.T + np.eye(theta.size)


def brute(problem, theta):
    """Scores and Hessians of every row, one by one."""
    model, leaves = problem.model, problem.source.leaves
    with jax.enable_x64(True):
        rows = [jax.tree.unflatten(problem.tree, [leaf[k] for leaf in leaves]) for k in range(problem.n)]
        row = lambda t, o: model.loss(model.structure.unflatten(t), o)  # noqa: E731
        both = (jax.jit(d(row)) for d in (jax.grad, jax.hessian))
        return tuple(np.array([f(theta, o) for o in rows]) for f in both)


@pytest.mark.parametrize("loss", [network, regression])
def test_leverages_and_weighted_averages_are_those_of_every_row(loss, monkeypatch):
    problem, theta, inverse = case_of(loss)
    scores, hessians = brute(problem, theta)
    leverage = np.abs(np.einsum("nij,ji->n", hessians, inverse))
    assert np.min(np.einsum("nij,ji->n", hessians, inverse)) < 0.0
    weights = 1.0 / (0.1 + 0.9 * leverage / leverage.mean())
    S = np.diag(np.linspace(0.5, 1.5, theta.size)) + 0.2
    exact = GeneralCurvature(problem, theta)
    kinds = [exact] if loss is network else [exact, factored_curvature(exact)]
    assert all(kind is not None for kind in kinds)
    for kind in kinds:
        drawn = kind.leveraged(inverse, np.zeros_like(inverse))
        expected = np.einsum("n,nij,jk,nkl->il", weights, hessians, S, hessians) / problem.n
        np.testing.assert_allclose(kind.leverages(inverse), leverage, rtol=1e-8)
        np.testing.assert_allclose(drawn.quadratic(S), expected, rtol=0, atol=1e-8 * np.abs(expected).max())
        scatter = np.einsum("n,ni,nj->ij", weights, scores, scores) / problem.n
        np.testing.assert_allclose(drawn.scatter(), scatter, rtol=0, atol=1e-8 * np.abs(scatter).max())
        np.testing.assert_allclose(kind.scatter(), scores.T @ scores / problem.n, rtol=0, atol=1e-9)
    np.testing.assert_allclose(problem.leverages(theta, inverse), leverage, rtol=1e-8)


def test_moments_know_rows_drawn_by_leverage():
    problem, theta, _ = case_of(network)
    moments = eq.moments(problem, theta)
    scores, hessians = brute(problem, theta)
    dense = eq.Moments.from_arrays(scores, hessians, prior_hessian=0.5 * np.eye(theta.size))
    S = np.eye(theta.size) + 0.3
    np.testing.assert_allclose(
        moments.curvature_noise(S, LEVERAGE), dense.curvature_noise(S, LEVERAGE), rtol=0, atol=1e-9
    )
    one, other = (m.drawn_score_cov(LEVERAGE.rule) for m in (moments, dense))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)


def test_many_parameters_take_a_few_directions(monkeypatch):
    """Estimates from eight directions: right on average, the same at every call and in every average."""
    problem, theta, inverse = case_of(network, count=200)
    scores, hessians = brute(problem, theta)
    for module in (blockwise, curvature):
        monkeypatch.setattr(module, "MANY", 3)
    found = problem.leverages(theta, inverse)
    np.testing.assert_array_equal(found, problem.leverages(theta, inverse))
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(8, theta.size))
    directions = signs @ np.linalg.cholesky(inverse).T
    expected = np.abs(np.einsum("kd,nde,ke->n", directions, hessians, directions)) / 8
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    exact = np.abs(np.einsum("nij,ji->n", hessians, inverse))
    assert 0.7 < np.corrcoef(found, exact)[0, 1] < 1.0 - 1e-6
    weights, S = 1.0 / (0.1 + 0.9 * found / found.mean()), np.eye(theta.size)
    drawn = problem.curvature(theta).leveraged(inverse, S)
    assert not isinstance(drawn, FactoredCurvature)
    quadratic = np.einsum("n,nij,njl->il", weights, hessians, hessians) / problem.n
    np.testing.assert_allclose(drawn.quadratic(S), quadratic, rtol=0, atol=1e-9 * np.abs(quadratic).max())
    scatter = np.einsum("n,ni,nj->ij", weights, scores, scores) / problem.n
    np.testing.assert_allclose(drawn.scatter(), scatter, rtol=0, atol=1e-9)
