"""Moments against loops over the rows with numeric derivatives of SciPy's likelihoods."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

import equipoise as eq
from equipoise.families.family import FAMILIES
from tests.contracts.test_families import CONSTANTS, minus_log_likelihood

families = pytest.mark.parametrize("family", list(FAMILIES))
N, D = 40, 3
# `eq.moments` is the function
MODULE = import_module("equipoise.linalg")


def along(function, point, h):
    """Fourth-order central differences along every coordinate."""
    columns = []
    for e in np.eye(len(point)):
        f = [np.asarray(function(point + k * h * e)) for k in (-2, -1, 1, 2)]
        columns.append((f[0] - 8.0 * f[1] + 8.0 * f[2] - f[3]) / (12.0 * h))
    return np.stack(columns, axis=-1)


@pytest.fixture(scope="module")
def brute(make_data):
    """Scores and Hessians of every row, numerically, for each family, at a point that is not the minimiser."""
    cache = {}

    def make(family):
        if family not in cache:
            rng = np.random.default_rng(2)
            x, y = make_data(family, n=N, dim=D, seed=1)
            weights, offset, theta = rng.uniform(0.3, 2.0, N), 0.3 * rng.normal(size=N), np.array([0.3, -0.2, 0.25])

            def losses(t):
                return weights * minus_log_likelihood(family, x @ t + offset, y, *CONSTANTS[family])

            scores = along(losses, theta, 1e-3)
            hessians = along(lambda t: along(losses, t, 1e-2), theta, 1e-2)
            cache[family] = eq.data.rows(x, y, weights=weights, offset=offset), theta, scores, hessians
        return cache[family]

    return make


@families
def test_moments_are_those_of_the_rows(family, brute, make_model) -> None:
    data, theta, g, J = brute(family)
    precision = np.diag([1.0, 2.0, 3.0]) + 0.5
    m = eq.moments(make_model(family, prior_precision=precision, prior_mean=0.4), data, theta)
    # 1e-6: Hessians are nested fourth-order differences with h = 1e-2
    close = {"rtol": 1e-6, "atol": 1e-6}
    np.testing.assert_allclose(m.mean_score, g.mean(axis=0), **close)
    np.testing.assert_allclose(m.loss_hessian, J.mean(axis=0), **close)
    np.testing.assert_allclose(m.hessian, J.mean(axis=0) + precision / N, **close)
    np.testing.assert_allclose(m.score_cov, np.cov(g, rowvar=False, bias=True), **close)
    S = np.array([[2.0, 0.3, -0.1], [0.3, 1.0, 0.2], [-0.1, 0.2, 0.5]])
    for A in (S, S - np.eye(D)):  # a covariance, and an indefinite matrix
        expected = sum(j @ A @ j for j in J) / N - J.mean(axis=0) @ A @ J.mean(axis=0)
        np.testing.assert_allclose(m.curvature_noise(A), expected, **close)
    pairs = zip(J - J.mean(axis=0), g - g.mean(axis=0), strict=True)
    np.testing.assert_allclose(m.score_curvature(S), np.mean([j @ (S * (s @ S)) for j, s in pairs], axis=0), **close)
    assert (m.n, m.dim, m.names) == (N, D, data.names)
    np.testing.assert_array_equal(m.params, theta)


@pytest.mark.parametrize("replacement", [True, False])
def test_gradient_noise_is_the_covariance_of_a_minibatch(replacement, brute, make_model) -> None:
    data, theta, _, _ = brute("poisson")
    m = eq.moments(make_model("poisson"), data, theta)
    S, size = 0.02 * np.eye(D), 7
    b = 1.0 / size if replacement else (N - size) / (size * (N - 1))
    found = m.gradient_noise(S, eq.Dynamics(batch_size=size, replacement=replacement))
    np.testing.assert_allclose(found, b * (m.score_cov + m.curvature_noise(S)), rtol=1e-13)


@families
@pytest.mark.parametrize("rows_per_block", [1, 7, 40])
def test_blocks_do_not_change_the_sums(family, rows_per_block, brute, make_model, monkeypatch) -> None:
    data, theta, _, _ = brute(family)
    model, S = make_model(family), np.diag([1.0, 2.0, 3.0]) + 0.2

    def everything():
        m = eq.moments(model, data, theta)
        return (
            m.hessian,
            m.score_cov,
            m.curvature_noise(S),
            m.third_derivative(S),
            model.bind(data).derivatives(theta, 2).hessian,
        )

    whole = everything()
    monkeypatch.setattr(MODULE, "_BLOCK_ELEMENTS", D * rows_per_block)
    assert len(list(MODULE.blocks(N, D))) == -(-N // rows_per_block)
    for one, other in zip(whole, everything(), strict=True):
        # sums of 40 terms in another order
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)


def test_blocks_of_dense_hessians(monkeypatch) -> None:
    rng = np.random.default_rng(0)
    g, J = rng.normal(size=(30, 3)), rng.normal(size=(30, 3, 3))
    J = J + J.transpose(0, 2, 1)
    whole = eq.Moments.from_arrays(g, J).curvature_noise(np.eye(3))
    np.testing.assert_allclose(whole, np.mean([j @ j for j in J], axis=0) - J.mean(0) @ J.mean(0), atol=1e-12)
    monkeypatch.setattr(MODULE, "_BLOCK_ELEMENTS", 20)
    np.testing.assert_allclose(eq.Moments.from_arrays(g, J).curvature_noise(np.eye(3)), whole, rtol=1e-12)


@families
def test_from_arrays_equals_the_glm_route(family, brute, make_model) -> None:
    data, theta, _, _ = brute(family)
    precision = np.diag([1.0, 2.0, 3.0]) + 0.5
    model = make_model(family, prior_precision=precision)
    direct, loss, eta = eq.moments(model, data, theta), model.family.loss, data.x @ theta + data.offset
    p = np.array([] if model.constant is None else [model.constant])
    g = (data.weights * loss.d1(eta, data.y, p))[:, None] * data.x
    J = (data.weights * loss.d2(eta, data.y, p))[:, None, None] * data.x[:, :, None] * data.x[:, None, :]
    t = data.weights * loss.d3(eta, data.y, p)
    thirds = np.einsum("n,ni,nj,nk->ijk", t, data.x, data.x, data.x) / N
    made = eq.Moments.from_arrays(g, J, precision, thirds=thirds, params=theta)
    S = np.diag([1.0, 2.0, 3.0]) + 0.2
    for name in ("hessian", "loss_hessian", "score_cov", "mean_score", "params"):
        np.testing.assert_allclose(getattr(made, name), getattr(direct, name), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(made.curvature_noise(S), direct.curvature_noise(S), rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(made.third_derivative(S), direct.third_derivative(S), rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(made.score_curvature(S), direct.score_curvature(S), rtol=1e-11, atol=1e-14)
    # and so the theory cannot tell them apart
    dynamics = eq.Dynamics(batch_size=10)
    np.testing.assert_allclose(
        eq.tune(made, "sandwich", dynamics).step, eq.tune(direct, "sandwich", dynamics).step, rtol=1e-9, atol=1e-15
    )


def test_from_arrays_without_third_derivatives_says_unknown() -> None:
    x = np.random.default_rng(0).normal(size=(20, 2))
    m = eq.Moments.from_arrays(x, x[:, :, None] * x[:, None, :], n=1000)
    assert np.isnan(m.third_derivative(np.eye(2))).all()
    assert m.n == 1000
    np.testing.assert_array_equal(m.params, 0.0)


def test_tuning_rows_carry_the_full_number_of_rows(make_data) -> None:
    data = eq.data.rows(*make_data("poisson", n=400, dim=3))
    model = eq.glm("poisson", prior_precision=50.0)
    theta = eq.fit(model, data).params
    part = eq.moments(model, data, theta, tuning_rows=90, seed=4)
    alone = eq.moments(eq.glm("poisson"), data.sample(90, seed=4), theta)
    assert part.n == 400
    np.testing.assert_allclose(part.score_cov, alone.score_cov, rtol=1e-13)
    np.testing.assert_allclose(part.loss_hessian, alone.loss_hessian, rtol=1e-13)
    # the prior counts by the full number
    np.testing.assert_allclose(part.hessian, alone.loss_hessian + 50.0 * np.eye(3) / 400, rtol=1e-13)
    np.testing.assert_allclose(eq.posterior(part), np.linalg.inv(part.hessian) / 400, rtol=1e-10)
    # a batch may be larger than the tuning rows, as long as the data hold it
    assert part.gradient_noise(np.eye(3), eq.Dynamics(200)).shape == (3, 3)


def test_noise_ratio_of_a_linear_model_is_residual_over_working_variance(make_data) -> None:
    x, y = make_data("gaussian", n=300, dim=3)
    theta = np.linalg.lstsq(x, y, rcond=None)[0]
    residual2 = np.mean((y - x @ theta) ** 2)
    assert eq.moments(eq.glm("gaussian", scale=1.3), (x, y), theta).noise_ratio == pytest.approx(residual2 / 1.69)
    # with the scale estimated from N − D degrees of freedom
    assert eq.moments(eq.glm("gaussian"), (x, y), theta).noise_ratio == pytest.approx((300 - 3) / 300)
