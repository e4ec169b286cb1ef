"""Record batches of Arrow files: those larger than memory are read piece by piece, whatever is in them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import ipc

import equipoise as eq
from equipoise import InvalidInput
from equipoise.data import batches
from equipoise.data.batches import batch_rows, read_batches
from tests.data.conftest import assert_same

N = 1003


def _some(values: list, share: float = 0.1) -> list:
    rng = np.random.default_rng(0)
    return [None if out else value for value, out in zip(values, rng.random(len(values)) < share, strict=True)]


def _columns() -> dict[str, pa.Array]:
    rng = np.random.default_rng(1)
    x, k = rng.normal(size=N), rng.integers(0, 100, N)
    words = [["", "a", "längeres", "zz"][j % 4] for j in k]
    day = dt.datetime(2024, 1, 1)
    return {
        "nothing": pa.nulls(N),
        "list": pa.array(_some([[1.0] * int(j % 3) for j in k])),
        "double": pa.array(x),
        "holes": pa.array(_some(x.tolist())),
        "view": pa.array(_some([word * 9 for word in words]), pa.string_view()),
        "flag": pa.array(_some((x > 0).tolist())),
        "word": pa.array(_some(words)),
        "long": pa.array(words, pa.large_string()),
        "struct": pa.array([{"a": float(v), "b": word} for v, word in zip(x, words, strict=True)]),
        "small": pa.array(k.astype(np.int8)),
        "large": pa.array(_some((k.astype(object) + 2**60).tolist()), pa.int64()),
        "half": pa.array(x.astype(np.float16)),
        "level": pa.array(_some(words)).dictionary_encode(),
        "decimal": pa.array(_some([Decimal(int(j)) / 8 for j in k]), pa.decimal128(12, 3)),
        "time": pa.array(_some([day + dt.timedelta(hours=int(j)) for j in k]), pa.timestamp("us", "UTC")),
        "date": pa.array([(day + dt.timedelta(days=int(j))).date() for j in k]),
        "map": pa.array([[("k", float(v))] for v in x], pa.map_(pa.string(), pa.float64())),
        "pair": pa.array([[v, v] for v in x], pa.list_(pa.float64(), 2)),
        "last": pa.array(x),
    }


def _written(table: pa.Table, path, compression=None, **options) -> None:
    with ipc.new_file(path, table.schema, options=ipc.IpcWriteOptions(compression=compression)) as file:
        file.write_table(table, **options)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("rows", [1, 8, 50, 333, 2000])
def test_pieces_are_the_rows(rows, compression, tmp_path) -> None:
    table = pa.table(_columns())
    _written(table.slice(3), tmp_path / "1.arrow", compression)
    with pa.OSFile(str(tmp_path / "1.arrow")) as stream:
        assert batch_rows(stream) == [N - 3]
        found = list(read_batches(stream, [0], table.column_names, rows))
        assert pa.Table.from_batches(found).equals(table.slice(3))
        assert (len(found) > 1) == (rows * 2 < N - 3)
        assert max(map(len, found)) <= max(8, 2 * rows)
        some = pa.Table.from_batches(read_batches(stream, [0], ["word", "last", "absent"], rows))
    assert some.equals(table.slice(3).select(["word", "last"]))


def test_columns_of_a_kind_that_is_not_known_here_are_read_as_a_whole(tmp_path) -> None:
    union = pa.UnionArray.from_sparse(pa.array([0] * 100, pa.int8()), [pa.array(np.arange(100.0))])
    table = pa.table({"u": union, "x": np.arange(100.0)})
    _written(table, tmp_path / "1.arrow")
    with pa.OSFile(str(tmp_path / "1.arrow")) as stream:
        (found,) = read_batches(stream, [0], ["x"], 8)
    assert found.column(0).to_pylist() == list(range(100))


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_large_record_batch_takes_no_more_memory_than_others(compression, tmp_path, monkeypatch) -> None:
    """Whatever it was written as, the scan is the same, and no column of numbers is ever read as a whole."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"y": rng.poisson(1.0, 25_000), "x": rng.normal(size=25_000), "s": rng.choice(list("ab"), 25_000)}
    )
    table = pa.Table.from_pandas(frame, preserve_index=False)
    _written(table, tmp_path / "1.arrow", compression)
    _written(table, tmp_path / "2.arrow", compression, max_chunksize=1000)

    def refused(*_):
        raise AssertionError("a whole record batch was read")

    monkeypatch.setattr(batches, "_whole", refused)
    source = eq.data.scan(tmp_path / "1.arrow", "y ~ x + s", memory="1MB")
    fit = eq.fit(eq.glm("poisson"), source)
    monkeypatch.undo()
    other = eq.data.scan(tmp_path / "2.arrow", "y ~ x + s", memory="1MB")
    assert_same(source.whole(), other.whole())
    assert_same(source.whole(), eq.data.table(frame, "y ~ x + s"))
    np.testing.assert_allclose(fit.theta, eq.fit(eq.glm("poisson"), other).theta, rtol=1e-10)


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_damage_is_an_error_or_other_numbers_and_never_ends_the_process(compression, tmp_path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"y": rng.normal(size=9000), "s": rng.choice(["a", "bb"], 9000)})
    _written(pa.Table.from_pandas(frame, preserve_index=False), tmp_path / "1.arrow", compression)
    sound = (tmp_path / "1.arrow").read_bytes()
    named = 0
    for place in [*rng.integers(0, len(sound), 60).tolist(), *range(len(sound) - 700, len(sound), 9)]:
        damaged = bytearray(sound)
        damaged[place : place + 4] = rng.bytes(4)
        (tmp_path / "1.arrow").write_bytes(bytes(damaged[: len(sound)]))
        try:
            eq.data.scan(tmp_path / "1.arrow", "y ~ s", memory="1MB")
        except InvalidInput as error:
            named += "1.arrow" in str(error)
    assert named > 20
    (tmp_path / "1.arrow").write_bytes(sound[: len(sound) // 2])
    with pytest.raises(InvalidInput, match=r"1\.arrow.*Not an Arrow file"):
        eq.data.scan(tmp_path / "1.arrow", "y ~ s")


def test_what_only_looks_like_an_arrow_file_is_told(tmp_path) -> None:
    table = pa.table({"y": [1.0, 2.0], "x": [0.0, 1.0]})
    with ipc.new_stream(tmp_path / "1.arrow", table.schema) as file:
        file.write_table(table)
    (tmp_path / "2.feather").write_bytes(b"FEA1" + bytes(100) + b"FEA1")
    (tmp_path / "3.arrow").write_bytes(b"AR")
    for name, words in {
        "1.arrow": "an Arrow stream",
        "2.feather": "Feather of version 1",
        "3.arrow": "small|Not",
    }.items():
        with pytest.raises(InvalidInput, match=rf"{name}: .*({words})"):
            eq.data.scan(tmp_path / name, "y ~ x")
