"""Datasets of pyarrow's: their own schemas, filters and partitions, files that change; and what other files never show."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import equipoise as eq
from equipoise import InvalidInput
from tests.data.conftest import N, assert_same

FORMATS = {"parquet": pd.DataFrame.to_parquet, "ipc": pd.DataFrame.to_feather, "csv": pd.DataFrame.to_csv}


@pytest.fixture(params=FORMATS)
def stored(request, frame, tmp_path):
    """A folder of two files of one format, their rows, and how they are written."""

    def write(rows: pd.DataFrame, name: str) -> None:
        FORMATS[request.param](rows[["y", "a", "k", "g"]].reset_index(drop=True), tmp_path / name)

    write(frame[:200], "1"), write(frame[200:], "2")
    return tmp_path, request.param, write


def test_a_filter_leaves_rows_out(stored, frame) -> None:
    folder, kind, _ = stored
    source = eq.data.scan(ds.dataset(folder, format=kind).filter(ds.field("k") < 3), "y ~ a + g")
    assert_same(source.whole(), eq.data.table(frame[frame["k"] < 3], "y ~ a + g"))
    assert source.where.startswith("2 files")
    assert source.bytes == sum(file.stat().st_size for file in folder.iterdir())


@pytest.mark.parametrize("filtered", [False, True])
def test_a_file_that_changes_behind_a_dataset(filtered, stored, frame) -> None:
    folder, kind, write = stored
    made = ds.dataset(folder, format=kind)
    both = ds.dataset([made, made]) if filtered else made
    source = eq.data.scan(both.filter(ds.field("k") < 9) if filtered else made, "y ~ a")
    write(frame[200:].assign(y=frame["y"] + 5), "2")
    with pytest.raises(InvalidInput, match=r"the same files at every pass; got .*2, which changed"):
        eq.fit(eq.glm("poisson"), source)


def test_types_are_those_of_the_dataset(stored, frame) -> None:
    folder, kind, _ = stored
    made = ds.dataset(folder, format=kind, schema=pa.schema([("y", pa.float64()), ("k", pa.string())]))
    assert eq.data.scan(made, "y ~ k").names == ("Intercept", "k[T.2]", "k[T.3]", "k[T.4]")
    assert_same(eq.data.scan(made, "y ~ k").whole(), eq.data.table(frame.astype({"k": str}), "y ~ k"))


@pytest.mark.parametrize("kind", ["parquet", "ipc", "csv"])
def test_columns_that_partitions_tell(kind, frame, tmp_path) -> None:
    rows = frame[["y", "a", "g"]].sort_values("g", kind="stable")
    ds.write_dataset(pa.table(rows), tmp_path, format=kind, partitioning=["g"], partitioning_flavor="hive")
    source = eq.data.scan(ds.dataset(tmp_path, format=kind, partitioning="hive"), "y ~ a + g")
    assert_same(source.whole(), eq.data.table(rows, "y ~ a + g"))


def test_rows_are_named_by_their_number_in_the_file(frame, tmp_path) -> None:
    frame.loc[250, "a"] = np.nan
    pq.write_table(pa.table(frame), tmp_path / "all.parquet", row_group_size=50)
    made = ds.dataset(tmp_path / "all.parquet")
    fragment = next(made.get_fragments()).subset(row_group_ids=[0, 2, 5, 6])
    some = ds.FileSystemDataset([fragment], made.schema, made.format, made.filesystem)
    assert eq.data.scan(some, "y ~ k").n == 200
    for given in (made, some):
        with pytest.raises(InvalidInput, match=r"columns \['a'\], rows 250, in .*all.parquet"):
            eq.data.scan(given, "y ~ a")
    before = int((frame["k"][:250] < 4).sum())
    frame.loc[250, "k"] = 1
    pq.write_table(pa.table(frame), tmp_path / "all.parquet", row_group_size=50)
    with pytest.raises(InvalidInput, match=rf"rows {before}, in the dataset after its filter"):
        eq.data.scan(ds.dataset(tmp_path / "all.parquet").filter(ds.field("k") < 4), "y ~ a")


@pytest.mark.parametrize(
    "beside",
    [
        pa.array(np.full(N, 2**62), pa.timestamp("us")),  # a year that Python has no date for
        pa.array(np.full(N, 10**7, np.int32)).view(pa.date32()),
        pa.array([b"\xff\xfe"] * N, pa.binary()).view(pa.string()),
    ],
)
def test_a_column_that_is_not_used_may_hold_anything(beside, frame, tmp_path) -> None:
    pq.write_table(pa.table(frame[["y", "a"]]).append_column("other", beside), tmp_path / "1.parquet")
    assert_same(eq.data.scan(tmp_path, "y ~ a").whole(), eq.data.table(frame, "y ~ a"))


def test_a_glob_of_folders_is_their_files(frame, tmp_path) -> None:
    for k in (1, 2):
        (tmp_path / f"year={k}").mkdir()
        frame.to_parquet(tmp_path / f"year={k}" / "a.parquet")
    frame.to_parquet(tmp_path / "b.parquet")
    assert eq.data.scan(f"{tmp_path}/year=*", "y ~ a + C(year)").names[-1] == "C(year)[T.2]"
    assert [eq.data.scan(f"{tmp_path}/{end}", "y ~ a").n for end in ("year=*", "*", "**")] == [2 * N, 3 * N, 3 * N]
