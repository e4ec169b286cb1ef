"""Chains of every gradient and batch rule: covariance, checkpoints, threads, proxy (theory §12, §13, §15)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise.engines.cost import SPLIT
from equipoise.engines.engine import Guard
from equipoise.sampling.checkpoint import Checkpoint

DIM = 3
QUIET = {"progress": False, "guard": None}


@pytest.fixture(scope="module")
def linear():
    """Squared loss, for which the law is exact: heavy-tailed covariates, weights, an offset and a prior."""
    rng = np.random.default_rng(5)
    x = np.column_stack([np.ones(80), rng.standard_t(3, size=(80, DIM - 1))])
    y = x @ [0.3, -0.4, 0.2] + (0.5 + np.abs(x[:, 1])) * rng.normal(size=80)
    data = eq.data.rows(x, y, weights=rng.uniform(0.5, 2.0, 80), offset=0.2 * rng.normal(size=80))
    problem = eq.glm("gaussian", scale=1.4, prior_precision=np.diag([1.0, 5.0, 2.0]) + 0.5, prior_mean=0.3).bind(data)
    return problem, eq.moments(problem, eq.fit(problem))


def second_moments(draws, center):
    """E e eᵀ with its Monte Carlo error, from 50 stretches of the chains."""
    groups = (draws - center).reshape(50, -1, draws.shape[-1])
    products = np.einsum("gti,gtj->gij", groups, groups) / groups.shape[1]
    return products.mean(axis=0), products.std(axis=0, ddof=1) / np.sqrt(50)


@pytest.mark.parametrize("batches", ["independent", "leverage"])
@pytest.mark.parametrize("gradient", ["plain", "control-variate"])
def test_the_covariance_is_the_predicted_one(linear, gradient, batches):
    problem, moments = linear
    for momentum in (0.0, 0.4):
        dynamics = eq.Dynamics(12, momentum, gradient=gradient, batches=batches)
        step = 0.3 * (1.0 - momentum) * np.linalg.inv(moments.hessian)
        b = np.random.default_rng(1).normal(size=(2, DIM))
        noise = 0.02 * b.T @ b + 0.01 * np.linalg.inv(moments.hessian)
        tuning = eq.Tuning.at(moments, step, dynamics, noise=noise)
        law = eq.stationary(moments, step, dynamics, noise=tuning.noise)
        chains = eq.sample(problem, tuning, draws=100_000, chains=2, thin=2, burn_in=200, seed=1, **QUIET)
        found, error = second_moments(chains.draws, tuning.center)
        assert np.all(np.abs(found - law.cov) < 4.5 * error)
        # laws of other noise, gradients or rows are seen to be others
        more = eq.stationary(moments, step, dynamics, noise=1.15 * tuning.noise).cov
        assert np.any(np.abs(found - more) > 6.0 * error)
        if batches == "leverage":
            uniform = eq.stationary(moments, step, replace(dynamics, batches="independent"), noise=noise).cov
            assert np.any(np.abs(found - uniform) > 6.0 * error)
        other = "plain" if gradient == "control-variate" else "control-variate"
        swapped = eq.stationary(moments, step, replace(dynamics, gradient=other), noise=noise).cov
        assert np.any(np.abs(found - swapped) > 6.0 * error)


def test_the_guard_and_float32_rows_go_with_control_variates(make_data):
    data = make_data("poisson", n=200, dim=DIM)
    problem = eq.glm("poisson").bind(data)
    moments = eq.moments(problem, eq.fit(problem))
    tuning = eq.tune(moments, "sandwich", eq.Dynamics(40, gradient="control-variate"), noise="completed")
    options = {"draws": 400, "chains": 2, "thin": 1, "burn_in": 0, "progress": False, "guard": 2.0}
    wide = eq.sample(problem, tuning, **options)
    narrow = eq.sample(problem, tuning, **options, storage="float32")
    assert wide.statistics["guard_hits"] > 20
    e = wide.flat() - tuning.center
    assert np.einsum("ni,ij,nj->n", e, np.linalg.inv(tuning.expected), e).max() <= 4.0 * (1.0 + 1e-9)
    assert 0.0 < np.abs(wide.draws - narrow.draws).max() < 1e-4
    own = eq.Model(lambda p, o: jnp.exp(o["x"] @ p) - o["y"] * (o["x"] @ p), np.zeros(DIM))
    general = eq.sample(own, {"x": data[0], "y": data[1]}, tuning, **options)
    np.testing.assert_allclose(general.draws, wide.draws, rtol=0, atol=1e-10)


@pytest.mark.parametrize("rest", [0, 100, SPLIT - 3])
def test_threads_share_the_steps_of_an_epoch(rest):
    """Batches so large that they are summed in parts, the last of an epoch in fewer or none but one."""
    rng, count = np.random.default_rng(0), 2 * SPLIT + rest
    x = rng.normal(size=(count, DIM))
    problem = eq.glm("gaussian", scale=1.0).bind((x, x @ np.ones(DIM) + rng.normal(size=count)))
    moments = eq.moments(problem, eq.fit(problem))
    dynamics = eq.Dynamics(SPLIT, 0.3, 1e6, batches="epochs", gradient="control-variate")
    tuning = replace(eq.Tuning.at(moments, 0.3, replace(dynamics, batches="independent")), dynamics=dynamics)
    engine = problem.engine(tuning, Guard(np.inf, tuning.expected))
    period = len(dynamics.rule.sizes(SPLIT, count))
    assert period == (3 if rest else 2)
    ends = []
    with ThreadPoolExecutor(3) as pool:
        for threads, splits in ((1, (9,)), (2, (9,)), (3, (1, 3, 5)), (1, (4, 5))):
            state, written = engine.start(tuning.center + 0.5, np.random.SeedSequence(4)), []
            for steps in splits:
                out = np.zeros((steps, DIM))
                engine.advance([state], steps, 1, [out], pool, threads)
                written.append(out)
            ends.append((np.concatenate(written), state))
    for path, state in ends[1:]:
        np.testing.assert_array_equal(path, ends[0][0])
        for one, other in zip(vars(state).values(), vars(ends[0][1]).values(), strict=True):
            np.testing.assert_array_equal(one, other)
    assert np.abs(ends[0][0]).max() > 0.1


class Interrupted(Exception):
    """What a kill is to a test."""


@pytest.mark.parametrize("general", [False, True], ids=["linear", "general"])
def test_a_run_in_epochs_resumes_with_identical_draws(make_data, general, tmp_path, monkeypatch):
    x, y = make_data("poisson", n=330, dim=DIM)
    own = eq.Model(lambda p, o: jnp.exp(o["x"] @ p) - o["y"] * (o["x"] @ p), np.zeros(DIM))
    problem = own.bind({"x": x, "y": y}) if general else eq.glm("poisson").bind((x, y))
    glm = eq.glm("poisson").bind((x, y))
    tuned = eq.tune(eq.moments(glm, eq.fit(glm)), "sandwich", eq.Dynamics(20, 0.5, 8.0 * 330))
    tuning = replace(tuned, dynamics=replace(tuned.dynamics, batches="epochs"))
    options = {"draws": 900, "chains": 2, "thin": 2, "burn_in": 300, "seed": 3, **QUIET}
    expected = eq.sample(problem, tuning, **options)
    # 17 batches an epoch, the last one of 10 rows
    steps = 2 * (300 + 1800)
    assert expected.statistics["rows"] == 2 * (2100 // 17 * 330 + 2100 % 17 * 20)
    assert expected.statistics["rows"] < steps * 20
    save, seen = Checkpoint.save, []

    def interrupted(self, states, *arguments, **keywords):
        save(self, states, *arguments, **keywords)
        seen.append(states[0].step)
        if len(seen) in {1, 3}:
            raise Interrupted

    monkeypatch.setattr("equipoise.sampling.run._ROUND_SECONDS", 0.001)
    monkeypatch.setattr(Checkpoint, "save", interrupted)
    saved = {"checkpoint": tmp_path / "run.ckpt", "checkpoint_seconds": 0.0}
    for _ in range(2):
        with pytest.raises(Interrupted):
            eq.sample(problem, tuning, **options, **saved)
    assert 0 < seen[0] < seen[2] < 2100
    resumed = eq.sample(problem, tuning, **options, **saved)
    np.testing.assert_array_equal(resumed.draws, expected.draws)


def test_a_checkpoint_knows_the_noise_and_the_dynamics(linear, tmp_path):
    problem, moments = linear
    step, path = 0.2 * np.linalg.inv(moments.hessian), tmp_path / "run.ckpt"
    dynamics, noise = eq.Dynamics(12, gradient="control-variate"), 0.01 * np.eye(DIM)
    options = {"draws": 20, "chains": 2, "thin": 1, "burn_in": 5, "checkpoint": path, **QUIET}
    tuning = eq.Tuning.at(moments, step, dynamics, noise=noise)
    first = eq.sample(problem, tuning, **options)
    np.testing.assert_array_equal(eq.sample(problem, tuning, **options).draws, first.draws)
    law = tuning.predicted
    others = [
        replace(tuning, predicted=replace(law, completion=law.completion * (1.0 + 1e-15))),
        replace(tuning, dynamics=replace(dynamics, gradient="plain")),
        replace(tuning, dynamics=replace(dynamics, batches="leverage")),
        replace(tuning, dynamics=replace(dynamics, batches="epochs")),
        replace(tuning, dynamics=replace(dynamics, batches="epochs", drop_last=True)),
    ]
    for other in others:
        with pytest.raises(eq.CheckpointMismatch, match="belongs to another run"):
            eq.sample(problem, other, **options)
    # rows are drawn by the leverages of the tuning's own Hessian
    drawn = replace(tuning, dynamics=replace(dynamics, batches="leverage"))
    bent = replace(law, moments=replace(law.moments, hessian=1.1 * law.moments.hessian + 0.1 * np.eye(DIM)))
    guard = Guard(np.inf, tuning.expected)
    assert problem.engine(drawn, guard).identity != problem.engine(replace(drawn, predicted=bent), guard).identity
