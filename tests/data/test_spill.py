"""What waits on the disk comes back as it went, and leaves nothing behind."""

from __future__ import annotations

import gc
import itertools
import tempfile

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.data.fetching import by_part
from equipoise.data.spill import Spill


@pytest.mark.parametrize("held", [10, 10**7])
def test_things_come_back_in_order_whatever_was_held_in_memory(held, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spill, rng = Spill(held), np.random.default_rng(0)
    known = {k: [rng.normal(size=200) for _ in range(3)] for k in (5, 0, 2)}
    for turn in range(3):
        for k, arrays in known.items():
            spill.add(k, arrays[turn])
    assert spill.numbers == [0, 2, 5]
    for k in (2, 5, 0):
        np.testing.assert_array_equal(list(spill.look(k)), known[k])
        np.testing.assert_array_equal(list(spill.take(k)), known[k])
        assert list(spill.take(k)) == []
    file = spill._file
    assert list(tmp_path.iterdir()) == []
    del spill
    gc.collect()
    assert file.closed


@pytest.mark.parametrize("parts", [7, 100_000])
def test_marks_are_sorted_by_part_and_keep_their_numbers(parts) -> None:
    rng = np.random.default_rng(1)
    owner, inside = rng.integers(0, parts, 5000), rng.random(5000)
    cuts = [0, 1200, 1200, 5000]
    spill = by_part(((owner[a:b], inside[a:b]) for a, b in itertools.pairwise(cuts)), 1000)
    assert spill.numbers == sorted(set(owner.tolist()))
    for k in spill.numbers[:50]:
        places, marks = (np.concatenate(each) for each in zip(*spill.take(k), strict=True))
        np.testing.assert_array_equal(places, np.flatnonzero(owner == k))
        np.testing.assert_array_equal(marks, inside[places])


@pytest.mark.parametrize(("files", "memory"), [(1, "1MB"), (6, "1GB")])
def test_rows_by_number_are_those_in_memory_from_one_part_or_many(files, memory, tmp_path) -> None:
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"y": rng.normal(size=5000), "a": rng.normal(size=5000), "f": rng.integers(0, 4, 5000)})
    for k, rows in enumerate(np.array_split(np.arange(5000), files)):
        frame.iloc[rows].to_parquet(tmp_path / f"{k}.parquet")
    source = eq.data.scan(tmp_path, "y ~ a", frequency="f", memory=memory)
    numbers = rng.integers(0, source.n, 3000)
    repeated = frame.loc[frame.index.repeat(frame["f"])].to_numpy()[:, 0]
    found = np.full(3000, np.nan)
    for places, block in source.fetch([numbers[:1000], numbers[:0], numbers[1000:]]):
        found[places] = block.y
    np.testing.assert_array_equal(found, repeated[numbers])
    assert 0.0 < source.at_once <= 1.0
