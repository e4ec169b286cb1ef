"""The step matrix: closed form, momentum iteration, feasibility, restricted structures."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize, root

import equipoise as eq
from equipoise.theory.structured import divergence, divergence_gradient

sys.path.insert(0, str(Path(__file__).parent / "theory"))
import brute


@pytest.fixture(scope="module")
def small():
    return brute.problem(4, n=200)


def feasible(moments, target, momentum, factor):
    """`factor` times the smallest feasible inverse temperature."""
    slopes = np.linalg.eigvals(moments.hessian @ target).real
    return factor * (1.0 - momentum) / slopes.min()


@pytest.mark.parametrize(
    ("momentum", "factor", "replacement", "B"),
    list(itertools.product([0.0, 0.5, 0.9, 0.99], [np.inf, 20.0, 1.01], [True, False], [5, 60])),
)
def test_tuned_chain_has_the_target_covariance(small, momentum, factor, replacement, B):
    target = eq.sandwich(small.moments)
    dynamics = eq.Dynamics(B, momentum, feasible(small.moments, target, momentum, factor), replacement)
    tuning = eq.tune(small.moments, target, dynamics)
    assert tuning.residual < 1e-10
    np.testing.assert_allclose(tuning.step, tuning.step.T)
    expected = brute.joint(small, tuning.step, dynamics)
    assert brute.relative(expected.P[:4, :4], target) < 1e-7
    assert expected.radius < 1.0


def test_closed_form_agrees_with_a_root_finder(small):
    """Powell's hybrid method on the stationary equation, for D² unknowns, as the paper does it."""
    m, dynamics = small.moments, eq.Dynamics(20, inverse_temperature=5e4)
    target = eq.sandwich(m)
    Q = m.gradient_noise(target, dynamics) + m.hessian @ target @ m.hessian

    def residual(flat):
        step = flat.reshape(4, 4)
        drift = step @ m.hessian @ target
        return ((drift + drift.T - step @ Q @ step.T - 2.0 / 5e4 * step) / np.abs(target).max()).ravel()

    step = eq.tune(m, target, dynamics).step
    near = root(residual, (1.1 * step + 0.02 * np.eye(4)).ravel(), method="hybr", tol=1e-13)
    assert brute.relative(near.x.reshape(4, 4), step) < 1e-6
    # the quadratic equation has singular roots besides, and a root finder may well end in one of them
    far = root(residual, (20 * np.linalg.inv(m.hessian) / m.n).ravel(), method="hybr", tol=1e-13)
    assert far.success
    assert abs(np.linalg.eigvalsh(far.x.reshape(4, 4))[0]) < 1e-9 < np.linalg.eigvalsh(step)[0]


@pytest.mark.parametrize("proxy", ["dq-exact", "dq-const", "lr-ws", "ct"])
@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize("name", ["sandwich", "posterior", "bayesbag"])
def test_every_proxy_and_target(small, proxy, momentum, name):
    dynamics = eq.Dynamics(20, momentum)
    tuning = eq.tune(small.moments, name, dynamics, proxy)
    law = eq.stationary(small.moments, tuning.step, dynamics, proxy)
    assert brute.relative(law.cov, tuning.target) < 1e-8


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_smallest_feasible_temperature_is_sharp(small, momentum):
    target = eq.sandwich(small.moments)
    edge = feasible(small.moments, target, momentum, 1.0)
    with pytest.raises(eq.InfeasibleTarget, match="inverse_temperature") as raised:
        eq.tune(small.moments, target, eq.Dynamics(20, momentum, 0.999 * edge))
    assert raised.value.min_inverse_temperature == pytest.approx(edge, rel=1e-9)
    assert raised.value.directions.shape == (1, 4)
    eq.tune(small.moments, target, eq.Dynamics(20, momentum, 1.001 * edge))


def test_sgd_tuned_to_the_sandwich_needs_one_pass_per_effective_draw():
    p = brute.problem(4, n=3000, prior=0.0)
    for B, momentum in ((10, 0.0), (300, 0.0), (30, 0.9)):
        tuning = eq.tune(p.moments, "sandwich", eq.Dynamics(B, momentum))
        assert tuning.predicted.iact() * B / p.moments.n == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("structure", ["scalar", "diagonal"])
@pytest.mark.parametrize(("momentum", "beta"), [(0.0, np.inf), (0.6, 2e4)])
def test_best_structured_step_is_a_minimum(small, structure, momentum, beta):
    m, dynamics = small.moments, eq.Dynamics(20, momentum, beta)
    tuning = eq.tune(m, "sandwich", dynamics, structure=structure)
    assert tuning.residual < 1e-5

    def distance(log_step):
        step = np.exp(log_step) * np.ones(4)
        try:
            return divergence(eq.stationary(m, step, dynamics).cov, tuning.target)
        except eq.UnstableStep:
            return np.inf

    start = np.log(np.diag(tuning.step)[:1] if structure == "scalar" else np.diag(tuning.step))
    found = minimize(
        distance, start + 0.3, method="Nelder-Mead", options={"fatol": 1e-10, "xatol": 1e-8, "maxiter": 4000}
    )
    assert tuning.distance == pytest.approx(found.fun, rel=1e-5)
    assert tuning.distance == pytest.approx(distance(start), rel=1e-9)
    assert np.count_nonzero(tuning.step - np.diag(np.diag(tuning.step))) == 0


@pytest.mark.parametrize("proxy", ["dq-exact", "ct"])
def test_divergence_gradient_against_finite_differences(small, proxy):
    m, dynamics = small.moments, eq.Dynamics(20, 0.7 if proxy == "dq-exact" else 0.0, 2e4)
    target, step = eq.sandwich(m), 1e-4 * brute.step_direction(4)
    gradient = divergence_gradient(eq.stationary(m, step, dynamics, proxy), target)
    for i, j in ((0, 0), (1, 3)):
        bump = np.zeros((4, 4))
        bump[i, j] += 0.5e-9
        bump[j, i] += 0.5e-9
        up, down = (divergence(eq.stationary(m, step + s * bump, dynamics, proxy).cov, target) for s in (1, -1))
        assert gradient[i, j] == pytest.approx((up - down) / 2e-9, rel=1e-4)


def test_invariance_under_a_change_of_parameters(small):
    """With θ = Tφ the step matrix transforms like a covariance."""
    T = brute.step_direction(4, seed=7)
    moved = eq.Moments.from_arrays(small.scores @ T, np.einsum("ji,njk,kl->nil", T, small.hessians, T), 3.0 * T.T @ T)
    tuning, other = (eq.tune(m, "sandwich", eq.Dynamics(20, 0.5)) for m in (small.moments, moved))
    assert brute.relative(T @ other.step @ T.T, tuning.step) < 1e-8


def test_given_step_as_a_tuning(small):
    tuning = eq.Tuning.at(small.moments, 1e-4, eq.Dynamics(20))
    np.testing.assert_allclose(tuning.target, eq.stationary(small.moments, 1e-4, eq.Dynamics(20)).cov)
    with pytest.raises(eq.UnstableStep):
        eq.Tuning.at(small.moments, 1e4, eq.Dynamics(20))


def test_full_batch_without_replacement_has_nothing_to_tune(small):
    """No gradient noise and no injected noise: gradient descent has no spread."""
    with pytest.raises(eq.InfeasibleTarget, match="noise"):
        eq.tune(small.moments, "sandwich", eq.Dynamics(200, replacement=False))
    target = eq.sandwich(small.moments)
    dynamics = eq.Dynamics(200, 0.0, feasible(small.moments, target, 0.0, 3.0), replacement=False)
    assert eq.tune(small.moments, target, dynamics).residual < 1e-12


@pytest.mark.parametrize("structure", ["scalar", "diagonal"])
def test_no_step_of_a_structure_is_better_than_none(small, structure):
    m = small.moments
    dynamics = eq.Dynamics(20, inverse_temperature=m.n)
    with pytest.raises(eq.InfeasibleTarget, match=r"best step is zero.*inverse_temperature='auto'"):
        eq.tune(m, "posterior", dynamics, structure=structure)
    # what it says to do works
    for advised in ("auto", np.inf):
        tuning = eq.tune(m, "posterior", eq.Dynamics(20, inverse_temperature=advised), structure=structure)
        assert eq.max_stable_step(m, tuning.dynamics, tuning.step) < 1e4
