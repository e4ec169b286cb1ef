"""The network of figure-nn, shortened: the exact proxy against continuous time; and the last layer of examples/network.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import equipoise as eq
from equipoise.experiments.designs import diabetes
from equipoise.experiments.network import fitted, network, predict

pytest.importorskip("jax")
STEP, CHAINS, DYNAMICS = 0.4, 8, eq.Dynamics(batch_size=32)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Its matrices are small, and the cores are shared."""
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="module")
def data():
    return diabetes()


@pytest.fixture(scope="module")
def restricted(data):
    """The fitted network in the directions that carry gradient noise, with its moments there, and the whole's."""
    model, moments = fitted(20.0, 0)
    return eq.moments(network(20.0), data, model.init), model, moments


@pytest.mark.slow
def test_units_are_copies_and_carry_no_noise_apart(restricted) -> None:
    whole, model, moments = restricted
    into, out = model.init["layer1"]["weights"], model.init["layer2"]["weights"][:, 0]
    # tanh is odd: a copy may have both signs turned
    np.testing.assert_allclose(into * np.sign(out), np.outer(into[:, 0] * np.sign(out[0]), np.ones(3)), atol=1e-9)
    # two differences of three units, in two weights, a bias and an output weight each
    assert (whole.dim, moments.dim) == (35, 35 - 8)
    with pytest.raises(eq.InfeasibleTarget):
        eq.tune(whole, "sandwich", DYNAMICS)


@pytest.mark.slow
def test_the_restriction_leaves_nothing_out(data, restricted) -> None:
    """One step of the gradient on any rows stays within the subspace."""
    whole, model, moments = restricted
    basis = model.subspace[1]
    rng = np.random.default_rng(3)
    place = whole.params + 0.1 * rng.normal(size=moments.dim) @ basis
    full = network(20.0)
    for _ in range(3):
        rows = rng.integers(442, size=32)
        gradient = full.bind({name: column[rows] for name, column in data.items()}).derivatives(place, 1).gradient
        outside = gradient - basis.T @ (basis @ gradient)
        assert np.linalg.norm(outside) < 1e-10 * np.linalg.norm(gradient)


@pytest.mark.slow
def test_exact_proxy_beats_continuous_time_at_the_largest_step(data, restricted) -> None:
    _, model, moments = restricted
    tuning = eq.Tuning.at(moments, STEP, DYNAMICS)
    law, draws, thin = tuning.predicted, 3000, 25
    chains = eq.sample(model, data, tuning, draws=draws, chains=CHAINS, seed=2, thin=thin, burn_in=1500, progress=False)
    other = eq.stationary(moments, STEP, DYNAMICS, proxy="ct").cov

    def errors(flat):
        observed = np.cov(flat, rowvar=False)
        return np.array([np.linalg.norm(cov - observed) / np.linalg.norm(observed) for cov in (law.cov, other)])

    exact, continuous = errors(chains.flat())
    # the Monte Carlo error of the difference: a jackknife over the chains, which are independent
    left_out = np.array([np.subtract(*errors(np.delete(chains.draws, c, 0).reshape(-1, 27))) for c in range(CHAINS)])
    error = np.sqrt((CHAINS - 1) * left_out.var())
    assert continuous - exact > 4.0 * error
    # and what is left of the exact proxy's error is real: the loss is not quadratic at this step
    assert exact > 2.0 * law.covariance_floor(CHAINS * draws, thin)
    # at a small step it is Monte Carlo error
    small = eq.Tuning.at(moments, 0.05, DYNAMICS)
    near = eq.sample(model, data, small, draws=300, chains=CHAINS, seed=2, thin=200, burn_in=4000, progress=False)
    gap = np.linalg.norm(np.cov(near.flat(), rowvar=False) - small.target) / np.linalg.norm(small.target)
    assert gap <= 1.5 * small.predicted.covariance_floor(CHAINS * 300, 200) + 0.02


def test_last_layer_is_calibrated(data, monkeypatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    from network import last_layer

    cal = last_layer(data, ess=20_000, restarts=0)
    assert cal.names == ("layer2.bias[0]", *(f"layer2.weights[{k},0]" for k in range(3)))
    target, law = cal.plan.tuning.target, cal.plan.tuning.predicted
    floor = law.covariance_floor(cal.draws.shape[0] * cal.draws.shape[1], cal.chains.thin)
    error = np.linalg.norm(np.cov(cal.chains.flat(), rowvar=False) - target) / np.linalg.norm(target)
    assert floor < 0.02
    assert error <= 1.5 * floor + 0.02
    # the sandwich of least squares on the hidden units, by hand
    hidden = data["x"]
    for name in ("layer0", "layer1"):
        layer = cal.model.init[name]
        hidden = np.tanh(hidden @ layer["weights"] + layer["bias"])
    z = np.column_stack([np.ones(442), hidden])
    theta = np.linalg.solve(z.T @ z + 0.5 * np.eye(4), z.T @ data["y"])
    score = z * (z @ theta - data["y"])[:, None]
    bread = np.linalg.inv(z.T @ z / 442 + 0.5 * np.eye(4) / 442)
    np.testing.assert_allclose(cal.fit.params["layer2"]["weights"][:, 0], theta[1:], rtol=1e-8)
    np.testing.assert_allclose(target, bread @ np.cov(score, rowvar=False, ddof=0) @ bread / 442, rtol=1e-6)
    found = cal.evaluate(predict, {"x": data["x"][:3]}, interval=0.9)
    np.testing.assert_allclose(found["estimate"], (z @ theta)[:3], rtol=1e-8)
    # a linear function of normal draws has a normal interval
    half = 1.645 * np.sqrt(np.einsum("ni,ij,nj->n", z[:3], target, z[:3]))
    np.testing.assert_allclose(found["upper"] - found["lower"], 2.0 * half, rtol=0.05)
