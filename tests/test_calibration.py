"""One call: the plan, the draws, predictions, and what they are named."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pandas as pd
import pytest

import equipoise as eq


@pytest.fixture(scope="module")
def cal(make_data):
    return eq.calibrate(eq.glm("poisson"), make_data("poisson"), ess=400, chains=2, seed=5, progress=False)


def test_calibrate_is_the_steps_behind_it(cal, make_data) -> None:
    model, data = eq.glm("poisson"), make_data("poisson")
    fit = eq.fit(model, data)
    m = eq.moments(model, data, fit.params)
    tuning = eq.tune(m, eq.sandwich(m), cal.tuning.dynamics, noise="completed", step=cal.tuning.step)
    np.testing.assert_array_equal(cal.fit.params, fit.params)
    np.testing.assert_array_equal(cal.tuning.noise, tuning.noise)
    chains = eq.sample(model, data, tuning, draws=cal.plan.draws, chains=2, seed=5, progress=False)
    np.testing.assert_array_equal(cal.draws, chains.draws)
    np.testing.assert_array_equal(eq.diagnose(chains, tuning).ess, cal.diagnosis.ess)
    assert cal.names == ("x0", "x1", "x2", "x3")


def test_sgmcmc_is_the_papers_algorithm(make_data) -> None:
    model, data = eq.glm("poisson"), make_data("poisson")
    cal = eq.calibrate(model, data, ess=400, chains=2, seed=5, sampler="sgmcmc", progress=False)
    m = eq.moments(model, data, eq.fit(model, data).params)
    tuning = eq.tune(m, eq.sandwich(m), eq.Dynamics(batch_size=15))
    np.testing.assert_array_equal(cal.tuning.step, tuning.step)
    chains = eq.sample(model, data, tuning, draws=cal.plan.draws, chains=2, seed=5, progress=False)
    np.testing.assert_array_equal(cal.draws, chains.draws)
    assert cal.plan.candidates == ()


def test_plan_is_the_run_before_its_first_step(cal, make_data) -> None:
    plan = eq.plan(eq.glm("poisson"), make_data("poisson"), ess=400, chains=2, seed=5)
    np.testing.assert_array_equal(plan.tuning.step, cal.tuning.step)
    assert (plan.chains, plan.draws, plan.thin, plan.burn_in) == (
        2,
        cal.draws.shape[1],
        cal.chains.thin,
        cal.chains.burn_in,
    )
    assert plan.steps == cal.chains.statistics["steps"]
    assert plan.rows == cal.chains.statistics["rows"]
    assert plan.passes == plan.rows / 300
    # enough draws for what was asked, and not a tenth more
    assert 400 * (1.0 - 1e-12) <= plan.ess < 440
    assert plan.ess == pytest.approx(2 * plan.tuning.predicted.ess(plan.draws * plan.thin))
    for word in (
        "300 rows, 4 parameters",
        "sandwich",
        f"{plan.tuning.dynamics.batch_size} rows, ",
        "passes over the data",
    ):
        assert word in str(plan)


@pytest.mark.parametrize(("n", "size"), [(5, 5), (100, 8), (2000, 100), (30_000, 1000)])
def test_automatic_batch_size(n, size) -> None:
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(n), rng.normal(size=n)])
    plan = eq.plan(eq.glm("gaussian", scale=1.0), (x, rng.normal(size=n)), sampler="sgmcmc")
    assert plan.tuning.dynamics.batch_size == size


def test_options_reach_the_run(make_data) -> None:
    data = make_data("poisson")
    plan = eq.plan(
        eq.glm("poisson"), data, "posterior", batch_size=30, momentum=0.5, inverse_temperature=3000.0, replacement=False,
        proxy="dq-const", draws=77, thin=3, burn_in=11, tuning_rows=200, seed=4,
    )  # fmt: skip
    assert plan.tuning.dynamics == eq.Dynamics(30, 0.5, 3000.0, replacement=False)
    assert (plan.draws, plan.thin, plan.burn_in, plan.target_name) == (77, 3, 11, "posterior")
    assert plan.tuning.proxy == "dq-const"
    assert plan.moments.n == 300
    np.testing.assert_array_equal(plan.fit.params, eq.fit(eq.glm("poisson"), data, tuning_rows=200, seed=4).params)
    structured = eq.plan(eq.glm("poisson"), data, structure="scalar")
    step = structured.tuning.step
    np.testing.assert_allclose(step, step[0, 0] * np.eye(4), rtol=1e-12)


def test_a_matrix_as_target(make_data) -> None:
    target = 0.001 * (np.eye(4) + 0.5)
    cal = eq.calibrate(eq.glm("poisson"), make_data("poisson"), target, ess=50, progress=False)
    np.testing.assert_allclose(cal.tuning.target, target)
    assert cal.plan.target_name == "given matrix"


def test_gaussian_sampler_draws_from_the_target(make_data) -> None:
    data = make_data("bernoulli")
    run = {"sampler": "gaussian", "chains": 2, "seed": 1}
    cal = eq.calibrate(eq.glm("bernoulli"), data, ess=20_000, **run)
    assert cal.draws.shape == (2, 10_000, 4)
    # the error of a covariance from independent normal draws; three of them
    size = np.linalg.norm(cal.tuning.target)
    floor = np.sqrt((1.0 + np.trace(cal.tuning.target) ** 2 / size**2) / 20_000)
    error = np.linalg.norm(np.cov(cal.chains.flat(), rowvar=False) - cal.tuning.target) / size
    assert error < 3.0 * floor
    assert (cal.plan.steps, cal.plan.rows, cal.chains.thin, cal.chains.independent) == (0, 0, 1, True)
    again = eq.calibrate(eq.glm("bernoulli"), data, ess=20_000, **run)
    np.testing.assert_array_equal(cal.draws, again.draws)
    assert eq.calibrate(eq.glm("bernoulli"), data, draws=33, **run).draws.shape == (2, 33, 4)


@pytest.mark.parametrize("family", ["gaussian", "bernoulli", "poisson", "gamma", "negative-binomial"])
@pytest.mark.parametrize("draws", [1, 2, 3, 40, 1237])
def test_predicted_intervals_are_numpys_quantiles(family, draws, make_data, make_model, monkeypatch) -> None:
    monkeypatch.setattr("equipoise.calibration.prediction._BLOCK", 7 * draws)  # several blocks, the last one shorter
    x, y = make_data(family, n=80)
    cal = eq.calibrate(make_model(family), (x, y), sampler="gaussian", draws=draws, chains=1)
    mean = {"gaussian": lambda eta: eta, "bernoulli": lambda eta: 1.0 / (1.0 + np.exp(-eta))}.get(family, np.exp)
    offset = np.linspace(-1.0, 1.0, 80)
    for interval in (0.95, 0.5, 0.999):
        found = cal.predict(x, interval=interval, offset=offset, method="draws")
        tail = 0.5 * (1.0 - interval)
        expected = np.quantile(mean(cal.chains.flat() @ x.T + offset), [tail, 1.0 - tail], axis=0)
        np.testing.assert_allclose(found[["lower", "upper"]].to_numpy().T, expected, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(found["estimate"], mean(x @ cal.fit.params + offset), rtol=1e-12)


def test_memory_of_predictions_does_not_grow_with_rows_times_draws(make_data) -> None:
    x, y = make_data("poisson")
    cal = eq.calibrate(eq.glm("poisson"), (x, y), sampler="gaussian", draws=4000, chains=1)
    many = np.tile(x, (100, 1))
    cal.predict(x, method="draws")
    tracemalloc.start()
    cal.predict(many, method="draws")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 0.2 * (8 * len(many) * 4000)


def test_frames_of_other_columns_are_refused(make_data) -> None:
    x, y = make_data("poisson")
    frame = pd.DataFrame(x, columns=["one", "a", "b", "c"])
    named = eq.calibrate(eq.glm("poisson"), (frame, y), sampler="gaussian", ess=40)
    with pytest.raises(eq.InvalidInput, match=r"X_new: .*none named \['b', 'c'\]"):
        named.predict(frame.rename(columns={"b": "B2", "c": "z"}))
    with pytest.raises(eq.InvalidInput, match=r"X_new: .*distinct"):
        named.predict(pd.concat([frame, frame[["a"]]], axis=1))
    numbered = eq.calibrate(eq.glm("poisson"), (x, y), sampler="gaussian", ess=40)
    with pytest.raises(eq.InvalidInput, match=r"none named \['x0', .*by position"):
        numbered.predict(frame)
    np.testing.assert_array_equal(numbered.predict(frame.to_numpy()), named.predict(frame))


def test_other_tables_and_offsets_given_as_arrays(make_data) -> None:
    class Other:
        def __init__(self, frame: pd.DataFrame) -> None:
            self.frame = frame

        def to_pandas(self) -> pd.DataFrame:
            return self.frame

    x, y = make_data("poisson")
    frame = pd.DataFrame({"visits": y, "a": x[:, 1]})
    shift = 0.1 * x[:, 2]
    cal = eq.calibrate(eq.glm("poisson"), frame, formula="visits ~ a", offset=shift, sampler="gaussian", ess=40)
    found = cal.predict(Other(frame), offset=shift)
    np.testing.assert_allclose(found["estimate"], np.exp(x[:, :2] @ cal.fit.params + shift), rtol=1e-12)
    np.testing.assert_array_equal(found, cal.predict(frame, offset=shift))
    with pytest.raises(eq.InvalidInput, match="offset"):
        cal.predict(frame)
    plain = eq.calibrate(eq.glm("poisson"), frame, formula="visits ~ a", sampler="gaussian", ess=40)
    with pytest.raises(eq.InvalidInput, match="offset"):
        plain.predict(frame, offset=shift)


def test_long_runs_are_announced_before_they_start(make_data, monkeypatch) -> None:
    monkeypatch.setattr("equipoise.sampling.budget._LONG", 0.0)
    monkeypatch.setattr("equipoise.calibration.calibration.sample", lambda *_, **__: pytest.fail("too late"))
    with (
        pytest.warns(eq.EquipoiseWarning, match=r"sampling will take about.*To be faster: sampler="),
        pytest.raises(pytest.fail.Exception),
    ):
        eq.calibrate(eq.glm("poisson"), make_data("poisson"), ess=50)


def test_compiling_is_announced_and_not_timed(make_data, monkeypatch, capsys) -> None:
    from equipoise.engines.numba import whiten

    quick, waits = whiten.advance, [1.2]

    def first_slow(*args, **options):
        time.sleep(waits.pop() if waits else 0.0)
        return quick(*args, **options)

    monkeypatch.setenv("FORCE_COLOR", "1")  # nothing is shown where there is no terminal
    monkeypatch.setattr("equipoise.progress._PATIENCE", 0.2)
    monkeypatch.setattr(whiten, "advance", first_slow)
    cal = eq.calibrate(eq.glm("poisson"), make_data("poisson"), ess=50, threads=1)
    assert not waits
    assert cal.chains.statistics["seconds"] < 1.2
    assert "compiling" in capsys.readouterr().err


def test_frames_are_matched_by_name(make_data) -> None:
    x, y = make_data("poisson")
    frame = pd.DataFrame(x, columns=["one", "a", "b", "c"])
    cal = eq.calibrate(eq.glm("poisson"), (frame, pd.Series(y, name="visits")), sampler="gaussian", ess=100)
    assert cal.names == ("one", "a", "b", "c")
    new = frame.iloc[[5, 2]]
    expected = cal.predict(new.to_numpy())
    shuffled = cal.predict(new[["c", "one", "b", "a"]].assign(more=1.0))
    np.testing.assert_array_equal(shuffled.to_numpy(), expected.to_numpy())
    assert list(shuffled.index) == [5, 2]


def test_tables_need_a_formula(make_data, tmp_path) -> None:
    frame = pd.DataFrame({"y": [1.0, 2.0], "x": [0.0, 1.0]})
    frame.to_csv(tmp_path / "data.csv", index=False)
    for data in (frame, tmp_path / "data.csv", str(tmp_path / "data.csv")):
        with pytest.raises(eq.InvalidInput, match="formula: must be given for a table"):
            eq.calibrate(eq.glm("gaussian"), data)
    with pytest.raises(
        eq.InvalidInput, match="weights, frequency, offset, trials: must be column names that go with a formula"
    ):
        eq.plan(eq.glm("poisson"), make_data("poisson"), weights="w")


def test_table_to_draws(make_data) -> None:
    x, y = make_data("poisson")
    frame = pd.DataFrame({"visits": y, "a": x[:, 1], "w": np.linspace(0.5, 2.0, 300), "o": 0.1 * x[:, 2]})
    cal = eq.calibrate(
        eq.glm("poisson"), frame, formula="visits ~ a", weights="w", offset="o", ess=100, chains=1, progress=False
    )
    rows = eq.data.rows(x[:, :2], y, weights=frame["w"], offset=frame["o"])
    np.testing.assert_allclose(cal.fit.params, eq.fit(eq.glm("poisson"), rows).params, atol=1e-10)
    assert cal.names == ("Intercept", "a")
    assert cal.response == "visits"


def test_summary_lists_every_parameter(cal) -> None:
    table = cal.summary(interval=0.8)
    assert list(table.frame.index) == list(cal.names)
    np.testing.assert_allclose(table.frame["estimate"], cal.fit.params)
    np.testing.assert_allclose(table.frame["robust se"], np.sqrt(np.diag(cal.tuning.target)))
    for name in cal.names:
        assert name in str(table)


def test_progress_may_be_shown(make_data, monkeypatch, capsys) -> None:
    monkeypatch.setattr("equipoise.progress._PATIENCE", 0.0)
    shown = eq.calibrate(eq.glm("poisson"), make_data("poisson"), ess=100, seed=2)
    hidden = eq.calibrate(eq.glm("poisson"), make_data("poisson"), ess=100, seed=2, progress=False)
    np.testing.assert_array_equal(shown.draws, hidden.draws)
    assert capsys.readouterr().out == ""


def test_arviz_has_one_variable_per_parameter(cal) -> None:
    pytest.importorskip("arviz", exc_type=ImportError)
    posterior = cal.to_arviz()["draws"]  # with a sandwich's spread, which is no posterior
    assert set(posterior.data_vars) == set(cal.names)
    for j, name in enumerate(cal.names):
        assert posterior[name].dims == ("chain", "draw")
        np.testing.assert_array_equal(posterior[name].to_numpy(), cal.draws[:, :, j])
    assert posterior.attrs["inference_library"] == "equipoise"
    assert posterior.attrs["batch_size"] == cal.tuning.dynamics.batch_size
    assert posterior.attrs["target"] == "sandwich"
