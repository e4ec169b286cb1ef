"""How often the files are read, counted where they are opened: at most eight times before the first step."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from errno import ENOSPC
from itertools import count

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from tests.data.conftest import MANY as N
from tests.known import jax_loss


def _model(name):
    robust = {"huber": eq.Huber(), "student": eq.StudentT()}
    return eq.glm("gaussian", divergence=robust[name]) if name in robust else eq.glm(name)


@pytest.mark.parametrize(
    ("response", "family", "target", "clusters", "most"),
    [
        ("count", "poisson", "sandwich", None, 6),
        ("count", "poisson", "CRV1", "firm", 7),
        ("count", "poisson", "CRV1", ["firm", "year"], 7),
        ("won", "bernoulli", "HC3", None, 6),
        ("level", "gaussian", "posterior", None, 6),
        ("size", "gamma", "CRV3", "firm", 8),
        ("count", "negative-binomial", "CRV1", "firm", 8),
        ("count", "negative-binomial", "HC3", None, 7),
        ("size", "gamma", "HC2", None, 7),
        ("level", "huber", "HC3", None, 6),
        ("level", "student", "HC2", None, 6),
    ],
)
def test_a_plan_reads_the_files_at_most_eight_times(response, family, target, clusters, most, many, readings) -> None:
    source = eq.data.scan(many, f"{response} ~ a + b + g", clusters=clusters)
    plan = eq.plan(_model(family), source, target=target)
    assert set(readings.values()) == {readings.most_common(1)[0][1]}
    assert readings.total() / N <= most
    assert source.passes == pytest.approx(readings.total() / N)
    if family == "poisson":
        # what follows the plan is one pass for the rows of all steps
        before = readings.total()
        eq.sample(plan.problem, plan.tuning, 20, chains=2, progress=False)
        assert readings.total() - before <= N


@pytest.mark.parametrize("options", [{"target": "HC3"}, {"target": "HAC", "lags": 2}])
def test_calls_inside_calls_take_no_further_pass(options, many, readings) -> None:
    formula = "level ~ poly(scale(a), 2) + bs(center(scale(b)), knots=[0.5]) + g"
    source = eq.data.scan(many, formula)
    assert readings.total() == N
    plan = eq.plan(eq.glm("gaussian", divergence=eq.Huber()), source, **options)
    assert readings.total() / N <= 6
    assert source.passes == pytest.approx(readings.total() / N)
    frame = pd.concat([pd.read_parquet(many / f"{k}.parquet") for k in range(3)])
    expected = eq.plan(eq.glm("gaussian", divergence=eq.Huber()), frame, formula=formula, **options)
    _require_equal(plan, expected)


def _require_equal(plan, expected, constants=1e-11) -> None:
    """To 1e-10 in the parameters' own units, their standard errors."""
    errors = np.sqrt(np.diag(expected.tuning.target))
    np.testing.assert_allclose(plan.fit.theta / errors, expected.fit.theta / errors, rtol=0.0, atol=1e-10)
    for found, wanted in (
        (plan.tuning.target, expected.tuning.target),
        (plan.moments.hessian, expected.moments.hessian),
    ):
        units = np.sqrt(np.diag(wanted))
        np.testing.assert_allclose(
            found / np.outer(units, units), wanted / np.outer(units, units), rtol=0.0, atol=1e-10
        )
    if expected.fit.constant is not None:
        assert plan.fit.constant == pytest.approx(expected.fit.constant, rel=constants)


INNER = {
    2: "exp(0.5 * scale(a))",
    3: "exp(0.3 * scale(exp(0.5 * scale(a))))",
    4: "log(3 + exp(0.2 * scale(exp(0.3 * scale(exp(0.5 * scale(a)))))))",
}


@pytest.mark.parametrize("family", ["huber", "student"])
@pytest.mark.parametrize("options", [{"target": "HC3"}, {"target": "HAC", "lags": 2}])
@pytest.mark.parametrize("learnt", [2, pytest.param(3, marks=pytest.mark.slow), 4])
def test_a_robust_scale_leaves_passes_for_calls_of_functions_of_calls(
    family, options, learnt, many, readings, sampled
) -> None:
    sampled(40_000)
    formula = f"level ~ poly({INNER[learnt]}, 2) + C(center(b) > 0) + g"
    source = eq.data.scan(many, formula)
    assert readings.total() == 2 * N  # what lies between was set aside
    plan = eq.plan(_model(family), source, **options)
    # three for the fit, moments with the scores over leverages or in time, curvature
    assert readings.total() / N <= 7
    frame = pd.concat([pd.read_parquet(many / f"{k}.parquet") for k in range(3)])
    _require_equal(plan, eq.plan(_model(family), frame, formula=formula, **options))


@pytest.mark.parametrize(
    ("free", "fits", "expected", "beside"),
    [
        (0, 99, 3, {"frequency": "firm", "weights": "b2"}),
        (10**12, 99, 2, {"frequency": "firm", "weights": "b2"}),
        pytest.param(10**12, 99, 2, {}, marks=pytest.mark.slow),
        (10**12, 1, 3, {}),
    ],
)
def test_calls_learn_the_same_bits_from_rows_set_aside_and_from_rows_read_again(
    free, fits, expected, beside, many, readings, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("equipoise.data.nesting.free_disk", lambda: free)
    written, dump = count(), pickle.dump

    def dumped(*given, **options) -> None:
        if next(written) >= fits:
            raise OSError(ENOSPC, "No space left on device")
        dump(*given, **options)

    monkeypatch.setattr(pickle, "dump", dumped)
    frame = pd.concat([pd.read_parquet(many / f"{k}.parquet") for k in range(3)])
    frame.assign(b2=frame["b"] ** 2 + 0.1).to_parquet(tmp_path / "all.parquet", row_group_size=7000)
    formula = f"level ~ poly({INNER[3]}, 3) + scale({INNER[2]}) + C({INNER[2]} > 2) + b + g"
    source = eq.data.scan(tmp_path, formula, memory="8MB", **beside)
    assert readings.total() == expected * N
    with ThreadPoolExecutor(2) as pool:  # where rows stay where they are, they are read
        other = eq.data.scan(tmp_path, formula, executor=pool, memory="8MB", **beside)
        assert readings.total() == (expected + 3) * N
        # but not more often than leaves eight passes for all
        deep = f"level ~ poly({INNER[4]}, 2)"
        with pytest.raises(
            eq.InvalidInput, match=r"in 3 passes with an executor; got .* that take 4.*as a column before"
        ):
            eq.data.scan(tmp_path, deep, executor=pool)
        assert readings.total() == (expected + 3) * N
    if expected == 3:
        with pytest.raises(eq.InvalidInput, match=r"in 3 passes on a full disk; got .* that take 4.*free space"):
            eq.data.scan(tmp_path, deep)
    else:
        assert eq.data.scan(tmp_path, deep).passes == 2
    np.testing.assert_array_equal(source.whole().x, other.whole().x)
    table = eq.data.table(pd.read_parquet(tmp_path / "all.parquet"), formula, **beside)
    np.testing.assert_allclose(source.whole().x, table.x, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("response", "family", "options", "passes"),
    [
        # learnt, two for the fit, moments with the sums of the target, curvature
        ("count", "poisson", {"target": "HAC", "lags": 3}, 5),
        ("count", "negative-binomial", {"target": "HAC", "lags": 3}, 5),
        ("count", "negative-binomial", {"target": "CRV1"}, 5),
        ("size", "gamma", {"target": "CRV3"}, 5),
        ("size", "gamma", {"target": "HC3"}, 5),
        ("count", "poisson", {"target": "HC2"}, 5),
        ("level", "gaussian", {"target": "HC3"}, 4),
        ("level", "huber", {"target": "HC3"}, 6),
    ],
)
def test_sums_over_time_and_by_cluster_go_with_the_moments(
    response, family, options, passes, many, readings, sampled
) -> None:
    sampled(40_000)
    formula, clusters = f"{response} ~ a + b + g", "firm" if "CRV" in options["target"] else None
    source = eq.data.scan(many, formula, clusters=clusters)
    plan = eq.plan(_model(family), source, **options)
    assert readings.total() / N <= passes
    frame = pd.concat([pd.read_parquet(many / f"{k}.parquet") for k in range(3)])
    expected = eq.plan(_model(family), eq.data.table(frame, formula, clusters=clusters), **options)
    _require_equal(plan, expected)


@pytest.mark.parametrize(("response", "family"), [("count", "poisson"), ("size", "gamma")])
def test_leverages_that_the_fit_knows_too_little_of_take_a_pass_of_their_own(
    response, family, many, readings, sampled, monkeypatch
) -> None:
    sampled(40_000)
    formula = f"{response} ~ a + b + g"
    plan = eq.plan(eq.glm(family), eq.data.scan(many, formula), target="HC3")
    before = readings.total()
    monkeypatch.setattr("equipoise.models.robust._UNSEEN", -1.0)
    again = eq.plan(eq.glm(family), eq.data.scan(many, formula), target="HC3")
    assert readings.total() == 2 * before + N
    _require_equal(plan, again)


def test_separated_rows_are_told_of_in_few_passes(many, readings, sampled) -> None:
    sampled(40_000)
    source = eq.data.scan(many, "won ~ a + b + C(center(won) > 0)")
    with pytest.raises(eq.FitFailed, match="the data are separated by"):
        eq.plan(eq.glm("bernoulli"), source)
    assert readings.total() / N <= 8


def test_squared_loss_with_a_prior_and_its_scale_takes_one_pass(many, readings) -> None:
    formula, model = (
        "level ~ a + b + g",
        eq.glm("gaussian", prior_precision=np.array([0.0, 300.0, 50.0, 9.0, 40_000.0])),
    )
    source = eq.data.scan(many, formula, weights="year")
    found = eq.fit(model, source)
    assert readings.total() == 2 * N
    frame = pd.concat([pd.read_parquet(many / f"{k}.parquet") for k in range(3)])
    expected = eq.fit(model, eq.data.table(frame, formula, weights="year"))
    np.testing.assert_allclose(found.theta, expected.theta, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose([found.constant, found.loss], [expected.constant, expected.loss], rtol=1e-11)
    # the prior pulls: without it the estimate is another one
    free = eq.fit(eq.glm("gaussian"), eq.data.table(frame, formula, weights="year"))
    assert np.abs(free.theta[-1] - found.theta[-1]) > 1e-3


@pytest.mark.slow
def test_a_loss_of_ones_own_is_read_at_most_eight_times(many, readings) -> None:
    source = eq.data.scan(many, columns={"x": ["a", "b"], "y": "count"})
    eq.plan(eq.Model(jax_loss, {"a": 0.0, "b": np.zeros(2)}), source)
    assert readings.total() / N <= 8


@pytest.mark.parametrize(
    ("options", "passes"),
    [
        ({"structure": "diagonal"}, 6),
        pytest.param({"structure": "scalar", "batches": "leverage", "target": "HC3"}, 8, marks=pytest.mark.slow),
        ({"batches": "leverage", "momentum": 0.5, "target": "CRV1"}, 8),
        pytest.param({"batches": "leverage"}, 7, marks=pytest.mark.slow),
    ],
)
def test_tunings_of_a_loss_of_ones_own_read_no_file_again_and_again(options, passes, many, readings) -> None:
    source = eq.data.scan(many, columns={"x": ["a", "b"], "y": "count"}, clusters="firm")
    model = eq.Model(jax_loss, {"a": 0.0, "b": np.zeros(2)})
    plan = eq.plan(model, source, **options)
    assert readings.total() / N <= passes
    frame = pd.concat([pd.read_parquet(many / f"{k}.parquet") for k in range(3)])
    table = {"x": frame[["a", "b"]].to_numpy(), "y": frame["count"].to_numpy(float)}
    expected = eq.plan(model, eq.data.observations(table, clusters=frame["firm"].to_numpy()), **options)
    # a diagonal step is searched for
    near = 1e-7 if "structure" in options else 1e-9
    np.testing.assert_allclose(plan.tuning.step, expected.tuning.step, rtol=near)
    np.testing.assert_allclose(plan.tuning.predicted.cov, expected.tuning.predicted.cov, rtol=near)


def test_little_memory_takes_no_further_pass(many, readings) -> None:
    source = eq.data.scan(many, "count ~ a + b + g + poly(year, 2)", clusters="firm", memory="1MB")
    plan = eq.plan(eq.glm("poisson"), source, target="CRV1")
    assert plan.reads.passes == pytest.approx(readings.total() / N)
    assert readings.total() / N <= 8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target": "HC9"}, "target: must be one of"),
        ({"target": "CRV1"}, "clusters: must be given for CRV1"),
        ({"target": "HAC"}, "frequency: must be left out for HAC"),
        ({"target": "HC0", "lags": 2}, "lags: must be left out for HC0"),
        ({"small_sample": "max"}, "small_sample: must be"),
        ({"batch_size": 10**9}, "batch_size: must be at most"),
        ({"proxy": "exact"}, "proxy: must be one of"),
        ({"structure": "banded"}, "structure: must be one of"),
        ({"momentum": 1.0}, "momentum: must be"),
        ({"inverse_temperature": -1.0}, "inverse_temperature: must be"),
        ({"thin": 0}, "thin: must be"),
        ({"burn_in": -1}, "burn_in: must be"),
    ],
)
def test_what_cannot_be_is_refused_before_a_pass(options, words, many) -> None:
    source = eq.data.scan(many / "0.parquet", "count ~ a", frequency="year", memory="100MB")
    for verb in (eq.plan, eq.calibrate):
        with pytest.raises(eq.InvalidInput, match=words):
            verb(eq.glm("poisson"), source, **options)
    if "target" in options and "lags" not in options:
        with pytest.raises(eq.InvalidInput, match=words.replace("target", "kind")):
            eq.robust(eq.glm("poisson"), source, np.zeros(2), kind=options["target"])
    assert source.passes == 1.0


@pytest.mark.parametrize("options", [{"sampler": "control-variate"}, {"batches": "leverage"}])
def test_a_second_run_that_checks_a_shape_is_foretold(options, many) -> None:
    source = eq.data.scan(many / "0.parquet", "won ~ a", memory="3MB")
    found = eq.calibrate(eq.glm("bernoulli"), source, target="posterior", ess=200, progress=False, **options)
    assert found.half_step is not None
    assert found.plan.reads.passes + found.plan.reads.pools == source.passes


def test_few_rows_are_not_read_more_often(many, readings) -> None:
    source = eq.data.scan(many / "0.parquet", "count ~ a + b")
    plan = eq.plan(eq.glm("poisson"), source)
    assert readings.total() / (N // 3) <= 6
    expected = eq.plan(eq.glm("poisson"), many / "0.parquet", formula="count ~ a + b")
    np.testing.assert_allclose(plan.fit.theta, expected.fit.theta, rtol=1e-10)
    np.testing.assert_allclose(plan.tuning.step, expected.tuning.step, rtol=1e-9)


@pytest.mark.parametrize(("response", "family"), [("size", "gamma"), ("count", "negative-binomial")])
@pytest.mark.parametrize("prior", [4.0, pytest.param(0.0, marks=pytest.mark.slow)])
def test_parameters_and_constant_together_are_those_found_in_memory(response, family, prior, many) -> None:
    model, formula = eq.glm(family, prior_precision=prior), f"{response} ~ a + b + g"
    found = eq.fit(model, eq.data.scan(many, formula, weights="year"))
    frame = pd.concat([pd.read_parquet(many / f"{k}.parquet") for k in range(3)])
    expected = eq.fit(model, eq.data.table(frame, formula, weights="year"))
    np.testing.assert_allclose(found.theta, expected.theta, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose([found.constant, found.loss], [expected.constant, expected.loss], rtol=1e-10)
    assert found.converged


# --- Counts next to Poisson's, responses next to exact ---------------------------------------------------


def _mild(kind, seed) -> pd.DataFrame:
    """Counts of no dispersion or hardly any, and sizes of an enormous shape."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, N))
    mean = np.exp(0.3 * a - 0.2 * b)
    y = {
        "poisson": lambda: rng.poisson(mean),
        "binomial": lambda: rng.binomial(8, mean / (1.01 * mean.max())),
        "even": lambda: np.round(3.0 * mean),
        "slight": lambda: rng.poisson(mean * rng.gamma(500.0, 0.002, N)),
        "some": lambda: rng.poisson(mean * rng.gamma(50.0, 0.02, N)),
        "rare": lambda: rng.poisson(0.02 * mean * rng.gamma(3.0, 1 / 3.0, N)),
        "exact": lambda: rng.gamma(1e8, 1e-8 * mean),
    }[kind]()
    return pd.DataFrame({"a": a, "b": b, "w": rng.uniform(0.5, 2.0, N), "y": y.astype(float)})


@pytest.mark.parametrize(
    ("kind", "seed", "most", "at_end"),
    [
        ("poisson", 1, 6, True),
        ("poisson", 3, 7, False),  # inside its range by a hair: the first step leads to the end of it
        ("binomial", 1, 6, True),
        ("even", 1, 6, True),
        ("slight", 1, 6, True),
        ("slight", 2, 6, False),
        ("some", 1, 6, False),
        ("rare", 1, 6, False),
        ("exact", 1, 6, False),
    ],
)
@pytest.mark.parametrize("rows", [6_000, pytest.param(40_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("beside", [{}, pytest.param({"weights": "w"}, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:the counts y vary no more:equipoise.EquipoiseWarning")
def test_a_constant_at_the_end_of_its_range_takes_few_passes(
    kind, seed, most, at_end, rows, beside, readings, sampled, tmp_path
) -> None:
    sampled(rows)
    frame, model = _mild(kind, seed), eq.glm("gamma" if kind == "exact" else "negative-binomial")
    frame.to_parquet(tmp_path / "all.parquet", row_group_size=10_000)
    plan = eq.plan(model, eq.data.scan(tmp_path, "y ~ a + b", **beside))
    assert readings.total() / N <= (8 if beside else most)
    expected = eq.plan(model, eq.data.table(frame, "y ~ a + b", **beside))
    _require_equal(plan, expected, 1e-10)  # rare counts tell their dispersion to fewer digits
    if not beside:
        assert (plan.fit.constant < 1.01e-7) == at_end


def test_counts_without_dispersion_in_files_say_so(sampled, tmp_path) -> None:
    sampled(6_000)
    _mild("binomial", 1).to_parquet(tmp_path / "all.parquet")
    with pytest.warns(eq.EquipoiseWarning, match=r"counts y vary no more than Poisson's .* 1e-07 was taken"):
        found = eq.fit(eq.glm("negative-binomial"), eq.data.scan(tmp_path, "y ~ a + b"))
    assert found.constant == pytest.approx(1e-7, rel=1e-12)
    assert found.converged


# --- Columns with heavy tails -------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "response"), [("poisson", "count"), ("gamma", "size")])
@pytest.mark.parametrize("at_ends", [64, 0])
def test_a_tail_that_a_sample_misses_takes_few_passes(family, response, at_ends, many, sampled, monkeypatch) -> None:
    sampled(6_000)
    # without the rows at its ends a sample leads astray, and those that stand for all lead back
    monkeypatch.setattr("equipoise.data.scanning._AT_ENDS", at_ends)
    formula = f"{response} ~ exp(2 * a) + b"
    source = eq.data.scan(many, formula)
    found = eq.fit(_model(family), source)
    assert source.passes <= 1 + (3 if at_ends else 5)
    frame = pd.concat([pd.read_parquet(many / f"{k}.parquet") for k in range(3)])
    expected = eq.fit(_model(family), frame, formula=formula)
    np.testing.assert_allclose(found.theta, expected.theta, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize(
    ("response", "family"), [("count", "poisson"), ("level", "gaussian"), ("level", "huber"), ("level", "student")]
)
def test_collinear_columns_are_told_in_a_few_passes(response, family, many, readings, sampled) -> None:
    sampled(20_000)
    source = eq.data.scan(many, f"{response} ~ a + b + I(a + 2 * b) + g")
    with pytest.raises(eq.FitFailed, match=r"columns a, b, I\(a \+ 2 \* b\) are collinear"):
        eq.fit(_model(family), source)
    assert readings.total() <= 3 * N
