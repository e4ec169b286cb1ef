"""A loss on a few directions of many parameters: directions, moments and shares against dense ones, chunks, refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.models import verbs
from equipoise.models.general import evaluation, stored
from equipoise.models.general.factored import FactoredCurvature
from equipoise.models.general.stored import StoredCurvature
from equipoise.models.general.whole import Whole, lanczos

WIDE, N, RANK = 12, 150, 4


def network(p, row):
    return jnp.tanh(row["x"] @ p["in"] + p["shift"]) @ p["out"]


@pytest.fixture(scope="module")
def net():
    """A small network with its data, its minimiser, and what its moments are in all parameters."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(N, 3)) * [2.0, 1.0, 0.3]
    data = {"x": x, "y": np.sin(x[:, 0]) + 0.2 * rng.normal(size=N)}
    init = {"in": rng.normal(size=(3, WIDE)), "shift": np.zeros(WIDE), "out": 0.3 * rng.normal(size=WIDE)}
    precision = {"in": 2.0, "shift": np.linspace(1.0, 3.0, WIDE), "out": 4.0}
    model = eq.Model(
        lambda p, o: (o["y"] - network(p, o)) ** 2 / 0.08, init, prior_precision=precision, prior_mean={
            "in": 0.1, "shift": 0.0, "out": np.full(WIDE, -0.05)}
    )  # fmt: skip
    fit = eq.fit(model, data)
    return model, data, fit, eq.moments(model, data, fit)


@pytest.fixture(scope="module")
def small(net):
    """The network on its directions of largest curvature."""
    model, data, fit, _ = net
    return eq.subspace(model, data, fit, rank=RANK)


def test_a_prior_by_leaf_is_the_flat_one(net) -> None:
    model, data, fit, moments = net
    flat = np.concatenate([np.full(3 * WIDE, 2.0), np.full(WIDE, 4.0), np.linspace(1.0, 3.0, WIDE)])
    mean = np.concatenate([np.full(3 * WIDE, 0.1), np.full(WIDE, -0.05), np.zeros(WIDE)])
    assert [name.partition("[")[0] for name in moments.names[:: 3 * WIDE]] == ["in", "out"]
    for precision in (flat, np.diag(flat)):
        same = eq.Model(model.loss, model.init, prior_precision=precision, prior_mean=mean)
        with jax.enable_x64(True):
            pairs = [
                (f.penalty_gradient(fit.theta), f.penalty_hessian(fit.theta)) for f in (same.functions, model.functions)
            ]
        jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-12, atol=1e-12), *pairs)
    for given, message in (
        ({"in": np.ones(3), "shift": 1.0, "out": 1.0}, r"prior_precision in: must be a number or of shape \(3, 12\)"),
        ({"inn": 1.0}, "prior_precision: must be a pytree of numbers that fits init"),
    ):
        with pytest.raises(eq.InvalidInput, match=message):
            eq.bind(eq.Model(model.loss, model.init, prior_precision=given), data)


@pytest.mark.parametrize("of", ["curvature", "scores"])
def test_directions_are_the_leading_eigenvectors(net, of) -> None:
    model, data, fit, moments = net
    small = eq.subspace(model, data, fit, rank=RANK, of=of, seed=1)
    _, basis = small.subspace
    np.testing.assert_allclose(basis @ basis.T, np.eye(RANK), atol=1e-12)
    matrix = moments.hessian if of == "curvature" else moments.score_cov
    values, vectors = np.linalg.eigh(matrix)
    assert values[-RANK] > 1.05 * values[-RANK - 1]  # so that the subspace is well determined
    # cosines of the angles between the two subspaces: Lanczos ends at rounding, two power iterations at 1e-4
    cosines = np.linalg.svd(basis @ vectors[:, -RANK:])[1]
    assert cosines.min() > 1.0 - (1e-9 if of == "curvature" else 1e-3)


def test_lanczos_survives_repeated_eigenvalues_and_invariant_starts() -> None:
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(40, 40)))[0]
    matrix = turn @ np.diag([5.0, 5.0, 5.0, 3.0, 3.0, *np.zeros(34), -7.0]) @ turn.T
    values, vectors, residuals = lanczos(lambda v: matrix @ v, 40, 5, rng)
    np.testing.assert_allclose(values, [5.0, 5.0, 5.0, 3.0, 3.0], atol=1e-10)
    np.testing.assert_allclose(matrix @ vectors.T, vectors.T * values, atol=1e-9)
    assert residuals.max() < 1e-9


def test_products_are_those_of_the_matrices(net) -> None:
    model, data, fit, moments = net
    whole = Whole(eq.bind(model, data), fit.theta)
    rng = np.random.default_rng(1)
    v, w = rng.normal(size=fit.theta.size), rng.normal(size=N)
    np.testing.assert_allclose(whole.product(v), moments.hessian @ v, rtol=1e-10, atol=1e-12)
    with jax.enable_x64(True):
        G = np.asarray(jax.vmap(jax.grad(model.functions.row), (None, 0))(fit.theta, data))
    G = G - G.mean(axis=0)
    np.testing.assert_allclose(whole.slopes(v), G @ v, atol=1e-10)
    np.testing.assert_allclose(whole.pulled(w), G.T @ w, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("narrow", [False, True])
def test_moments_are_the_projected_ones(net, monkeypatch, narrow) -> None:
    model, data, fit, full = net
    if narrow:  # as if no row could have the parameters of all directions to itself: derivatives are taken forwards
        monkeypatch.setattr("equipoise.models.general.structure._CACHED", 0)
    # as if there were too many parameters to take more than three directions together
    monkeypatch.setattr("equipoise.models.general.structure._TOGETHER", 3 * fit.theta.size)
    small = eq.subspace(model, data, fit, rank=RANK, of="scores")
    P = small.subspace[1]
    assert eq.bind(small, data).search.dear == narrow
    moments = eq.moments(small, data, eq.fit(small, data))
    assert isinstance(moments.curvature, StoredCurvature)
    root = np.random.default_rng(2).normal(size=(RANK, RANK))
    S = root @ root.T
    pairs = [
        (moments.hessian, P @ full.hessian @ P.T),
        (moments.loss_hessian, P @ full.loss_hessian @ P.T),
        (moments.score_cov, P @ full.score_cov @ P.T),
        (moments.curvature_noise(S), P @ full.curvature_noise(P.T @ S @ P) @ P.T),
        (moments.third_derivative(S), P @ full.third_derivative(P.T @ S @ P)),
    ]
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-9 * np.abs(other).max())
    expansion = moments.curvature.expansion(np.eye(RANK))
    np.testing.assert_allclose(
        np.einsum("ijj->i", expansion.third() + expansion.prior), moments.third_derivative(np.eye(RANK)), rtol=1e-7
    )
    drawn = moments.curvature.leveraged(np.linalg.inv(moments.hessian), moments.loss_hessian)
    assert drawn.emphasis.shape == (N,)


def test_a_sample_of_rows_stands_for_all_where_they_cost_too_much(net, small, monkeypatch) -> None:
    model, data, fit, _ = net
    every = eq.moments(small, data, fit).curvature
    monkeypatch.setattr(stored, "_FEWEST", 100)
    monkeypatch.setattr(stored, "_WORK", 1.0)
    some = eq.moments(small, data, fit).curvature
    assert (len(every.hessians), len(some.hessians)) == (N, 100)
    # which rows they are shows in their Hessians; the scores are those of the same, also where the sample is taken later
    apart = np.abs(some.hessians[:, None] - every.hessians).max(axis=(2, 3))
    rows = apart.argmin(axis=1)
    assert len(set(rows)) == 100
    np.testing.assert_allclose(apart.min(axis=1), 0.0, atol=1e-10)
    with jax.enable_x64(True):
        slope = jax.vmap(jax.grad(lambda t, o: model.loss(model.structure.shaped(t), o)), (None, 0))
        g = np.asarray(slope(fit.theta, data)) @ small.subspace[1].T
    np.testing.assert_allclose(every.scatter(), g.T @ g / N, rtol=1e-8, atol=1e-8)
    for found in (some, every.sampled(100)):
        np.testing.assert_allclose(found.hessians, every.hessians[rows], rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(found.scatter(), g[rows].T @ g[rows] / 100, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
def test_regressions_keep_their_rank_one_curvature_and_run_whitened(make_data) -> None:
    x, y = make_data("poisson", dim=8)
    model = eq.Model(lambda p, o: jnp.exp(o["x"] @ p) - o["y"] * (o["x"] @ p), np.zeros(8), prior_precision=2.0)
    data = {"x": x, "y": y}
    small = eq.subspace(model, data, eq.fit(model, data), rank=6)
    moments = eq.moments(small, data, eq.fit(small, data))
    assert isinstance(moments.curvature, FactoredCurvature)
    glm = eq.glm("poisson", prior_precision=2.0)
    P = small.subspace[1]
    whole = eq.moments(glm, (x, y), eq.fit(glm, (x, y)))
    np.testing.assert_allclose(moments.curvature_noise(np.eye(6)), P @ whole.curvature_noise(P.T @ P) @ P.T, rtol=1e-7)
    cal = eq.calibrate(small, data, ess=4000, chains=2, seed=0, progress=False)
    target = eq.sandwich(cal.plan.moments)
    # 4000 effective draws: a variance is known to √(2/4000) = 2 %
    np.testing.assert_allclose(np.var(cal.chains.flat(), axis=0), np.diag(target), rtol=0.1)


def test_the_whole_way_on_a_subspace(net, small) -> None:
    _, data, fit, _ = net
    cal = eq.calibrate(small, data, target="posterior", fidelity=0.0, ess=2000, chains=2, seed=0, progress=False)
    assert cal.draws.shape[2] == RANK
    tree = cal.chains.tree()
    assert tree["in"].shape == (*cal.draws.shape[:2], 3, WIDE)
    parts = list(cal.chains.trees(size=300))
    np.testing.assert_allclose(
        np.concatenate([part["out"] for part in parts]), tree["out"].reshape(-1, WIDE), rtol=1e-12, atol=1e-14
    )
    origin, basis = small.subspace
    flat = np.concatenate([tree[k].reshape(*cal.draws.shape[:2], -1) for k in ("in", "out", "shift")], axis=-1)
    np.testing.assert_allclose(flat, origin + cal.draws @ basis, atol=1e-12)
    np.testing.assert_allclose(small.structure.flatten(fit.params), np.zeros(RANK), atol=1e-12)
    predicted = cal.evaluate(network, {"x": data["x"][:5]})
    first = {name: leaf.reshape(-1, *leaf.shape[2:])[7] for name, leaf in tree.items()}
    values = evaluation.evaluate(cal.chains.layout, network, {"x": data["x"][:5]}, cal.chains.flat())
    np.testing.assert_allclose(
        values[7], np.tanh(data["x"][:5] @ first["in"] + first["shift"]) @ first["out"], rtol=1e-12
    )
    assert predicted["estimate"].shape == (5,)
    with pytest.raises(eq.InvalidInput, match=r"gb: must be at least the .* GB that draws of 60 parameters take"):
        cal.chains.tree(gb=1e-6)


def test_evaluation_in_parts_changes_nothing(net, small, monkeypatch) -> None:
    _, data, fit, _ = net
    draws = np.random.default_rng(0).normal(size=(7, RANK))
    whole = evaluation.evaluate(small.structure, network, {"x": data["x"]}, draws)
    monkeypatch.setattr(evaluation, "_TOGETHER", 2 * fit.theta.size)
    for layout in (small.structure, small.structure.skeleton()):
        np.testing.assert_allclose(evaluation.evaluate(layout, network, {"x": data["x"]}, draws), whole, rtol=1e-10)


@pytest.mark.parametrize(
    ("target", "function"), [pytest.param("posterior", None, marks=pytest.mark.slow), ("sandwich", network)]
)
def test_the_captured_share_is_the_dense_one(net, small, target, function) -> None:
    model, data, fit, full = net
    P = small.subspace[1]
    found = small.captured(data, fit, function=function, target=target, probes=40, seed=2)

    def cov(moments):
        inverse = np.linalg.inv(moments.hessian)
        return inverse / N if target == "posterior" else inverse @ moments.score_cov @ inverse / N

    weight = np.eye(fit.theta.size)
    if function is not None:
        with jax.enable_x64(True):
            slope = jax.vmap(jax.grad(lambda t, o: network(model.structure.shaped(t), o)), (None, 0))
            G = np.asarray(slope(fit.theta, data))
        weight = G.T @ G
    inside = P.T @ cov(eq.moments(small, data, fit)) @ P
    expected = np.trace(weight @ inside) / np.trace(weight @ cov(full))
    assert 0.0 < found.std_error < 0.1
    assert abs(found.share - expected) < 4.0 * found.std_error
    # uᵀΣu for random signs of values, or of parameters: M = GΣGᵀ or Σ has variance 2 (‖M‖² − Σ M_ii²) about its trace
    M = cov(full) if function is None else G @ cov(full) @ G.T
    error = np.sqrt(2.0 * (np.sum(M**2) - np.sum(np.diag(M) ** 2)) / 40)
    assert error < 0.06 * np.trace(M)
    assert abs(found.total - np.trace(M)) < 4.0 * error


def test_a_trajectory_gives_its_components(net) -> None:
    model, data, fit, _ = net
    rng = np.random.default_rng(5)
    axes = np.linalg.qr(rng.normal(size=(fit.theta.size, 3)))[0].T
    path = fit.theta + rng.normal(size=(50, 3)) * [3.0, 2.0, 1.0] @ axes + 5.0
    flat = eq.subspace(model, data, fit, rank=3, of=path)
    trees = eq.subspace(model, data, fit, rank=3, of=[model.structure.unflatten(one) for one in path])
    for small in (flat, trees):
        np.testing.assert_allclose(np.linalg.svd(small.subspace[1] @ axes.T)[1], 1.0, atol=1e-10)
    with pytest.warns(eq.EquipoiseWarning, match="has 3 directions instead of rank=5"):
        eq.subspace(model, data, fit, rank=5, of=path)
    own = eq.subspace(model, data, fit, rank=RANK, of="trajectory", seed=1)
    again = eq.subspace(model, data, fit, rank=RANK, of="trajectory", seed=1)
    np.testing.assert_array_equal(own.subspace[1], again.subspace[1])
    np.testing.assert_allclose(own.subspace[1] @ own.subspace[1].T, np.eye(RANK), atol=1e-12)


def test_what_cannot_be_is_refused(net, small, make_data, monkeypatch) -> None:
    model, data, fit, _ = net
    x, y = make_data("poisson", dim=3)
    cases = [
        (lambda: eq.subspace(small, data, np.zeros(RANK), rank=1), "model: must be one on all its parameters"),
        (lambda: eq.subspace(eq.glm("poisson"), (x, y), np.zeros(3)), "model: must be a GeneralProblem"),
        (lambda: eq.subspace(model, data, fit, rank=61), "rank: must be at most the number of parameters, 60; got 61"),
        (lambda: eq.subspace(model, data, fit, of="hessian"), "of: must be one of curvature, scores, trajectory"),
        (lambda: eq.subspace(model, data, fit, of=np.ones((4, 3))), r"of: must be iterates \(T, 60\)"),
        (lambda: model.captured(data, fit), "model: must be on a subspace"),
        (lambda: small.captured(data, fit, target="bayesbag"), "target: must be one of sandwich, posterior"),
    ]
    for call, message in cases:
        with pytest.raises(eq.InvalidInput, match=message):
            call()
    flat = eq.Model(lambda p, o: (o["y"] - o["x"] @ p) ** 2, np.zeros(400))
    rows = {"x": np.random.default_rng(0).normal(size=(30, 400)), "y": np.zeros(30)}
    with pytest.raises(eq.EquipoiseError, match="total variance is not finite"):
        eq.subspace(flat, rows, np.zeros(400), rank=5).captured(rows, np.zeros(5))
    monkeypatch.setattr(verbs, "available_memory", lambda: 1e5)
    for call in (lambda: eq.moments(model, data, fit), lambda: eq.calibrate(model, data), lambda: eq.plan(model, data)):
        with pytest.raises(eq.InvalidInput, match=r"60 parameters: 0.000173 GB .* hours.*eq.subspace.*trainable"):
            call()
    monkeypatch.setattr(verbs, "available_memory", lambda: 1e2)
    with pytest.raises(eq.InvalidInput, match=r"3 parameters: .* GB .* hours.*leave out columns.*eq.subspace"):
        eq.plan(eq.glm("poisson"), (x, y))


def test_hours_of_work_are_told_beforehand(net, monkeypatch) -> None:
    model, data, fit, _ = net
    monkeypatch.setattr(verbs, "_LONG", 1e-7)
    # 60³ and 150 · 60² times what they take, over 3600
    with pytest.warns(
        eq.EquipoiseWarning, match=r"60 parameters take .* GB .* about 1.05e-06 hours. To be faster: use a sub"
    ):
        eq.moments(model, data, fit)


def test_no_matrix_of_all_parameters_is_made() -> None:
    """D = 50,000 dense would be 20 GB each: refused at once; a subspace of it is found, sampled and evaluated."""
    rng = np.random.default_rng(0)
    hidden, n = 200, 60
    x = rng.normal(size=(n, 50))
    init = {
        "a": rng.normal(size=(50, hidden)) / 7, "c": rng.normal(size=(hidden, hidden)) / 14, "e": np.ones(hidden) / 9
    }  # fmt: skip

    def deep(p, o):
        return jnp.tanh(jnp.tanh(o["x"] @ p["a"]) @ p["c"]) @ p["e"]

    model = eq.Model(lambda p, o: (o["y"] - deep(p, o)) ** 2, init, prior_precision={"a": 1.0, "c": 2.0, "e": 3.0})
    data = {"x": x, "y": np.sin(x[:, 0])}
    with pytest.raises(eq.InvalidInput, match=r"50,200 parameters: 121 GB for 6 matrices .* about 527 hours"):
        eq.moments(model, data, init)
    small = eq.subspace(model, data, init, rank=3)
    fit = eq.fit(small, data)
    moments = eq.moments(small, data, fit)
    tuning = eq.tune(moments, "sandwich", eq.Dynamics(batch_size=10))
    chains = eq.sample(small, data, tuning, draws=20, chains=2, seed=0, thin=1, burn_in=2, progress=False)
    # a gradient in z is the basis times that of all parameters
    with jax.enable_x64(True):
        full = small.structure.embed(fit.theta)
        slope = jax.grad(lambda t: jnp.mean(jax.vmap(lambda o: model.loss(model.structure.shaped(t), o))(data)))(full)
    expected = small.subspace[1] @ np.asarray(slope)
    np.testing.assert_allclose(moments.mean_score, expected, atol=1e-9)
    assert next(iter(chains.trees(size=2)))["c"].shape == (2, hidden, hidden)


@pytest.mark.study
def test_a_million_parameters_within_four_gigabytes() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "subspace.py"
    run = subprocess.run(
        [sys.executable, str(script), "--width", "990", "--rows", "300", "--rank", "50"],
        capture_output=True, text=True, check=True, env=dict(os.environ),
    )  # fmt: skip
    figures = dict(line.split(": ") for line in run.stdout.splitlines() if ": " in line)
    assert int(figures["parameters"]) > 10**6
    assert float(figures["peak GB"]) < 4.0
