"""Every target through one suite: a covariance of the right size, the same whatever the parameters' coordinates."""

from __future__ import annotations

import numpy as np
import pytest

import equipoise as eq
from equipoise.theory.targets import TARGETS, target_matrix
from tests.known import misspecified

every_target = pytest.mark.parametrize("name", list(TARGETS))


@pytest.fixture(scope="module")
def case():
    x, y = misspecified("poisson", n=400)
    mix = np.array([[1.0, 0.3, 0.0], [0.0, 2.0, -0.4], [0.0, 0.0, 0.5]])
    made = []
    for columns in (x, x @ mix):
        problem = eq.bind(eq.glm("poisson"), (columns, y))
        made.append(eq.moments(problem, eq.fit(problem)))
    return *made, mix


@every_target
def test_a_target_is_a_covariance(name, case) -> None:
    matrix = target_matrix(name, case[0])
    np.testing.assert_array_equal(matrix, matrix.T)
    assert np.linalg.eigvalsh(matrix)[0] > 0.0


@every_target
def test_a_target_follows_a_change_of_parameters(name, case) -> None:
    plain, mixed, mix = case
    back = np.linalg.inv(mix)
    np.testing.assert_allclose(target_matrix(name, mixed), back @ target_matrix(name, plain) @ back.T, rtol=1e-8)


@every_target
def test_it_falls_with_the_number_of_rows(name) -> None:
    x, y = misspecified("poisson", n=200)
    size = []
    for copies in (1, 4):
        problem = eq.bind(eq.glm("poisson"), (np.tile(x, (copies, 1)), np.tile(y, copies)))
        size.append(target_matrix(name, eq.moments(problem, eq.fit(problem))))
    np.testing.assert_allclose(size[1], size[0] / 4.0, rtol=1e-9)


@every_target
@pytest.mark.parametrize("dynamics", [eq.Dynamics(20), eq.Dynamics(20, 0.5), eq.Dynamics(20, replacement=False)])
def test_the_tuner_reaches_it(name, dynamics, case) -> None:
    tuning = eq.tune(case[0], name, dynamics)
    np.testing.assert_allclose(tuning.predicted.cov, target_matrix(name, case[0]), rtol=1e-12)
    # an independent solution of the stationary equation for that step
    np.testing.assert_allclose(eq.stationary(case[0], tuning.step, dynamics).cov, tuning.target, rtol=1e-8)
