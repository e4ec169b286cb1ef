"""Tables with columns of every kind, and one of them in files: what formulas and scans are tested on."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pytest

from equipoise.data.parts import ParquetPart

N = 500
MANY = 60_000  # rows of files whose readings are counted


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    return pd.DataFrame(
        {
            "y": rng.poisson(2.0, N).astype(float),
            "won": rng.choice(["no", "yes"], N),
            "a": rng.normal(5.0, 2.0, N),
            "b": rng.gamma(2.0, 1.0, N),
            "k": rng.integers(1, 5, N),
            "flag": rng.random(N) < 0.4,
            "g": rng.choice(["north", "south", "east"], N, p=[0.5, 0.4, 0.1]),
            "c": pd.Categorical(rng.choice(["low", "mid", "high"], N), categories=["low", "mid", "high"]),
            "when": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 400, N), unit="h"),
            "w": rng.uniform(0.5, 2.0, N),
            "f": rng.integers(1, 4, N),
            "o": 0.1 * rng.normal(size=N),
            "my col": rng.normal(size=N),
        }
    )


@pytest.fixture
def folder(frame, tmp_path):
    """Four files, of several row groups."""
    for k, cut in enumerate([slice(0, 7), slice(7, 200), slice(200, 201), slice(201, N)]):
        frame[cut].to_parquet(tmp_path / f"part-{k}.parquet", row_group_size=50, index=False)
    return tmp_path


def mixed(n: int, seed: int) -> pd.DataFrame:
    """A table for formulas: numbers, text, categories, truth values, dates, and names that need backticks."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "y": rng.normal(size=n),
            "x": rng.uniform(0.1, 5.0, n),
            "z": rng.normal(size=n),
            "k": rng.integers(1, 5, n),
            "g": rng.choice(["a", "b", "c"], n),
            "h": pd.Categorical(rng.choice(["lo", "hi"], n), categories=["lo", "hi"]),
            "b": rng.random(n) < 0.5,
            "my col": rng.uniform(1.0, 2.0, n),
            "a.b": rng.normal(size=n),
            "größe": rng.uniform(1.0, 2.0, n),
            "2nd": rng.normal(size=n),
            "t": pd.Timestamp("2021-03-01") + pd.to_timedelta(rng.integers(0, 5, n) * 12, unit="h"),
        }
    )


def assert_same(found, expected, tolerance: float = 0.0) -> None:
    """The same rows, to the last bit or nearly."""
    assert found.names == expected.names
    assert found.response == expected.response
    assert found.n == expected.n
    for name in ("x", "y", "weights", "offset", "frequency"):
        one, other = getattr(found, name), getattr(expected, name)
        assert (one is None) == (other is None), name
        if one is not None:
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.fixture(scope="session")
def many(tmp_path_factory):
    rng = np.random.default_rng(1)
    made = tmp_path_factory.mktemp("passes")
    a, b = rng.normal(size=(2, MANY))
    firm, year = rng.integers(0, 200, MANY), rng.integers(0, 30, MANY)
    mean = np.exp(0.3 * a - 0.2 * b + 0.2 * rng.normal(size=200)[firm])
    frame = pd.DataFrame({"a": a, "b": b, "g": rng.choice(list("xyz"), MANY), "firm": firm, "year": year})
    frame["count"] = rng.negative_binomial(2.0, 2.0 / (2.0 + mean)).astype(float)
    frame["won"] = (rng.random(MANY) < mean / (1.0 + mean)).astype(float)
    frame["size"] = rng.gamma(2.0, 0.5 * mean)
    frame["level"] = 0.3 * a + rng.normal(size=MANY)
    for k in range(3):
        frame[k * MANY // 3 : (k + 1) * MANY // 3].to_parquet(made / f"{k}.parquet", row_group_size=10_000)
    return made


@pytest.fixture
def readings(monkeypatch):
    """How many rows of each file were asked for."""
    found: Counter[str] = Counter()
    frames = ParquetPart.frames

    def counted(self, columns, rows):
        found[self.location.path] += self.count
        return frames(self, columns, rows)

    monkeypatch.setattr(ParquetPart, "frames", counted)
    return found


@pytest.fixture
def sampled(monkeypatch):
    """Let fits start from so many rows: of large files the sample is smaller than all."""

    def fewer(rows):
        monkeypatch.setattr("equipoise.data.scanning.KEPT", rows)
        monkeypatch.setattr("equipoise.fitting.fit.LARGEST", rows)

    return fewer
