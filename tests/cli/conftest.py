"""A table for the command line, and a call of it as from a shell."""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from equipoise import cli

FORMULA = "count ~ age + C(region)"
QUICK = ["--ess", "200", "--chains", "2", "--no-progress"]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(8)
    age, region = rng.normal(size=400), rng.choice(["east", "north", "west"], size=400)
    mean = np.exp(0.5 + 0.3 * age + 0.4 * (region == "west"))
    return pd.DataFrame(
        {
            "count": rng.poisson(mean * rng.gamma(2.0, 0.5, 400)),
            "age": age,
            "region": region,
            "weight": rng.uniform(0.5, 1.5, 400),
            "exposure": rng.normal(size=400) * 0.1,
            "firm": np.arange(400) % 40,
            "perfect": (age > 0).astype(int),
        }
    )


@pytest.fixture(scope="module")
def csv(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "data.csv"
    frame.to_csv(path, index=False)
    return str(path)


class Result(NamedTuple):
    """Exit code and output of one call of `main`."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def call(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["equipoise", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        captured = capsys.readouterr()
        return Result(int(stop.value.code or 0), captured.out, captured.err)

    return call


def one_line(result: Result) -> str:
    assert result.code == 2
    assert result.out == ""
    lines = result.err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    return lines[0]
