"""Text of any length in files: as much of it at a time as `memory` has room for, and the same levels and clusters."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.dataset as ds
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import equipoise as eq
from equipoise.data import arrow
from equipoise.data.files import opened
from equipoise.data.grammar import Limits
from equipoise.data.parts import TablePart
from tests.data.conftest import assert_same


@pytest.fixture
def long_text() -> pa.Table:
    """Text of nothing to some kilobytes, few of them different."""
    rng = np.random.default_rng(4)
    texts = ["", *(f"{k:02d}" + "x" * int(rng.integers(10, 4000)) for k in range(11))]
    chosen = pa.array([texts[k] for k in rng.integers(0, 12, 20_000)])
    return pa.table({"y": rng.normal(size=20_000), "a": rng.normal(size=20_000), "t": chosen})


def test_tables_of_long_text_have_few_rows_wherever_they_come_from(long_text, tmp_path) -> None:
    """Files by their levels do not tell how long text is; where the tables are cut, its length alone does."""
    pq.write_table(long_text, tmp_path / "1.parquet", row_group_size=20_000)
    pq.write_table(long_text, tmp_path / "2.parquet", row_group_size=700, use_dictionary=False)
    feather.write_feather(long_text, tmp_path / "3.arrow")
    csv.write_csv(long_text, tmp_path / "4.csv")
    dataset = ds.dataset(tmp_path / "1.parquet").filter(ds.field("y") < 99.0)
    cuts = []
    for source in (*sorted(map(str, tmp_path.iterdir())), long_text, dataset):
        (part,) = opened(source).parts
        frames = list(part.frames(["t", "y"], 5000))
        sizes = [frame["t"].fillna("").str.len() for frame in frames]
        assert all(int(size.sum()) <= 16 * 5000 for size in sizes)
        # each but the last has no room for the row that follows
        assert all(a.sum() + b.iloc[0] > 16 * 5000 for a, b in pairwise(sizes))
        cuts.append([len(frame) for frame in frames])
    assert all(cut == cuts[0] for cut in cuts)
    assert sum(cuts[0]) == 20_000
    # text longer than all that there is room for comes row by row, and short text as it always did
    one = TablePart(pa.table({"t": ["x" * 500, "y" * 500, "", "z" * 100]}), 0)
    assert [len(frame) for frame in one.frames(["t"], 7)] == [1, 1, 2]
    assert [len(frame) for frame in TablePart(long_text, 0).frames(["y"], 7000)] == [7000, 7000, 6000]


@pytest.mark.parametrize("clusters", [None, "t"])
def test_long_text_is_kept_once_and_read_as_in_memory(clusters, long_text, tmp_path) -> None:
    pq.write_table(long_text, tmp_path / "1.parquet")
    formula = "y ~ a + t" if clusters is None else "y ~ a"
    source = eq.data.scan(tmp_path, formula, clusters=clusters, memory="3MB")
    expected = eq.data.table(long_text.to_pandas(), formula, clusters=clusters)
    assert_same(source.marked().whole() if clusters else source.whole(), expected)
    kept = source.lot.frame["t"]
    assert len({id(text) for text in kept}) == 12 if clusters is None else kept.dtype == np.int64
    assert_same(source.sample(50, seed=None), eq.data.table(source.lot.fewer(50).frame, formula))


def test_levels_that_pieces_share_are_looked_at_once(monkeypatch) -> None:
    pieces = [pa.DictionaryArray.from_arrays(pa.array([k, None, 2]), pa.array(["z", "a", "m"])) for k in (1, 0)]
    pieces.append(pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(["other"])))
    seen = []
    monkeypatch.setattr(arrow, "_with_proper_levels", lambda column: seen.append(column.num_chunks) or column)
    same, others = (arrow.as_pandas(pa.table({"g": pa.chunked_array(some)}))["g"] for some in (pieces[:2], pieces))
    assert seen == [1, 3]
    assert list(same.cat.categories) == ["z", "a", "m"]
    assert same.tolist() == ["a", np.nan, "m", "z", np.nan, "m"]
    assert others.tolist() == [*same, "other"]


@pytest.mark.parametrize(("used", "kind"), [([40, 7, 7, None, 3], "category"), ([40, 7, 1, None, 3], "str")])
def test_of_many_levels_a_table_has_those_of_its_rows(used, kind, monkeypatch) -> None:
    """Their order stays; where they are more than a formula can have, they are text."""
    monkeypatch.setattr(arrow, "_LEVELS", 10)
    monkeypatch.setattr(arrow, "LIMITS", Limits(levels=3))
    words = [f"w{k}" for k in range(50)][::-1]
    column = pa.DictionaryArray.from_arrays(pa.array(used, pa.int8()), pa.array(words))
    made = arrow.as_pandas(pa.table({"g": column}))["g"]
    assert made.dtype == kind
    assert made.isna().tolist() == [k is None for k in used]
    assert made.dropna().tolist() == [words[k] for k in used if k is not None]
    if kind == "category":
        assert list(made.cat.categories) == [words[k] for k in (3, 7, 40)]
