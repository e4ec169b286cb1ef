"""The benchmark works: every section of a smoke run, and the pages. Nothing here looks at a time."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import equipoise as eq
from benchmarks import suite
from benchmarks.suite import runner
from benchmarks.suite.bandwidth import _kernels
from benchmarks.suite.contenders import linear_run
from benchmarks.suite.measure import NotInstalled, exponent, guarded, interleave
from benchmarks.suite.peers import CONTENDERS, PACKAGES
from benchmarks.suite.report import render, write_block
from benchmarks.suite.short import short
from benchmarks.suite.throughput import _check, rate_of
from benchmarks.suite.tuned import best_of
from benchmarks.suite.workloads import WORKLOADS, make_cell, prepare, smaller

ROOT = Path(suite.__file__).parents[2]


def one_worker(test):
    """What looks at the smoke run, which takes minutes, is among the heavier grids, and one worker runs it all."""
    return pytest.mark.slow(pytest.mark.xdist_group("smoke-benchmark")(test))


OPTIONAL = {"blackjax", "numpyro", "torch", "posteriors"}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory) -> Path:
    return suite.run(True, tmp_path_factory.mktemp("bench") / "smoke.json")


@pytest.fixture(scope="module")
def data(smoke) -> dict:
    return json.loads(smoke.read_text())


def leaves(value, path=()):
    """Every dictionary inside, with the keys that lead to it."""
    if isinstance(value, dict):
        yield path, value
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))


@one_worker
def test_every_section_works_and_absent_peers_are_named(data) -> None:
    assert list(data["sections"]) == list(suite.NAMES) == list(runner.SECTIONS)
    found = list(leaves(data["sections"]))
    assert not {path: d["error"] for path, d in found if "error" in d}
    missing = {d["not_installed"] for _, d in found if "not_installed" in d}
    assert missing <= OPTIONAL
    absent = {name for name, version in data["machine"]["versions"].items() if version is None}
    assert missing <= absent
    assert set(PACKAGES) | {"equipoise"} == set(data["machine"]["versions"])


@one_worker
def test_contenders_sample_the_target(data) -> None:
    checks = data["sections"]["checks"]["checks"]
    assert len(checks) == len(WORKLOADS) * len(CONTENDERS)
    measured = {name: c for name, c in checks.items() if "not_installed" not in c}
    assert {f"W{k} {name}" for k in (1, 2, 3) for name in ("equipoise", "NumPy loop", "JAX scan, by hand")} <= set(
        measured
    )
    assert not {name: c for name, c in measured.items() if not c["passed"]}


@one_worker
def test_samplers_are_what_they_are_called_and_cost_what_is_predicted(data) -> None:
    for workload in ("W1", "W2", "W3"):
        found = data["sections"]["second_law"][workload]
        assert ("NumPyro NUTS" in found) == (workload == "W1")
        assert found["plain SGD"]["predicted_rows_per_draw"] > 350.0  # of 400
        for target in ("sandwich", "posterior"):
            cheap = found[f"control variates, {target}"]
            # 100 effective draws of four parameters, whose ess is within a third or so of what it should be
            assert 0.6 < cheap["rows_per_draw"] / cheap["predicted_rows_per_draw"] < 1.7
            assert cheap["predicted_rows_per_draw"] < 120.0


def test_the_check_sees_a_chain_that_is_too_wide() -> None:
    workload = smaller(WORKLOADS[0])
    cell = make_cell(prepare(workload), workload.batches[0])
    run, center = linear_run(cell), cell.tuning.center
    assert _check(run, cell, 8000)["passed"]
    assert not _check(lambda steps, seed: center + np.sqrt(1.3) * (run(steps, seed) - center), cell, 8000)["passed"]


@one_worker
def test_nothing_in_the_file_tells_whose_machine_it_was(smoke) -> None:
    import socket

    text = smoke.read_text()
    assert str(smoke.parent) not in text
    assert str(Path(eq.__file__).parent) not in text
    assert str(Path(suite.__file__).parent) not in text
    assert f'"{socket.gethostname()}"' not in text


@one_worker
def test_the_table_and_the_plots_are_written(smoke, data) -> None:
    text = smoke.with_suffix(".md").read_text()
    assert text == render(data)
    assert "smoke run" in text
    assert "| **equipoise** |" in text
    for head in ("Whole jobs", "SGLD tuned by hand", "Rows", "Columns", "Cores", "Dask"):
        assert f"\n### {head}\n" in text
    for name, version in data["machine"]["versions"].items():
        assert name in text if version else f" {name}" in text.partition("Not installed")[2]
    for figure in (smoke.with_suffix(".svg"), smoke.with_name("smoke-scaling.svg")):
        assert figure.read_text().startswith("<?xml")


@one_worker
def test_pages_are_rewritten_between_their_marks(smoke, tmp_path) -> None:
    (tmp_path / "docs").mkdir()
    page = "before\n<!-- bench:begin -->\nold\n<!-- bench:end -->\nafter\n"
    for name in ("README.md", "docs/benchmarks.md"):
        (tmp_path / name).write_text(page)
    written = suite.write_pages(smoke, tmp_path)
    figures = "docs/figures/benchmarks.svg", "docs/figures/benchmarks-scaling.svg"
    assert written == [tmp_path / name for name in ("README.md", "docs/benchmarks.md", *figures)]
    readme = (tmp_path / "README.md").read_text()
    assert readme.startswith("before\n<!-- bench:begin -->\n")
    assert readme.endswith("<!-- bench:end -->\nafter\n")
    assert "old" not in readme
    again = suite.write_pages(smoke, tmp_path)
    assert again == written
    assert (tmp_path / "README.md").read_text() == readme


def test_a_page_without_marks_is_left_alone(tmp_path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n")
    assert not write_block(page, "new")
    assert not write_block(tmp_path / "none.md", "new")
    assert page.read_text() == "text\n"


def test_unknown_sections_are_refused(tmp_path) -> None:
    with pytest.raises(eq.InvalidInput, match="nonsense"):
        suite.run(True, tmp_path / "x.json", only=["W1", "nonsense"])


@pytest.mark.slow
@pytest.mark.parametrize("as_module", [False, True])
def test_the_script_measures_one_section(as_module, tmp_path) -> None:
    out = tmp_path / "new" / "one.json"
    command = ["-m", "benchmarks.run"] if as_module else [str(ROOT / "benchmarks" / "run.py")]
    done = subprocess.run(
        [sys.executable, *command, "--smoke", "--only", "memory", "--out", str(out)],
        capture_output=True,
        text=True,
        cwd=ROOT if as_module else tmp_path,
        # the library may be found from elsewhere, the suite must not need to be
        env={**os.environ, "PYTHONPATH": str(Path(eq.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(out)
    sections = json.loads(out.read_text())["sections"]
    assert list(sections) == ["memory"]
    assert sections["memory"]["ratio"] > 1.0
    assert out.with_suffix(".md").exists()


@pytest.mark.parametrize("file", sorted(Path(suite.__file__).parent.glob("*.py")), ids=lambda file: file.stem)
def test_only_the_contenders_reach_behind_the_public_names(file) -> None:
    tree = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    found = {node.module or "" for node in tree if isinstance(node, ast.ImportFrom)}
    found |= {alias.name for node in tree if isinstance(node, ast.Import) for alias in node.names}
    inner = {name.split(".")[1] for name in found if name.startswith("equipoise.")}
    # engines without what `eq.sample` does around them: a step is timed, not its set-up
    assert inner <= ({"engines", "sampling"} if file.stem == "contenders" else set())


def law_section(nuts: dict) -> dict:
    """Rates of one workload, as the section has them."""
    rates = {
        "plain SGD": 10.0,
        "control variates, sandwich": 400.0,
        "control variates, posterior": 300.0,
        "control variates, posterior, fidelity 0.9": 50.0,
        "independent Gaussian draws": 1600.0,
    }
    facts = {"batch_size": 64.0, "rows_per_draw": 70.0, "curvature_number": 51.0}
    found = {name: {"ess_per_second": rate} for name, rate in rates.items()}
    found["control variates, sandwich"] |= facts
    return {**found, "NumPyro NUTS": nuts}


def run_of(sections: dict) -> dict:
    """A run with these sections."""
    machine = {"caches": {}, "processor": "P", "cores": 2, "memory_gb": 4.0, "versions": {}, "python": ""}
    return {"settings": {"smoke": False, "repeats": 1}, "machine": machine, "sections": sections}


def test_rates_are_shown_beside_plain_chains_and_nuts() -> None:
    law = {"W1": law_section({"ess_per_second": 1.2}), "W2": law_section({"not_installed": "numpyro"})}
    text = render(run_of({"second_law": {**law, "measured_in_seconds": 1.0}}))
    assert "| **W1 control variates, sandwich** | 400 | 40× | 333× | 0.25× | 64 | 70 | 51 |" in text
    assert "| **W2 control variates, sandwich** | 400 | 40× | – | 0.25× | 64 | 70 | 51 |" in text


def test_the_readme_has_a_short_table() -> None:
    jobs = {"equipoise": {"seconds": 0.5}, "glum": {"seconds": 2.0}, "statsmodels": {"not_installed": "statsmodels"}}
    sections = {
        "jobs": {w: {"ess": 1000, "passes": 29.0, "jobs": jobs} for w in ("W2", "W3")},
        "second_law": {"W2": law_section({"ess_per_second": 2.0})},
        "tuned": {"W2": {"best": {"plain": {"ess_per_second": 3.0}, "control variates": {"none_right": True}}}},
        "rows": {"runs": {str(n): {"seconds": n / 1e5, "peak MB": 900.0} for n in (10**6, 10**7, 10**8)}},
    }
    text = short(run_of(sections))
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(rows) <= 8
    assert rows[0].endswith("| 0.5 s | glum: 2 s |")
    assert "| 50 | NumPyro NUTS: 2; BlackJAX SGLD, tuned by hand, plain: 3 |" in text
    assert "| 400 | plain SGD: 10; independent Gaussian draws: 1,600 |" in text
    assert "| 100,000,000 rows in Parquet, clustered errors, 1000 draws | 1,000 s, 0.9 GB of memory |  |" in text
    assert "10,000,000 rows" in text
    assert "1,000,000 rows" not in text


def test_the_best_setting_by_hand_is_the_fastest_of_the_right_ones() -> None:
    grid = [{"ess_per_second": r, "sd_ratio": s} for r, s in ((1.0, 1.0), (5.0, 1.05), (9.0, 1.3), (4.0, 0.95))]
    assert best_of([*grid, {"diverged": True}])["ess_per_second"] == 5.0
    assert best_of([grid[2], {"diverged": True}]) == {"none_right": True}
    assert best_of([{"not_installed": "blackjax"}]) == {"not_installed": "blackjax"}


def test_a_run_can_be_made_in_parts(tmp_path) -> None:
    out = tmp_path / "parts.json"
    settings, machine = {"smoke": True}, {"processor": "P", "cores": 2, "python": "3", "versions": {"numpy": "2"}}
    now = {"settings": settings, "machine": machine}
    assert runner.kept_sections(out, now) == {}
    out.write_text(json.dumps({**now, "sections": {"W2": {"cells": {}}, "W1": {"cells": {}}, "gone": {}}}))
    assert list(runner.kept_sections(out, now)) == ["W1", "W2"]
    assert runner.kept_sections(out, {**now, "settings": {"smoke": False}}) == {}
    assert runner.kept_sections(out, {**now, "machine": {**machine, "cores": 4}}) == {}


def test_measuring_takes_turns_and_keeps_the_smallest() -> None:
    seen: list[str] = []
    seconds = interleave({name: lambda n=name: seen.append(n) for name in "ab"}, 3)
    assert "".join(seen) == "ababab"
    assert [len(times) for times in seconds.values()] == [3, 3]
    found = rate_of(10, [9.0, 2.0, 4.0])
    assert (found["rate"], found["spread"]) == (5.0, 1.0)


def test_failures_are_recorded_without_paths() -> None:
    def broken() -> dict:
        raise OSError("cannot read /home/someone/data/table.csv")

    def absent() -> dict:
        raise NotInstalled("torch")

    assert guarded(broken)["error"] == "OSError: cannot read table.csv"
    assert guarded(absent)["not_installed"] == "torch"


def test_exponents_are_slopes_on_log_scales() -> None:
    sizes = [10.0, 100.0, 1000.0]
    assert exponent(sizes, [3.0 * s**2.5 for s in sizes]) == pytest.approx(2.5)


@pytest.mark.parametrize("ahead", [0, 3])
def test_the_bandwidth_kernels_read_what_they_should(ahead) -> None:
    read, gather = _kernels()
    table = np.arange(80.0).reshape(10, 8)
    batch = np.array([3, 1, 4, 1, 5])
    assert read(table.ravel()) == table.sum()
    assert gather(table, batch, ahead) == table[batch].sum()
