"""The command line when something is wrong: one readable line, nothing begun that cannot end, files old or new."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

import equipoise as eq
from tests.cli.conftest import FORMULA, one_line


def raising(error: BaseException):
    def fails(*_: object, **__: object) -> None:
        raise error

    return fails


def test_errors_point_to_the_right_help(run, csv: str) -> None:
    assert one_line(run("fit", csv, "count ~ age", "--colour", "blue")).endswith("See 'equipoise fit --help'.")
    assert one_line(run("predict")).endswith("See 'equipoise predict --help'.")
    assert one_line(run("fitt", csv)).endswith("See 'equipoise --help'.")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("count ~ height",), "height"),
        (("count ~ age", "--family", "cauchy"), "one of gaussian, bernoulli"),
        (("perfect ~ age", "--family", "bernoulli"), "separated by age"),
        (("count ~ age", "--target", "truth"), "target: must be one of sandwich"),
        (("count ~ age", "--batch-size", "4000"), "at most the number of rows, 400"),
        (("count ~ age", "--batch-size", "some"), "'auto' or a whole number"),
        (("count ~ age", "--interval", "95"), "between 0 and 1"),
        (("count ~ age", "--draws-out", "draws.xlsx"), ".csv or .parquet"),
        (("count ~ age", "--sampler", "nuts"), "one of auto, control-variate, sgmcmc, gaussian"),
        (("count ~ age", "--shape", "2"), "left out for the gaussian family"),
        (("count ~ age", "--seed", "-1"), "--seed"),
        (("count ~ age", "--seed", "1.5"), "--seed"),
        (("count ~ age", "--sampler", "gaussian", "--refine"), "refine: must be left out"),
        (("count ~ age", "--ess", "1e15"), "GB"),
        (("count ~ age", "--chains", "1000000"), "chains: must be at most 10,000"),
        (("count ~ age", "--colour", "blue"), "No such option"),
        (("count ~ age +",), "formula"),
        (("~ age",), "response"),
        (("count ~ age", "--guard", "never"), "'auto', 'none' or a number"),
        (("count ~ age", "--small-sample", "maybe"), "yes, no or min"),
        (("count ~ age", "--beta", "1.2", "--huber", "1.3"), "--huber: must be left out"),
        (("count ~ age", "--target", "CRV1"), "clusters"),
        ((), "Missing argument"),
    ],
)
def test_bad_input_is_one_line(run, csv: str, arguments: tuple[str, ...], words: str) -> None:
    assert words in one_line(run("fit", csv, *arguments))


def test_an_unstable_step_says_how_much_smaller(run, csv: str, frame: pd.DataFrame) -> None:
    line = one_line(run("theory", csv, "count ~ age", "--family", "poisson", "--step", "9", "--batch-size", "5"))
    factor = float(re.search(r"multiply the step by less than ([\d.e-]+)", line)[1].rstrip("."))
    problem = eq.bind(eq.glm("poisson"), frame, formula="count ~ age")
    limit = eq.max_stable_step(eq.moments(problem, eq.fit(problem)), eq.Dynamics(5))
    assert 9 * factor == pytest.approx(limit, rel=1e-5)  # six digits are printed


def test_absent_file_and_unknown_command(run) -> None:
    assert "existing CSV or Parquet file" in one_line(run("fit", "absent.csv", "y ~ x"))
    assert "No such command" in one_line(run("bench"))


def test_missing_values(run, frame: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "holes.csv"
    frame.assign(age=frame.age.where(frame.index != 7)).to_csv(path, index=False)
    line = one_line(run("plan", str(path), FORMULA, "--family", "poisson"))
    assert "rows 7" in line
    assert "--missing drop" in line
    result = run("plan", str(path), FORMULA, "--family", "poisson", "--missing", "drop")
    assert result.code == 0
    assert "399 rows" in result.out
    assert result.err.splitlines() == ["note: 1 of 400 rows with missing values were left out."]


def test_debug_shows_the_traceback(run, csv: str) -> None:
    result = run("fit", csv, "count ~ height", "--debug")
    assert result.code == 2
    assert "Traceback" in result.err
    assert result.err.splitlines()[-1].startswith("error: ")


def test_unexpected_errors_and_interrupts(run, csv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eq, "plan", raising(RuntimeError("two\nlines")))
    result = run("plan", csv, "count ~ age")
    assert result.code == 1
    assert result.err.splitlines() == [
        "error: unexpected RuntimeError: two lines. Rerun with --debug for the traceback, and report it."
    ]
    monkeypatch.setattr(eq, "plan", raising(KeyboardInterrupt()))
    assert run("plan", csv, "count ~ age").code == 130


def test_an_interrupted_run_says_how_to_go_on(run, csv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = KeyboardInterrupt("stopped at step 1,000 of 2,000; run again to go on")
    monkeypatch.setattr(eq, "calibrate", raising(stopped))
    result = run("fit", csv, "count ~ age", "--checkpoint", "state")
    assert (result.code, result.out) == (130, "")
    assert result.err == "note: stopped at step 1,000 of 2,000; run again to go on\n"


@pytest.mark.parametrize("option", ["--report", "--save", "--draws-out", "--checkpoint", "--json", "--csv"])
def test_places_are_tried_before_the_work(
    run, csv: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eq, "calibrate", lambda *_, **__: pytest.fail("the work was begun"))
    folder = tmp_path / "folder.csv"
    folder.mkdir()
    line = one_line(run("fit", csv, "count ~ age", option, str(folder)))
    assert line.startswith(f"error: {option}: must be a file that can be written")
    line = one_line(run("fit", csv, "count ~ age", option, f"{csv}/inside/draws.csv"))
    assert line.startswith(f"error: {option}: must be a file that can be written")
    assert list(tmp_path.iterdir()) == [folder]


def test_files_are_replaced_whole(run, csv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, draws = tmp_path / "page.html", tmp_path / "draws.csv"
    for path in (page, draws):
        path.write_text("before", encoding="utf-8")
    quick = ("--sampler", "gaussian", "--ess", "50", "--no-progress")
    with monkeypatch.context() as patched:
        patched.setattr("equipoise.files.os.replace", raising(OSError(28, "No space left on device")))
        for option, path in (("--report", page), ("--draws-out", draws)):
            result = run("fit", csv, "count ~ age", *quick, option, str(path))
            assert result.code == 2
            assert "No space left" in result.err
            assert path.read_text(encoding="utf-8") == "before"
    assert run("fit", csv, "count ~ age", *quick, "--report", str(page), "--draws-out", str(draws)).code == 0
    assert "<html" in page.read_text(encoding="utf-8")
    assert draws.read_text(encoding="utf-8").startswith("chain,draw,")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["draws.csv", "page.html"]
