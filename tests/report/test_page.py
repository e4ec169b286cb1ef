"""The report: complete, self-contained, well formed, and its numbers are those of the summary."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.report import plots
from equipoise.report.page import write_report

VOID = {"meta", "br", "hr", "img", "input", "link"}
PANELS = ("unit", "unit-exp", "sd", "sd-exp", "se")
NAMES = ['<b>bold & "quoted"</b>', "$x_1$", "年齢", "plain"]


class Page(HTMLParser):
    """Checks that tags balance and keeps the text, the attributes and the coefficient table."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.ids: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id" and value]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text.append(data)


def calibration(dim: int = 4, **options: object) -> eq.Calibration:
    rng = np.random.default_rng(3)
    x = np.column_stack([np.ones(600), rng.normal(size=(600, dim - 1))])
    y = rng.poisson(np.exp(0.4 + 0.3 * x[:, 1]) * rng.gamma(1.5, 1 / 1.5, 600))
    names = [*NAMES, *(f"a rather long name of a column, number {j}" for j in range(dim - 4))][:dim]
    frame = pd.DataFrame(x, columns=names)
    rows = eq.data.rows(frame, pd.Series(y, name="<count>"))
    return eq.calibrate(eq.glm("poisson"), rows, ess=300, chains=3, progress=False, **options)


@pytest.fixture(scope="module")
def run() -> eq.Calibration:
    return calibration()


@pytest.fixture(scope="module")
def text(run: eq.Calibration, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = run.report(tmp_path_factory.mktemp("report") / "deep" / "page.html")
    return path.read_text(encoding="utf-8")


def table_values(text: str) -> np.ndarray:
    table = re.search(r'<table class="coefficients" .*?</table>', text, re.S)
    assert table is not None
    rows = re.findall(r"<tr [^>]*>(.*?)</tr>", table.group().split("<tbody")[1], re.S)
    return np.array([[float(v) for v in re.findall(r'data-value="([^"]+)"', row)] for row in rows])


def forest_values(text: str, scale: str) -> np.ndarray:
    table = re.search(rf'<table class="forest" id="forest-{scale}".*?</table>', text, re.S)
    assert table is not None
    return np.array([float(v) for v in re.findall(r'data-value="([^"]+)"', table.group())])


def test_effects_come_first_on_every_scale(run: eq.Calibration, text: str) -> None:
    assert text.index('id="effects"') < text.index('id="coefficients"') < text.index('id="predictions"')
    assert text.index('id="predictions"') < text.index('id="sampler"')
    x = np.concatenate([rows.x for rows in run.plan.problem.source.blocks()])
    # the first column is a constant, which is no effect
    theta, sd, se = run.fit.params[1:], x.std(axis=0)[1:], run.bse.to_numpy()[1:]
    expected = dict(zip(PANELS, (theta, np.exp(theta), theta * sd, np.exp(theta * sd), theta / se), strict=True))
    for scale, values in expected.items():
        np.testing.assert_allclose(forest_values(text, scale), values, rtol=1e-8)
    assert "Not drawn: " in text


def test_the_page_tells_of_the_data(run: eq.Calibration, text: str) -> None:
    shown = "".join(Page(text).text)
    y = np.concatenate([rows.y for rows in run.plan.problem.source.blocks()])
    assert f"{y.mean():.5g} (standard deviation {y.std():.5g})" in shown
    assert f"{run.aic:,.2f}".replace("-", "−") in shown
    assert run.fit_statistics.words in shown


def test_page_is_well_formed_complete_and_escaped(run: eq.Calibration, text: str) -> None:
    page = Page(text)
    shown = "".join(page.text)
    for name in run.names:
        assert name in shown
    assert "<b>bold" not in text
    assert "<count>: calibrated poisson regression" in shown
    assert len(page.ids) == len(set(page.ids))
    for heading in (
        "Effects",
        "Coefficients",
        "Data and fit",
        "Predictions",
        "Covariance",
        "Mean and shape",
        "Mixing",
        "Draws",
        "Budget",
        "Warnings",
    ):
        assert heading in shown
    for check in run.diagnosis.checks:
        assert check.words[1:] in shown
    assert run.diagnosis.verdict in shown


def test_page_loads_nothing_and_names_no_path(text: str, tmp_path: Path) -> None:
    page = Page(text)
    for name, value in page.attributes:
        if name in {"src", "href", "xlink:href"}:
            assert (value or "").startswith("#")
    assert "http" not in text.replace("http-equiv", "")
    assert "@import" not in text
    assert not {"script", "link", "iframe"} & page.tags
    assert "default-src 'none'; style-src 'unsafe-inline';" in text
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    for fragment in (str(tmp_path.parent), str(Path.home()), str(Path.cwd())):
        assert fragment == "/" or fragment not in text


def test_links_have_their_section(text: str) -> None:
    page = Page(text)
    targets = {value[1:] for name, value in page.attributes if name == "href" and value}
    assert targets <= set(page.ids)


def test_no_missing_numbers(text: str) -> None:
    assert not re.search(r"\b(nan|inf)\b", " ".join(Page(text).text), re.I)
    assert not re.search(r'="-?(nan|inf)', text)


def test_table_has_the_numbers_of_the_summary(run: eq.Calibration, text: str) -> None:
    found = table_values(text)
    np.testing.assert_array_equal(found[:, :6], run.tidy().drop(columns="term").to_numpy(dtype=float))
    model = np.sqrt(np.diag(eq.posterior(run.plan.moments)))
    np.testing.assert_allclose(found[:, 6:], model[:, None], rtol=1e-12)
    cells = run.summary().cells()
    assert cells["estimate"].iloc[0].replace("-", "−") in text


def test_interval_is_the_one_asked_for(run: eq.Calibration, tmp_path: Path) -> None:
    text = write_report(run, tmp_path / "half.html", 0.5).read_text(encoding="utf-8")
    assert "50% interval" in text
    np.testing.assert_allclose(table_values(text)[:, 4], run.tidy(0.5)["conf_low"])


def test_page_is_the_same_from_the_saved_run(run: eq.Calibration, text: str, tmp_path: Path) -> None:
    loaded = eq.load(run.save(tmp_path / "run.eqz"))
    assert loaded.report(tmp_path / "again.html").read_text(encoding="utf-8") == text


def test_gaussian_sampler_has_a_page_without_chains(tmp_path: Path) -> None:
    made = calibration(sampler="gaussian")
    text = made.report(tmp_path / "g.html").read_text(encoding="utf-8")
    page = Page(text)
    assert "mixing" not in page.ids
    assert "Draws are from N(estimate, target)" in "".join(page.text)
    assert "Trace" not in text


def test_many_parameters_stay_readable(tmp_path: Path) -> None:
    made = calibration(40)
    path = made.report(tmp_path / "many.html")
    text = path.read_text(encoding="utf-8")
    assert path.stat().st_size < 1_500_000
    assert table_values(text).shape[0] == 40
    assert "12 of 40 parameters" in "".join(Page(text).text)
    assert len(forest_values(text, "unit")) == 39


def test_one_parameter(tmp_path: Path) -> None:
    y = np.random.default_rng(0).normal(size=80)
    made = eq.calibrate(eq.glm("gaussian"), (np.ones((80, 1)), y), ess=60, chains=1, progress=False)
    text = made.report(tmp_path / "one.html").read_text(encoding="utf-8")
    (row,) = table_values(text)
    # a mean, and the sandwich of its residuals
    np.testing.assert_allclose(row[:2], [y.mean(), y.std() / np.sqrt(80)], rtol=1e-6)
    assert "Look at: " not in "".join(Page(text).text)


def test_trouble_is_the_headline(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    x = np.column_stack([np.ones(60), rng.normal(size=(60, 11))])
    y = rng.poisson(np.exp(0.2 * x[:, 1]) * rng.gamma(0.5, 2.0, 60))
    made = eq.calibrate(eq.glm("poisson"), (x, y), ess=800, chains=4, progress=False)
    assert not made.diagnosis.ok
    text = "".join(Page(made.report(tmp_path / "look.html").read_text(encoding="utf-8")).text)
    assert "Look at: " in text
    assert "checks passed" not in text


def test_what_a_run_cannot_tell_is_neither_a_failure_nor_an_ok(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    x = np.column_stack([np.ones(300), rng.normal(size=(300, 5))])
    made = eq.calibrate(
        eq.glm("gaussian", scale=1.0), (x, x @ np.full(6, 0.1) + rng.normal(size=300)), ess=15, chains=2, progress=False
    )
    assert made.diagnosis.status == "unknown", str(made.diagnosis)
    page = Page(made.report(tmp_path / "short.html").read_text(encoding="utf-8"))
    text = "".join(page.text)
    assert "as far as this run can tell. Not told: covariance, target" in text
    assert "Look at" not in text
    assert "checks passed" not in text
    assert ("class", "pill unknown") in page.attributes
    assert ("class", "verdict unknown") in page.attributes
    lines = [line for line in str(made.summary()).splitlines() if line.startswith("?")]
    assert len(lines) == len(made.diagnosis.undecided)


def test_no_page_recommends_the_shape_of_a_chain(run: eq.Calibration, text: str) -> None:
    for words in (text, str(run.summary())):
        assert "for quantiles take estimate ± z·se" in words
        assert "gaussian" not in words
        assert "adds something" not in words


def test_a_step_that_misses_the_target_is_the_headline(tmp_path: Path) -> None:
    made = calibration(structure="scalar")
    text = "".join(Page(made.report(tmp_path / "scalar.html").read_text(encoding="utf-8")).text)
    assert re.search(r"Look at: .*target", text)
    assert "The best scalar step cannot reach this target" in text


def test_the_error_shown_is_the_error_made() -> None:
    rng = np.random.default_rng(3)
    x = np.column_stack([np.ones(200), rng.normal(size=200)])
    rows, model = eq.data.rows(x, rng.poisson(np.exp(0.4 + 0.3 * x[:, 1]))), eq.glm("poisson")
    runs = [eq.calibrate(model, rows, ess=150, chains=2, seed=s, progress=False) for s in range(60)]
    observed = np.std([made.diagnosis.sd_ratio for made in runs])
    shown = np.mean([made.diagnosis.spread_error for made in runs])
    # 120 nearly independent ratios: the relative error of their standard deviation is 1/√240
    assert abs(observed / shown - 1.0) < 4.0 / np.sqrt(240)


def test_plots_are_reproducible_and_leave_no_global_state(run: eq.Calibration) -> None:
    before = dict(mpl.rcParams)
    assert plots.trace(run, 0) == plots.trace(run, 0)
    assert dict(mpl.rcParams) == before
    pyplot = sys.modules.get("matplotlib.pyplot")  # another test may have imported it
    assert pyplot is None or not pyplot.get_fignums()
