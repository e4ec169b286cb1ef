"""Stationary covariance, stability and mixing against dense Kronecker algebra and plain sums."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.linalg import eigh

import equipoise as eq
from equipoise.theory.modes import Modes

sys.path.insert(0, str(Path(__file__).parent))
import brute

# Both sides are float64 algebra on matrices of condition below 1e4: agreement far below the contract's 1e-6.
EXACT = 1e-9

CASES = list(itertools.product([0.0, 0.7, 0.8, 0.95], [np.inf, 60.0, 7.0], [True, False]))


@pytest.fixture(scope="module")
def small():
    return brute.problem(4)


@pytest.mark.parametrize(("momentum", "beta", "replacement"), CASES)
def test_law_agrees_with_the_dense_joint_solution(small, momentum, beta, replacement):
    dynamics = eq.Dynamics(16, momentum, beta, replacement)
    direction = brute.step_direction(4)
    step = 0.6 * eq.max_stable_step(small.moments, dynamics, direction) * direction
    law, expected = eq.stationary(small.moments, step, dynamics), brute.joint(small, step, dynamics)
    S = expected.P[:4, :4]
    assert brute.relative(law.cov, S) < EXACT
    assert law.spectral_radius == pytest.approx(expected.radius, rel=1e-8)
    assert law.is_stable
    for lag in (0, 1, 7):
        assert brute.relative(law.autocovariance(lag), expected.autocovariance(lag)) < 1e-7
    np.testing.assert_allclose(law.autocovariance(-3), law.autocovariance(3).T)


@pytest.mark.parametrize("proxy", ["dq-exact", "dq-const", "lr-ws"])
@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_every_discrete_proxy_has_its_own_noise(small, proxy, momentum):
    dynamics = eq.Dynamics(10, momentum, 200.0)
    step = 0.3 * eq.max_stable_step(small.moments, dynamics, proxy=proxy)
    law = eq.stationary(small.moments, step, dynamics, proxy)
    assert brute.relative(law.cov, brute.joint(small, step * np.eye(4), dynamics, proxy).P[:4, :4]) < EXACT


def test_continuous_time_solves_its_lyapunov_equation(small):
    m, dynamics = small.moments, eq.Dynamics(10, 0.0, 50.0)
    step = 0.01 * brute.step_direction(4)
    S = eq.stationary(m, step, dynamics, "ct").cov
    left = step @ m.hessian @ S + S @ m.hessian @ step
    right = step @ m.score_cov @ step / 10 + 2.0 / 50.0 * step
    assert brute.relative(left, right) < EXACT
    assert eq.max_stable_step(m, dynamics, proxy="ct") == np.inf


@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_long_run_and_average_covariances_are_sums_of_autocovariances(small, momentum):
    dynamics = eq.Dynamics(16, momentum, 40.0)
    direction = brute.step_direction(4)
    step = 0.6 * eq.max_stable_step(small.moments, dynamics, direction) * direction
    law, expected = eq.stationary(small.moments, step, dynamics), brute.joint(small, step, dynamics)
    lags = [expected.P]
    for _ in range(20_000):
        lags.append(expected.A @ lags[-1])
    lags = np.array(lags)[:, :4, :4]
    both = lags + lags.transpose(0, 2, 1)
    long_run = lags[0] + both[1:].sum(axis=0)
    assert brute.relative(law.long_run_cov, long_run) < 1e-7
    assert law.iact() == pytest.approx(eigh(long_run, lags[0], eigvals_only=True)[-1], rel=1e-6)
    v = np.array([1.0, -2.0, 0.5, 0.0])
    assert law.iact(v) == pytest.approx(v @ long_run @ v / (v @ lags[0] @ v), rel=1e-6)
    assert law.ess(1000) == pytest.approx(1000 / law.iact())
    for k in (1, 2, 25, 3000):
        weights = k - np.arange(1, k)
        average = (k * lags[0] + np.einsum("j,jab->ab", weights, both[1:k])) / k**2
        assert brute.relative(law.iterate_average_cov(k), average) < 1e-8
    noise = np.array([np.sum(x * x) + np.trace(x) ** 2 for x in lags[::3]])
    floor = np.sqrt((noise[0] + 2.0 * noise[1:].sum()) / 500) / np.linalg.norm(lags[0])
    assert law.covariance_floor(500, thin=3) == pytest.approx(floor, rel=1e-8)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_average_of_a_billion_iterates_reaches_its_limit(small, momentum):
    dynamics = eq.Dynamics(16, momentum)
    law = eq.stationary(small.moments, 0.3 * eq.max_stable_step(small.moments, dynamics), dynamics)
    k = 10**9
    assert brute.relative(k * law.iterate_average_cov(k), law.long_run_cov) < 1e-5  # the next term is of order τ/k
    tiny = eq.stationary(small.moments, 1e-12, eq.Dynamics(16, momentum, 100.0))
    # an almost frozen chain: the average of a few iterates has nearly the covariance of one
    assert brute.relative(tiny.iterate_average_cov(10), tiny.cov) < 1e-9


def test_paper_worst_case_autocorrelation_time_is_a_lower_bound(small):
    direction = brute.step_direction(4)
    law = eq.stationary(
        small.moments, 0.5 * eq.max_stable_step(small.moments, eq.Dynamics(16), direction) * direction, eq.Dynamics(16)
    )
    assert law.iact() > 2.0 / law.modes.rates[0] - 1.0 + 1e-6


@pytest.mark.parametrize("dim", [3, 15])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.95])
def test_stability_limit_is_where_the_spectral_radius_is_one(dim, momentum):
    # dim 15 takes the Krylov path
    p = brute.problem(dim)
    dynamics = eq.Dynamics(5, momentum)
    direction = brute.step_direction(dim)
    limit = eq.max_stable_step(p.moments, dynamics, direction)
    below = eq.stationary(p.moments, 0.999 * limit * direction, dynamics)
    assert 0.99 < below.spectral_radius < 1.0
    with pytest.raises(eq.UnstableStep) as raised:
        eq.stationary(p.moments, 1.02 * limit * direction, dynamics)
    assert raised.value.spectral_radius > 1.0
    assert raised.value.largest_multiple == pytest.approx(1.0 / 1.02, rel=1e-6)
    assert limit * below.modes.rates[-1] / 0.999 < 2.0 * (1.0 + momentum) * limit  # inside the mean's own limit
    if dim == 3:
        assert brute.joint(p, 0.999 * limit * direction, dynamics).radius < 1.0
        assert brute.joint(p, 1.001 * limit * direction, dynamics).radius > 1.0


def test_step_close_to_the_limit_is_still_solved(small):
    dynamics = eq.Dynamics(8)
    limit = eq.max_stable_step(small.moments, dynamics)
    step = 0.9999 * limit
    law = eq.stationary(small.moments, step, dynamics)
    assert law.spectral_radius > 0.999
    assert brute.relative(law.cov, brute.joint(small, step * np.eye(4), dynamics).P[:4, :4]) < 1e-6


def test_steps_beyond_the_mean_limit_raise(small):
    with pytest.raises(eq.UnstableStep):
        eq.stationary(small.moments, 100.0, eq.Dynamics(60, replacement=False))


def test_full_batch_without_replacement_has_no_gradient_noise(small):
    law = eq.stationary(small.moments, 0.01, eq.Dynamics(60, replacement=False, inverse_temperature=30.0))
    H = small.moments.hessian
    A = np.eye(4) - 0.01 * H
    assert brute.relative(law.cov, A @ law.cov @ A.T + 2.0 * 0.01 / 30.0 * np.eye(4)) < EXACT


@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
def test_burn_in_brings_the_second_moments_within_tolerance(small, momentum, scale):
    dynamics = eq.Dynamics(16, momentum)
    step = 0.4 * eq.max_stable_step(small.moments, dynamics) * np.eye(4)
    law, expected = eq.stationary(small.moments, step, dynamics), brute.joint(small, step, dynamics)
    start = scale * np.sqrt(np.diag(law.cov)) * np.array([1.0, -1.0, 1.0, 1.0])
    steps = law.burn_in(start, 0.01)
    constant, linear = brute.noise(small, dynamics, "dq-exact")
    P = np.zeros((8, 8))
    P[:4, :4] = np.outer(start, start)
    G = np.vstack([-step, np.eye(4)])
    for _ in range(steps):
        P = expected.A @ P @ expected.A.T + G @ (constant + linear(P[:4, :4])) @ G.T
    ratio = eigh(P[:4, :4] - law.cov, law.cov, eigvals_only=True)
    assert np.abs(ratio).max() < 0.02  # twice: with momentum the rate alone is guaranteed
    assert law.burn_in(start, 0.001) > steps


def test_steps_of_every_form_agree(small):
    dynamics = eq.Dynamics(16)
    laws = [eq.stationary(small.moments, s, dynamics).cov for s in (0.002, np.full(4, 0.002), 0.002 * np.eye(4))]
    np.testing.assert_allclose(laws[0], laws[1], rtol=1e-12)
    np.testing.assert_allclose(laws[0], laws[2], rtol=1e-12)


@pytest.mark.parametrize("step", [-0.1, 0.0, np.nan, np.ones(3), np.ones((4, 4)), np.triu(np.ones((4, 4)))])
def test_impossible_steps_are_refused(small, step):
    with pytest.raises(eq.InvalidInput, match="step"):
        eq.stationary(small.moments, step, eq.Dynamics(16))


def test_modes_diagonalise_the_mean_dynamics(small):
    step, H = 0.01 * brute.step_direction(4), small.moments.hessian
    modes = Modes.of(step, H, 0.0, 0.0, True)
    np.testing.assert_allclose(modes.dual @ step @ H @ modes.basis, np.diag(modes.rates), atol=1e-12)
    np.testing.assert_allclose(modes.basis @ modes.basis.T, step, atol=1e-14)


def test_mean_bias_of_a_known_third_derivative():
    rng = np.random.default_rng(3)
    thirds = rng.normal(size=(2, 2, 2))
    thirds = sum(thirds.transpose(p) for p in itertools.permutations(range(3)))
    x = rng.normal(size=(40, 2))
    m = eq.Moments.from_arrays(x, x[:, :, None] * x[:, None, :] + np.eye(2), thirds=thirds)
    law = eq.stationary(m, 0.05, eq.Dynamics(8))
    expected = -0.5 * np.linalg.inv(m.hessian) @ np.array([np.sum(t * law.cov) for t in thirds])
    np.testing.assert_allclose(law.mean_bias, expected, rtol=1e-10)


def test_mean_bias_waits_until_it_is_asked_for(monkeypatch):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(40, 2))
    m = eq.Moments.from_arrays(x, x[:, :, None] * x[:, None, :] + np.eye(2), thirds=np.ones((2, 2, 2)))
    calls = []
    third = eq.Moments.third_derivative
    monkeypatch.setattr(eq.Moments, "third_derivative", lambda self, S: calls.append(S) or third(self, S))
    law = eq.tune(m, "sandwich", eq.Dynamics(8)).predicted
    assert not calls
    first = law.mean_bias
    assert law.mean_bias is first
    assert len(calls) == 1
    np.testing.assert_array_equal(dataclasses.replace(law, bias=np.ones(2)).mean_bias, np.ones(2))


def test_bias_is_unknown_without_third_derivatives(small):
    assert np.isnan(eq.stationary(small.moments, 0.002, eq.Dynamics(16)).mean_bias).all()


def test_noise_that_is_no_covariance_is_named(small) -> None:
    moments = small.moments
    J = moments.loss_hessian
    indefinite = dataclasses.replace(moments, loss_hessian=J - 1.5 * np.linalg.eigvalsh(J)[0] * np.eye(len(J)))
    step = 0.1 * eq.max_stable_step(moments, eq.Dynamics(5))
    with pytest.raises(eq.InvalidInput, match="dq-const"):
        eq.stationary(indefinite, step, eq.Dynamics(5), proxy="dq-const")
