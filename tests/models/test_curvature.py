"""Curvature of a loss of one's own: exact Hessians and low-rank factors against brute force, row by row."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import equipoise as eq
from equipoise.data import fields as arrays_module
from equipoise.data.source import chosen_rows
from equipoise.models.general import factored
from equipoise.models.general.curvature import GeneralCurvature
from equipoise.models.general.factored import FactoredCurvature, factored_curvature


def data_of(problem):
    """The rows of a problem, in the user's structure."""
    return jax.tree.unflatten(problem.tree, problem.source.leaves)


def softmax(classes, features, n, seed=0, size=1.0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, features))
    theta = {"w": size * rng.normal(size=(features, classes - 1)), "b": np.zeros(classes - 1)}

    def loss(p, o):
        z = jnp.concatenate([o["x"] @ p["w"] + p["b"], jnp.zeros(1)])
        return jax.nn.logsumexp(z) - z[o["class"]]

    scores = np.column_stack([x @ theta["w"], np.zeros(n)])
    model = eq.Model(loss, theta)
    problem = model.bind({"x": x, "class": (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)})
    return problem, problem.flatten(theta)


def brute(problem, theta, S, third=True):
    """mean J_n S J_n and ∇³L[S], row by row with jax.hessian."""
    row = problem.model.functions.row
    with jax.enable_x64(True):
        hessian = jax.jit(jax.hessian(row))
        rows = [jax.tree.map(lambda a, k=k: a[k], data_of(problem)) for k in range(problem.source.n)]
        hessians = [np.asarray(hessian(theta, o)) for o in rows]
        # central differences of tr(J S), fourth order: error about h⁴ = 1e-10 of the fifth derivative
        h, bend = 3e-3, np.zeros(len(S))
        for j, step in enumerate(h * np.eye(len(S)) if third else ()):
            for weight, far in ((8.0, 1.0), (-1.0, 2.0)):
                ahead, behind = (
                    sum(np.sum(np.asarray(hessian(theta + s * far * step, o)) * S) for o in rows) for s in (1, -1)
                )
                bend[j] += weight * (ahead - behind) / (12.0 * h * len(rows))
    return sum(J @ S @ J for J in hessians) / len(rows), bend


def symmetric_matrix(dim, seed=0):
    root = np.random.default_rng(seed).normal(size=(dim, dim))
    return root + root.T  # indefinite: nothing may rely on a positive S


def close(one, other, tolerance=1e-10):
    np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * np.abs(other).max())


def test_softmax_has_factors_of_rank_one_less_than_its_classes() -> None:
    problem, theta = softmax(3, 4, 60)
    exact = GeneralCurvature(problem, theta)
    found = factored_curvature(exact)
    assert found is not None
    assert found.rank == 2
    S = symmetric_matrix(theta.size)
    quadratic, third = brute(problem, theta, S)
    close(found.quadratic(S), quadratic)
    close(exact.quadratic(S), quadratic)
    close(found.third(S), third, 1e-8)
    close(problem.moments(theta).curvature.quadratic(S), quadratic)


def test_factors_survive_many_rows_and_saturated_ones() -> None:
    # with no spare probe some of 20,000 random 5×5 matrices are nearly singular, and one such row spoils the check
    problem, theta = softmax(6, 4, 20_000, size=3.0)
    found = factored_curvature(GeneralCurvature(problem, theta))
    assert found is not None
    assert found.rank == 5
    u, w, _ = (np.concatenate(part)[::97] for part in zip(*found.stored, strict=True))
    # the softmax Hessian in closed form: (diag q − q qᵀ) ⊗ z zᵀ, z = (1, x); parameters are b, then w by rows
    x, p = np.asarray(data_of(problem)["x"])[::97], problem.layout.unflatten(theta)
    scores = np.column_stack([x @ p["w"] + p["b"], np.zeros(len(x))])
    q = np.exp(scores - scores.max(axis=1, keepdims=True))
    q = (q / q.sum(axis=1, keepdims=True))[:, :-1]
    assert q.min() < 1e-10  # rows whose Hessian is of lower rank to rounding
    z = np.column_stack([np.ones(len(x)), x])
    J = np.einsum("nab,nc,nd->ncadb", q[:, :, None] * (np.eye(5) - q[:, None, :]), z, z).reshape(-1, 25, 25)
    close(np.einsum("nki,nk,nkj->nij", u, w, u), J, 1e-9)


def test_full_rank_falls_back_to_exact_hessians() -> None:
    rng = np.random.default_rng(0)
    model = eq.Model(lambda p, o: jnp.sum(jnp.sin(p - o) ** 2) + 0.1 * jnp.sum(p) ** 3, np.full(5, 0.1))
    problem = model.bind(0.3 * rng.normal(size=(40, 5)))
    theta, S = np.linspace(0.0, 0.3, 5), symmetric_matrix(5)
    found = problem.moments(theta).curvature
    assert isinstance(found, GeneralCurvature)
    quadratic, third = brute(problem, theta, S)
    close(found.quadratic(S), quadratic)
    close(found.third(S), third, 1e-8)


def test_one_row_of_higher_rank_is_not_missed() -> None:
    rng = np.random.default_rng(0)
    n, dim = 400, 6
    odd = np.zeros(n)
    probed = chosen_rows(n, factored._PROBED_ROWS, seed=0)
    odd[np.setdiff1d(np.arange(n), probed)[-1]] = 1.0

    def loss(p, o):
        return jnp.logaddexp(0.0, o["x"] @ p) + 1e-4 * o["odd"] * jnp.sum(p**2)

    x = rng.normal(size=(n, dim))
    problem = eq.Model(loss, np.zeros(dim)).bind({"x": x, "odd": odd})
    theta, S = np.full(dim, 0.2), symmetric_matrix(dim)
    found = problem.moments(theta).curvature
    assert isinstance(found, GeneralCurvature)
    close(found.quadratic(S), brute(problem, theta, S, third=False)[0])
    # the same rows without the odd one do have factors
    plain = eq.Model(loss, np.zeros(dim)).bind({"x": x, "odd": 0.0 * odd})
    assert isinstance(plain.moments(theta).curvature, FactoredCurvature)


def test_scores_and_curvature_together() -> None:
    rng = np.random.default_rng(4)
    x, y, basis = rng.normal(size=(40, 8)), rng.normal(size=40), rng.normal(size=(8, 5))
    theta = 0.1 * rng.normal(size=8)
    model = eq.Model(lambda t, o: jnp.logaddexp(0.0, o[0] @ t) - 0.3 * o[1] * (o[0] @ t), np.zeros(8))
    s = 1 / (1 + np.exp(-x @ theta))
    g, J = (s - 0.3 * y)[:, None] * x, (s * (1 - s))[:, None, None] * x[:, :, None] * x[:, None, :]
    pairs = zip(J - J.mean(axis=0), g - g.mean(axis=0), strict=True)
    expected = np.mean([j @ (basis * (s @ basis)) for j, s in pairs], axis=0)
    close(eq.moments(eq.bind(model, (x, y)), theta).score_curvature(basis), expected)


def test_small_blocks_give_the_same(monkeypatch) -> None:
    x = np.random.default_rng(0).normal(size=(53, 10))
    problem = eq.Model(lambda p, o: jnp.exp(o @ p) - 0.5 * (o @ p), np.zeros(10)).bind(x)
    theta, S = np.full(10, 0.1), symmetric_matrix(10)

    def everything():
        m = problem.moments(theta)
        exact = GeneralCurvature(problem, theta)
        return [
            *problem.derivatives(theta, 2)[:3],
            problem.derivatives(theta, 0).value,
            m.score_cov,
            m.mean_score,
            m.curvature.quadratic(S),
            m.curvature.third(S),
            exact.quadratic(S),
        ]

    whole = everything()
    monkeypatch.setattr(arrays_module, "_COLUMN_ELEMENTS", 200)
    # half of the factors are stored, the others found again
    monkeypatch.setattr(factored, "_STORED", 27 * theta.size)
    for one, other in zip(everything(), whole, strict=True):
        close(np.asarray(one), np.asarray(other), 1e-13)
    stored = factored_curvature(GeneralCurvature(problem, theta)).stored
    # three rows of 6 probes × 10 parameters fit into a block
    assert [len(w) for _, w, _ in stored] == [3] * 9
