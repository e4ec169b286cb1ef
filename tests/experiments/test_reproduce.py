"""The whole reproduction in small: it runs, goes on after a kill, and shows the orderings that theory guarantees."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import equipoise as eq
from equipoise.experiments import NAMES, find, reproduce, runner
from equipoise.experiments.dimension import data, restricted
from equipoise.experiments.entry import Scale
from equipoise.experiments.runner import _computing, _essence, _tells

GERMAN = Path(__file__).parents[3] / "shared" / "data" / "german.csv"
# one worker runs them all: they share one reproduction, of minutes
pytestmark = pytest.mark.xdist_group("reproduce")
needs_german = pytest.mark.skipif(
    not GERMAN.exists(), reason="the credit data lies in ../shared/data, which is not here"
)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from equipoise.cli import main; main()", "reproduce", *arguments]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory) -> Path:
    """All entries at smoke size, through the command line."""
    out = tmp_path_factory.mktemp("reproduce")
    more = ["--german-csv", str(GERMAN)] if GERMAN.exists() else []
    done = subprocess.run(command("all", "--smoke", "--out", str(out), *more), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"page: {out / 'index.html'}" in done.stdout
    return out


def alive(group: int) -> bool:
    """Whether any process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def numbers(out: Path, name: str, **key: str) -> list[dict]:
    data = json.loads((out / f"{name}.json").read_text())
    return [n for n in data["numbers"] if all(n[k] == v for k, v in key.items())]


def value(out: Path, name: str, **key: str) -> dict:
    (found,) = numbers(out, name, **key)
    return {**found, "mean": float(found["mean"])}


@pytest.mark.slow
def test_every_entry_has_its_files(smoke) -> None:
    for name in NAMES:
        data = json.loads((smoke / f"{name}.json").read_text())
        assert data["failed"] == ""
        assert data["numbers"]
        assert data["versions"]["equipoise"] == eq.__version__
        assert data["settings"]["seed"] == 0
        assert (smoke / f"{name}.md").read_text().startswith(f"# {data['title']}")
        if name.startswith("figure"):
            assert (smoke / f"{name}.svg").stat().st_size > 5000
            assert (smoke / f"{name}.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_the_index_shows_every_number_and_loads_nothing(smoke) -> None:
    page = (smoke / "index.html").read_text()
    for name in NAMES:
        assert f'id="{name}"' in page
        for found in json.loads((smoke / f"{name}.json").read_text())["numbers"]:
            if isinstance(found["mean"], float):
                assert f'data-value="{found["mean"]!r}"' in page
    assert not re.search(r'(src|href)="https?:', page)
    assert "floor" in page
    assert "verdict" in page


@pytest.mark.slow
def test_dq_exact_is_at_the_floor_wherever_the_proxy_is_exact(smoke) -> None:
    for setting in ("released", "described"):
        for batch in ("16", "0.1N", "0.5N"):
            for rule in ("dq-exact", "dq-exact-sgld", "dq-exact-momentum"):
                key = {"setting": setting, "run": "long", "loss": "log", "batch": batch, "method": rule}
                found = value(smoke, "table1", metric="covariance_error", **key)
                assert found["bias"] < 1e-6
                assert found["mean"] < 2.0 * found["floor"], key
    for found in numbers(smoke, "figure1", method="dq-exact"):
        assert found["mean"] < 1.5 * found["floor"]


@pytest.mark.slow
def test_continuous_time_degrades_with_the_batch(smoke) -> None:
    for setting in ("released", "described"):
        key = {"setting": setting, "run": "long", "loss": "log", "metric": "covariance_error"}
        small, large = (value(smoke, "table1", method="ct", batch=b, **key)["mean"] for b in ("16", "0.5N"))
        exact = value(smoke, "table1", method="dq-exact", batch="0.5N", **key)["mean"]
        assert large > 3.0 * small
        assert large > 3.0 * exact
    errors = [n["mean"] for n in numbers(smoke, "figure1", method="ct")]
    assert errors[-1] > 2.0 * errors[0]


@pytest.mark.slow
def test_constant_noise_without_the_batch_size_is_wrong_by_that_factor(smoke) -> None:
    data = numbers(smoke, "table3", setting="released", run="long", metric="covariance_error")
    for batch, size in (("16", 16), ("0.1N", 100)):
        const, literal = (
            next(n["bias"] for n in data if n["batch"] == batch and n["method"] == m)
            for m in ("dq-const", "dq-const-literal")
        )
        # biases are |ratio − 1| for a spread that is `ratio` times the target's
        assert (1.0 + const) / (1.0 - literal) == pytest.approx(size, rel=0.35)


@pytest.mark.slow
def test_predicted_errors_are_the_observed_ones(smoke) -> None:
    """Independent of the verdicts: bias and floor together give the error of long chains."""
    for found in numbers(smoke, "table1", run="long", loss="log", metric="covariance_error"):
        if found["predicted"] is not None and found["predicted"] < 2.0:
            assert found["mean"] == pytest.approx(found["predicted"], rel=0.5)


@pytest.mark.slow
@needs_german
def test_credit_data_agrees_where_the_paper_is_at_the_floor(smoke) -> None:
    found = value(
        smoke, "table3", dataset="german-credit", run="long", batch="0.1N", method="dq-exact", metric="covariance_error"
    )
    assert found["mean"] < 2.0 * found["floor"]


@pytest.mark.slow
def test_skewness_explains_the_quantiles_of_long_chains(smoke) -> None:
    found = value(smoke, "table2", run="long", loss="log", batch="0.1N", method="dq-exact", metric="largest_skewness")
    assert found["bias"] > 0.3
    assert found["mean"] == pytest.approx(found["bias"], rel=0.4)


@pytest.mark.slow
def test_reshuffled_chains_have_their_own_law(smoke) -> None:
    key = {"run": "epochs", "metric": "relative_error"}
    law, usual = (value(smoke, "figure-nn", method=m, **key) for m in ("dq-exact-epochs", "dq-exact"))
    assert law["mean"] < 2.0 * law["floor"]
    assert usual["mean"] > 3.0 * law["mean"]
    ratio = value(smoke, "figure-nn", run="epochs", method="dq-exact", metric="variance_ratio")["mean"]
    assert ratio > 2.0


@pytest.mark.slow
def test_the_distance_grows_with_the_parameters_that_move(smoke) -> None:
    """Of first order in them, wherever they lie; the theorem's constant is of another order."""
    found = numbers(smoke, "figure-dimension", metric="coupling")
    whole = {(n["batch"], n["method"]): n["mean"] for n in found if n["dataset"] == "all parameters"}
    part = {(n["batch"], n["method"]): n["mean"] for n in found if n["dataset"] == "a subspace"}
    laws = {law for law, _ in whole}
    assert (len(laws), len(whole), len(part)) == (4, 12, 8)
    for law in laws:
        expected = 0.0 if law.endswith("parameter") else 1.0
        # five to twenty parameters, two repetitions of short chains
        assert growth([n for n in found if n["dataset"] == "all parameters" and n["batch"] == law]) == pytest.approx(
            expected, abs=0.25
        )
    assert all(0.75 < value / whole[key] < 1.33 for key, value in part.items())
    constants = numbers(smoke, "figure-dimension", metric="theorem_constant", dataset="all parameters")
    assert growth([n for n in constants if n["batch"] == constants[0]["batch"]]) == pytest.approx(2.5, abs=0.25)


def growth(cells: list[dict]) -> float:
    """Power of the number of parameters with which a mean grows."""
    return float(np.polyfit(*np.log([(float(n["method"]), n["mean"]) for n in cells]).T, 1)[0])


def test_a_subspace_is_a_regression_with_an_offset() -> None:
    every = data(seed=3, rows=400, dim=6, active=2)
    full, part = (eq.bind(eq.glm("bernoulli"), rows) for rows in (every, restricted(every, 2)))
    fit = eq.fit(full)
    small = eq.moments(part, eq.fit(part))
    np.testing.assert_allclose(small.params, fit.params[:2], atol=1e-7)
    whole = eq.moments(full, fit)
    np.testing.assert_allclose(small.hessian, whole.hessian[:2, :2], rtol=1e-6)
    np.testing.assert_allclose(small.score_cov, whole.score_cov[:2, :2], rtol=1e-6)


def test_missing_data_is_reported_not_hidden(tmp_path) -> None:
    page = reproduce(["figure-fixed-poisson"], tmp_path, smoke=True, progress=False)
    text = page.read_text()
    assert "--german-csv" in text
    assert "skipped" in text
    assert numbers(tmp_path, "figure-fixed-poisson", dataset="simulated-poisson")


@pytest.mark.slow
def test_a_killed_run_goes_on(tmp_path) -> None:
    arguments = command("figure1", "--smoke", "--out", str(tmp_path), "--no-progress")
    process = subprocess.Popen(arguments, start_new_session=True)
    parts = tmp_path / "parts"
    limit = time.monotonic() + 120.0
    while time.monotonic() < limit and len(list(parts.glob("*.json"))) < 3:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    # its workers end with it
    limit = time.monotonic() + 20.0
    while time.monotonic() < limit and alive(process.pid):
        time.sleep(0.05)
    assert not alive(process.pid)
    before = {p: p.stat().st_mtime_ns for p in parts.glob("*.json")}
    assert len(before) >= 3
    assert subprocess.run(arguments, capture_output=True).returncode == 0
    after = {p: p.stat().st_mtime_ns for p in parts.glob("*.json")}
    assert len(after) == len(find("figure1").jobs(Scale(smoke=True, repetitions=4)))
    assert all(after[p] == when for p, when in before.items())
    fresh = reproduce(["figure1"], tmp_path / "again", smoke=True, progress=False)
    assert fresh.exists()
    one, two = ((tmp_path / d / "figure1.json").read_text() for d in (".", "again"))
    assert json.loads(one)["numbers"] == json.loads(two)["numbers"]


def test_repetitions_and_settings_are_obeyed(tmp_path) -> None:
    scale = Scale(smoke=True, repetitions=3, settings=("released",))
    jobs = find("table1").jobs(scale)
    assert {j["setting"] for j in jobs} == {"released"}
    assert sum(j["run"] == "printed" and j["loss"] == "log" for j in jobs) == 3
    assert len(find("table1").jobs(Scale())) == 2 * 2 * 30 + 2 * 2 * 3 * 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["table9"], "table9"),
        (["table1", "--settings", "imagined"], "imagined"),
        (["table1", "--german-csv", "nowhere.csv"], "nowhere.csv"),
        (["table1", "--reps", "1"], "at least 2"),
    ],
)
def test_bad_requests_end_in_one_line(arguments, words, tmp_path) -> None:
    done = subprocess.run(command(*arguments, "--out", str(tmp_path)), capture_output=True, text=True)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert words in done.stderr


@pytest.mark.slow
def test_infinite_numbers_are_valid_json(smoke) -> None:
    for name in NAMES:
        data = json.loads((smoke / f"{name}.json").read_text(), parse_constant=pytest.fail)
        assert all(n["mean"] is None or float(n["mean"]) == float(n["mean"]) for n in data["numbers"])
    # a chain that exploded is an infinite error, not a missing one
    unstable = numbers(smoke, "table2", method="dq-const", run="long", loss="log", metric="covariance_error")
    assert all(float(n["mean"]) > 1000.0 for n in unstable if n["batch"] != "0.5N")


def test_results_outlive_changes_of_words_and_plots() -> None:
    tree = ast.parse(
        "def run(job, scale): ...\n"
        "def claims(numbers, curves): ...\n"
        "def claim_small(here, label): ...\n"
        "def draw(figure, numbers, curves): ...\n"
        "ENTRY = Entry(name='a')\n"
        "STEPS = (1, 2)\n"
    )
    assert [_tells(node) for node in tree.body] == [False, True, True, True, True, False]
    essence = _essence(Path(runner.__file__).with_name("table1.py"))
    assert "compare_rules" in essence
    assert "For small batches" not in essence


def test_results_depend_on_the_library_wherever_it_lies(tmp_path) -> None:
    root = tmp_path / "report" / "equipoise"
    for name in ("theory/tuning.py", "report/page.py", "interop/arviz.py", "cli.py", "checks.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    assert _computing(root) == [root / "checks.py", root / "theory" / "tuning.py"]
