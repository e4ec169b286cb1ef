"""The plan takes the cheapest chain that does what was asked, and shows them all."""

from __future__ import annotations

import numpy as np
import pytest

import equipoise as eq
from equipoise.theory.completion import fidelity_of
from tests.known import misspecified


def design(n=3000, dim=6, heavy=False, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_t(3, size=(n, dim - 1)) if heavy else rng.normal(size=(n, dim - 1))
    x = np.column_stack([np.ones(n), x])
    return x, rng.poisson(np.exp(0.15 * x.sum(axis=1)) * rng.gamma(2.0, 0.5, size=n)).astype(float)


def gamma_of(tuning):
    return float((tuning.step @ tuning.predicted.hessian)[0, 0])


def test_auto_takes_the_fastest_chain_and_shows_all():
    plan = eq.plan(eq.glm("poisson"), design())
    assert plan.sampler == "control-variate"
    chains = [c for c in plan.candidates if c.sampler != "gaussian"]
    (taken,) = (c for c in plan.candidates if c.chosen)
    assert taken.seconds == min(c.seconds for c in chains)
    assert {c.sampler for c in plan.candidates} == {"control-variate", "sgmcmc", "gaussian"}
    for c in plan.candidates:
        assert str(c) in str(plan)
    # the costs are those of the tunings themselves
    assert plan.tuning.rows_per_draw == pytest.approx(taken.rows_per_draw)
    (plain,) = (c for c in chains if c.sampler == "sgmcmc")
    by_hand = eq.plan(eq.glm("poisson"), design(), sampler="sgmcmc")
    assert by_hand.tuning.rows_per_draw == pytest.approx(plain.rows_per_draw)
    assert plain.rows_per_draw > 10 * taken.rows_per_draw


def test_the_batch_is_the_smallest_with_light_tails():
    plan = eq.plan(eq.glm("poisson"), design(), batches="independent")
    law, m = plan.tuning.predicted, plan.moments
    B, rho = plan.tuning.dynamics.batch_size, m.curvature_number(plan.tuning.target)
    assert rho / B <= 0.8
    assert law.worst_kurtosis <= 0.3
    assert gamma_of(plan.tuning) == pytest.approx(1.0)
    tails = m.tails(plan.tuning.target)
    assert rho / (B - 1) > 0.8 or tails.kurtosis(1.0, 1.0 / (B - 1)) > 0.3


def test_heavy_tailed_covariates_are_drawn_by_leverage():
    data = design(n=20_000, dim=12, heavy=True)
    plan = eq.plan(eq.glm("poisson"), data, ess=20_000)
    uniform, leverage = plan.candidates[:2]
    assert (uniform.batches, leverage.batches) == ("independent", "leverage")
    assert leverage.chosen
    assert leverage.rows_per_draw < 0.2 * uniform.rows_per_draw
    assert plan.tuning.dynamics.batches == "leverage"
    assert plan.moments.curvature_number("posterior", plan.tuning.dynamics) <= 12 / 0.9 - 1


def test_a_loss_far_from_quadratic_takes_smaller_steps():
    x, y = misspecified("poisson", n=60)
    far, near = eq.plan(eq.glm("poisson"), (x, y)), eq.plan(eq.glm("gaussian"), (x, y))
    shift = far.tuning.predicted.mean_bias
    assert np.sqrt(shift @ np.linalg.solve(far.tuning.target, shift) / 3) > 0.07
    assert gamma_of(far.tuning) == pytest.approx(0.5)
    assert gamma_of(near.tuning) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.5},
        {"inverse_temperature": 1e6},
        {"proxy": "ct"},
        {"structure": "scalar"},
        {"gradient": "plain"},
        {"noise": "langevin"},
    ],
    ids=str,
)
def test_options_that_describe_a_chain_take_it(options):
    plan = eq.plan(eq.glm("poisson"), design(n=400), **options)
    assert plan.sampler == "sgmcmc"
    assert plan.tuning.dynamics.gradient == "plain"
    assert plan.tuning.predicted.completion is None


def test_a_described_chain_may_use_control_variates():
    plan = eq.plan(eq.glm("poisson"), design(n=400), gradient="control-variate", momentum=0.5, batch_size=40)
    assert plan.sampler == "sgmcmc"
    assert plan.tuning.dynamics == eq.Dynamics(40, 0.5, gradient="control-variate")
    assert plan.tuning.predicted.completion is not None
    auto = eq.plan(eq.glm("poisson"), design(n=400), gradient="control-variate", inverse_temperature="auto")
    assert np.isfinite(auto.tuning.dynamics.inverse_temperature)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"momentum": 0.5}, "momentum"),
        ({"inverse_temperature": 1e6}, "inverse_temperature"),
        ({"gradient": "plain"}, "gradient"),
        ({"batches": "epochs"}, "batches"),
        ({"noise": "langevin"}, "noise"),
        ({"structure": "diagonal"}, "structure"),
        ({"fidelity": 1.0}, "fidelity"),
    ],
)
def test_what_the_sampler_chooses_itself_is_refused(options, name):
    with pytest.raises(eq.InvalidInput, match=name):
        eq.plan(eq.glm("poisson"), design(n=400), sampler="control-variate", **options)


def test_fidelity_is_for_posteriors_of_curved_losses():
    data = design(n=400)
    auto = eq.plan(eq.glm("poisson"), data, target="posterior")
    assert auto.tuning.fidelity == 0.9
    assert fidelity_of(gamma_of(auto.tuning)) == pytest.approx(0.9)
    assert not any(c.sampler == "sgmcmc" for c in auto.candidates)
    B, rho = auto.tuning.dynamics.batch_size, auto.moments.curvature_number("posterior", auto.tuning.dynamics)
    assert B >= 16
    assert gamma_of(auto.tuning) <= 1.0 / (1.0 + rho / B) + 1e-12
    assert eq.plan(eq.glm("poisson"), data, target="posterior", fidelity=0).tuning.fidelity is None
    assert eq.plan(eq.glm("poisson"), data).tuning.fidelity is None
    assert eq.plan(eq.glm("gaussian"), data, target="posterior").tuning.fidelity is None
    asked = eq.plan(eq.glm("poisson"), data, fidelity=0.5)
    assert fidelity_of(gamma_of(asked.tuning)) == pytest.approx(0.5)


def test_refinement_aims_at_the_target_and_not_beyond():
    data = design(n=400)
    run = {"target": "posterior", "refine": True, "ess": 2000, "progress": False}
    assert eq.calibrate(eq.glm("poisson"), data, **run).tuning.fidelity is None
    with pytest.raises(eq.InvalidInput, match="refine"):
        eq.calibrate(eq.glm("poisson"), data, fidelity=0.9, **run)


@pytest.mark.parametrize("n", [3, 5, 12])
def test_very_few_rows(n):
    rng = np.random.default_rng(n)
    x = np.column_stack([np.ones(n), rng.normal(size=n)])
    y = rng.normal(size=n)
    cal = eq.calibrate(eq.glm("gaussian", scale=1.0), (x, y), ess=100, chains=2, progress=False)
    assert cal.tuning.dynamics.batch_size <= n
    bread = np.linalg.inv(x.T @ x)
    best = bread @ x.T @ y
    scores = x * (y - x @ best)[:, None]
    sandwich = bread @ scores.T @ scores @ bread
    np.testing.assert_allclose(cal.tuning.predicted.cov, sandwich, rtol=1e-7)
    # as many effective draws as were asked for
    assert np.all(np.abs(cal.chains.flat().mean(axis=0) - best) < 4.0 * np.sqrt(np.diag(sandwich) / 100))
