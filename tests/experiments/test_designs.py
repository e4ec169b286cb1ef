"""The paper's data sets, as described and as released."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import equipoise as eq
from equipoise.experiments.designs import MissingData, boston, diabetes, german, heteroskedastic, linear, poisson

GERMAN = Path(__file__).parents[3] / "shared" / "data" / "german.csv"


def test_linear_as_described() -> None:
    study = linear("described", "log", 3)
    x, y = study.data
    assert x.shape == (5000, 50)
    assert np.allclose(x.var(axis=0), 1.0, atol=0.15)
    standard = (y - x @ study.truth) / np.sqrt(1.0 + np.sum(x**2, axis=1))
    # 99 % have variance 1; one in a hundred has five times the spread
    assert np.median(np.abs(standard)) == pytest.approx(0.6745, abs=0.04)
    assert 1.0 < standard.var() < 1.6


def test_linear_as_released() -> None:
    study = linear("released", "beta-1.5", 3)
    x, y = study.data
    assert x.shape == (5000, 20)
    assert set(np.round(1.0 / (5000 * x.var(axis=0)))) <= {1.0, 2.0, 3.0}
    rest = y - x @ study.truth
    assert np.median(rest) == pytest.approx(1.0, abs=0.3)  # an offset of one that no model has, and outliers above
    assert np.mean(rest > 5.0) == pytest.approx(0.1 * 0.88, abs=0.02)  # P(11 + 5 z > 5)
    assert study.model.divergence == eq.Beta(1.5)
    assert study.model.constant == 1.0


def test_poisson_settings() -> None:
    described, released = (poisson(s, 1) for s in ("described", "released"))
    assert described.data[0].shape == released.data[0].shape == (5000, 50)
    assert np.sum(described.truth**2) == pytest.approx(1.0, rel=0.6)
    assert released.data[1].mean() == pytest.approx(np.e, rel=0.05)
    assert set(np.round(1.0 / (5000 * released.data[0].var(axis=0)))) <= {1.0, 2.0, 3.0, 4.0, 5.0}


def test_seeds_differ_and_repeat() -> None:
    a, b, c = (linear("released", "log", seed).data[1] for seed in (1, 1, 2))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
    x, y = heteroskedastic(20, 300, 0)
    assert x.shape == (300, 20)
    assert y.shape == (300,)


def test_boston() -> None:
    pytest.importorskip("mlxtend", reason="the data comes with mlxtend: pip install mlxtend")
    study = boston("log")
    x, y = study.data
    assert x.shape == (506, 12)
    assert np.allclose(x.mean(axis=0), 0.0, atol=1e-12)
    assert np.allclose(x.std(axis=0), 1.0)
    assert len(np.unique(x[:, 3])) > 2  # the river dummy is left out
    assert y.mean() == pytest.approx(22.53, abs=0.01)
    assert study.model.constant == pytest.approx(4.73, abs=0.01)


def test_diabetes() -> None:
    data = diabetes()
    assert data["x"].shape == (442, 10)
    assert data["y"].std() == pytest.approx(1.0)


@pytest.mark.skipif(not GERMAN.exists(), reason="the credit data lies in ../shared/data, which is not here")
def test_german() -> None:
    x, y = german(GERMAN, 0).data
    assert x.shape == (800, 21)
    assert np.all(x[:, 0] == 1.0)
    assert y.mean() == pytest.approx(0.7, abs=1e-12)  # the split is stratified
    assert not np.array_equal(german(GERMAN, 1).data[0], x)


def test_missing_data_says_how_to_get_it(tmp_path) -> None:
    with pytest.raises(MissingData, match="--german-csv"):
        german(None)
    bad = tmp_path / "bad.csv"
    bad.write_text("a;b\nx;y\n")
    with pytest.raises(MissingData, match="semicolon"):
        german(bad)
