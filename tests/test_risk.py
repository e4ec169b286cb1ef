"""Expected test loss against simulation, and the settings it recommends."""

from __future__ import annotations

import numpy as np
import pytest

import equipoise as eq
from equipoise.calibration.diagnostics import autocorrelation_time


@pytest.fixture(scope="module")
def ridge():
    rng = np.random.default_rng(0)
    x, x_test = rng.normal(size=(300, 4)), rng.normal(size=(200, 4))
    theta = np.array([1.0, -0.5, 0.0, 0.3])
    noise = rng.normal(size=300) * np.sqrt(1 + np.sum(x**2, axis=1))
    return (x, x @ theta + noise), (x_test, x_test @ theta + rng.normal(size=200))


def simulated(model, data, test, tuning, draws):
    """Mean test loss of a chain and its Monte Carlo standard error."""
    chains = eq.sample(model, data, tuning, draws=draws, chains=2, seed=3, thin=1, progress=False)
    x, y = test
    loss, p = model.family.loss, np.array([model.constant or 1.0])
    losses = np.array([loss.value(x @ chain.T, y[:, None], p).mean(axis=0) for chain in chains.draws])
    error = losses.std() * np.sqrt(autocorrelation_time(losses) / losses.size)
    return losses.mean(), error


@pytest.mark.parametrize("decay", [0.0, 30.0, 300.0])
@pytest.mark.parametrize("batch", [4, 64])
def test_squared_loss_prediction_is_exact(ridge, decay, batch):
    data, test = ridge
    model = eq.glm("gaussian", scale=1.2, prior_precision=decay)
    fitted = eq.fit(model, data)
    moments = eq.moments(model, data, fitted.params)
    tuning = eq.Tuning.at(moments, 0.08, eq.Dynamics(batch))
    predicted = eq.expected_test_loss(model, test, fitted, tuning.predicted)
    mean, error = simulated(model, data, test, tuning, 15_000)
    assert abs(predicted.value - mean) < 4 * error
    # the paper's formula: mean (y − xᵀθ̂)² + mean xᵀΣx, here in units of 2s²
    x, y = test
    paper = np.mean((y - x @ fitted.params) ** 2) + np.mean(np.einsum("ij,jk,ik->i", x, tuning.predicted.cov, x))
    assert 2 * 1.2**2 * float(predicted) == pytest.approx(paper, rel=1e-12)
    # a wrong batch size must be detected
    wrong = eq.expected_test_loss(model, test, fitted, eq.stationary(moments, 0.08, eq.Dynamics(max(1, batch // 3))))
    assert abs(wrong.value - mean) > 4 * error


def test_poisson_prediction_to_second_order(ridge):
    rng = np.random.default_rng(5)
    x, x_test = rng.normal(size=(1500, 3)) * 0.6, rng.normal(size=(300, 3)) * 0.6
    y, y_test = (rng.poisson(np.exp(z @ [0.4, -0.3, 0.2])).astype(float) for z in (x, x_test))
    model = eq.glm("poisson")
    fitted = eq.fit(model, (x, y))
    tuning = eq.tune(eq.moments(model, (x, y), fitted.params), "sandwich", eq.Dynamics(75))
    predicted = eq.expected_test_loss(model, (x_test, y_test), fitted, tuning.predicted)
    mean, error = simulated(model, (x, y), (x_test, y_test), tuning, 40_000)
    assert abs(predicted.value - mean) < 4 * error
    assert abs(predicted.at_minimiser - mean) > 4 * error  # the variance term is seen


def test_estimated_scale_is_that_of_the_training_fit(ridge):
    data, test = ridge
    model = eq.glm("gaussian")
    fitted = eq.fit(model, data)
    law = eq.stationary(eq.moments(model, data, fitted.params), 0.05, eq.Dynamics(32))
    fixed = eq.glm("gaussian", scale=fitted.constant)
    expected = eq.expected_test_loss(fixed, test, eq.fit(fixed, data), law)
    assert float(eq.expected_test_loss(model, test, fitted, law)) == pytest.approx(float(expected), rel=1e-10)


def test_optimal_weight_decay_is_the_minimum_of_its_curve(ridge):
    (x, y), test = ridge
    data = (x[:30], y[:30])
    model = eq.glm("gaussian", scale=1.0)
    found = eq.optimal_weight_decay(model, data, test, 0.02, eq.Dynamics(4))
    assert found.grid[0] == 0.0
    assert found.loss <= found.losses.min()
    assert found.loss < found.losses[0]  # 30 noisy rows: some shrinkage helps
    least = eq.optimal_weight_decay(
        model, data, test, 0.02, eq.Dynamics(4), low=2.0 * found.best, high=9.0 * found.best
    )
    assert (least.grid[1], least.grid[-1]) == pytest.approx((2.0 * found.best, 9.0 * found.best))
    assert least.loss >= found.loss
    for factor in (0.5, 2.0):
        decayed = eq.glm("gaussian", scale=1.0, prior_precision=factor * found.best)
        fitted = eq.fit(decayed, data)
        law = eq.stationary(eq.moments(decayed, data, fitted.params), 0.02, eq.Dynamics(4))
        assert float(eq.expected_test_loss(decayed, test, fitted, law)) > found.loss


def test_optimal_batch_size_is_the_smallest_good_enough(ridge):
    data, test = ridge
    model = eq.glm("gaussian", scale=1.0)
    found = eq.optimal_batch_size(model, data, test, 0.1, eq.Dynamics(1), tolerance=0.02)
    best = found.losses.min()
    assert found.loss <= 1.02 * best
    assert np.all(found.losses[found.grid < found.best] > 1.02 * best)
    assert 1 < found.best < 300


def test_a_step_that_is_never_stable_is_refused(ridge):
    data, test = ridge
    with pytest.raises(eq.InvalidInput, match="step"):
        eq.optimal_batch_size(eq.glm("gaussian", scale=1.0), data, test, 50.0, eq.Dynamics(1))
    with pytest.raises(eq.InvalidInput, match="step"):
        eq.optimal_weight_decay(eq.glm("gaussian", scale=1.0), data, test, 1e6, eq.Dynamics(1))
