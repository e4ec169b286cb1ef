"""Cells, their verdicts, and the paper's numbers that are shipped."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from equipoise.experiments.numbers import Number, Printed, collect, printed, short, tell

PAPER = Path(__file__).parents[3] / "shared" / "data" / "paper_tables.csv"


def cell(values, metric="covariance_error", **more) -> Number:
    return Number("released", "printed", "d", "log", "16", "ct", metric, tuple(values), **more)


@pytest.mark.skipif(not PAPER.exists(), reason="the paper's numbers lie in ../shared/data, which is not here")
def test_every_number_of_the_paper_is_shipped() -> None:
    entries = {"1": "table1", "2": "table2", "3": "table3", "fixed-step": "table-fixed-poisson"}
    lines = list(csv.DictReader(PAPER.read_text().splitlines()))
    for line in lines:
        cost = line["table"].startswith("cost")
        method = line["method"].replace("dq-const", "dq-const-literal") if line["table"] == "3" else line["method"]
        key = {
            "entry": "table-cost" if cost else entries[line["table"]],
            "dataset": line["table"].removeprefix("cost-") if cost else line["dataset"],
            "batch": line["dataset"] if cost else line["batch"],
            "method": "chain" if line["metric"] == "sampling_seconds" else method,
        }
        found = printed(**key, loss=line["loss"], metric=line["metric"])
        assert found is not None, line
        assert found.value == float(line["mean"])
        assert found.low == float(line["lo"] or line["mean"])
        assert found.high == float(line["hi"] or line["mean"])
    assert len(lines) == 104


def test_intervals_are_those_of_the_mean() -> None:
    values = np.random.default_rng(0).normal(3.0, 1.0, size=30)
    low, high = cell(values).interval
    error = values.std() / np.sqrt(30)
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.15 * error)
    assert cell([1.0]).interval == (1.0, 1.0)
    assert cell([1.0, np.inf]).interval == (np.inf, np.inf)


@pytest.mark.parametrize(
    ("values", "paper", "verdict"),
    [
        ([0.66, 0.68, 0.70], Printed(0.664, 0.616, 0.710), "agrees"),
        ([0.64, 0.65, 0.66], Printed(0.664, 0.664, 0.664), "agrees"),
        ([0.10, 0.11, 0.12], Printed(0.337, 0.262, 0.405), "better"),
        ([0.90, 0.91, 0.92], Printed(0.337, 0.262, 0.405), "differs"),
        ([np.inf, 2.0], Printed(np.inf, np.inf, np.inf), "agrees"),
        ([3e5, 4e9], Printed(9.2e8, 3.6e4, 6.2e9), "agrees"),
        ([0.5, 0.6], None, "new"),
        ([], None, "skipped"),
    ],
)
def test_verdicts(values, paper, verdict) -> None:
    assert cell(values, paper=paper).verdict == verdict


def test_smaller_is_better_only_for_errors_and_times() -> None:
    assert cell([0.1, 0.1], metric="covariance_distance", paper=Printed(0.5, 0.5, 0.5)).verdict == "differs"
    assert cell([0.1, 0.1], metric="sampling_seconds", paper=Printed(0.5, 0.5, 0.5)).verdict == "better"


def test_reasons_tell_noise_from_bias() -> None:
    noise = cell([0.66, 0.70], floor=0.72, bias=0.01, passes=15.0)
    assert noise.at_floor
    assert "15 passes" in noise.because
    assert "0.72" in noise.because
    biased = cell([1.2, 1.25], floor=0.2, bias=1.2)
    assert not biased.at_floor
    assert "bias is 1.2" in biased.because
    assert biased.predicted == pytest.approx(np.hypot(0.2, 1.2))
    unstable = cell([1e9], radius=1.3)
    assert "spectral radius 1.3" in unstable.because
    assert cell([0.3, 0.3], reason="It is so.").because == "It is so."


def test_the_described_settings_are_not_those_of_the_printed_table() -> None:
    told = Number(
        "described", "printed", "d", "log", "16", "ct", "covariance_error", (0.9, 0.91), paper=Printed(0.3, 0.3, 0.3)
    )
    assert "released settings" in told.because


def test_repetitions_are_joined_by_cell() -> None:
    rows = [
        {"setting": "", "run": "printed", "dataset": "boston", "loss": "log", "batch": "16", "method": "ct",
         "metric": "covariance_error", "value": v, "floor": f}
        for v, f in ((0.2, 0.1), (0.3, 0.3))
    ]  # fmt: skip
    long = [{**r, "run": "long"} for r in rows]
    numbers = collect("table2", rows + long)
    assert len(numbers) == 2
    found = numbers.at(run="printed", method="ct")
    assert found is not None
    assert found.values == (0.2, 0.3)
    assert found.floor == pytest.approx(0.2)
    assert found.paper == Printed(0.247, 0.194, 0.310)
    # a chain of another length is another number
    assert numbers.at(run="long").paper is None
    assert numbers.at(method="nobody") is None


def test_numbers_in_words() -> None:
    assert [short(v) for v in (0.0, 0.1234, 12.345, 5e-7, 9.23e8, np.inf, None)] == [
        "0.000", "0.123", "12.3", "5.0·10⁻⁷", "9.2·10⁸", "∞", "–",
    ]  # fmt: skip
    assert tell(None) == "not measured"
    assert tell(cell([1.0])) == "1.000"
