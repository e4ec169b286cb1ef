"""How often the files are read, counted where they are opened: at most eight times before the first step."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import equipoise as eq
from equipoise.data.parts import ParquetPart
from equipoise.data.passage import Passage
from equipoise.engines.pooling import reach
from tests.known import jax_loss

N = 60_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng = np.random.default_rng(1)
    made = tmp_path_factory.mktemp("passes")
    a, b = rng.normal(size=(2, N))
    firm, year = rng.integers(0, 200, N), rng.integers(0, 30, N)
    mean = np.exp(0.3 * a - 0.2 * b + 0.2 * rng.normal(size=200)[firm])
    frame = pd.DataFrame({"a": a, "b": b, "g": rng.choice(list("xyz"), N), "firm": firm, "year": year})
    frame["count"] = rng.negative_binomial(2.0, 2.0 / (2.0 + mean)).astype(float)
    frame["won"] = (rng.random(N) < mean / (1.0 + mean)).astype(float)
    frame["size"] = rng.gamma(2.0, 0.5 * mean)
    frame["level"] = 0.3 * a + rng.normal(size=N)
    for k in range(3):
        frame[k * N // 3 : (k + 1) * N // 3].to_parquet(made / f"{k}.parquet", row_group_size=10_000)
    return made


@pytest.fixture
def readings(monkeypatch):
    """How many rows of each file were asked for."""
    found: Counter[str] = Counter()
    frames = ParquetPart.frames

    def counted(self, columns, rows):
        found[self.location.path] += self.count
        return frames(self, columns, rows)

    monkeypatch.setattr(ParquetPart, "frames", counted)
    return found


@pytest.fixture
def sampled(monkeypatch):
    """Let fits start from so many rows: of large files the sample is smaller than all."""

    def fewer(rows):
        monkeypatch.setattr("equipoise.data.scanning.KEPT", rows)
        monkeypatch.setattr("equipoise.fitting.fit.LARGEST", rows)

    return fewer


def _model(name):
    robust = {"huber": eq.Huber(), "student": eq.StudentT()}
    return eq.glm("gaussian", divergence=robust[name]) if name in robust else eq.glm(name)


@pytest.mark.parametrize(
    ("response", "family", "target", "clusters", "most"),
    [
        ("count", "poisson", "sandwich", None, 6),
        ("count", "poisson", "CRV1", "firm", 7),
        ("count", "poisson", "CRV1", ["firm", "year"], 7),
        ("won", "bernoulli", "HC3", None, 8),
        ("level", "gaussian", "posterior", None, 6),
        ("size", "gamma", "CRV3", "firm", 8),
        ("count", "negative-binomial", "CRV1", "firm", 8),
        ("count", "negative-binomial", "HC3", None, 8),
        ("size", "gamma", "HC2", None, 8),
        ("level", "huber", "HC3", None, 8),
        ("level", "student", "HC2", None, 8),
    ],
)
def test_a_plan_reads_the_files_at_most_eight_times(response, family, target, clusters, most, folder, readings) -> None:
    source = eq.data.scan(folder, f"{response} ~ a + b + g", clusters=clusters)
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
def test_calls_inside_calls_take_no_further_pass(options, folder, readings) -> None:
    formula = "level ~ poly(scale(a), 2) + bs(center(scale(b)), knots=[0.5]) + g"
    source = eq.data.scan(folder, formula)
    assert readings.total() == N
    plan = eq.plan(eq.glm("gaussian", divergence=eq.Huber()), source, **options)
    assert readings.total() / N <= 8
    assert source.passes == pytest.approx(readings.total() / N)
    frame = pd.concat([pd.read_parquet(folder / f"{k}.parquet") for k in range(3)])
    expected = eq.plan(eq.glm("gaussian", divergence=eq.Huber()), frame, formula=formula, **options)
    np.testing.assert_allclose(plan.fit.theta, expected.fit.theta, rtol=1e-10)
    np.testing.assert_allclose(plan.tuning.target, expected.tuning.target, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("family", ["huber", "student"])
@pytest.mark.parametrize("options", [{"target": "HC3"}, {"target": "HAC", "lags": 2}])
def test_a_robust_scale_leaves_a_pass_for_calls_of_functions_of_calls(
    family, options, folder, readings, sampled
) -> None:
    sampled(40_000)
    formula = "level ~ poly(exp(0.5 * scale(a)), 2) + C(center(b) > 0) + g"
    source = eq.data.scan(folder, formula)
    assert readings.total() == 2 * N
    plan = eq.plan(_model(family), source, **options)
    assert readings.total() / N <= 8
    frame = pd.concat([pd.read_parquet(folder / f"{k}.parquet") for k in range(3)])
    expected = eq.plan(_model(family), frame, formula=formula, **options)
    np.testing.assert_allclose(plan.fit.theta, expected.fit.theta, rtol=1e-9, atol=1e-12)
    assert plan.fit.constant == pytest.approx(expected.fit.constant, rel=1e-11)
    np.testing.assert_allclose(plan.tuning.target, expected.tuning.target, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("response", "family", "options", "passes"),
    [
        # learnt, two for the fit, moments with the sums of the target, curvature
        ("count", "poisson", {"target": "HAC", "lags": 3}, 5),
        ("count", "negative-binomial", {"target": "HAC", "lags": 3}, 5),
        ("count", "negative-binomial", {"target": "CRV1"}, 5),
        ("size", "gamma", {"target": "CRV3"}, 5),
        ("size", "gamma", {"target": "HC3"}, 6),
    ],
)
def test_sums_over_time_and_by_cluster_go_with_the_moments(
    response, family, options, passes, folder, readings, sampled
) -> None:
    sampled(40_000)
    formula, clusters = f"{response} ~ a + b + g", "firm" if "CRV" in options["target"] else None
    source = eq.data.scan(folder, formula, clusters=clusters)
    plan = eq.plan(eq.glm(family), source, **options)
    assert readings.total() / N <= passes
    frame = pd.concat([pd.read_parquet(folder / f"{k}.parquet") for k in range(3)])
    expected = eq.plan(eq.glm(family), eq.data.table(frame, formula, clusters=clusters), **options)
    np.testing.assert_allclose(plan.tuning.target, expected.tuning.target, rtol=1e-9, atol=1e-13)


def test_squared_loss_with_a_prior_and_its_scale_takes_one_pass(folder, readings) -> None:
    formula, model = (
        "level ~ a + b + g",
        eq.glm("gaussian", prior_precision=np.array([0.0, 300.0, 50.0, 9.0, 40_000.0])),
    )
    source = eq.data.scan(folder, formula, weights="year")
    found = eq.fit(model, source)
    assert readings.total() == 2 * N
    frame = pd.concat([pd.read_parquet(folder / f"{k}.parquet") for k in range(3)])
    expected = eq.fit(model, eq.data.table(frame, formula, weights="year"))
    np.testing.assert_allclose(found.theta, expected.theta, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose([found.constant, found.loss], [expected.constant, expected.loss], rtol=1e-11)
    # the prior pulls: without it the estimate is another one
    free = eq.fit(eq.glm("gaussian"), eq.data.table(frame, formula, weights="year"))
    assert np.abs(free.theta[-1] - found.theta[-1]) > 1e-3


@pytest.mark.slow
def test_a_loss_of_ones_own_is_read_at_most_eight_times(folder, readings) -> None:
    source = eq.data.scan(folder, columns={"x": ["a", "b"], "y": "count"})
    eq.plan(eq.Model(jax_loss, {"a": 0.0, "b": np.zeros(2)}), source)
    assert readings.total() / N <= 8


def test_little_memory_takes_no_further_pass(folder, readings) -> None:
    source = eq.data.scan(folder, "count ~ a + b + g + poly(year, 2)", clusters="firm", memory="1MB")
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
def test_what_cannot_be_is_refused_before_a_pass(options, words, folder) -> None:
    source = eq.data.scan(folder / "0.parquet", "count ~ a", frequency="year", memory="100MB")
    for verb in (eq.plan, eq.calibrate):
        with pytest.raises(eq.InvalidInput, match=words):
            verb(eq.glm("poisson"), source, **options)
    if "target" in options and "lags" not in options:
        with pytest.raises(eq.InvalidInput, match=words.replace("target", "kind")):
            eq.robust(eq.glm("poisson"), source, np.zeros(2), kind=options["target"])
    assert source.passes == 1.0


@pytest.mark.parametrize("options", [{"sampler": "control-variate"}, {"batches": "leverage"}])
def test_a_second_run_that_checks_a_shape_is_foretold(options, folder) -> None:
    source = eq.data.scan(folder / "0.parquet", "won ~ a", memory="3MB")
    found = eq.calibrate(eq.glm("bernoulli"), source, target="posterior", ess=200, progress=False, **options)
    assert found.half_step is not None
    assert found.plan.reads.passes + found.plan.reads.pools == source.passes


def test_few_rows_are_not_read_more_often(folder, readings) -> None:
    source = eq.data.scan(folder / "0.parquet", "count ~ a + b")
    plan = eq.plan(eq.glm("poisson"), source)
    assert readings.total() / (N // 3) <= 6
    expected = eq.plan(eq.glm("poisson"), folder / "0.parquet", formula="count ~ a + b")
    np.testing.assert_allclose(plan.fit.theta, expected.fit.theta, rtol=1e-10)
    np.testing.assert_allclose(plan.tuning.step, expected.tuning.step, rtol=1e-9)


@pytest.mark.parametrize(("response", "family"), [("size", "gamma"), ("count", "negative-binomial")])
@pytest.mark.parametrize("prior", [4.0, pytest.param(0.0, marks=pytest.mark.slow)])
def test_parameters_and_constant_together_are_those_found_in_memory(response, family, prior, folder) -> None:
    model, formula = eq.glm(family, prior_precision=prior), f"{response} ~ a + b + g"
    found = eq.fit(model, eq.data.scan(folder, formula, weights="year"))
    frame = pd.concat([pd.read_parquet(folder / f"{k}.parquet") for k in range(3)])
    expected = eq.fit(model, eq.data.table(frame, formula, weights="year"))
    np.testing.assert_allclose(found.theta, expected.theta, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose([found.constant, found.loss], [expected.constant, expected.loss], rtol=1e-9)
    assert found.converged


# --- Stages that are killed, and what people see ------------------------------------------------------


@pytest.mark.parametrize("target", ["CRV1", "HC3"])
def test_a_killed_stage_goes_on_with_the_pass_it_was_in(target, folder, readings, tmp_path, monkeypatch) -> None:
    options = {"target": target, "draws": 20, "chains": 2, "progress": False, "checkpoint": tmp_path / "run"}

    def scanned():
        return eq.data.scan(folder, "count ~ a + b + g", clusters="firm")

    whole = scanned()
    expected = eq.calibrate(eq.glm("poisson"), whole, **{**options, "checkpoint": None})
    # what is there of an earlier run with other data is no hindrance
    other = eq.data.scan(folder / "0.parquet", "count ~ a", clusters="firm")
    eq.calibrate(eq.glm("poisson"), other, **{**options, "draws": 5, "checkpoint": tmp_path / "other"})
    (tmp_path / "other.passes").rename(tmp_path / "run.passes")
    summed, calls = Passage.summed, []

    def killed(self, f, width):
        calls.append(f)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return summed(self, f, width)

    monkeypatch.setattr(Passage, "summed", killed)
    with pytest.raises(KeyboardInterrupt):
        eq.calibrate(eq.glm("poisson"), scanned(), **options)
    calls[:] = [None] * 10
    source = scanned()
    readings.clear()
    found = eq.calibrate(eq.glm("poisson"), source, **options)
    np.testing.assert_array_equal(found.draws, expected.draws)
    # two were finished, and are not repeated
    assert source.passes == whole.passes - 2.0
    assert readings.total() / N == source.passes - 1.0
    assert len(calls) - 10 >= 1
    (tmp_path / "run.passes").write_bytes(b"PK nothing")
    with pytest.raises(eq.InvalidInput, match=r"run.passes, which is damaged.*delete that file"):
        eq.calibrate(eq.glm("poisson"), source, **options)


def test_what_a_plan_and_a_summary_say_of_files(folder, tmp_path) -> None:
    source = eq.data.scan(folder, "count ~ a + b", memory="3MB")
    plan = eq.plan(eq.glm("poisson"), source, sampler="sgmcmc", batch_size=50)
    assert plan.reads.passes == source.passes
    # what one reading brings passes through a quarter of the memory, a share of all rows at a time
    assert plan.reads.pools == np.ceil(plan.rows / reach(source))
    assert reach(source) * source.at_once * (8 * source.encoder.width + 48) == pytest.approx(0.75e6, rel=0.01)
    assert plan.reads.bytes == sum(file.stat().st_size for file in folder.iterdir())
    text = str(plan)
    assert "3 files, " in text
    assert f"{source.passes:.0f} passes until here, {plan.reads.pools:,.0f} more for the rows of all steps" in text
    assert "at most 0.003 GB of memory" in text
    auto = eq.plan(eq.glm("poisson"), source)
    assert auto.sampler == "control-variate"
    assert auto.reads.pools < 0.01 * plan.reads.pools
    assert any("passes over the files" in str(c) for c in auto.candidates if c.sampler == "sgmcmc")
    cal = eq.calibrate(eq.glm("poisson"), source, draws=20, chains=2, progress=False)
    assert "3 files, " in str(cal.summary())
    assert "3 files, " in cal.report(tmp_path / "page.html").read_text()
    assert eq.load(cal.save(tmp_path / "run.eqz")).plan.reads == cal.plan.reads


def test_small_files_that_are_read_whole_keep_their_clusters_and_times(tmp_path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=60), "firm": np.arange(60) % 7, "day": np.arange(60)})
    frame["y"] = rng.poisson(np.exp(0.3 * frame.x))
    for k in range(3):
        frame[20 * k : 20 * (k + 1)].to_parquet(tmp_path / f"{k}.parquet")
    for kind, options in {"CRV1": {"clusters": "firm"}, "HAC": {"time": "day", "lags": 2}}.items():
        found, expected = (
            eq.plan(eq.glm("poisson"), data, formula="y ~ x", target=kind, **options).tuning.target
            for data in (tmp_path, frame)
        )
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_a_sample_smaller_than_asked_for_takes_the_place_of_a_pass() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=30_000)
    table = pa.table({"x": x, "y": rng.poisson(np.exp(0.3 * x))})
    source = eq.data.scan(table, "y ~ x", memory="2MB")
    assert 2048 < source.sample(20_000, None).n == source.lot.size < 20_000
    assert source.passes == 1.0
    assert source.sample(20_000, 0).n == 20_000
    assert source.passes > 1.5


def test_infinity_is_named_by_file_row_and_column_where_the_sample_meets_it_first(tmp_path) -> None:
    frame = pd.DataFrame({"x": np.r_[np.arange(40.0), np.inf], "z": 1.0, "y": 1})
    frame[:30].to_parquet(tmp_path / "a.parquet")
    frame[30:].to_parquet(tmp_path / "b.parquet")
    with pytest.raises(eq.InvalidInput, match=r"^x: must be finite; got NaN or infinity at 10, in .*b\.parquet"):
        eq.fit(eq.glm("poisson"), eq.data.scan(tmp_path, "y ~ x"))


def test_passes_for_rows_drawn_by_leverage_are_foretold_though_all_rows_would_fit(folder) -> None:
    source = eq.data.scan(folder, "count ~ a + b", memory="3MB")
    cal = eq.calibrate(
        eq.glm("poisson"), source, sampler="control-variate", batches="leverage", draws=2000, progress=False
    )
    assert cal.plan.reads.pools > 2.0
    assert source.passes == cal.plan.reads.passes + cal.plan.reads.pools


def test_a_bar_for_every_stage_says_which_pass_it_is(folder, monkeypatch) -> None:
    told = []
    monkeypatch.setattr("equipoise.progress._PATIENCE", 0.0)
    monkeypatch.setattr("equipoise.progress.Progress.update", lambda self, done, label=None: told.append((done, label)))
    source = eq.data.scan(folder, "count ~ a + b")
    eq.plan(eq.glm("poisson"), source)
    labels = [label.partition(", ") for _, label in told]
    assert {first for first, _, _ in labels} == {"planning"}
    assert labels[0][2].startswith("pass 1 of about 3")
    assert labels[-1][2].startswith("pass 3 of about 3")
    assert all(label.endswith("million rows/s") for _, label in told)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


# --- Columns with heavy tails -------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "response"), [("poisson", "count"), ("gamma", "size")])
@pytest.mark.parametrize("at_ends", [64, 0])
def test_a_tail_that_a_sample_misses_takes_few_passes(family, response, at_ends, folder, sampled, monkeypatch) -> None:
    sampled(6_000)
    # without the rows at its ends a sample leads astray, and those that stand for all lead back
    monkeypatch.setattr("equipoise.data.scanning._AT_ENDS", at_ends)
    formula = f"{response} ~ exp(2 * a) + b"
    source = eq.data.scan(folder, formula)
    found = eq.fit(_model(family), source)
    assert source.passes <= 1 + (3 if at_ends else 5)
    frame = pd.concat([pd.read_parquet(folder / f"{k}.parquet") for k in range(3)])
    expected = eq.fit(_model(family), frame, formula=formula)
    np.testing.assert_allclose(found.theta, expected.theta, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize(
    ("response", "family"), [("count", "poisson"), ("level", "gaussian"), ("level", "huber"), ("level", "student")]
)
def test_collinear_columns_are_told_in_a_few_passes(response, family, folder, readings, sampled) -> None:
    sampled(20_000)
    source = eq.data.scan(folder, f"{response} ~ a + b + I(a + 2 * b) + g")
    with pytest.raises(eq.FitFailed, match=r"columns a, b, I\(a \+ 2 \* b\) are collinear"):
        eq.fit(_model(family), source)
    assert readings.total() <= 3 * N
