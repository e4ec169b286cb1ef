"""Control variates, leverage and completed noise, against dense Kronecker algebra (theory §12, §13)."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

import equipoise as eq
from equipoise.theory.completion import Completion, fidelity_of, largest_fidelity_step

sys.path.insert(0, str(Path(__file__).parent))
import brute

# batches are small here, so that what they do shows
pytestmark = pytest.mark.filterwarnings("ignore:batch_size. with .* heavier tails")
GRID = list(itertools.product(["plain", "control-variate"], ["independent", "leverage"], [0.0, 0.4], [True, False]))
GRID = [(g, b, k, r) for g, b, k, r in GRID if r or b == "independent"]


@pytest.fixture(scope="module")
def small():
    return brute.problem(4, n=200)


def targets(moments):
    q = np.random.default_rng(5).normal(size=(moments.dim, moments.dim))
    return {
        "sandwich": eq.sandwich(moments),
        "posterior": eq.posterior(moments),
        "any": (q @ q.T + np.eye(moments.dim)) * 1e-3,
    }


@pytest.mark.parametrize(("gradient", "batches", "momentum", "replacement"), GRID)
@pytest.mark.parametrize("name", ["sandwich", "posterior", "any"])
def test_completed_noise_gives_the_target(small, gradient, batches, momentum, replacement, name):
    m, target = small.moments, targets(small.moments)[name]
    dynamics = eq.Dynamics(12, momentum, replacement=replacement, gradient=gradient, batches=batches)
    tuning = eq.tune(m, target, dynamics, noise="completed")
    expected = brute.joint(small, tuning.step, dynamics, injected=tuning.noise)
    assert brute.relative(expected.P[:4, :4], target) < 1e-9
    assert expected.radius < 1.0
    assert np.linalg.eigvalsh(tuning.noise)[0] > 0.0
    law = tuning.predicted
    assert law.spectral_radius == pytest.approx(expected.radius, rel=1e-6)
    for lag in (1, 3):
        found = law.autocovariance(lag)
        np.testing.assert_allclose(found, expected.autocovariance(lag), atol=1e-9 * np.abs(target).max())
    later = (expected.A @ np.linalg.solve(np.eye(8) - expected.A, expected.P))[:4, :4]
    total = expected.P[:4, :4] + later + later.T
    np.testing.assert_allclose(law.long_run_cov, total, atol=1e-7 * np.abs(total).max())
    again = eq.stationary(m, tuning.step, dynamics, noise=tuning.noise)
    assert brute.relative(again.cov, target) < 1e-9


@pytest.mark.parametrize("batches", ["independent", "leverage"])
@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_langevin_noise_with_control_variates(small, batches, momentum):
    m, target = small.moments, eq.sandwich(small.moments)
    dynamics = eq.Dynamics(12, momentum, "auto", gradient="control-variate", batches=batches)
    tuning = eq.tune(m, target, dynamics)
    slopes = np.linalg.eigvals(m.hessian @ target).real
    beta = (1.0 - momentum) * (1.0 / slopes.min() + 1.0 / slopes.max())
    assert tuning.dynamics.inverse_temperature == pytest.approx(beta)
    expected = brute.joint(small, tuning.step, tuning.dynamics)
    assert brute.relative(expected.P[:4, :4], target) < 1e-9
    np.testing.assert_allclose(tuning.noise, 2.0 / beta * tuning.step)


def test_automatic_temperature_is_minimax_without_batch_noise(small):
    """With negligible batch noise the slowest direction mixes faster than at any other temperature."""
    m, target = small.moments, eq.sandwich(small.moments)

    def slowest(beta):
        dynamics = eq.Dynamics(200, 0.0, beta, replacement=False, gradient="control-variate")
        return np.abs(1.0 - eq.tune(m, target, dynamics).predicted.modes.rates).max()

    best = eq.tune(m, target, eq.Dynamics(200, 0.0, "auto", replacement=False, gradient="control-variate"))
    beta, s = best.dynamics.inverse_temperature, np.linalg.eigvals(m.hessian @ target).real
    assert slowest(beta) == pytest.approx((s.max() - s.min()) / (s.max() + s.min()))
    assert slowest(beta) < min(slowest(0.97 * beta), slowest(1.03 * beta))


@pytest.mark.parametrize("batches", ["independent", "leverage"])
def test_newton_step_has_one_autocorrelation_in_every_direction(small, batches):
    m, target = small.moments, eq.sandwich(small.moments)
    dynamics = eq.Dynamics(3, gradient="control-variate", batches=batches)
    rho = m.curvature_number(target, dynamics)
    constant, linear = brute.noise(small, dynamics, "dq-exact")
    inverse = np.linalg.inv(m.hessian)
    assert not constant.any()
    by_hand = 3.0 * np.linalg.eigvals(np.linalg.solve(target, inverse @ linear(target) @ inverse)).real.max()
    assert rho == pytest.approx(by_hand)
    tuning = eq.tune(m, target, dynamics, noise="completed")
    gamma = min(1.0, 0.9 * 2.0 / (1.0 + rho / 3.0))
    np.testing.assert_allclose(tuning.step, gamma * inverse)
    np.testing.assert_allclose(tuning.predicted.autocovariance(2), (1.0 - gamma) ** 2 * target, atol=1e-12)
    assert tuning.rows_per_draw == pytest.approx(3.0 * max(1.0, (2.0 - gamma) / gamma))


def test_leverage_makes_the_curvature_number_one_less_than_the_dimension():
    """For the posterior without a prior, whatever the design: at most D/0.9 − 1 with the uniform share (theory §13)."""
    rng = np.random.default_rng(0)
    x = rng.standard_t(2.5, size=(400, 5))
    m = eq.Moments.from_arrays(rng.normal(size=(400, 1)) * x, x[:, :, None] * x[:, None, :])
    by_leverage = m.curvature_number("posterior", eq.Dynamics(4, batches="leverage"))
    assert 3.5 < by_leverage <= 5.0 / 0.9 - 1.0
    assert m.curvature_number("posterior") > 3.0 * by_leverage


@pytest.mark.parametrize("step", [1e-4, np.array([1e-4, 3e-4, 2e-4, 1e-4]), brute.step_direction(4) * 1e-5])
@pytest.mark.parametrize("gradient", ["plain", "control-variate"])
def test_any_step_is_completed(small, step, gradient):
    target = eq.posterior(small.moments)
    tuning = eq.tune(small.moments, target, eq.Dynamics(12, gradient=gradient), noise="completed", step=step)
    expected = brute.joint(small, tuning.step, tuning.dynamics, injected=tuning.noise)
    assert brute.relative(expected.P[:4, :4], target) < 1e-8
    assert tuning.structure == "given"


@pytest.mark.parametrize("structure", ["scalar", "diagonal"])
def test_completion_makes_restricted_steps_exact(small, structure):
    dynamics = eq.Dynamics(12, gradient="control-variate")
    tuning = eq.tune(small.moments, "posterior", dynamics, structure=structure, noise="completed")
    expected = brute.joint(small, tuning.step, dynamics, injected=tuning.noise)
    assert brute.relative(expected.P[:4, :4], tuning.target) < 1e-8
    assert tuning.distance == 0.0
    off = tuning.step - np.diag(np.diag(tuning.step))
    assert not off.any()


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_an_infeasible_step_names_the_largest_multiple(small, momentum):
    m, dynamics = small.moments, eq.Dynamics(12, momentum, gradient="control-variate")
    step = 3.0 * np.linalg.inv(m.hessian)
    with pytest.raises(eq.InfeasibleTarget, match="multiply it by less than") as error:
        eq.tune(m, "posterior", dynamics, noise="completed", step=step)
    multiple = error.value.largest_multiple
    eq.tune(m, "posterior", dynamics, noise="completed", step=0.999 * multiple * step)
    with pytest.raises(eq.InfeasibleTarget):
        eq.tune(m, "posterior", dynamics, noise="completed", step=1.001 * multiple * step)


def test_noise_that_is_lost_in_rounding_names_the_direction(small, monkeypatch):
    m, dynamics = small.moments, eq.Dynamics(12, gradient="control-variate")
    exact = Completion.noise

    def rounded(self, step):
        # as sums of numbers of very different sizes leave it: of a variance, something below zero
        found = exact(self, step)
        found[2, 2] -= 3.0 * self.target[2, 2]
        return found

    monkeypatch.setattr(Completion, "noise", rounded)
    with pytest.raises(eq.InfeasibleTarget, match=r"of mainly (parameter 2|x2), .*lost in rounding") as error:
        eq.tune(m, "posterior", dynamics, noise="completed", step=0.5 * np.linalg.inv(m.hessian))
    assert error.value.directions.shape == (1, m.dim)


def test_a_step_of_which_no_multiple_is_feasible_names_the_direction():
    m = eq.Moments.from_arrays(
        np.random.default_rng(0).normal(size=(50, 2)), np.tile(np.diag([1.0, 100.0]), (50, 1, 1)), params=np.zeros(2)
    )
    target = np.array([[1.0, 0.95], [0.95, 1.0]]) * 1e-3
    with pytest.raises(eq.InfeasibleTarget, match="no multiple") as error:
        eq.tune(m, target, eq.Dynamics(5, gradient="control-variate"), noise="completed", step=1e-6)
    assert error.value.largest_multiple == 0.0
    v = error.value.directions[0]
    drift = m.hessian @ target
    assert v @ (drift + drift.T) @ v < 0.0


def test_what_does_not_go_together_is_refused_by_name(small):
    m, chain = small.moments, eq.Dynamics(12, gradient="control-variate")
    for proxy in ("ct", "dq-const", "lr-ws"):
        with pytest.raises(eq.InvalidInput, match="proxy"):
            eq.stationary(m, 1e-3, eq.Dynamics(12, 0.0, 1e4, gradient="control-variate"), proxy)
        with pytest.raises(eq.InvalidInput, match="proxy"):
            eq.tune(m, "posterior", chain, proxy, noise="completed")
    warm, auto = (eq.Dynamics(12, 0.0, beta, gradient="control-variate") for beta in (1e4, "auto"))
    for words, call in (
        ("stops at the minimiser", lambda: eq.tune(m, "posterior", chain)),
        ("stops at the minimiser", lambda: eq.stationary(m, 1e-3, chain)),
        ("replacement", lambda: eq.Dynamics(12, replacement=False, batches="leverage")),
        ("inverse_temperature", lambda: eq.tune(m, "posterior", warm, noise="completed")),
        ("fidelity", lambda: eq.tune(m, "posterior", eq.Dynamics(12), noise="completed", fidelity=0.9)),
        ("fidelity", lambda: eq.tune(m, "posterior", chain, noise="completed", fidelity=1.0)),
        ("noise", lambda: eq.stationary(m, 1e-3, chain, noise=-np.eye(4))),
        ("number", lambda: eq.stationary(m, 1e-3, auto)),
    ):
        with pytest.raises(eq.InvalidInput, match=words):
            call()


def test_fidelity_chooses_the_step(small):
    for gamma, share in ((1.0, 0.0), (0.3, 0.67), (0.1, 0.90), (0.05, 0.95)):
        assert fidelity_of(gamma) == pytest.approx(share, abs=0.006)
        assert largest_fidelity_step(fidelity_of(gamma)) == pytest.approx(gamma, abs=1e-12)
    dynamics = eq.Dynamics(60, gradient="control-variate")
    tuning = eq.tune(small.moments, "posterior", dynamics, noise="completed", fidelity=0.9)
    gamma = float((tuning.step @ small.moments.hessian)[0, 0])
    assert fidelity_of(gamma) == pytest.approx(0.9)
    assert tuning.fidelity == 0.9


def test_units_do_not_matter():
    """Parameters in other units: the same curvature number and γ, the noise in those units."""
    p = brute.problem(3, n=120)
    unit = np.array([1e9, 1e-9, 1.0])
    q = eq.Moments.from_arrays(p.scores / unit, p.hessians / np.outer(unit, unit), 3.0 * np.diag(unit**-2.0))
    for batches in ("independent", "leverage"):
        dynamics = eq.Dynamics(7, gradient="control-variate", batches=batches)
        a, b = (eq.tune(m, "sandwich", dynamics, noise="completed") for m in (p.moments, q))
        np.testing.assert_allclose(
            b.noise / np.outer(unit, unit), a.noise, rtol=1e-6, atol=1e-9 * np.abs(a.noise).max()
        )
        assert b.predicted.iact() == pytest.approx(a.predicted.iact())
        found = q.curvature_number("sandwich", dynamics)
        assert found == pytest.approx(p.moments.curvature_number("sandwich", dynamics))
