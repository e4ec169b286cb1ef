"""The command line: what its commands print and write is what the library finds, and statsmodels."""

from __future__ import annotations

import inspect
import io
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf

import equipoise as eq
from equipoise import cli
from tests.cli.conftest import FORMULA, QUICK, one_line
from tests.docs.test_snippets import DOCS


@pytest.fixture(scope="module")
def theirs(frame: pd.DataFrame):
    """Statsmodels' fit of the same formula, with its sandwich."""
    return smf.glm(FORMULA, frame, family=sm.families.Poisson()).fit(tol=1e-13, cov_type="HC0")


def test_fit_prints_the_summary_and_writes_everything(run, csv: str, frame: pd.DataFrame, tmp_path: Path) -> None:
    page, kept, draws = tmp_path / "new" / "out.html", tmp_path / "run.eqz", tmp_path / "draws.csv"
    result = run(
        "fit", csv, FORMULA, "--family", "poisson", "--seed", "3", "--interval", "0.9", *QUICK,
        "--report", str(page), "--save", str(kept), "--draws-out", str(draws),
    )  # fmt: skip
    assert result.code == 0, result.err
    same = eq.calibrate(eq.glm("poisson"), frame, ess=200, chains=2, seed=3, formula=FORMULA, progress=False)
    cells = same.summary(0.9).cells()
    for name, row in zip(cells.index, cells.to_numpy(), strict=True):
        printed = next(line for line in result.out.splitlines() if line.strip().startswith(name))
        assert printed.split()[1:] == [cell for cell in row if cell]
    assert same.diagnosis.verdict in result.out
    assert "90% interval" in page.read_text(encoding="utf-8")
    np.testing.assert_array_equal(eq.load(kept).draws, same.draws)
    table = pd.read_csv(draws)
    assert list(table.columns) == ["chain", "draw", *same.names]
    np.testing.assert_allclose(table[list(same.names)].to_numpy(), same.chains.flat(), rtol=1e-12)
    assert table.groupby("chain").size().tolist() == [same.draws.shape[1]] * 2


def test_options_reach_the_library(run, frame: pd.DataFrame, tmp_path: Path) -> None:
    data, kept, draws = tmp_path / "data.parquet", tmp_path / "run.eqz", tmp_path / "draws.parquet"
    frame.to_parquet(data)
    result = run(
        "fit", str(data), "count ~ age", "--family", "negative-binomial", "--dispersion", "0.5", "--target", "bayesbag",
        "--batch-size", "40", "--momentum", "0.3", "--inverse-temperature", "1e7", "--no-replacement",
        "--prior-precision", "0.25", "--weights", "weight", "--offset", "exposure", "--tuning-rows", "300",
        "--save", str(kept), "--draws-out", str(draws), "--checkpoint", str(tmp_path / "state"), *QUICK,
    )  # fmt: skip
    assert result.code == 0, result.err
    made = eq.load(kept)
    assert made.tuning.dynamics == eq.Dynamics(40, 0.3, 1e7, replacement=False)
    assert made.plan.target_name == "bayesbag"
    assert made.model.constant == 0.5
    assert float(made.model.prior_precision) == 0.25
    assert made.design is not None
    assert made.design.offset == "exposure"
    expected = eq.plan(
        eq.glm("negative-binomial", dispersion=0.5, prior_precision=0.25), frame, "bayesbag", formula="count ~ age",
        weights="weight", offset="exposure", tuning_rows=300, batch_size=40, momentum=0.3, inverse_temperature=1e7,
        replacement=False,
    )  # fmt: skip
    np.testing.assert_allclose(made.tuning.step, expected.tuning.step, rtol=1e-10)
    assert len(pd.read_parquet(draws)) == made.draws.shape[0] * made.draws.shape[1]
    assert (tmp_path / "state").exists()


def test_every_option_of_calibrate_can_be_typed() -> None:
    typed = {name.replace("no_", "") for name in inspect.signature(cli.fit_command).parameters}
    # functions cannot be typed, and a cluster is --dask
    wanted = set(inspect.signature(eq.calibrate).parameters) - {"model", "context", "executor"}
    assert wanted <= typed
    wanted = set(inspect.signature(eq.glm).parameters) - {"divergence"}
    assert wanted <= typed


def test_robust_targets_ratios_and_tests(run, csv: str, frame: pd.DataFrame, tmp_path: Path) -> None:
    kept, coefficients = tmp_path / "run.eqz", tmp_path / "new" / "coefficients.csv"
    result = run(
        "fit", csv, FORMULA, "--family", "poisson", "--target", "CRV1", "--clusters", "firm", "--small-sample", "no",
        "--exponentiate", "--stars", "--test", "age = 0", "--test", "C(region)[T.north] = C(region)[T.west]", "--use-f",
        "--csv", str(coefficients), "--save", str(kept), "--sampler", "gaussian", *QUICK,
    )  # fmt: skip
    assert result.code == 0, result.err
    same = eq.calibrate(
        eq.glm("poisson"), frame, "CRV1", formula=FORMULA, clusters="firm", small_sample=False, sampler="gaussian",
        ess=200, chains=2,
    )  # fmt: skip
    tests = [line for line in result.out.splitlines() if line.startswith("test: ")]
    assert tests[0] == f"test: {same.test('age = 0', use_f=True)}"
    assert len(tests) == 2
    assert "rate ratio" in result.out
    assert "***" in result.out
    found = pd.read_csv(coefficients)
    pd.testing.assert_frame_equal(found, same.tidy(exponentiate=True), rtol=1e-10)
    np.testing.assert_allclose(eq.load(kept).vcov(), same.vcov(), rtol=1e-12)


def test_json_for_programs(run, csv: str, theirs, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = run("fit", csv, FORMULA, "--family", "poisson", "--json", "-", "--report", str(page), *QUICK)
    assert result.code == 0
    found = pd.DataFrame(json.loads(result.out)["coefficients"]).set_index("term")
    np.testing.assert_allclose(found.estimate, theirs.params[found.index], rtol=1e-8)
    np.testing.assert_allclose(found.std_error, theirs.bse[found.index], rtol=1e-8)
    assert result.err == f"report: {page}\n"
    result = run("fit", csv, FORMULA, "--family", "poisson", "--csv", "-", *QUICK)
    assert result.out.startswith("term,estimate,std_error,statistic,p_value,conf_low,conf_high\n")
    table = pd.read_csv(io.StringIO(result.out), index_col="term")
    np.testing.assert_allclose(table.p_value, theirs.pvalues[table.index], rtol=1e-7)


def test_predictions_and_tables_of_kept_runs(run, csv: str, frame: pd.DataFrame, tmp_path: Path) -> None:
    paths = [tmp_path / "small.eqz", tmp_path / "large.eqz"]
    quick = ("--family", "poisson", "--sampler", "gaussian", *QUICK)
    for path, formula in zip(paths, ("count ~ age", FORMULA), strict=True):
        assert run("fit", csv, formula, *quick, "--save", str(path)).code == 0
    new = tmp_path / "new.csv"
    frame.head(7).drop(columns="count").to_csv(new, index=False)
    result = run("predict", str(paths[1]), str(new), "--interval", "0.8")
    assert result.code == 0, result.err
    expected = eq.load(paths[1]).predict(frame.head(7), 0.8)
    np.testing.assert_allclose(pd.read_csv(io.StringIO(result.out)), expected, rtol=1e-10)
    out = tmp_path / "predicted.parquet"
    assert run("predict", str(paths[1]), str(new), "--kind", "observation", "--out", str(out)).code == 0
    assert list(pd.read_parquet(out).columns) == ["estimate", "lower", "upper"]
    assert "data: must be files that exist" in one_line(run("predict", str(paths[1]), str(tmp_path / "absent.csv")))
    for k, rows in enumerate((slice(3), slice(3, 7))):
        frame[rows].to_parquet(tmp_path / f"part-{k}.parquet")
    assert run("predict", str(paths[1]), str(tmp_path / "part-*.parquet"), "--interval", "0.8").out == result.out
    made = eq.compare_fits([eq.load(path) for path in paths], ["small", "large"])
    names = [str(path) for path in paths]
    assert run("table", *names).out == f"{made.to_text()}\n"
    assert run("table", *names, "--format", "latex").out == f"{made.to_latex()}\n"
    page = tmp_path / "table.html"
    assert run("table", *names, "--format", "html", "--out", str(page), "--names", "a,b", "--exponentiate").code == 0
    assert "rate ratio" in page.read_text(encoding="utf-8")
    assert "--format: must be one of text, markdown" in one_line(run("table", *names, "--format", "word"))
    assert "2 different names" in one_line(run("table", *names, "--names", "a"))
    assert "a file written by save()" in one_line(run("table", csv))


def test_plan_prints_the_budget(run, csv: str, frame: pd.DataFrame) -> None:
    result = run("plan", csv, FORMULA, "--family", "poisson", "--ess", "500")
    assert result.code == 0
    assert result.out.strip() == str(eq.plan(eq.glm("poisson"), frame, ess=500, formula=FORMULA))


def test_theory_of_a_scalar_step(run, csv: str, frame: pd.DataFrame) -> None:
    result = run("theory", csv, FORMULA, "--family", "poisson", "--step", "0.03", "--batch-size", "50")
    assert result.code == 0, result.err
    model, rows = eq.glm("poisson"), eq.data.table(frame, FORMULA)
    moments = eq.moments(model, rows, eq.fit(model, rows).params)
    law = eq.stationary(moments, 0.03, eq.Dynamics(50))
    age = next(line.split() for line in result.out.splitlines() if line.strip().startswith("age "))
    j = moments.names.index("age")
    sd, wanted = np.sqrt(law.cov[j, j]), np.sqrt(eq.sandwich(moments)[j, j])
    iact = law.iact(np.eye(moments.dim)[j])
    expected = [moments.params[j], wanted, sd, sd / wanted, law.mean_bias[j] / sd, iact, 1000 / iact]
    rounding = [1e-4, 1e-4, 1e-4, 1e-3, 1e-3, 0.1, 0.01]
    assert np.all(np.abs(np.array(age[1:], dtype=float) - expected) <= 0.51 * np.array(rounding))
    assert f"{law.spectral_radius:.6g} (stable)" in result.out
    assert f"{eq.max_stable_step(moments, eq.Dynamics(50)):.4g}" in result.out
    assert f"{law.burn_in(np.zeros(moments.dim)):,} steps" in result.out


def test_theory_of_the_tuned_step_reaches_the_target(run, csv: str) -> None:
    result = run("theory", csv, FORMULA, "--family", "poisson")
    assert result.code == 0
    assert "covariance is 0.0% from the sandwich target" in result.out


def test_theory_of_langevin_without_gradient_noise(run, csv: str, theirs) -> None:
    arguments = ("--step", "0.01", "--batch-size", "400", "--no-replacement", "--inverse-temperature", "400")
    result = run("theory", csv, FORMULA, "--family", "poisson", "--target", "posterior", *arguments)
    assert result.code == 0, result.err
    # a full batch and β = N: the posterior is H⁻¹/N, the chain's covariance (H − λH²/2)⁻¹/N
    H = (theirs.model.exog.T * theirs.fittedvalues.to_numpy()) @ theirs.model.exog / 400
    j = list(theirs.params.index).index("age")
    wanted, sd = (np.sqrt(np.linalg.inv(bent)[j, j] / 400) for bent in (H, H - 0.005 * H @ H))
    printed = next(line.split() for line in result.out.splitlines() if line.strip().startswith("age "))
    np.testing.assert_allclose([float(word) for word in printed[2:5]], [wanted, sd, sd / wanted], atol=5.1e-4)


def test_version_and_help(run) -> None:
    assert run("--version").out == f"equipoise {eq.__version__}\n"
    for arguments in ((), ("--help",), ("fit", "--help"), ("plan", "-h"), ("theory", "--help")):
        result = run(*arguments)
        assert result.code == 0
        assert "Usage" in result.out


@pytest.mark.parametrize("page", ["quickstart", "howto/answers"])
def test_commands_of_the_documentation(page, run, frame, tmp_path, monkeypatch) -> None:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8").replace("\\\n", " ")
    commands = [shlex.split(line) for line in re.findall(r"^(?:\$ )?equipoise (.*)$", text, re.M)]
    assert len(commands) >= 3
    monkeypatch.chdir(tmp_path)
    for name in ("visits.csv", "new.csv"):
        frame.assign(plan=frame["region"]).to_csv(name, index=False)
    run("fit", "visits.csv", "count ~ age", "--family", "poisson", "--save", "small.eqz", *QUICK)
    for command in commands:
        found = run(*command)
        assert found.code == 0, f"equipoise {shlex.join(command)}: {found.err}"
        assert len(found.out.splitlines()) > 5


def test_what_files_may_take_is_told(run, tmp_path) -> None:
    rng = np.random.default_rng(0)
    for k in range(2):
        wide = pd.DataFrame({"a": rng.normal(size=40_000), "b": rng.normal(size=40_000), "y": rng.poisson(1.0, 40_000)})
        wide.to_parquet(tmp_path / f"wide-{k}.parquet")
    plan = "plan", str(tmp_path / "wide-*.parquet"), "y ~ a + b", "--family", "poisson", "--ess", "100"
    assert "at most 0.004 GB of memory" in run(*plan, "--memory", "4MB").out
    # what fits is read whole
    assert "GB of memory" not in run(*plan).out
    assert "memory: must be a size" in run(*plan, "--memory", "little").err
