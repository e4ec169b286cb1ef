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
