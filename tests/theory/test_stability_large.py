"""The eigenvalue behind stability, where the problem is too large for a dense matrix."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse.linalg import LinearOperator, eigsh

import equipoise as eq
from equipoise.linalg import congruent
from equipoise.models import linear_curvature
from equipoise.theory import stability


@pytest.mark.parametrize("gap", [0.5, 1e-2, 1e-4, 0.0])
@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_the_largest_eigenvalue_is_that_of_an_independent_solver(gap, scale) -> None:
    rng = np.random.default_rng(3)
    size = 400
    values = np.sort(rng.uniform(-0.8, 1.0 - gap, size))
    values[-1], values[-2] = 1.0, 1.0 - gap
    axes = np.linalg.qr(rng.normal(size=(size, size)))[0]
    matrix = scale * (axes * values) @ axes.T
    top, vector = stability._top(lambda v: matrix @ v, rng.normal(size=size))
    operator = LinearOperator((size, size), matvec=lambda v: matrix @ v, dtype=np.float64)
    expected = eigsh(operator, k=1, which="LA", tol=1e-13)[0][0]
    assert top == pytest.approx(expected, rel=1e-10)
    if gap >= 1e-2:
        np.testing.assert_allclose(matrix @ vector, top * vector, atol=1e-4 * scale)


@pytest.mark.parametrize("crowd", [1e-3, 1e-4])
def test_a_crowded_largest_eigenvalue_is_found_to_its_error(crowd) -> None:
    """Forty eigenvalues within a few parts in a thousand or less: the next one must not be forgotten at a restart."""
    rng = np.random.default_rng(5)
    values = np.r_[rng.uniform(-0.8, 0.9, 760), 1.0 - crowd * np.arange(40)]
    axes = np.linalg.qr(rng.normal(size=(800, 800)))[0]
    matrix = (axes * values) @ axes.T
    top, _ = stability._top(lambda v: matrix @ v, rng.normal(size=800), 1e-6)
    assert top == pytest.approx(1.0, rel=1e-6)


def _heavy(prior, **extra):
    """Overdispersed counts: rows of leverage close to one, and a crowd of eigenvalues of the curvature noise."""
    rng = np.random.default_rng(11)
    n, dim = 150, 30
    x = rng.standard_t(4, size=(n, dim)) / np.sqrt(dim)
    theta = 2.0 * rng.normal(size=dim)
    given = {"weights": rng.uniform(0.5, 2.0, n), "frequency": rng.integers(1, 4, n), **extra}
    rows = eq.data.rows(x, rng.poisson(np.exp(x @ theta)), **given)
    return eq.moments(eq.glm("poisson", prior_precision=prior), rows, theta)


def _matrix_of_noise(m, L, dynamics):
    """S ↦ b Lᵀ K(L S Lᵀ) L, written out as a D² × D² matrix."""
    dim = len(L)
    b = dynamics.noise_factor(m.n)
    units = np.eye(dim * dim).reshape(-1, dim, dim)
    columns = [(b * L.T @ m.curvature_noise(L @ (u + u.T) @ L.T / 2.0, dynamics) @ L).ravel() for u in units]
    return np.array(columns)


@pytest.mark.parametrize("prior", [0.0, 1e-2, np.geomspace(1e-4, 1e-2, 30), 3.0, 300.0])
@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.5}, {"gradient": "control-variate", "batches": "leverage"}], ids=str
)
def test_newton_steps_of_few_rows_have_the_limit_of_a_dense_matrix(prior, options) -> None:
    """E − c (F + b K̃) is singular at the limit c; rates of 0.7."""
    m, dynamics, rate = _heavy(prior), eq.Dynamics(batch_size=30, **options), 0.7
    direction = rate * np.linalg.inv(m.hessian)
    top = np.linalg.eigvalsh(_matrix_of_noise(m, np.linalg.cholesky(direction), dynamics))[-1]
    k = dynamics.momentum
    expected = 2.0 * (1.0 - k) * rate / ((1.0 - k) ** 2 / (1.0 - k * k) * rate**2 + top)
    found = eq.max_stable_step(m, dynamics, direction)
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("prior", "error", "known"), [(0.0, 1e-10, True), (1e-2, 1e-6, True), (300.0, 1e-6, False)])
def test_the_peak_of_the_noise_comes_from_pairs_of_rows(prior, error, known) -> None:
    """Where two terms of the expansion are not enough, it says so."""
    m, dynamics = _heavy(prior), eq.Dynamics(batch_size=30)
    L = np.linalg.cholesky(np.linalg.inv(m.hessian))
    expected = np.linalg.eigvalsh(_matrix_of_noise(m, L, dynamics))[-1] / dynamics.noise_factor(m.n)
    found = m.noise_peak(L, dynamics, error)
    assert (found is not None) == known
    if known:
        assert found == pytest.approx(expected, rel=error)


def test_pairs_of_many_rows_are_not_made() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(400, 20))
    m = eq.moments(eq.glm("gaussian", scale=1.0), (x, rng.normal(size=400)), np.zeros(20))
    assert m.noise_peak(np.eye(20), eq.Dynamics(batch_size=30), 1e-6) is None


def test_the_radius_of_a_newton_step_is_that_of_a_dense_matrix() -> None:
    m, dynamics = _heavy(0.0), eq.Dynamics(batch_size=30)
    step = 0.5 * eq.max_stable_step(m, dynamics, np.linalg.inv(m.hessian)) * np.linalg.inv(m.hessian)
    top = np.linalg.eigvalsh(_matrix_of_noise(m, np.linalg.cholesky(step), dynamics))[-1]
    law = eq.stationary(m, step, dynamics)
    assert law.spectral_radius == pytest.approx((1.0 - law.newton) ** 2 + top, rel=1e-9)


@pytest.mark.parametrize("form", ["scalar", "diagonal", "newton"])
def test_the_largest_multiple_of_many_parameters_has_six_digits(form, monkeypatch) -> None:
    """In fewer applications of the noise, each a pass over the data, than all digits take; laws agree with it."""
    rng = np.random.default_rng(4)
    n, dim = 600, 40
    x = rng.standard_t(4, size=(n, dim)) * np.geomspace(1.0, 3.0, dim)
    m = eq.moments(eq.glm("poisson", prior_precision=1.0), (x, rng.poisson(1.0, size=n)), np.zeros(dim))
    H, dynamics = m.hessian, eq.Dynamics(batch_size=30)
    direction = {"scalar": 0.5 * np.eye(dim), "diagonal": np.diag(1.0 / np.diag(H)), "newton": np.linalg.inv(H)}[form]
    found = eq.max_stable_step(m, dynamics, direction)
    monkeypatch.setattr(stability, "_MULTIPLE", 1e-13)
    assert found == pytest.approx(eq.max_stable_step(m, dynamics, direction), rel=1e-6)
    assert eq.stationary(m, 0.999 * found * direction, dynamics).is_stable
    with pytest.raises(eq.UnstableStep):
        eq.stationary(m, 1.001 * found * direction, dynamics)


def test_an_invariant_start_ends_at_once() -> None:
    matrix = np.diag(np.r_[2.0, np.linspace(-1.0, 1.0, 399)])
    calls = []

    def apply(v):
        calls.append(1)
        return matrix @ v

    assert stability._top(apply, np.eye(400)[0])[0] == 2.0
    assert len(calls) == 1


@pytest.mark.parametrize("dim", [3, 511, 700])
def test_a_product_in_strips_is_the_product(dim) -> None:
    rng = np.random.default_rng(dim)
    A, S = rng.normal(size=(2, dim, dim))
    np.testing.assert_allclose(congruent(A, S), A @ S @ A.T, rtol=1e-11, atol=1e-9)
    np.testing.assert_allclose(congruent(A.T, S), A.T @ S @ A, rtol=1e-11, atol=1e-9)


@pytest.mark.parametrize("prior", [0.5, np.geomspace(0.1, 10.0, 8)])
@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.6}, {"gradient": "control-variate", "inverse_temperature": 400.0}]
)
def test_rows_in_the_coordinates_of_the_modes_have_the_same_law(prior, options, monkeypatch) -> None:
    """With one prior precision for all the rows' Hessian is diagonal there, with several it is not."""
    rng = np.random.default_rng(7)
    x = rng.standard_t(4, size=(400, 8)) * np.geomspace(1.0, 30.0, 8)
    rows = eq.data.rows(x, rng.poisson(1.0, size=400), weights=rng.uniform(0.5, 2.0, 400))
    m = eq.moments(eq.glm("poisson", prior_precision=prior), rows, np.full(8, 0.002))
    dynamics = eq.Dynamics(batch_size=40, **options)
    for direction in (1.0, 1.0 / np.diag(m.hessian), np.linalg.inv(m.hessian)):
        found = []
        for columns in (512, 1):
            monkeypatch.setattr(linear_curvature, "_TURNED", columns)
            monkeypatch.setattr(linear_curvature, "_ROWS_TURNED", 100)
            limit = eq.max_stable_step(m, dynamics, direction)
            found.append((limit, eq.stationary(m, 0.4 * limit * np.asarray(direction), dynamics).cov))
        (plain, cov), (turned, same) = found
        assert turned == pytest.approx(plain, rel=1e-9)
        np.testing.assert_allclose(same, cov, rtol=1e-9, atol=1e-10 * np.abs(cov).max())
