"""Predicted tails against the exact fourth moments of a linear recursion, direct sums and simulated chains (theory §13)."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.data.source import chosen_rows
from equipoise.linalg import times_lower
from equipoise.theory.dynamics import BatchCumulants
from equipoise.theory.tails import _ClimbPass, smallest_batch, tails_along, worst_tails

B = 2


def drawn(J: Any, rule: str, inverse: Any) -> list[tuple[float, Any]]:
    """Every batch of two rows: its probability and its mean Hessian, as the rule weighs it."""
    n = len(J)
    if rule == "without":
        pairs = list(combinations(range(n), B))
        return [(1.0 / len(pairs), J[list(pair)].mean(axis=0)) for pair in pairs]
    p = np.full(n, 1.0 / n)
    if rule == "leverage":
        leverage = np.abs(np.einsum("nij,ji->n", J, inverse))
        p = 0.1 / n + 0.9 * leverage / leverage.sum()
    weighted = J / (n * p)[:, None, None]
    return [(p[i] * p[j], 0.5 * (weighted[i] + weighted[j])) for i, j in product(range(n), repeat=2)]


def exact_kurtosis(J: Any, H: Any, cov: Any, gamma: float, rule: str, u: Any) -> float:
    """From the fourth moments of e' = (I − Λ(H + J_batch − J)) e + ξ, which solve a linear equation."""
    dim, inverse = len(H), np.linalg.inv(H)
    maps = [(p, np.eye(dim) - gamma * inverse @ (H + Jb - J.mean(axis=0))) for p, Jb in drawn(J, rule, inverse)]
    carried = sum(p * X @ cov @ X.T for p, X in maps)
    M = cov - carried
    pair, letters = "ij,kl->ijkl", "ijkl"
    source = np.einsum(pair, M, M)
    total = sum(source.transpose([letters.index(c) for c in order]) for order in ("ijkl", "ikjl", "iklj"))
    mixed = np.einsum(pair, carried, M)
    for first in combinations(range(4), 2):
        rest = [k for k in range(4) if k not in first]
        total = total + mixed.transpose(np.argsort([*first, *rest]))
    power = sum(p * np.kron(np.kron(X, X), np.kron(X, X)) for p, X in maps)
    fourth = np.linalg.solve(np.eye(dim**4) - power, total.ravel()).reshape((dim,) * 4)
    value = np.einsum("ijkl,i,j,k,l->", fourth, u, u, u, u)
    return float(value / (u @ cov @ u) ** 2 - 3.0)


def dynamics(rule: str) -> eq.Dynamics:
    batches = "leverage" if rule == "leverage" else "independent"
    return eq.Dynamics(batch_size=B, replacement=rule != "without", batches=batches, gradient="control-variate")


def rows_with(size: float, rng: np.random.Generator, n: int = 7) -> tuple[Any, Any]:
    """Hessians of seven rows whose deviations from their mean are `size` times some, and a prior's."""
    root = rng.normal(size=(n, 2, 2))
    J = root @ root.transpose(0, 2, 1)
    J = J.mean(axis=0) + size * (J - J.mean(axis=0))
    return J, np.array([[0.9, 0.2], [0.2, 0.4]])


def predicted(J: Any, prior: Any, cov: Any, gamma: float, rule: str, u: Any, units: Any = 1.0) -> float:
    """The same by the library, in other units of the parameters."""
    scale = np.broadcast_to(units, 2)
    J, prior, cov, u = (
        J * np.outer(scale, scale),
        prior * np.outer(scale, scale),
        cov / np.outer(scale, scale),
        u * scale,
    )
    moments = eq.Moments.from_arrays(np.ones((len(J), 2)), J, prior * len(J))
    tails = tails_along(moments, cov, dynamics(rule).rule, np.array([u]))
    return float(tails.each(gamma, dynamics(rule).cumulants(moments.n))[0])


@pytest.mark.parametrize("rule", ["with", "without", "leverage"])
def test_every_term_of_the_tails_is_that_of_the_exact_fourth_moments(rule: str) -> None:
    cov, u = np.array([[1.3, -0.4], [-0.4, 0.6]]), np.array([0.7, -1.1])
    # deviations of the rows' curvatures, and with them of the leverages, are small: what is left out is smaller still
    for gamma in (0.4, 1.0):
        exact, law = {}, {}
        for size in (0.01, -0.01):
            J, prior = rows_with(size, np.random.default_rng(3))
            H = J.mean(axis=0) + prior
            exact[size] = exact_kurtosis(J, H, cov, gamma, rule, u)
            law[size] = predicted(J, prior, cov, gamma, rule, u, units=np.array([1e3, 0.02]))
        # the even part has the first term, at γ = 1 the third and fourth; the odd part the second
        even, odd = (np.array([v[0.01] + s * v[-0.01] for v in (exact, law)]) for s in (1, -1))
        np.testing.assert_allclose(even[1], even[0], rtol=2e-3)
        if gamma < 1.0:
            np.testing.assert_allclose(odd[1], odd[0], rtol=2e-3)


def heavy(family: str, n: int = 500, dim: int = 4) -> tuple[Any, Any, Any]:
    """Rows with heavy-tailed covariates, weights, frequencies and an offset, and a model with a prior."""
    rng = np.random.default_rng(5)
    x = np.column_stack([np.ones(n), rng.standard_t(4, size=(n, dim - 1))])
    eta = 0.3 * x @ np.where(np.arange(dim) % 2, -0.5, 0.5)
    y = {
        "gaussian": eta + rng.normal(size=n) * (1.0 + np.abs(x[:, 1])),
        "bernoulli": (rng.random(n) < 1.0 / (1.0 + np.exp(-eta))).astype(float),
        "poisson": rng.poisson(np.exp(np.clip(eta, -2.0, 2.0))).astype(float),
    }[family]
    model = eq.glm(family, prior_precision=3.0, **({"scale": 1.2} if family == "gaussian" else {}))
    data = eq.data.rows(
        x,
        y,
        weights=rng.gamma(4.0, 0.25, size=n),
        frequency=rng.integers(1, 4, size=n),
        offset=0.1 * rng.normal(size=n),
    )
    return model, data, eq.moments(model, data, eq.fit(model, data).params)


def written_out(model: Any, data: Any, moments: Any) -> Any:
    """The same moments from every observation's own score and Hessian."""
    problem = eq.bind(model, data)
    eta = data.x @ moments.params + data.offset
    loss = problem.at_constant(moments.constant).model.loss
    g, h = (data.weights * d(eta, data.y, loss.constants) for d in (loss.d1, loss.d2))
    times = data.frequency.astype(int)
    scores = np.repeat(g[:, None] * data.x, times, axis=0)
    hessians = np.repeat(h[:, None, None] * data.x[:, :, None] * data.x[:, None, :], times, axis=0)
    prior = (moments.hessian - moments.loss_hessian) * moments.n
    return eq.Moments.from_arrays(scores, hessians, prior, params=moments.params)


@pytest.mark.parametrize("batches", ["independent", "leverage"])
@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_tails_of_a_glm_are_those_of_its_rows_written_out(family: str, batches: str) -> None:
    model, data, moments = heavy(family)
    whole, moves = written_out(model, data, moments), eq.Dynamics(9, batches=batches, gradient="control-variate")
    cov = eq.sandwich(moments)
    units = np.array([1.0, 1e-3, 40.0, 7.0])
    moved = eq.Moments.from_arrays(
        np.ones((whole.n, 4)), whole.curvature.hessians * np.outer(units, units), moments.n * np.outer(units, units)
        * (moments.hessian - moments.loss_hessian),
    )  # fmt: skip
    found = tails_along(moments, cov, moves.rule, np.eye(4))
    for other in (
        tails_along(whole, cov, moves.rule, np.eye(4)),
        tails_along(moved, cov / np.outer(units, units), moves.rule, np.eye(4)),
    ):
        for name in ("along", "mixed", "spread", "mean", "square"):
            np.testing.assert_allclose(getattr(found, name), getattr(other, name), rtol=1e-9)
    # and by the sums of the formula, for one parameter
    J, H, u = whole.curvature.hessians, whole.hessian, np.eye(4)[2]
    p = np.full(whole.n, 1.0 / whole.n)
    if batches == "leverage":
        leverage = np.einsum("nij,ji->n", J, np.linalg.inv(H))
        p = 0.1 / whole.n + 0.9 * leverage / leverage.sum()
    v = np.linalg.solve(H, u)
    w = J @ v / (whole.n * p)[:, None] - J.mean(axis=0) @ v
    Q, s = np.einsum("n,ni,nj->ij", p, w, w), np.einsum("ni,ij,nj->n", w, cov, w)
    a, g, b, scale = 0.3, 0.7, 1.0 / 9.0, u @ cov @ u
    kappa = (
        12 * a**2 * g**2 * b * (u @ cov @ Q @ cov @ u)
        - 12 * a * g**3 * b**2 * np.sum(p * (w @ cov @ u) * s)
        + 6 * g**4 * b**2 * np.trace(Q @ cov @ Q @ cov)
        + 3 * g**4 * b**3 * (np.sum(p * s**2) - np.trace(Q @ cov) ** 2 - 2 * np.trace(Q @ cov @ Q @ cov))
    ) / (1.0 - a**4)
    assert found.each(g, b)[2] == pytest.approx(kappa / scale**2, rel=1e-9)
    np.testing.assert_allclose(
        np.sum(p * s), u @ np.linalg.solve(H, moments.curvature_noise(cov, moves)) @ v, rtol=1e-9
    )


@pytest.mark.parametrize("batches", ["independent", "leverage"])
@pytest.mark.parametrize("family", ["bernoulli", "poisson"])
def test_hardly_any_direction_has_heavier_tails_than_the_worst(family: str, batches: str) -> None:
    _, _, moments = heavy(family)
    moves = eq.Dynamics(60, batches=batches, gradient="control-variate")
    cov = eq.sandwich(moments)
    worst = moments.tails(cov, moves)
    others = tails_along(
        moments,
        cov,
        moves.rule,
        np.random.default_rng(1).normal(size=(3000, 4)) @ np.linalg.inv(np.linalg.cholesky(cov)),
    )
    for gamma in (1.0, 0.3, 0.02):
        assert worst.kurtosis(gamma, 1.0 / 60) >= 0.93 * others.kurtosis(gamma, 1.0 / 60)


def test_the_law_has_the_tails_of_its_chain_and_none_where_they_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, moments = heavy("gaussian")
    moves = eq.Dynamics(150, gradient="control-variate")
    tuning = eq.tune(moments, "sandwich", moves, noise="completed")
    law = tuning.predicted
    gamma = law.newton
    np.testing.assert_allclose(gamma * np.eye(4), law.step @ law.hessian, atol=1e-9)
    assert law.worst_kurtosis == pytest.approx(moments.tails("sandwich", moves).kurtosis(gamma, 1.0 / 150), rel=1e-9)
    assert law.worst_kurtosis >= 0.999 * law.kurtosis.max() > 0.0
    # computed once
    monkeypatch.setattr(type(moments.curvature), "images", None)
    assert law.worst_kurtosis > 0.0
    assert law.kurtosis.shape == (4,)
    plain = eq.tune(moments, "sandwich", eq.Dynamics(100)).predicted
    still = eq.tune(
        moments, "posterior", eq.Dynamics(100, momentum=0.5, gradient="control-variate"), noise="completed"
    ).predicted
    short = eq.tune(moments, "posterior", moves, noise="completed", structure="diagonal").predicted
    for other in (plain, still, short):
        assert np.isnan(other.worst_kurtosis)
        assert np.isnan(other.kurtosis).all()


def many(outlier: float) -> eq.Moments:
    """Moments of a squared loss of 70,000 rows of weights 0.5 and 1.5; one that no sample of 65,536 has may lie far out."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(70_000, 3)) * [1.0, 30.0, 0.2]
    missing = np.setdiff1d(np.arange(len(x)), chosen_rows(len(x), 1 << 16, 0))[0]
    x[missing] *= outlier
    data = eq.data.rows(x, x @ [0.2, 0.01, -1.0] + rng.normal(size=len(x)), weights=rng.choice([0.5, 1.5], len(x)))
    model = eq.glm("gaussian")
    return eq.moments(model, data, eq.fit(model, data))


@pytest.mark.parametrize("batches", ["independent", "leverage"])
def test_a_sample_stands_for_many_rows_or_rows_that_lie_far_out_with_some_others_do(batches: str) -> None:
    chain = eq.Dynamics(1, gradient="control-variate", batches=batches)
    usual, odd = many(1.0), many(300.0)
    for moments, enough in ((usual, True), (odd, False)):
        cov, operator = eq.sandwich(moments), moments.drawn(chain.rule)
        rows = operator.representative(1 << 16, cov).problem.source
        assert (rows.height == 1 << 16 and rows.frequency is None) == enough
        if not enough:
            lies = np.abs(rows.x[:, 1]).argmax()
            assert abs(rows.x[lies, 1]) > 1000.0
            assert rows.frequency[lies] == 1.0
            assert rows.height < 50_000
        assert operator.representative(70_000, cov) is operator
        found = worst_tails(moments, cov, chain.rule, moments.curvature_noise(cov, chain))
        whole = tails_along(moments, cov, chain.rule, found.directions)
        for gamma in (1.0, 0.2):
            # the sample has all but a sixteenth of the rows: powers of normal variables then agree within a few per cent, and
            # the one that lies far out has most of what there is
            np.testing.assert_allclose(found.each(gamma, 0.05), whole.each(gamma, 0.05), rtol=0.05)


@pytest.mark.parametrize("drawn_alike", [True, False])
def test_the_search_needs_no_images_written_out(drawn_alike: bool) -> None:
    rng = np.random.default_rng(6)
    axes, centre, back = rng.normal(size=(2, 4)), rng.normal(size=(4, 4)), rng.normal(size=(4, 4))
    x, scale, counts = rng.normal(size=(9, 4)), rng.normal(size=(4, 9)), rng.integers(1, 4, 9).astype(float)
    emphasis = None if drawn_alike else rng.uniform(0.5, 2.0, 9)
    climb = _ClimbPass(axes, centre, back)
    written = climb(scale[:, :, None] * x, emphasis, counts)
    for made, wanted in zip(climb.rank_one(scale, x, emphasis, counts), written, strict=True):
        np.testing.assert_allclose(made, wanted, rtol=1e-12)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_triangular_product_leaves_its_factor_alone(order: Any) -> None:
    rng = np.random.default_rng(7)
    x, root = np.asarray(rng.normal(size=(11, 5)), order=order), np.tril(rng.normal(size=(5, 5)))
    before = x.copy()
    np.testing.assert_allclose(times_lower(x, root), before @ root, rtol=1e-13, atol=1e-14)
    assert np.array_equal(x, before)


def test_cumulants_of_a_batch_by_enumeration() -> None:
    rng = np.random.default_rng(2)
    values = rng.gamma(0.7, size=9)
    values -= values.mean()
    m2, m3, m4 = (np.mean(values**k) for k in (2, 3, 4))
    for size in (1, 2, 4, 8, 9):
        means = np.array([np.mean(values[list(s)]) for s in combinations(range(9), size)])
        wanted = [np.mean(means**2), np.mean(means**3), np.mean(means**4) - 3.0 * np.mean(means**2) ** 2]
        k = BatchCumulants.without_replacement(size, 9)
        np.testing.assert_allclose([k.second * m2, k.third * m3, k.fourth * m4 + k.pairs * m2**2], wanted, atol=1e-14)
    means = np.array([np.mean(values[list(s)]) for s in product(range(9), repeat=3)])
    k = BatchCumulants.with_replacement(1.0 / 3.0)
    wanted = [np.mean(means**2), np.mean(means**3), np.mean(means**4) - 3.0 * np.mean(means**2) ** 2]
    np.testing.assert_allclose([k.second * m2, k.third * m3, k.fourth * m4 + k.pairs * m2**2], wanted, atol=1e-14)


def test_the_smallest_batch_is_found() -> None:
    for wanted in (1, 2, 7, 499, 500, 1000):
        assert smallest_batch(lambda size, w=wanted: size >= w, 1, 1000) == wanted
        assert smallest_batch(lambda size, w=wanted: size >= w, 500, 1000) == max(500, wanted)
    assert smallest_batch(lambda size: False, 3, 1000) is None


@pytest.mark.parametrize("replacement", [True, False])
def test_tuning_warns_of_heavy_tails_and_names_the_batch_that_has_none(replacement: bool) -> None:
    _, _, moments = heavy("poisson")
    moves = eq.Dynamics(12, replacement=replacement, gradient="control-variate")
    with pytest.warns(eq.EquipoiseWarning, match=r"batch_size=\d+ or more, or batches='leverage'") as caught:
        eq.tune(moments, "sandwich", moves, noise="completed")
    size = int(re.findall(r"batch_size=(\d+)", str(caught[0].message))[0])
    assert (
        eq.tune(moments, "sandwich", replace(moves, batch_size=size), noise="completed").predicted.worst_kurtosis <= 0.3
    )
    with pytest.warns(eq.EquipoiseWarning, match=f"batch_size={size} or more"):
        eq.tune(moments, "sandwich", replace(moves, batch_size=size - 1), noise="completed")
    # a fidelity, or a step of your own, is your own choice
    eq.tune(moments, "posterior", moves, noise="completed", fidelity=0.9)
    eq.tune(moments, "posterior", moves, noise="completed", step=0.01 * np.linalg.inv(moments.hessian))


def test_tails_of_a_plan_are_those_of_its_law_without_another_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, moments = heavy("poisson")
    moves = eq.Dynamics(200, batches="leverage", gradient="control-variate")
    tails = moments.tails("sandwich", moves)
    monkeypatch.setattr(type(moments.curvature), "images", None)
    law = eq.tune(moments, "sandwich", moves, noise="completed").predicted
    assert law.worst_kurtosis == tails.kurtosis(law.newton, 1.0 / 200)


@pytest.mark.parametrize(("rule", "gamma"), [("with", 1.0), ("without", 0.5), ("leverage", 1.0)])
def test_simulated_chains_have_the_predicted_tails(rule: str, gamma: float) -> None:
    """Chains of squared loss with heavy covariates: the closure is known to be up to a fifth low."""
    rng = np.random.default_rng(11)
    n, dim, B = 400, 3, {"with": 36, "without": 10, "leverage": 6}[rule]
    x = rng.standard_t(5, size=(n, dim))
    J = x[:, :, None] * x[:, None, :]
    moments = eq.Moments.from_arrays(np.ones((n, dim)), J)
    batches = "leverage" if rule == "leverage" else "independent"
    moves = eq.Dynamics(B, replacement=rule != "without", batches=batches, gradient="control-variate")
    H, cov = moments.hessian, eq.posterior(moments)
    law = eq.tune(moments, cov, moves, noise="completed", step=gamma * np.linalg.inv(H)).predicted
    p = np.full(n, 1.0 / n)
    if rule == "leverage":
        leverage = np.einsum("nij,ji->n", J, np.linalg.inv(H))
        p = 0.1 / n + 0.9 * leverage / leverage.sum()
    chains, steps, keep = 4000, 60, 40
    e = rng.normal(size=(chains, dim)) @ np.linalg.cholesky(cov).T
    root = np.linalg.cholesky(law.noise)
    powers = np.zeros((2, dim))
    for t in range(steps):
        if rule == "without":
            rows = np.argpartition(rng.random((chains, n)), B, axis=1)[:, :B]
        else:
            rows = rng.choice(n, size=(chains, B), p=p)
        X = x[rows]
        slope = np.einsum("cbd,cb->cd", X, np.einsum("cbd,cd->cb", X, e) / (n * p[rows])) / B
        e = e - slope @ law.step + rng.normal(size=e.shape) @ root.T
        if t >= steps - keep:
            powers += np.stack([np.mean(e**2, axis=0), np.mean(e**4, axis=0)]) / keep
    observed = powers[1] / powers[0] ** 2 - 3.0
    # one draw's fourth power has a standard error of √96; a chain's draws are a = 1−γ from one to the next
    error = np.sqrt(96.0 / (chains * keep) * (2.0 - gamma) / gamma)
    np.testing.assert_allclose(observed, law.kurtosis, atol=4.0 * error + 0.25 * law.kurtosis.max())
    assert law.kurtosis.max() > 3.0 * error
