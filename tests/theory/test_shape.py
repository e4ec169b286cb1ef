"""Predicted skewness against quadrature, enumeration, dense tensor equations and simulated chains (theory §14)."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.theory.completion import fidelity_of
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


def problem(family: str, n: int = 160, dim: int = 3) -> tuple[Any, Any, Any]:
    """A small regression with weights, frequencies, an offset and a prior."""
    rng = np.random.default_rng(7)
    x = np.column_stack([np.ones(n), rng.normal(size=(n, dim - 1))])
    eta = x @ np.array([0.6, -0.5, 0.4])[:dim]
    if family == "gaussian":
        y, model = eta + 2.0 * rng.gamma(0.5, size=n), eq.glm("gaussian", scale=1.3, prior_precision=4.0)
    elif family == "bernoulli":
        y, model = (rng.random(n) < 1.0 / (1.0 + np.exp(-eta))).astype(float), eq.glm("bernoulli", prior_precision=4.0)
    else:
        y, model = rng.poisson(np.exp(eta)).astype(float), eq.glm("poisson", prior_precision=4.0)
    data = eq.data.rows(
        x, y, weights=rng.gamma(5.0, 0.2, size=n), frequency=rng.integers(1, 3, size=n), offset=0.1 * rng.normal(size=n)
    )
    return model, data, eq.moments(model, data, eq.fit(model, data).params)


def derivatives(model: Any, data: Any, moments: Any) -> tuple[Any, Any, Any]:
    """Scores, Hessians and third derivatives of every observation."""
    loss = eq.bind(model, data).at_constant(moments.constant).model.loss
    eta = data.x @ moments.params + data.offset
    g, h, t = (np.repeat(data.weights * d(eta, data.y, loss.constants), data.frequency.astype(int)) for d in
               (loss.d1, loss.d2, loss.d3))  # fmt: skip
    x = np.repeat(data.x, data.frequency.astype(int), axis=0)
    return g[:, None] * x, np.einsum("n,ni,nj->nij", h, x, x), np.einsum("n,ni,nj,nk->nijk", t, x, x, x)


def dense_skewness(law: Any, g: Any, J: Any, T: Any) -> Any:
    """The general equation of plain gradients, solved as D³ linear equations in the parameters' own coordinates."""
    n, H, cov, step, dim = len(g), law.hessian, law.cov, law.step, len(law.cov)
    e = np.ones(n)
    if law.dynamics.batches == "leverage":
        leverage = np.einsum("nij,ji->n", J, np.linalg.inv(H))
        e = 1.0 / (0.1 + 0.9 * leverage / leverage.mean())
    A, p = np.eye(dim) - step @ H, 1.0 / (n * e)
    w = e[:, None] * g - g.mean(axis=0)
    slope = np.einsum("n,nam,nb->mab", p, e[:, None, None] * J, w)
    B = law.dynamics.batch_size
    b, b3 = 1.0 / B, 1.0 / B**2
    if not law.dynamics.replacement:
        b, b3 = (n - B) / (B * (n - 1)), (n - B) * (n - 2 * B) / (B**2 * (n - 1) * (n - 2))
    dC = b * (slope + slope.transpose(0, 2, 1))
    S3 = np.einsum("n,ni,nj,nk->ijk", p, w, w, w)
    AS, third = A @ cov, T.mean(axis=0)
    drift = np.einsum("ia,abc,jb,kc->ijk", step, third, AS, AS)
    noise = np.einsum("im,mab,ja,kb->ijk", AS, dC, step, step)
    source = -b3 * np.einsum("abc,ia,jb,kc->ijk", S3, step, step, step)
    for X, sign in ((drift, -1.0), (noise, 1.0)):
        source = source + sign * (X + X.transpose(1, 0, 2) + X.transpose(1, 2, 0))
    kappa = np.linalg.solve(np.eye(dim**3) - np.kron(A, np.kron(A, A)), source.ravel()).reshape((dim,) * 3)
    return np.einsum("iii->i", kappa) / np.diag(cov) ** 1.5


@pytest.mark.parametrize("rule", ["with", "without", "leverage"])
@pytest.mark.parametrize("family", ["gaussian", "bernoulli", "poisson"])
def test_plain_chains_have_the_skewness_of_the_dense_equation(family: str, rule: str) -> None:
    model, data, moments = problem(family)
    batches = "leverage" if rule == "leverage" else "independent"
    moves = eq.Dynamics(30, replacement=rule != "without", batches=batches)
    rows = derivatives(model, data, moments)
    for law in (
        eq.tune(moments, "sandwich", moves).predicted,
        eq.stationary(moments, [0.1, 0.3, 0.2], eq.Dynamics(7, inverse_temperature=200.0, batches=batches)),
    ):
        wanted = dense_skewness(law, *rows)
        np.testing.assert_allclose(law.skewness, wanted, rtol=1e-8)
        assert np.abs(wanted).max() > 0.01


def test_skewness_of_large_batches_is_the_fidelity_times_the_posteriors() -> None:
    model, data, moments = problem("poisson")
    cov, third = eq.posterior(moments), derivatives(model, data, moments)[2].mean(axis=0)
    own = -moments.n * np.einsum("abc,ia,ib,ic->i", third, cov, cov, cov) / np.diag(cov) ** 1.5
    np.testing.assert_allclose(moments.posterior_skewness(), own, rtol=1e-10)
    for gamma in (0.05, 0.4, 1.0):
        tuning = eq.tune(
            moments, "posterior", eq.Dynamics(moments.n, replacement=False, gradient="control-variate"), noise="completed",
            step=gamma * np.linalg.inv(moments.hessian),
        )  # fmt: skip
        np.testing.assert_allclose(tuning.predicted.skewness, fidelity_of(gamma) * own, atol=1e-12)


def test_small_batches_correct_the_leading_order_by_the_whole_equation() -> None:
    """The same through the step as a matrix that is not quite a multiple of the inverse Hessian, and in other units."""
    _, data, moments = problem("poisson")
    moves = eq.Dynamics(6, batches="leverage", gradient="control-variate")
    step = 0.6 * np.linalg.inv(moments.hessian)
    law = eq.tune(moments, "posterior", moves, noise="completed", step=step).predicted
    bent = eq.tune(moments, "posterior", moves, noise="completed", step=step * (1.0 + 1e-6 * np.eye(3))).predicted
    assert law.newton is not None
    assert bent.newton is None
    np.testing.assert_allclose(law.skewness, bent.skewness, rtol=1e-4)
    leading = fidelity_of(0.6) * moments.posterior_skewness()
    assert np.abs(law.skewness - leading).max() > 0.1 * np.abs(leading).max()
    units = np.array([1.0, 1e4, 1e-3])
    moved = eq.data.rows(data.x * units, data.y, weights=data.weights, frequency=data.frequency, offset=data.offset)
    other = eq.glm("poisson", prior_precision=4.0 * units**2)
    there = eq.moments(other, moved, moments.params / units)
    again = eq.tune(there, "posterior", moves, noise="completed", step=step / np.outer(units, units)).predicted
    np.testing.assert_allclose(again.skewness, law.skewness, rtol=1e-7)


def test_a_loss_of_your_own_has_the_skewness_and_the_tails_of_the_family_it_is() -> None:
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(300), rng.normal(size=(300, 2))])
    y = rng.poisson(np.exp(0.3 + 0.4 * x[:, 1])).astype(float)
    glm = eq.glm("poisson", prior_precision=2.0)
    own = eq.Model(lambda t, row: jnp.exp(row["x"] @ t) - row["y"] * (row["x"] @ t), np.zeros(3), prior_precision=2.0)
    theta = eq.fit(glm, (x, y)).params
    both = [eq.moments(model, data, theta) for model, data in ((glm, (x, y)), (own, {"x": x, "y": y}))]
    for batches in ("independent", "leverage"):
        small = eq.Dynamics(30, batches=batches, gradient="control-variate")
        found = [
            eq.tune(m, "posterior", small, noise="completed", step=0.5 * np.linalg.inv(m.hessian)).predicted
            for m in both
        ]
        np.testing.assert_allclose(found[1].skewness, found[0].skewness, rtol=1e-6)
        known, same = (m.tails("sandwich", small) for m in both)
        for gamma in (1.0, 0.2):
            assert same.kurtosis(gamma, 0.02) == pytest.approx(known.kurtosis(gamma, 0.02), rel=1e-6)
        found = [eq.tune(m, "sandwich", eq.Dynamics(30, batches=batches)).predicted for m in both]
        np.testing.assert_allclose(found[1].skewness, found[0].skewness, rtol=1e-6)


def test_a_regularizer_bends_the_drift_and_not_the_rows() -> None:
    rng = np.random.default_rng(1)
    y = rng.normal(size=400) + 0.3
    # ℓ = ½(θ−y)² w, R = 40 θ³ + 100 θ²: T = 240/N, every T_n zero
    w = rng.gamma(2.0, 0.5, size=400)
    model = eq.Model(
        lambda t, row: 0.5 * row["w"] * (t - row["y"]) ** 2,
        np.zeros(()),
        regularizer=lambda t: 40.0 * t**3 + 100.0 * t**2,
    )
    data = {"y": y, "w": w}
    moments = eq.moments(model, data, eq.fit(model, data).params)
    moves = eq.Dynamics(1, gradient="control-variate")
    H, S, T = float(moments.hessian[0, 0]), float(eq.posterior(moments)[0, 0]), 240.0 / 400
    assert moments.posterior_skewness()[0] == pytest.approx(-400 * T * S**1.5, rel=1e-8)
    gamma = 0.7
    law = eq.tune(moments, "posterior", moves, noise="completed", step=gamma / H).predicted
    # the equation in one dimension, with P_n = (w_n − w̄)/H and no R_n
    a, P, b = 1.0 - gamma, (w - w.mean()) / H, 1.0
    R = 0.5 * T / H
    mu, P2, P3 = -R * S, np.mean(P**2), np.mean(P**3)
    source = (
        -6.0 * gamma * a**2 * R * S**2 + 3.0 * gamma**2 * a * b * P2 * 2.0 * S * mu - 6.0 * gamma**3 * b * R * S**2 * P2
        - gamma**3 * b**2 * P3 * 3.0 * mu * S
    )  # fmt: skip
    kept = a**3 + 3.0 * gamma**2 * a * b * P2 - gamma**3 * b**2 * P3
    assert law.skewness[0] == pytest.approx(source / (1.0 - kept) / S**1.5, rel=1e-7)


def test_skewness_is_unknown_where_it_is_not_derived() -> None:
    _, _, moments = problem("bernoulli")
    step = 0.5 * np.linalg.inv(moments.hessian)
    cv = {"gradient": "control-variate"}
    assert np.isnan(
        eq.tune(moments, "posterior", eq.Dynamics(80, 0.5, **cv), noise="completed").predicted.skewness
    ).all()
    assert np.isnan(eq.tune(moments, "sandwich", eq.Dynamics(40), "ct").predicted.skewness).all()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 2))
    for moves in (eq.Dynamics(40, **cv), eq.Dynamics(40)):
        bare = eq.Moments.from_arrays(x, x[:, :, None] * x[:, None, :])
        law = eq.tune(bare, "posterior", moves, noise="completed", step=0.05 * np.linalg.inv(bare.hessian)).predicted
        assert np.isnan(law.skewness).all()
        known = eq.Moments.from_arrays(x, x[:, :, None] * x[:, None, :], thirds=np.ones((2, 2, 2)))
        law = eq.tune(known, "posterior", moves, noise="completed", step=0.05 * np.linalg.inv(bare.hessian)).predicted
        assert np.isfinite(law.skewness).all()
    assert np.isfinite(
        eq.tune(moments, "posterior", eq.Dynamics(80, **cv), noise="completed", step=step).predicted.skewness
    ).all()


@pytest.mark.parametrize(("gamma", "batches"), [(0.3, "independent"), (1.0, "independent"), (1.0, "leverage")])
def test_simulated_chains_have_the_predicted_skewness(gamma: float, batches: str) -> None:
    """Chains of the cubic model at a fifth of the posterior's spread, each beside its mirror image.

    With T and −T on the same batches and noise, half the difference of the third cumulants has hardly any noise. What is
    left out, the fourth cumulant, is of the relative size of bρ squared, and of the excess kurtosis.
    """
    rng = np.random.default_rng(0)
    n, dim = 150, 3
    x = np.column_stack([np.ones(n), rng.normal(size=(n, dim - 1))])
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-x @ np.array([0.5, 0.6, -0.4])))).astype(float)
    model = eq.glm("bernoulli")
    moments = eq.moments(model, (x, y), eq.fit(model, (x, y)))
    odds = 1.0 / (1.0 + np.exp(-x @ moments.params))
    h = odds * (1.0 - odds)
    t = h * (1.0 - 2.0 * odds)
    inverse = np.linalg.inv(moments.hessian)
    p = np.full(n, 1.0 / n)
    if batches == "leverage":
        leverage = h * np.einsum("ni,ij,nj->n", x, inverse, x)
        p = 0.1 / n + 0.9 * leverage / leverage.sum()
    # so that bρ is about 0.15 and 0.3
    B = 14 if batches == "leverage" else round(moments.curvature_number("posterior") / (0.3 if gamma < 1.0 else 0.15))
    cov = eq.posterior(moments) / 25.0
    law = eq.tune(
        moments,
        cov,
        eq.Dynamics(B, batches=batches, gradient="control-variate"),
        noise="completed",
        step=gamma * inverse,
    ).predicted
    chains, burn, keep = 6000, 5 if gamma == 1.0 else 20, 40
    start, root = rng.normal(size=(chains, dim)) @ np.linalg.cholesky(cov).T, np.linalg.cholesky(law.noise)
    mirrored, powers = [start, start.copy()], np.zeros((2, 3, dim))
    for step in range(burn + keep):
        rows = np.minimum(np.searchsorted(np.cumsum(p), rng.random((chains, B))), n - 1)
        X, noise, weight = x[rows], rng.normal(size=(chains, dim)) @ root.T, 1.0 / (n * p[rows])
        for k, sign in enumerate((1.0, -1.0)):
            u = np.einsum("cbd,cd->cb", X, mirrored[k])
            pull = np.einsum("cbd,cb->cd", X, weight * (h[rows] * u + 0.5 * sign * t[rows] * u**2)) / B
            mirrored[k] = mirrored[k] - pull @ law.step + noise
            if step >= burn:
                powers[k] += np.stack([np.mean(mirrored[k] ** q, axis=0) for q in (1, 2, 3)]) / keep
    first, second, third = powers.transpose(1, 0, 2)
    cumulant = third - 3.0 * first * second + 2.0 * first**3
    observed = 0.5 * (cumulant[0] - cumulant[1]) / np.diag(cov) ** 1.5
    np.testing.assert_allclose(observed, law.skewness, atol=0.12 * np.abs(law.skewness).max())
    leading = fidelity_of(gamma) * moments.posterior_skewness() / 5.0
    assert np.abs(leading - observed).max() > 0.15 * np.abs(observed).max()


def test_what_was_computed_is_kept() -> None:
    _, _, moments = problem("poisson")
    law = eq.tune(
        moments, "posterior", eq.Dynamics(60, gradient="control-variate"), noise="completed",
        step=0.2 * np.linalg.inv(moments.hessian),
    ).predicted  # fmt: skip
    assert not law.results
    computed = (law.skewness, law.worst_kurtosis)
    sent = pickle.loads(pickle.dumps(law))
    np.testing.assert_array_equal(sent.skewness, computed[0])
    assert sent.worst_kurtosis == computed[1]
    with pytest.raises(eq.InvalidInput, match="attached"):
        _ = sent.kurtosis
