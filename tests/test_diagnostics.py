"""Diagnosis: chains that are wrong in one known way each, targets out of reach, and chains of the posterior itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.signal import lfilter

import equipoise as eq
from equipoise.calibration.autocorrelation import split_rhat
from equipoise.calibration.expectation import expect
from tests.calibration.test_autocorrelation import ar1


@pytest.fixture(scope="module")
def good(make_data):
    """A gaussian model's long run, which is exactly as predicted, with its tuning."""
    model, data = eq.glm("gaussian", scale=1.3), make_data("gaussian", n=500, dim=3)
    tuning = eq.tune(eq.moments(model, data, eq.fit(model, data).params), "sandwich", eq.Dynamics(50))
    return eq.sample(model, data, tuning, draws=10_000, chains=4, seed=2, thin=2, progress=False), tuning


def looks(chains, tuning) -> set[str]:
    """The checks that ask for a look; those that cannot tell do not."""
    found = eq.diagnose(chains, tuning)
    bad = {check.name for check in found.checks if check.status == "look"}
    assert (found.status == "look") == bool(bad)
    assert not (found.ok and bad)
    assert len(found.warnings) == len(bad)
    return bad


def synthetic(tuning, rng, chains: int, length: int, thin: int = 1) -> eq.Chains:
    """Normal draws with exactly the predicted autocovariances A^k Σ (no momentum), started in the stationary law."""
    modes = tuning.predicted.modes
    a, S = 1.0 - modes.rates, modes.inward(tuning.predicted.cov)
    start = rng.normal(size=(chains, len(a))) @ np.linalg.cholesky(S).T
    noise = np.linalg.cholesky(S - a[:, None] * S * a)
    z = rng.normal(size=(chains, length * thin, len(a))) @ noise.T
    for j in range(len(a)):
        z[:, :, j] = lfilter([1.0], [1.0, -a[j]], z[:, :, j], axis=1, zi=a[j] * start[:, j : j + 1])[0]
    return eq.Chains.from_draws(tuning.center + (z @ modes.basis.T)[:, thin - 1 :: thin], tuning, thin)


CHECKS = ["covariance", "target", "effective draws", "mean bias", "joint mean", "shape", "chains", "guard"]


def test_a_calibrated_run_passes_every_check(good) -> None:
    chains, tuning = good
    found = eq.diagnose(chains, tuning)
    assert found.ok, str(found)
    assert [c.name for c in found.checks] == CHECKS
    assert found.check("shape") is found.checks[5]
    with pytest.raises(eq.InvalidInput, match="did you mean covariance"):
        found.check("covarance")
    assert found.verdict.startswith(
        "Covariance and mean of the draws are those of N(estimate, target) within Monte Carlo error."
    )
    assert found.flags == ((), (), ())
    np.testing.assert_allclose(found.cov, np.cov(chains.flat(), rowvar=False))
    tau = tuning.predicted.iacts()
    every_other = ((tau - 1.0) / (tau + 1.0)) ** 2  # the autocorrelation of stored draws
    np.testing.assert_allclose(found.predicted_ess, 40_000 * (1.0 - every_other) / (1.0 + every_other))
    sd = np.sqrt(np.diag(tuning.target))
    np.testing.assert_allclose(found.shift, (chains.flat().mean(axis=0) - tuning.center) / sd)
    np.testing.assert_allclose(found.sd_ratio, chains.flat().std(axis=0, ddof=1) / sd)
    np.testing.assert_array_equal(found.predicted_shift, 0.0)
    np.testing.assert_allclose(found.target_ratio, 1.0)
    assert str(found).count("ok  ") == len(CHECKS)


def tuned(family: str = "gaussian", n: int = 400, dim: int = 3, batch: int = 40, step: float | None = None):
    rng = np.random.default_rng([n, dim])
    x = np.column_stack([np.ones(n), rng.normal(size=(n, dim - 1)) @ (np.eye(dim - 1) + 0.5)])
    y = x @ np.full(dim, 0.2) + (0.5 + np.abs(x[:, -1])) * rng.normal(size=n)
    model, data = eq.glm(family, scale=1.0), (x, y)
    m = eq.moments(model, data, eq.fit(model, data))
    found = eq.tune(m, "sandwich", eq.Dynamics(batch)) if step is None else eq.Tuning.at(m, step, eq.Dynamics(batch))
    return model, data, found


# -- wrong chains: each is wrong in one way --------------------------------------------------------------------------------


def changed(chains, tuning, change):
    return replace(chains, draws=tuning.center + change(chains.draws - tuning.center))


@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_a_step_thirty_per_cent_off_is_detected(factor) -> None:
    model, data, tuning = tuned(dim=4)
    run = {"draws": 3000, "chains": 4, "thin": 1, "progress": False}
    off = replace(tuning, step=factor * tuning.step)
    for seed in range(5):
        assert {"covariance", "target"} <= looks(eq.sample(model, data, off, seed=seed, **run), tuning)
        # the noise of a gradient has tails, and so have the draws
        assert looks(eq.sample(model, data, tuning, seed=seed, **run), tuning) <= {"shape"}


def test_draws_fifteen_per_cent_too_wide_are_flagged(good) -> None:
    chains, tuning = good
    wide = changed(chains, tuning, lambda e: 1.15 * e)
    assert looks(wide, tuning) == {"covariance", "target"}
    found = eq.diagnose(wide, tuning)
    assert found.check("covariance").observed == pytest.approx(0.3225, abs=0.06)
    assert "beyond Monte Carlo error" in found.warnings[0]
    assert found.verdict.startswith("The draws are not those of N(estimate, target): see covariance, target.")
    assert found.flags == (("spread",),) * 3
    # half a per cent is not: it could be chance
    assert looks(changed(chains, tuning, lambda e: 1.005 * e), tuning) == set()
    # three per cent is, though it hardly matters for an interval
    assert looks(changed(chains, tuning, lambda e: 1.03 * e), tuning) == {"covariance"}


def test_a_wrong_correlation_with_right_variances_is_flagged(good) -> None:
    chains, tuning = good
    sd = np.sqrt(np.diag(tuning.target))
    # reflecting one coordinate keeps every variance
    wrong = changed(chains, tuning, lambda e: e * [1.0, 1.0, -1.0])
    assert looks(wrong, tuning) == {"covariance", "target"}
    assert "combination of parameters" in eq.diagnose(wrong, tuning).check("target").words
    assert np.abs(tuning.target / np.outer(sd, sd))[2, :2].max() > 0.1


def test_a_biased_mean_is_flagged(good) -> None:
    chains, tuning = good
    sd = np.sqrt(np.diag(tuning.target))
    shifted = replace(chains, draws=chains.draws + np.array([0.0, 0.3, 0.0]) * sd)
    assert looks(shifted, tuning) == {"mean bias", "joint mean"}
    found = eq.diagnose(shifted, tuning)
    assert found.shift[1] == pytest.approx(0.3, abs=4.0 * found.shift_error[1])
    assert "+0.3" in found.warnings[0] or "+0.2" in found.warnings[0]
    assert "mean bias" in found.verdict
    assert found.flags == ((), ("bias",), ())


@pytest.fixture(scope="module")
def collinear():
    """Two slopes that are nearly the same: their sum is well known, each of them is not."""
    rng = np.random.default_rng(11)
    z = rng.normal(size=600)
    x = np.column_stack([np.ones(600), z + 0.1 * rng.normal(size=600), z + 0.1 * rng.normal(size=600)])
    model, data = eq.glm("gaussian", scale=1.0), (x, x @ [0.1, 0.5, 0.5] + rng.normal(size=600))
    tuning = eq.tune(eq.moments(model, data, eq.fit(model, data)), "sandwich", eq.Dynamics(60))
    return eq.sample(model, data, tuning, draws=8000, chains=4, seed=1, progress=False), tuning


def sum_of_slopes(tuning, size: float):
    """A shift by `size` standard deviations of the sum of both slopes that moves each of them by much less."""
    v = np.array([0.0, 1.0, 1.0])
    along = tuning.target @ v
    return size * along / np.sqrt(v @ along)


def test_a_mean_shifted_in_a_mixed_direction_is_flagged(collinear) -> None:
    chains, tuning = collinear
    assert looks(chains, tuning) == set()
    shift = sum_of_slopes(tuning, 0.3)
    assert np.abs(shift / np.sqrt(np.diag(tuning.target))).max() < 0.1  # no parameter shows it
    moved = replace(chains, draws=chains.draws + shift)
    assert looks(moved, tuning) == {"joint mean"}
    check = eq.diagnose(moved, tuning).check("joint mean")
    assert check.observed == pytest.approx(0.3, abs=4.0 * check.error)
    assert "x1" in check.words
    assert "x2" in check.words
    assert "x0" not in check.words
    # what is beyond Monte Carlo error and does not matter is not flagged
    assert looks(replace(chains, draws=chains.draws + shift / 5.0), tuning) == set()


def test_a_bias_predicted_in_a_mixed_direction_is_told(collinear) -> None:
    chains, tuning = collinear
    for size, expected in ((0.3, {"mean bias"}), (0.08, set())):
        bias = sum_of_slopes(tuning, size)
        biased = replace(tuning, predicted=replace(tuning.predicted, bias=bias))
        moved = replace(chains, draws=chains.draws + bias)
        assert looks(moved, biased) == expected
    assert "0.08" not in eq.diagnose(moved, biased).check("mean bias").words
    far = replace(tuning, predicted=replace(tuning.predicted, bias=sum_of_slopes(tuning, 0.3)))
    assert (
        "0.30 standard deviations in its worst direction (x1, x2)" in eq.diagnose(chains, far).check("mean bias").words
    )


def test_a_predicted_bias_is_reported_as_predicted(good) -> None:
    chains, tuning = good
    sd = np.sqrt(np.diag(tuning.target))
    bias = np.array([0.0, 0.3, 0.0]) * sd
    biased = replace(tuning, predicted=replace(tuning.predicted, bias=bias))
    shifted = replace(chains, draws=chains.draws + bias)
    assert looks(shifted, biased) == {"mean bias"}
    assert "as predicted" in eq.diagnose(shifted, biased).warnings[0]
    assert "recentred=True" in eq.diagnose(shifted, biased).warnings[0]
    # predicted but not there is a surprise as well
    assert looks(chains, biased) == {"mean bias", "joint mean"}
    assert "was predicted" in eq.diagnose(chains, biased).warnings[0]


def test_a_bias_that_is_unknown_is_not_taken_for_zero_in_words(good) -> None:
    chains, tuning = good
    blind = replace(tuning, predicted=replace(tuning.predicted, bias=np.full(3, np.nan)))
    assert looks(chains, blind) == set()
    check = eq.diagnose(chains, blind).check("mean bias")
    assert np.isnan(check.predicted)


def test_slow_mixing_is_flagged(good) -> None:
    chains, tuning = good
    rng = np.random.default_rng(4)
    root = np.linalg.cholesky(tuning.target)
    z = np.stack([ar1(rng, 0.95, 4, 10_000) for _ in range(3)], axis=2)
    assert "effective draws" in looks(replace(chains, draws=tuning.center + z @ root.T), tuning)


def test_heavy_tails_and_skewness_are_flagged(good) -> None:
    chains, tuning = good
    rng = np.random.default_rng(5)
    root = np.linalg.cholesky(tuning.target)
    shape = chains.draws.shape
    heavy = rng.standard_t(5, size=shape) / np.sqrt(5.0 / 3.0)
    skewed = rng.exponential(size=shape) - 1.0
    normal = rng.normal(size=shape)
    for z, expected in ((heavy, {"shape"}), (skewed, {"shape"}), (normal, set())):
        draws = replace(chains, draws=tuning.center + z @ root.T)
        assert looks(draws, tuning) == expected
        # whatever the shape, its quantiles are not recommended
        assert "estimate ± z·se" in eq.diagnose(draws, tuning).verdict
    assert "skew" in eq.diagnose(replace(chains, draws=tuning.center + skewed @ root.T), tuning).flags[0]


def test_chains_that_disagree_are_flagged(good) -> None:
    chains, tuning = good
    sd = np.sqrt(np.diag(tuning.target))
    apart = np.array([-0.5, 0.5, -0.5, 0.5])[:, None, None] * sd
    assert "chains" in looks(replace(chains, draws=chains.draws + apart), tuning)
    # a drift inside every chain as well: the halves are compared
    drift = np.linspace(-1.0, 1.0, 10_000)[None, :, None] * sd
    assert "chains" in looks(replace(chains, draws=chains.draws + drift), tuning)
    assert np.isnan(split_rhat(chains.draws[:, :3])).all()


def test_a_busy_guard_is_flagged(good) -> None:
    chains, tuning = good
    for rate, expected in ((0.0, set()), (1e-3, set()), (2e-3, {"guard"})):
        assert looks(replace(chains, statistics={**chains.statistics, "guard_rate": rate}), tuning) == expected


# -- the target ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("structure", ["scalar", "diagonal"])
def test_a_step_that_cannot_reach_the_target_is_told(structure) -> None:
    rng = np.random.default_rng(12)
    x = np.column_stack([np.ones(400), rng.normal(size=(400, 2)) @ [[1.0, 0.9], [0.0, 3.0]]])
    y = x @ [0.2, 0.1, 0.1] + (0.3 + np.abs(x[:, 2])) * rng.normal(size=400)
    run = {"ess": 2000, "chains": 2, "progress": False}
    cal = eq.calibrate(eq.glm("gaussian", scale=1.0), (x, y), structure=structure, **run)
    found, check = cal.diagnosis, cal.diagnosis.check("target")
    assert looks(cal.chains, cal.tuning) - {"shape"} == {"target"}
    ratio = np.sqrt(np.diag(cal.tuning.predicted.cov) / np.diag(cal.tuning.target))
    worst = int(np.argmax(np.abs(np.log(ratio))))
    expected = (
        f"the best {structure} step cannot reach this target: x{worst}'s interval is {ratio[worst]:.2f} of what it"
    )
    assert expected in check.words
    np.testing.assert_allclose(found.target_ratio, ratio)
    assert all(("target" in words) == (abs(r - 1.0) > 0.05) for words, r in zip(found.flags, ratio, strict=True))
    assert "target" in found.verdict
    full = eq.calibrate(eq.glm("gaussian", scale=1.0), (x, y), **run)
    assert full.diagnosis.check("target").ok
    # a given step is its own target
    at = eq.Tuning.at(cal.plan.moments, cal.tuning.step, cal.tuning.dynamics)
    assert looks(cal.chains, at) <= {"shape"}


def test_a_refined_run_is_compared_with_the_target(make_data) -> None:
    data, model = make_data("bernoulli", n=60), eq.glm("bernoulli")
    cal = eq.calibrate(model, data, refine=True, batch_size=18, ess=150_000, progress=False)
    found = cal.diagnosis
    assert cal.tuning.internal is not None
    assert found.check("target").predicted == 0.0
    assert found.check("target").observed == found.check("covariance").observed
    np.testing.assert_allclose(
        found.sd_ratio, cal.chains.flat().std(axis=0, ddof=1) / np.sqrt(np.diag(cal.tuning.target))
    )


# -- the posterior itself --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rare():
    """Rare events, N = 60: the posterior of the intercept has skewness −0.44 and 17 % more variance than Laplace's."""
    rng = np.random.default_rng(3)
    x = np.column_stack([np.ones(60), rng.normal(size=60)])
    return x, (rng.random(60) < 1.0 / (1.0 + np.exp(2.0 - x[:, 1]))).astype(float)


def test_a_chain_that_follows_the_posterior_is_not_told_to_look(rare) -> None:
    run = {"target": "posterior", "ess": 8000, "batch_size": 15, "progress": False}
    cal = eq.calibrate(eq.glm("bernoulli"), rare, inverse_temperature=63.0, **run)
    found = cal.diagnosis
    assert found.status == "unknown", str(found)
    assert {c.name for c in found.checks if not c.ok} == {"covariance", "shape"}
    assert found.flags == ((), ())
    # the posterior's own mean, sd and skewness, by importance sampling: −0.383, 1.084 and −0.442
    assert found.shift[0] == pytest.approx(-0.383, abs=0.05)
    assert found.sd_ratio[0] == pytest.approx(1.084, abs=0.03)
    assert found.skewness[0] == pytest.approx(-0.442, abs=0.12)
    assert "follows the posterior itself" in found.verdict
    assert "estimate ± z·se" not in found.verdict
    assert "gaussian" not in str(found)
    # the control: SGD tuned to the same target leans the other way, and is told to look
    plain = eq.calibrate(eq.glm("bernoulli"), rare, sampler="sgmcmc", **run).diagnosis
    assert "mean bias" in {c.name for c in plain.checks if c.status == "look"}
    assert plain.skewness[0] > 0.2
    assert "estimate ± z·se" in plain.verdict
    assert "estimate ± z·se" in plain.check("shape").words


def test_a_posterior_chain_that_is_wrong_is_told_to_look(rare) -> None:
    cal = eq.calibrate(
        eq.glm("bernoulli"), rare, target="posterior", inverse_temperature=63.0, ess=8000, batch_size=15, progress=False
    )
    assert "covariance" in looks(changed(cal.chains, cal.tuning, lambda e: 1.3 * e), cal.tuning)
    sd = np.sqrt(np.diag(cal.tuning.target))
    assert {"mean bias", "joint mean"} <= looks(replace(cal.chains, draws=cal.draws + 0.3 * sd), cal.tuning)


def test_a_hot_chain_of_another_target_does_not_follow_the_posterior(make_data) -> None:
    data, model = make_data("poisson", n=200, dim=3), eq.glm("poisson")
    m = eq.moments(model, data, eq.fit(model, data))
    for target, beta, expected in (
        (eq.posterior(m), 1.1 * 200, True),
        (eq.posterior(m), 4.0 * 200, False),
        (eq.posterior(m), np.inf, False),
        (3.0 * eq.posterior(m), 1.1 * 200, False),
    ):
        tuning = eq.tune(m, target, eq.Dynamics(20, inverse_temperature=beta))
        chains = eq.Chains.from_draws(tuning.center + np.random.default_rng(0).normal(size=(2, 50, 3)), tuning)
        assert expect(chains, tuning).posterior is expected


def test_draws_that_are_all_one_iterate_are_refused(make_data) -> None:
    """A loop that stores its parameters without a copy ends with the last ones everywhere."""
    data, model = make_data("poisson", n=200, dim=3), eq.glm("poisson")
    tuning = eq.tune(eq.moments(model, data, eq.fit(model, data)), "sandwich", eq.Dynamics(20))
    with pytest.raises(eq.InvalidInput, match=r"one value throughout for .*store a copy of each iterate"):
        eq.Chains.from_draws(np.broadcast_to(tuning.center, (2, 50, 3)), tuning)


@pytest.mark.parametrize("structure", ["full", "scalar"])
def test_independent_draws_get_their_own_verdict(make_data, structure) -> None:
    cal = eq.calibrate(
        eq.glm("poisson"), make_data("poisson"), sampler="gaussian", ess=20_000, chains=2, structure=structure
    )
    found = cal.diagnosis
    # compared with the target they were drawn from, also where a chain could not reach it
    assert found.ok, str(found)
    assert "no chain was run" in found.verdict
    # independent: every draw counts, up to the error of the estimate
    np.testing.assert_allclose(found.ess, 20_000, rtol=4.0 * np.sqrt(2.0 * 11.0 / 20_000))
    np.testing.assert_array_equal(found.predicted_ess, 20_000)
    wide = replace(cal.chains, draws=cal.tuning.center + 1.15 * (cal.draws - cal.tuning.center))
    assert "covariance" in looks(wide, cal.tuning)
