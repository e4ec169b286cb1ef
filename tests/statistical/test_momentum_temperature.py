"""Momentum SGLD: the corrected temperature term agrees with a simulation and the paper's does not."""

from __future__ import annotations

import numpy as np

import equipoise as eq
from equipoise.theory.modes import Modes


def paper_covariance(moments, step, dynamics):
    """The paper's proposition: (1+κ²)(2/β)Λ for the injected noise, solved by fixed-point iteration on C(Σ)."""
    k = dynamics.momentum
    modes = Modes.of(step, moments.hessian, k, dynamics.temperature, True)
    resistance = modes.first_order - modes.second_order
    S = np.zeros_like(step)
    for _ in range(2000):
        source = modes.force(moments.gradient_noise(modes.outward(S), dynamics))
        S = (source + (1 + k * k) * 2.0 * dynamics.temperature * np.eye(len(step))) / resistance
    return modes.outward(S)


def test_simulation_confirms_the_corrected_term_and_rejects_the_papers():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3)) @ np.array([[1.0, 0.5, 0.0], [0.0, 1.0, 0.3], [0.0, 0.0, 0.7]])
    y = x @ [1.0, -1.0, 0.5] + rng.normal(size=400) * (1 + x[:, 0] ** 2)
    model = eq.glm("gaussian", scale=1.0)  # squared loss: the proxy is the chain
    fitted = eq.fit(model, (x, y))
    moments = eq.moments(model, (x, y), fitted.params)
    dynamics = eq.Dynamics(40, momentum=0.8, inverse_temperature=100.0)
    tuning = eq.Tuning.at(moments, 0.03, dynamics)
    chains = eq.sample(model, (x, y), tuning, draws=100_000, chains=2, seed=0, thin=2, progress=False)
    observed = np.cov(chains.flat(), rowvar=False)
    ours = tuning.predicted.cov
    floor = tuning.predicted.covariance_floor(200_000, thin=2)
    assert floor < 0.02
    assert np.linalg.norm(observed - ours) / np.linalg.norm(ours) < 3 * floor
    theirs = paper_covariance(moments, tuning.step, dynamics)
    assert np.linalg.norm(observed - theirs) / np.linalg.norm(theirs) > 10 * floor


def test_both_agree_without_injected_noise():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 2))
    model = eq.glm("gaussian", scale=1.0)
    data = (x, rng.normal(size=200))
    moments = eq.moments(model, data, eq.fit(model, data).params)
    dynamics = eq.Dynamics(20, momentum=0.8)
    law = eq.stationary(moments, 0.02, dynamics)
    np.testing.assert_allclose(paper_covariance(moments, law.step, dynamics), law.cov, rtol=1e-9)
