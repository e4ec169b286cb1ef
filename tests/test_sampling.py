"""Sampling: bits that depend on the seed alone, checkpoints that survive a kill, divergence, the guard, automatic options."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

import equipoise as eq


def run(case, **options):
    model, data, tuning = case
    return eq.sample(model, data, tuning, **{"draws": 60, "chains": 4, "seed": 3, "progress": False, **options})


def test_shapes_names_and_statistics(poisson_run) -> None:
    chains = run(poisson_run, draws=25, chains=3, thin=4, burn_in=10)
    assert chains.draws.shape == (3, 25, 3)
    assert chains.flat().shape == (75, 3)
    assert np.isfinite(chains.draws).all()
    assert (chains.thin, chains.burn_in, chains.seed, chains.names) == (4, 10, 3, ("x0", "x1", "x2"))
    assert chains.statistics["steps"] == 110
    assert chains.statistics["rows"] == 3 * 110 * 20
    assert [state.step for state in chains.state] == [110] * 3
    np.testing.assert_array_equal(chains.tree(), chains.draws)
    np.testing.assert_array_equal(chains.flat()[25:50], chains.draws[1])


@pytest.mark.parametrize("threads", [1, 2, 4, None])
def test_same_seed_same_bits_on_any_number_of_threads(poisson_run, threads) -> None:
    np.testing.assert_array_equal(run(poisson_run, threads=threads).draws, run(poisson_run, threads=1).draws)


def test_threads_that_share_steps_change_no_bit(make_data) -> None:
    model, data = eq.glm("bernoulli"), make_data("bernoulli", n=9000, dim=3)
    m = eq.moments(model, data, eq.fit(model, data).params)
    case = model, data, eq.tune(m, "sandwich", eq.Dynamics(8500))
    expected = run(case, draws=20, chains=2, threads=1).draws
    for threads in (2, 4, 5):
        np.testing.assert_array_equal(run(case, draws=20, chains=2, threads=threads).draws, expected)
    np.testing.assert_array_equal(run(case, draws=20, chains=1, threads=3).draws, expected[:1])


def test_rows_in_float32_change_the_draws_by_their_rounding(poisson_run, tmp_path) -> None:
    full, half = run(poisson_run, thin=1, checkpoint=tmp_path / "a"), run(poisson_run, thin=1, storage="float32")
    assert half.draws.dtype == np.float64
    assert 0.0 < np.abs(half.draws - full.draws).max() < 1e-5 * full.draws.std()
    with pytest.raises(eq.CheckpointMismatch):
        run(poisson_run, thin=1, storage="float32", checkpoint=tmp_path / "a")
    with pytest.raises(eq.InvalidInput, match="storage: must be one of float64, float32; got 'float16'"):
        run(poisson_run, storage="float16")


def test_seeds_and_chains_differ(poisson_run) -> None:
    one, other = run(poisson_run, seed=3).draws, run(poisson_run, seed=4).draws
    assert not np.intersect1d(one, other).size
    for k in range(1, 4):
        assert not np.intersect1d(one[0], one[k]).size


def test_more_chains_or_draws_extend_a_run(poisson_run) -> None:
    short = run(poisson_run, draws=20, chains=2).draws
    np.testing.assert_array_equal(run(poisson_run, draws=60, chains=4).draws[:2, :20], short)


def test_thinning_keeps_every_kth_iterate_and_burn_in_discards(poisson_run) -> None:
    every = run(poisson_run, draws=40, thin=1, burn_in=0).draws
    np.testing.assert_array_equal(run(poisson_run, draws=8, thin=5, burn_in=0).draws, every[:, 4::5])
    # iterates whose number is a multiple of the thinning, after the burn-in
    np.testing.assert_array_equal(run(poisson_run, draws=4, thin=5, burn_in=17).draws, every[:, 19:35:5])
    np.testing.assert_array_equal(run(poisson_run, draws=10, thin=1, burn_in=30).draws, every[:, 30:])


def test_rounds_do_not_change_the_bits(poisson_run, monkeypatch) -> None:
    expected = run(poisson_run, draws=400, thin=3).draws
    # a round so short that chunks shrink to a single step
    monkeypatch.setattr("equipoise.sampling.run._ROUND_SECONDS", 1e-9)
    np.testing.assert_array_equal(run(poisson_run, draws=400, thin=3).draws, expected)


def test_numbers_of_any_type_are_counts(poisson_run) -> None:
    expected = run(poisson_run, draws=10, chains=2, thin=2, burn_in=4, seed=3).draws
    floats = run(poisson_run, draws=10.0, chains=np.int64(2), thin=np.float64(2), burn_in=4.0, seed=np.uint8(3))
    np.testing.assert_array_equal(floats.draws, expected)
    model, data, tuning = poisson_run
    same = replace(tuning, dynamics=eq.Dynamics(np.float64(20.0)))
    np.testing.assert_array_equal(run((model, data, same), draws=10, chains=2, thin=2, burn_in=4).draws, expected)


def test_automatic_thinning_and_burn_in(make_data) -> None:
    model, data = eq.glm("poisson"), make_data("poisson", n=400, dim=3)
    m = eq.moments(model, data, eq.fit(model, data).params)
    for size in (4, 40):
        tuning = eq.tune(m, "sandwich", eq.Dynamics(size))
        chains = run((model, data, tuning), draws=5)
        law = tuning.predicted
        # five draws per autocorrelation time, which is about N/B steps
        assert chains.thin == max(1, round(law.iact() / 5))
        assert law.iact() == pytest.approx(400 / size, rel=0.1)
        assert chains.burn_in == law.burn_in(np.zeros(3), 0.01)
        # second moments decay by ρ each step: after the burn-in they are within one per cent
        assert law.spectral_radius**chains.burn_in <= 0.01 * 1.0001
        assert chains.statistics["steps"] == chains.burn_in + 5 * chains.thin


def test_thin_auto_costs_less_than_one_per_cent_of_the_effective_draws(poisson_run) -> None:
    _, _, tuning = poisson_run
    law = tuning.predicted
    thin = run(poisson_run, draws=2).thin
    v = np.array([1.0, 0.0, 0.0])
    lags = np.array([law.autocovariance(thin * k)[0, 0] for k in range(1, 400)]) / law.cov[0, 0]
    assert thin * (1.0 + 2.0 * lags.sum()) < 1.01 * law.iact(v)


def test_starts_are_from_the_predicted_law(poisson_run) -> None:
    model, data, tuning = poisson_run
    # one step with a vanishing step matrix shows the start
    still = replace(tuning, step=1e-14 * tuning.step)
    first = run((model, data, still), draws=1, chains=4000, thin=1, burn_in=0, guard=None).draws[:, 0] - tuning.center
    cov = np.cov(first, rowvar=False)
    # 4000 independent normal draws: E‖Σ̂−Σ‖² = (‖Σ‖² + tr(Σ)²)/T; three such errors
    size = np.linalg.norm(tuning.target)
    floor = np.sqrt((size**2 + np.trace(tuning.target) ** 2) / 4000)
    assert np.linalg.norm(cov - tuning.target) < 3.0 * floor


# checkpoints


def test_checkpoint_of_a_finished_run_is_the_run(poisson_run, tmp_path) -> None:
    path = tmp_path / "deep" / "run.ckpt"
    first = run(poisson_run, checkpoint=path, guard=1.5)
    np.testing.assert_array_equal(first.draws, run(poisson_run, guard=1.5).draws)
    again = run(poisson_run, checkpoint=str(path), guard=1.5)
    np.testing.assert_array_equal(again.draws, first.draws)
    for one, other in zip(first.state, again.state, strict=True):
        assert (one.step, one.hits) == (other.step, other.hits)
        for name in ("position", "velocity", "rng"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert again.statistics["guard_hits"] == first.statistics["guard_hits"] > 0
    assert sorted(p.name for p in path.parent.iterdir()) == ["run.ckpt"]


CHILD = textwrap.dedent(
    """
    import sys
    import numpy as np
    import equipoise as eq

    def case():
        rng = np.random.default_rng(0)
        x = np.column_stack([np.ones(500), rng.normal(size=(500, 3))])
        y = rng.poisson(np.exp(x @ [0.3, 0.2, -0.2, 0.1]) * rng.gamma(2.0, 0.5, size=500)).astype(float)
        model = eq.glm("poisson")
        m = eq.moments(model, (x, y), eq.fit(model, (x, y)).params)
        return model, (x, y), eq.tune(m, "sandwich", eq.Dynamics(5, momentum=0.5, inverse_temperature=5000.0))

    def sample(checkpoint):
        return eq.sample(*case(), draws=150_000, chains=2, seed=9, thin=30, burn_in=1000, progress=False,
                         checkpoint=checkpoint, checkpoint_seconds=0.2, threads=1)
    """
)


def test_a_killed_run_resumes_with_identical_draws(tmp_path) -> None:
    # an autocorrelation time of hundreds of steps and a draw every thirty: two chains on the same noise approach each
    # other, so that a state restored wrongly would be forgotten between draws further apart
    scope: dict = {}
    exec(CHILD, scope)
    path, steps = tmp_path / "run.ckpt", 1000 + 150_000 * 30
    child = subprocess.Popen([sys.executable, "-c", CHILD + "\nsample(sys.argv[1])\n", str(path)])
    try:
        # the file has its header before the first step, and draws after the first save
        while not path.exists() or path.stat().st_size < 10_000:
            assert child.poll() is None, "the run ended before its first checkpoint"
            time.sleep(0.005)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    # killed in the middle: most draws are still to come
    assert path.stat().st_size < 0.9 * 150_000 * 2 * 4 * 8
    resumed = scope["sample"](path)
    np.testing.assert_array_equal(resumed.draws, scope["sample"](None).draws)
    assert [state.step for state in resumed.state] == [steps, steps]


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 4},
        {"draws": 61},
        {"chains": 3},
        {"thin": 3},
        {"burn_in": 7},
        {"guard": 4.0},
        "data",
        "response",
        "weights",
        "prior",
        "step",
        "dynamics",
        "law",
    ],
)
def test_checkpoint_of_another_run(poisson_run, tmp_path, change) -> None:
    options = {"thin": 2, "burn_in": 5, "checkpoint": tmp_path / "run.ckpt"}
    run(poisson_run, **options)
    model, (x, y), tuning = poisson_run
    other = {
        "data": (model, (x * 1.0000001, y), tuning),
        "response": (model, (x, y + (np.arange(len(y)) == 3)), tuning),
        "weights": (model, eq.data.rows(x, y, weights=np.full(len(y), 2.0)), tuning),
        "prior": (eq.glm("poisson", prior_precision=0.1), (x, y), tuning),
        "step": (model, (x, y), replace(tuning, step=1.0000001 * tuning.step)),
        "dynamics": (model, (x, y), replace(tuning, dynamics=eq.Dynamics(20, momentum=0.1))),
        # the law sets where the guard is
        "law": (model, (x, y), replace(tuning, predicted=replace(tuning.predicted, cov=2.0 * tuning.predicted.cov))),
    }
    case, extra = (other[change], {}) if isinstance(change, str) else (poisson_run, change)
    with pytest.raises(eq.CheckpointMismatch, match=r"run.ckpt belongs to another run.*To fix: delete it"):
        run(case, **{**options, **extra})
    # the file is left alone, and still resumes its own run
    np.testing.assert_array_equal(run(poisson_run, **options).draws, run(poisson_run, thin=2, burn_in=5).draws)


def test_checkpoint_of_another_family(make_data, tmp_path) -> None:
    x, y = make_data("poisson", n=200, dim=3)
    found = []
    for family in ("poisson", "negative-binomial"):
        model = eq.glm(family)
        m = eq.moments(model, (x, y), eq.fit(eq.glm("poisson"), (x, y)).params)
        m = replace(m, loss="")  # anyone's own numbers, which do not say what they belong to
        found.append((model, (x, y), eq.tune(m, np.eye(3) * 0.01, eq.Dynamics(20))))
    run(found[0], checkpoint=tmp_path / "run.ckpt", thin=1, burn_in=1)
    with pytest.raises(eq.CheckpointMismatch):
        run((found[1][0], found[1][1], found[0][2]), checkpoint=tmp_path / "run.ckpt", thin=1, burn_in=1)


# divergence and the guard


@pytest.fixture(scope="module")
def diverging(poisson_run):
    """A step eight times too large: the proxy is still stable, the exponential loss is not."""
    model, data, tuning = poisson_run
    return model, data, replace(tuning, step=8.0 * tuning.step)


OPTIONS = {"draws": 400, "chains": 2, "thin": 1, "burn_in": 0, "seed": 1}


def test_divergence_says_when_and_keeps_the_finite_draws(diverging) -> None:
    with pytest.raises(eq.ChainDiverged, match=r"chain 0 diverged at step \d+.*To fix") as caught:
        run(diverging, guard=None, **OPTIONS)
    error = caught.value
    finite = np.isfinite(error.chains.draws).all(axis=2)
    assert error.chain == 0
    assert str(error.step) in str(error)
    for chain, state in zip(finite, error.chains.state, strict=True):
        # every iterate before the one that was not finite, and nothing after
        assert chain.sum() == state.step - 1
        assert chain[: state.step - 1].all()
    assert error.step == error.chains.state[0].step
    # they are the draws of the run that stops just before
    short = run(diverging, guard=None, **{**OPTIONS, "draws": error.step - 1, "chains": 1})
    np.testing.assert_array_equal(error.chains.draws[0, : error.step - 1], short.draws[0])
    assert error.chains.statistics["rows"] == 20 * sum(s.step for s in error.chains.state)


def test_divergence_is_remembered_by_the_checkpoint(diverging, tmp_path) -> None:
    errors = []
    for _ in range(2):
        with pytest.raises(eq.ChainDiverged) as caught:
            run(diverging, guard=None, checkpoint=tmp_path / "run.ckpt", **OPTIONS)
        errors.append(caught.value)
    assert errors[0].step == errors[1].step
    np.testing.assert_array_equal(errors[0].chains.draws, errors[1].chains.draws)


def test_divergence_during_burn_in(diverging) -> None:
    with pytest.raises(eq.ChainDiverged) as caught:
        run(diverging, guard=None, **{**OPTIONS, "burn_in": 400, "draws": 5})
    assert np.isnan(caught.value.chains.draws[0]).all()


def test_the_guard_keeps_the_same_chain_finite(diverging) -> None:
    _, _, tuning = diverging
    chains = run(diverging, guard="auto", **OPTIONS)
    assert np.isfinite(chains.draws).all()
    assert chains.statistics["guard_hits"] > 0
    assert chains.statistics["guard_rate"] == chains.statistics["guard_hits"] / 800
    # inside the ellipsoid of the chi-square quantile at 1 − 1e-9, up to rounding on its surface
    e = chains.flat() - tuning.center
    distance2 = np.einsum("ij,ij->i", e @ np.linalg.inv(tuning.predicted.cov), e)
    assert distance2.max() == pytest.approx(chi2.isf(1e-9, 3), rel=1e-9)


def test_a_radius_is_in_standard_deviations(poisson_run) -> None:
    _, _, tuning = poisson_run
    chains = run(poisson_run, draws=500, thin=1, guard=1.5)
    e = chains.flat() - tuning.center
    distance2 = np.einsum("ij,ij->i", e @ np.linalg.inv(tuning.predicted.cov), e)
    assert distance2.max() == pytest.approx(1.5**2, rel=1e-9)


@pytest.mark.parametrize("family", ["gaussian", "bernoulli"])
@pytest.mark.parametrize("batch_size", [8, 90])
def test_the_guard_never_acts_on_smooth_losses(family, batch_size, make_data, make_model) -> None:
    model, data = make_model(family), make_data(family, n=300, dim=4)
    m = eq.moments(model, data, eq.fit(model, data).params)
    case = model, data, eq.tune(m, "sandwich", eq.Dynamics(batch_size))
    off = run(case, draws=20_000, thin=1, guard=None)
    # the same radius that guards the exponential losses
    on = run(case, draws=20_000, thin=1, guard=float(np.sqrt(chi2.isf(1e-9, 4))))
    assert on.statistics["guard_hits"] == 0
    np.testing.assert_array_equal(on.draws, off.draws)
    np.testing.assert_array_equal(run(case, draws=20_000, thin=1, guard="auto").draws, off.draws)


@pytest.mark.parametrize("family", ["poisson", "gamma", "negative-binomial", "gaussian", "bernoulli"])
def test_exponential_losses_and_no_others_are_guarded_by_default(family, make_model, make_data) -> None:
    grows = family in ("poisson", "gamma", "negative-binomial")
    assert make_model(family).bind(make_data(family, n=20, dim=2)).guarded == grows


def test_tuning_for_other_data(poisson_run) -> None:
    model, (x, y), tuning = poisson_run
    with pytest.raises(eq.InvalidInput, match="tuning: must be made for this model's 2 parameters; got 3 parameters"):
        eq.sample(model, (x[:, :2], y), tuning)
    with pytest.raises(eq.InvalidInput, match="batch_size: must be at most the number of rows, 10; got 20"):
        eq.sample(model, (x[:10], y[:10]), tuning)
