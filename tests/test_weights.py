"""Weights and frequencies: both by name, against the data written out row by row and against statsmodels."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

import equipoise as eq
from equipoise.theory.targets import target_matrix
from tests.calibration.test_fitstats import THEIRS
from tests.known import DIVERGENCES, misspecified

FAMILIES = ("gaussian", "bernoulli", "poisson", "gamma", "negative-binomial")
PRIORS = {"flat": {}, "prior": {"prior_precision": np.diag([0.5, 2.0, 0.1]) + 0.2, "prior_mean": 0.3}}
MODELS = {
    **{family: (family, None) for family in FAMILIES},
    **{f"gaussian {name}": ("gaussian", divergence) for name, divergence in DIVERGENCES.items()},
    **{f"{family} beta": (family, eq.Beta(1.2)) for family in FAMILIES[1:]},
}


def counted(family: str, weighted: bool, shifted: bool, n: int = 60) -> tuple[eq.data.Rows, eq.data.Rows]:
    """Rows that count several observations each, and the same observations a row each."""
    x, y = misspecified(family, n=n)
    rng = np.random.default_rng(5)
    times = rng.integers(0, 5, n)
    beside = {
        "weights": rng.uniform(0.3, 2.0, n) if weighted else None,
        "offset": 0.2 * rng.normal(size=n) if shifted else None,
    }
    every = np.repeat(np.arange(n), times)
    return eq.data.rows(x, y, frequency=times, **beside), eq.data.rows(
        x[every], y[every], **{name: None if v is None else v[every] for name, v in beside.items()}
    )


def close(found, wanted, tolerance: float = 1e-10) -> None:
    """Equal to rounding, relative to the largest entry."""
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())


# --- Against the data written out ---------------------------------------------------------------------


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("shifted", [False, True], ids=["plain", "offset"])
@pytest.mark.parametrize("weighted", [False, True], ids=["alike", "weights"])
@pytest.mark.parametrize("name", MODELS)
def test_moments_are_those_of_the_expanded_data(name, weighted, shifted, prior) -> None:
    family, divergence = MODELS[name]
    model = eq.glm(family, divergence=divergence, **PRIORS[prior])
    short, long = (eq.bind(model, data) for data in counted(family, weighted, shifted))
    assert short.n == long.n > short.source.height
    theta = np.array([0.21, -0.1, 0.33])
    here, there = short.settled(theta), long.settled(theta)
    if there.constant is not None:
        close(here.constant, there.constant)
    for found, wanted in zip(here.derivatives(theta, 2)[:3], there.derivatives(theta, 2)[:3], strict=True):
        close(found, wanted)
    close(here.information(theta), there.information(theta))
    found, wanted = short.moments(theta), long.moments(theta)
    for field in ("n", "hessian", "loss_hessian", "score_cov", "mean_score", "noise_ratio"):
        close(getattr(found, field), getattr(wanted, field))
    S = np.cov(np.random.default_rng(2).normal(size=(3, 9)))
    close(found.curvature.quadratic(S), wanted.curvature.quadratic(S))
    close(found.curvature.third(S), wanted.curvature.third(S))
    close(found.score_curvature(S), wanted.score_curvature(S))
    if divergence is None:
        for radius in (None, 0.3):
            one, other = (p.bound_constants(theta, radius) for p in (short, long))
            assert one.scope == other.scope
            assert one.convex == other.convex
            numbers = [k for k, v in vars(other).items() if isinstance(v, float)]
            assert len(numbers) >= 7
            close([getattr(one, k) for k in numbers], [getattr(other, k) for k in numbers])


@pytest.mark.parametrize("weighted", [False, True], ids=["alike", "weights"])
@pytest.mark.parametrize("name", MODELS)
def test_fit_targets_and_tuning_are_those_of_the_expanded_data(name, weighted) -> None:
    family, divergence = MODELS[name]
    model = eq.glm(family, divergence=divergence, prior_precision=0.4)
    short, long = (eq.bind(model, data) for data in counted(family, weighted, shifted=True))
    found, wanted = eq.fit(short), eq.fit(long)
    close(found.theta, wanted.theta)
    close(found.loss, wanted.loss)
    if wanted.constant is not None:
        close(found.constant, wanted.constant)
    at = long.flatten(wanted.theta)
    one, other = (eq.moments(p.at_constant(wanted.constant), at) for p in (short, long))
    for target in ("sandwich", "posterior", "bayesbag"):
        close(target_matrix(target, one), target_matrix(target, other))
    dynamics = eq.Dynamics(10, replacement=False)
    tunings = [eq.tune(m, target_matrix("sandwich", m), dynamics) for m in (one, other)]
    close(tunings[0].step, tunings[1].step)
    close(tunings[0].predicted.cov, tunings[1].predicted.cov)


@pytest.mark.parametrize("replacement", [True, False], ids=["with replacement", "without"])
@pytest.mark.parametrize("name", ["gaussian", "bernoulli", "poisson", "gaussian huber"])
def test_chains_are_those_of_the_expanded_data_bit_for_bit(name, replacement, monkeypatch) -> None:
    # blocks that end in the middle of a row's observations
    monkeypatch.setattr("equipoise.linalg._BLOCK_ELEMENTS", 21)
    family, divergence = MODELS[name]
    model = eq.glm(family, divergence=divergence, prior_precision=0.4)
    short, long = counted(family, weighted=True, shifted=True)
    found = eq.moments(model, long, eq.fit(model, long))
    tuning = eq.tune(found, "sandwich", eq.Dynamics(9, momentum=0.3, inverse_temperature=5e3, replacement=replacement))
    options = {"draws": 40, "chains": 2, "seed": 6, "progress": False}
    draws = eq.sample(model, short, tuning, **options).draws
    np.testing.assert_array_equal(draws, eq.sample(model, long, tuning, **options).draws)
    # a control: the same rows in another order are other chains
    other = eq.sample(model, long.take(np.arange(long.n)[::-1]), tuning, **options).draws
    assert not np.array_equal(draws, other)


def test_coupled_chains_are_those_of_the_expanded_data() -> None:
    model = eq.glm("poisson")
    short, long = counted("poisson", weighted=True, shifted=False)
    tuning = eq.tune(eq.moments(model, long, eq.fit(model, long)), "sandwich", eq.Dynamics(9))
    one, other = (eq.coupled_distance(model, data, tuning, steps=300, seed=1) for data in (short, long))
    assert one == other


def test_a_sample_of_observations_is_a_sample_of_the_expanded_data() -> None:
    short, long = counted("poisson", weighted=True, shifted=True)
    one, other = short.sample(50, seed=3), long.sample(50, seed=3)
    assert one.n == one.height == 50
    for field in ("x", "y", "weights", "offset"):
        np.testing.assert_array_equal(getattr(one, field), getattr(other, field))
    # observations of one row are drawn as often as it has them
    heavy = eq.data.rows(np.ones((2, 1)), [0.0, 1.0], frequency=[9000, 1000])
    drawn = heavy.sample(5000, seed=0).y.sum()
    assert abs(drawn - 500.0) < 5.0 * np.sqrt(5000 * 0.1 * 0.9 * 0.5)
    model = eq.glm("poisson")
    close(*(eq.fit(model, data, tuning_rows=80, seed=4).theta for data in (short, long)))
    np.testing.assert_array_equal(*(eq.bind(model, data).subsample(80, 4).source.x for data in (short, long)))


@pytest.mark.parametrize("family", FAMILIES)
def test_relaxations_keep_a_share_of_the_observations(family) -> None:
    model, theta = eq.glm(family, divergence=eq.Beta(1.2)), np.array([0.21, -0.1, 0.33])
    pairs = [eq.bind(model, data).search.relaxations() for data in counted(family, weighted=True, shifted=True)]
    kept = []
    for one, other in zip(*pairs, strict=True):
        found, wanted = next(one(theta)), next(other(theta))
        kept.append(found.source.n)
        assert found.source.n == wanted.source.n
        close(found.settled(theta).derivatives(theta, 1).value, wanted.settled(theta).derivatives(theta, 1).value)
    assert len(set(kept)) == len(kept) > 2


def test_a_whole_run_is_that_of_the_expanded_data() -> None:
    """All of it, from rows to intervals: chains from tunings that differ by rounding stay together."""
    short, long = counted("poisson", weighted=False, shifted=True)
    model, options = eq.glm("poisson"), {"draws": 200, "chains": 2, "seed": 2, "progress": False, "batch_size": 12}
    one, other = (eq.calibrate(model, data, **options) for data in (short, long))
    assert one.plan.moments.n == other.plan.moments.n == long.n
    close(one.draws, other.draws)
    assert eq.plan(model, short).tuning.dynamics == eq.plan(model, long).tuning.dynamics


def test_counts_beyond_memory_are_fitted_and_refused_by_chains() -> None:
    data = eq.data.rows([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]], [1, 2, 9], frequency=[4e9, 3e9, 1e9])
    model, small = eq.glm("poisson"), eq.data.rows(data.x, data.y, frequency=[4, 3, 1])
    found = eq.fit(model, data)
    assert eq.bind(model, data).n == 8_000_000_000
    close(found.theta, eq.fit(model, small).theta, 1e-8)
    close(eq.posterior(eq.moments(model, data, found)) * 1e9, eq.posterior(eq.moments(model, small, found)))
    tuning = eq.tune(eq.moments(model, data, found), "posterior", eq.Dynamics(10))
    with pytest.raises(eq.InvalidInput, match="fewer than 2³² observations"):
        eq.sample(model, data, tuning, draws=10, progress=False)


# --- Against statsmodels ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def both():
    def make(family: str):
        x, y = misspecified(family, n=90)
        rng = np.random.default_rng(8)
        w, f = rng.uniform(0.4, 3.0, 90), rng.integers(1, 6, 90)
        data = eq.data.rows(x, y, weights=w, frequency=f)
        theirs = sm.GLM(y, x, THEIRS[family], var_weights=w, freq_weights=f)
        return data, theirs, theirs.fit(tol=1e-14, maxiter=300)

    return make


@pytest.mark.parametrize("family", THEIRS)
def test_estimates_are_those_of_statsmodels(family, both) -> None:
    data, _, result = both(family)
    found = eq.fit(eq.glm(family), data)
    np.testing.assert_allclose(found.theta, result.params, rtol=1e-7, atol=1e-8)
    # controls: either kind of weight alone has another minimiser
    for kept in ({"weights": data.weights}, {"frequency": data.frequency}):
        other = eq.fit(eq.glm(family), eq.data.rows(data.x, data.y, **kept)).theta
        assert np.abs(other - result.params).max() > 1e-3


def test_scale_and_number_of_observations_are_those_of_statsmodels(both) -> None:
    data, theirs, result = both("gaussian")
    assert data.n == theirs.freq_weights.sum() == result.df_resid + 3
    fitted = eq.fit(eq.glm("gaussian"), data)
    np.testing.assert_allclose(fitted.constant**2, result.scale, rtol=1e-9)
    cov = eq.posterior(eq.moments(eq.glm("gaussian"), data, fitted))
    np.testing.assert_allclose(cov, result.cov_params(), rtol=1e-8)
    # a control: the product as precision weights has the same estimate, but fewer observations
    merged = eq.data.rows(data.x, data.y, weights=data.weights * data.frequency)
    other = eq.fit(eq.glm("gaussian"), merged)
    np.testing.assert_allclose(other.theta, fitted.theta, rtol=1e-9)
    assert other.constant > 1.3 * fitted.constant


@pytest.mark.parametrize("kinds", [("weights",), ("frequency",), ("weights", "frequency")], ids=" and ".join)
@pytest.mark.parametrize("family", ["gaussian", "bernoulli", "poisson"])
def test_hc0_is_that_of_statsmodels(family, kinds, both) -> None:
    data, _, _ = both(family)
    kept = {name: getattr(data, name) for name in kinds}
    theirs = {{"weights": "var_weights", "frequency": "freq_weights"}[name]: value for name, value in kept.items()}
    wanted = sm.GLM(data.y, data.x, THEIRS[family], **theirs).fit(tol=1e-14, cov_type="HC0").cov_params()

    def sandwich(**given):
        model, rows = eq.glm(family), eq.data.rows(data.x, data.y, **given)
        return eq.sandwich(eq.moments(model, rows, eq.fit(model, rows)))

    np.testing.assert_allclose(sandwich(**kept), wanted, rtol=1e-6, atol=1e-9)
    if "frequency" in kinds:
        # a control: counts taken for precisions have a larger covariance
        mistaken = sandwich(weights=np.prod(list(kept.values()), axis=0))
        assert np.linalg.norm(mistaken) > 1.5 * np.linalg.norm(wanted)


# --- At the door --------------------------------------------------------------------------------------


@pytest.mark.parametrize("formula", ["y ~ a + C(g)", "y ~ center(a) + poly(b, 2)", "y ~ scale(a) + bs(b, df=4)"])
def test_tables_count_rows_in_what_they_learn_too(formula, frame) -> None:
    long = frame.loc[np.repeat(frame.index, frame["times"])]
    found = eq.data.table(frame, formula, frequency="times", weights="w")
    wanted = eq.data.table(long, formula, weights="w")
    every = np.repeat(np.arange(found.height), found.frequency.astype(int))
    assert (found.n, found.names) == (wanted.n, wanted.names)
    close(found.x[every], wanted.x)
    np.testing.assert_array_equal(found.y[every], wanted.y)
    np.testing.assert_array_equal(found.weights[every], wanted.weights)
    close(*(made.design.encode(frame)[0].to_numpy() for made in (found, wanted)))
    again = eq.data.table(frame, formula, frequency=frame["times"].to_list(), weights=frame["w"])
    assert again.fingerprint() == found.fingerprint()


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    made = pd.DataFrame({"a": rng.normal(size=40), "b": rng.uniform(size=40), "g": list("uvwx") * 10})
    made["y"] = rng.poisson(np.exp(0.5 + 0.3 * made["a"]))
    made["w"] = rng.uniform(0.5, 2.0, 40)
    made["times"] = rng.integers(0, 5, 40)
    return made


def test_tables_refuse_frequencies_that_count_nothing(frame) -> None:
    halved = frame.assign(times=frame["times"].astype(float).where(frame.index != 7, 1.5))
    with pytest.raises(eq.InvalidInput, match=r"frequency: must be whole numbers.*got 1.5 at row 7 \(1 such rows\)"):
        eq.data.table(halved, "y ~ center(a)", frequency="times")
    with pytest.raises(eq.InvalidInput, match="frequency: must be positive for some row"):
        eq.data.table(frame, "y ~ a", frequency=np.zeros(40))
    with pytest.raises(eq.InvalidInput, match=r"formula: must be without lag\(\) where a row stands for several"):
        eq.data.table(frame.assign(times=2), "y ~ lag(a)", frequency="times", missing="drop")
    missing = frame.assign(times=frame["times"].astype(float).where(frame.index != 7))
    with pytest.raises(eq.InvalidInput, match=r"missing in columns \['times'\], rows 7"):
        eq.data.table(missing, "y ~ a", frequency="times")


def test_every_door_takes_frequencies(frame) -> None:
    model, options = eq.glm("poisson"), {"formula": "y ~ a", "frequency": "times"}
    total = int(frame["times"].sum())
    assert eq.bind(model, frame, **options).n == total
    assert eq.plan(model, frame, **options).moments.n == total
    made = eq.calibrate(model, frame, **options, ess=20, chains=2, progress=False)
    assert f"{total}" in str(made.summary())
    x = np.column_stack([np.ones(40), frame["a"]])
    mapping = {"x": x, "y": frame["y"], "frequency": frame["times"], "weights": frame["w"]}
    assert eq.bind(model, mapping).n == total
    with pytest.raises(eq.InvalidInput, match="weights, frequency, offset, trials: must be column names"):
        eq.bind(model, (x, frame["y"]), frequency=frame["times"])


def test_rows_that_count_nothing_are_left_out_before_they_are_looked_at() -> None:
    x, y = misspecified("poisson", n=8)
    x[2, 1], y[5] = np.nan, np.nan
    made = eq.data.rows(x, y, weights=[1, 2, 0, 1, 1, 1, 1, 1], frequency=[1, 1, 3, 1, 2, 0, 1, 1], offset=np.zeros(8))
    kept = [0, 1, 3, 4, 6, 7]
    assert (made.n, made.height) == (7, 6)
    np.testing.assert_array_equal(made.x, x[kept])
    np.testing.assert_array_equal(made.weights, [1, 2, 1, 1, 1, 1])
    np.testing.assert_array_equal(made.frequency, [1, 1, 1, 2, 1, 1])
    # of those that stay, the numbers in a message are the caller's
    y[6] = np.inf
    with pytest.raises(eq.InvalidInput, match="y: must be finite; got NaN or infinity at 6"):
        eq.data.rows(x, y, weights=made_without(8, 2), frequency=made_without(8, 5))


def made_without(n: int, row: int) -> np.ndarray:
    """Ones but for one zero."""
    return (np.arange(n) != row).astype(float)


def test_the_fingerprint_sees_frequencies() -> None:
    x, y = misspecified("poisson", n=8)
    keys = {
        eq.data.rows(x, y, **given).fingerprint()
        for given in ({}, {"frequency": np.full(8, 2)}, {"weights": np.full(8, 2)}, {"offset": np.full(8, 2)})
    }
    assert len(keys) == 4
