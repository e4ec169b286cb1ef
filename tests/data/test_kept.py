"""Rows at the ends of columns, and samples in which they stand for themselves."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import equipoise as eq
from equipoise.data.arrays import Rows
from equipoise.data.kept import Far


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(8)
    a = rng.standard_t(2, size=20_000)
    b = rng.integers(0, 2, a.size)
    few = np.where(rng.random(a.size) < 1e-3, 50 * rng.integers(1, 3, a.size), b)
    word = rng.choice(["x", "y"], a.size)
    return pd.DataFrame({"a": a, "b": b, "few": few, "word": word, "row": np.arange(a.size)})


def _split(frame, cuts):
    return [frame[a:b] for a, b in pairwise(np.linspace(0, len(frame), cuts + 1).astype(int))]


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("cuts", [1, 7, 400])
def test_the_ends_of_columns_are_found_whatever_the_blocks(frame, cuts, ahead) -> None:
    far = Far(("a", "few", "b", "word"), 5)
    assert (frame["few"] == 100).sum() > 5
    pieces = _split(frame, cuts)
    whole = far.of(pieces[0])
    for piece in pieces[1:]:
        # as the blocks of one part, and as parts
        whole = whole.merged((whole.beyond if ahead else far).of(piece))
    sample = frame.sample(2000, random_state=1)
    kept, inside = whole.apart(sample)
    order = np.sort(frame["a"])
    ends = frame[(frame["a"] < order[5]) | (frame["a"] > order[-6])]
    assert len(ends) == 10
    # five rows are at either end of a column; of equal numbers none is further out than others
    assert set(ends["row"]) == set(kept["row"])
    assert set(kept["row"]).isdisjoint(sample["row"][inside])
    assert set(sample["row"][~inside]) == set(kept["row"]) & set(sample["row"])


@pytest.mark.parametrize("frequency", [None, "f"])
def test_rows_that_stand_for_all_count_as_many(frequency, frame, monkeypatch) -> None:
    monkeypatch.setattr("equipoise.data.scanning.KEPT", 3000)
    frame["f"] = np.random.default_rng(2).integers(1, 5, len(frame))
    source = eq.data.scan(pa.Table.from_pandas(frame), "b ~ a + word", frequency=frequency)
    rows = Rows.joined(source.standing(3000))
    assert rows.frequency.sum() == pytest.approx(source.n, rel=1e-12)
    top = np.argsort(-frame["a"].to_numpy())[:64]
    at = {value: place for place, value in enumerate(rows.x[:, 1])}
    counts = np.ones(64) if frequency is None else frame["f"].to_numpy()[top]
    np.testing.assert_array_equal(rows.frequency[[at[value] for value in frame["a"].to_numpy()[top]]], counts)
    # means of a bounded function: four standard errors of 3000 draws
    times = np.ones(len(frame)) if frequency is None else frame["f"].to_numpy()
    expected = np.average(np.tanh(frame["a"]), weights=times)
    assert np.average(np.tanh(rows.x[:, 1]), weights=rows.frequency) == pytest.approx(expected, abs=4.0 / np.sqrt(3000))
    assert source.passes == 1.0


def test_all_rows_stand_for_themselves_where_they_are_few(frame) -> None:
    source = eq.data.scan(pa.Table.from_pandas(frame), "b ~ a")
    rows = eq.bind(eq.glm("gaussian"), source).standing(100_000).source
    assert rows.frequency is None
    np.testing.assert_array_equal(rows.x[:, 1], frame["a"])
