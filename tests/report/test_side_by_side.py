"""Fits side by side in four languages, and a run as JSON and CSV: the numbers are those of `tidy`."""

from __future__ import annotations

import io
import json
import re

import numpy as np
import pandas as pd
import pytest

import equipoise as eq


@pytest.fixture(scope="module")
def runs() -> list[eq.Calibration]:
    rng = np.random.default_rng(4)
    frame = pd.DataFrame({"a_1": rng.normal(size=200), "b": rng.normal(size=200), "firm": np.arange(200) % 20})
    frame["y"] = rng.poisson(np.exp(0.2 + 0.4 * frame.a_1 + 0.3 * frame.b))
    made = [
        eq.calibrate(eq.glm("poisson"), frame, formula=f, ess=100, progress=False, clusters="firm", target="CRV1")
        for f in ("y ~ a_1", "y ~ a_1 + b")
    ]
    return [*made, eq.calibrate(eq.glm("gaussian"), frame, formula="y ~ a_1 * b", sampler="gaussian", ess=100)]


def numbers(text: str) -> list[float]:
    return [float(t) for t in re.findall(r"-?\d+\.\d+", text)]


def test_text_has_every_term_once_with_its_numbers(runs) -> None:
    made = eq.compare_fits(runs)
    text = str(made)
    assert made.terms == ("a_1", "b", "a_1:b", "Intercept")
    line = next(line for line in text.splitlines() if line.startswith("a_1 "))
    np.testing.assert_allclose(numbers(line), [run.params["a_1"] for run in runs], atol=6e-4)
    below = text.splitlines()[text.splitlines().index(line) + 1]
    np.testing.assert_allclose(numbers(below), [run.bse["a_1"] for run in runs], atol=6e-4)
    second = next(line for line in text.splitlines() if line.startswith("b "))
    assert len(numbers(second)) == 2
    assert "CRV1 by firm (20 clusters)" in text
    assert f"{runs[0].aic:,.2f}" in text
    assert "*" not in text
    pd.testing.assert_frame_equal(
        made.frame[made.frame.fit == "(2)"].drop(columns="fit").reset_index(drop=True), runs[1].tidy()
    )


def test_other_numbers_below_and_stars(runs) -> None:
    interval = eq.compare_fits({"one": runs[0], "two": runs[1]}, below="interval", level=0.9)
    low, high = runs[0].confint(0.9).loc["a_1"]
    assert f"[{low:.4f}, {high:.4f}]" in interval.to_text()
    assert "one" in interval.to_text()
    assert "19 degrees" in interval.to_text()
    ratio = eq.compare_fits(runs[:2], exponentiate=True)
    np.testing.assert_allclose(ratio.frame["estimate"], np.exp(eq.compare_fits(runs[:2]).frame["estimate"]))
    assert "rate ratio" in ratio.to_text()
    arrays = {"clusters": np.arange(200) % 25, "small_sample": False}
    other = eq.compare_fits(runs[:2], kind="CRV1", **arrays).frame["std_error"]
    np.testing.assert_allclose(
        other, np.concatenate([run.tidy(kind="CRV1", **arrays)["std_error"] for run in runs[:2]])
    )
    assert not np.allclose(other, eq.compare_fits(runs[:2]).frame["std_error"], rtol=1e-3)
    starred = eq.compare_fits(runs, stars=True, kind="HC0", below="p_value")
    assert "***" in starred.to_text()
    assert "(<0.001)" in starred.to_text()
    assert starred.statistics.loc["Covariance"].tolist() == ["HC0"] * 3
    statistic = eq.compare_fits(runs, below="statistic").to_text()
    assert f"({runs[0].tidy()['statistic'].iloc[1]:.2f})" in statistic


def test_the_other_languages(runs) -> None:
    made = eq.compare_fits(runs, stars=True)
    latex = made.to_latex()
    assert latex.count(r"\begin{tabular}{lrrr}") == 1
    assert r"a\_1" in latex
    assert all(line.count("&") == 3 for line in latex.splitlines() if "&" in line)
    assert r"\textless{}" in latex
    markdown = made.to_markdown().splitlines()
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 5 for line in markdown[:-2])
    assert r"\*\*\*" in made.to_markdown()
    html = made._repr_html_()
    assert "p &lt; 0.05" in html
    assert html.count("<tr>") == 1 + len(made.terms) + len(made.statistics)


def test_what_cannot_be_compared_is_refused(runs) -> None:
    for call, words in (
        (lambda: eq.compare_fits([]), "at least one"),
        (lambda: eq.compare_fits([runs[0], "run.eqz"]), "calibrations"),
        (lambda: eq.compare_fits(runs, names=["a", "a", "b"]), "3 different names"),
        (lambda: eq.compare_fits(runs, below="beta"), "below"),
        (lambda: eq.compare_fits(runs, stars="yes"), "stars"),
    ):
        with pytest.raises(eq.InvalidInput, match=words):
            call()


def test_a_loaded_run_has_a_table(runs, tmp_path) -> None:
    loaded = eq.load(runs[0].save(tmp_path / "run.eqz"))
    assert str(eq.compare_fits([loaded])) == str(eq.compare_fits(runs[:1]))


def test_json_and_csv_have_the_numbers_of_tidy(runs, tmp_path) -> None:
    run = runs[1]
    path = tmp_path / "new" / "run.json"
    found = json.loads(run.to_json(path, level=0.8))
    assert json.loads(path.read_text()) == found
    table = run.tidy(0.8)
    pd.testing.assert_frame_equal(pd.DataFrame(found["coefficients"]), table)
    assert (found["rows"], found["response"], found["level"]) == (200, "y", 0.8)
    assert found["fit_statistics"]["aic"] == pytest.approx(run.aic)
    assert [c["name"] for c in found["diagnosis"]["checks"]] == [c.name for c in run.diagnosis.checks]
    text = run.to_csv(tmp_path / "run.csv", exponentiate=True)
    assert (tmp_path / "run.csv").read_text() == text
    back = pd.read_csv(io.StringIO(text))
    pd.testing.assert_frame_equal(back, run.tidy(exponentiate=True), rtol=1e-14)
