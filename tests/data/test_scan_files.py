"""Awkward files: types and columns that differ, missing values, partitions, text, damage, changes between two passes."""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import equipoise as eq
from equipoise import InvalidInput
from equipoise.data import scanned as scan_module
from tests.data.conftest import N, assert_same


def test_other_orders_of_columns_and_widths_of_numbers(frame, tmp_path) -> None:
    frame[:100].to_parquet(tmp_path / "1.parquet")
    frame[100:250][list(frame)[::-1]].to_parquet(tmp_path / "2.parquet")
    frame[250:].astype({"k": np.int16, "a": np.float32}).to_parquet(tmp_path / "3.parquet")
    whole = pd.concat([pd.read_parquet(tmp_path / f"{k}.parquet") for k in (1, 2, 3)])
    source = eq.data.scan(tmp_path, "y ~ a + C(k) + g")
    assert_same(source.whole(), eq.data.table(whole, "y ~ a + C(k) + g"), 1e-12)


def test_whole_numbers_in_one_file_and_fractions_in_another(frame, tmp_path) -> None:
    frame[:100].to_parquet(tmp_path / "1.parquet")
    frame[100:].astype({"k": float}).to_parquet(tmp_path / "2.parquet")
    whole = pd.concat([pd.read_parquet(tmp_path / f"{k}.parquet") for k in (1, 2)])
    assert_same(eq.data.scan(tmp_path, "y ~ C(k) + k").whole(), eq.data.table(whole, "y ~ C(k) + k"))


def test_empty_files(frame, folder) -> None:
    frame[:0].to_parquet(folder / "a-empty.parquet", index=False)
    frame[:0].to_parquet(folder / "part-2a.parquet", index=False)
    (folder / "nothing.csv").write_text("")
    frame[:0].to_csv(folder / "zz.csv", index=False)
    source = eq.data.scan(folder, "y ~ a + g + c")
    assert_same(source.whole(), eq.data.table(frame, "y ~ a + g + c"))
    for empty in ("a-empty.parquet", "nothing.csv"):
        with pytest.raises(InvalidInput, match="at least one row"):
            eq.data.scan(folder / empty, "y ~ a")


def test_dictionaries_that_differ_between_files(tmp_path) -> None:
    rng = np.random.default_rng(0)
    frames = []
    for k, levels in enumerate([["b", "a"], ["c", "a"], ["d", "b", "never"]]):
        values = pd.Categorical(rng.choice(levels[:2], 30), categories=levels)
        frames.append(pd.DataFrame({"y": rng.normal(size=30), "g": values}))
        frames[-1].to_parquet(tmp_path / f"{k}.parquet")
    with pytest.warns(eq.EquipoiseWarning, match="'never' have no rows"):
        source = eq.data.scan(tmp_path, "y ~ g")
    # in the order of their appearance, as Arrow reads all files at once
    assert source.names == ("Intercept", "g[T.a]", "g[T.c]", "g[T.d]")
    with pytest.warns(eq.EquipoiseWarning, match="'never' have no rows"):
        assert_same(source.whole(), eq.data.table(pd.read_parquet(tmp_path), "y ~ g"))


def test_a_level_that_appears_late_and_one_that_only_missing_rows_have(frame, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(scan_module, "CHUNK", 30)
    frame["g"] = "south"
    frame.loc[N - 1, "g"] = "a last one"
    frame.loc[100, ["g", "a"]] = ["only here", np.nan]
    frame.to_parquet(tmp_path / "all.parquet", row_group_size=60)
    with pytest.warns(eq.EquipoiseWarning, match="1 of 500 rows with missing values were left out"):
        source = eq.data.scan(tmp_path, "y ~ g + a", missing="drop")
    assert source.names == ("Intercept", "g[T.south]", "a")
    assert source.n == N - 1


def test_missing_values(frame, folder, monkeypatch) -> None:
    monkeypatch.setattr(scan_module, "CHUNK", 100)
    monkeypatch.setattr("equipoise.data.scanning.CHUNK", 100)
    frame = frame.astype({"flag": object})
    frame.loc[[3, 210, 211], "a"] = np.nan
    frame.loc[[250], "k"] = None
    frame.loc[[260], "g"] = None
    frame.loc[[270], "flag"] = None
    frame.loc[[280], "when"] = pd.NaT
    frame.loc[[290, 300], "w"] = [0.0, np.nan]
    frame.loc[290, "a"] = np.nan  # of a row without weight nobody asks
    frame[201:].to_parquet(folder / "part-3.parquet", row_group_size=50, index=False)
    formula = "y ~ a + C(k) + g + flag + when"
    # the first file has a missing value too: the first to be read is named
    frame[:7].assign(a=1.0).to_parquet(folder / "part-0.parquet", index=False)
    with pytest.raises(InvalidInput, match=r"missing in columns \['a'\], rows 9, 10, in .*part-3"):
        eq.data.scan(folder, formula, weights="w")
    whole = pd.concat([pd.read_parquet(file) for file in sorted(folder.iterdir())])
    with pytest.warns(eq.EquipoiseWarning, match="7 of 500 rows"):
        source = eq.data.scan(folder, formula, weights="w", missing="drop")
    with pytest.warns(eq.EquipoiseWarning, match="7 of 500 rows"):
        expected = eq.data.table(whole, formula, weights="w", missing="drop")
    assert "C(k)[T.2.0]" in source.names
    assert_same(source.whole(), expected, 1e-14)
    assert source.design.dropped == 7
    index = np.array([400, 5, 260, 5])
    assert_same(source.take(index), expected.take(index), 1e-14)


def test_nothing_is_left(frame, tmp_path) -> None:
    frame.assign(a=np.nan, w=0.0).to_parquet(tmp_path / "all.parquet")
    with pytest.raises(InvalidInput, match="missing values in every row"):
        eq.data.scan(tmp_path, "y ~ a", missing="drop")
    with pytest.raises(InvalidInput, match="weights: must be positive for some row"):
        eq.data.scan(tmp_path, "y ~ b", weights="w")


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("weights", -1.0, "weights: must be positive or zero; got -1 at row 230"),
        ("frequency", 1.5, "frequency: must be whole numbers, zero or more; got 1.5 at row 230"),
        ("offset", np.inf, "offset: must be finite; got infinity at rows 230"),
    ],
)
def test_impossible_weights(option, value, words, frame, tmp_path) -> None:
    frame["z"] = 1.0
    frame.loc[230, "z"] = value
    frame.to_parquet(tmp_path / "all.parquet", row_group_size=100)
    with pytest.raises(InvalidInput, match=f"{words}.*all.parquet"):
        eq.data.scan(tmp_path, "y ~ a", **{option: "z"})


def test_a_term_that_is_infinite_somewhere_names_file_and_row(frame, folder) -> None:
    frame.loc[470, "b"] = 0.0
    frame[201:].to_parquet(folder / "part-3.parquet", row_group_size=50, index=False)
    source = eq.data.scan(folder, "y ~ log(b)")
    with pytest.raises(InvalidInput, match=r"log\(b\), which is infinite at rows 269, in .*part-3.parquet"):
        source.whole()
    frame.loc[470, "b"] = np.inf
    frame[201:].to_parquet(folder / "part-3.parquet", row_group_size=50, index=False)
    with pytest.raises(InvalidInput, match=r"b: must be finite; got NaN or infinity at 269, in .*part-3.parquet"):
        eq.data.scan(folder, "y ~ b").whole()


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("ending", ["parquet", "feather", "csv"])
def test_a_number_that_is_infinite_or_absurd_names_file_and_row(value, ending, tmp_path, monkeypatch) -> None:
    """Also where it is among the rows at the ends of columns, which the search starts from."""
    monkeypatch.setattr("equipoise.data.scanned.ENOUGH", 16)
    monkeypatch.setattr("equipoise.data.scanning.ENOUGH", 16)
    monkeypatch.setattr("equipoise.data.scanning.KEPT", 16)
    rng = np.random.default_rng(0)
    for k in range(9):
        frame = pd.DataFrame({"y": rng.poisson(1.0, 400), "a": rng.normal(size=400)})
        if k == 7:
            frame.loc[123, "a"] = value
        write = {"parquet": frame.to_parquet, "feather": frame.to_feather, "csv": frame.to_csv}[ending]
        write(tmp_path / f"{k}.{ending}", **({"index": False} if ending == "csv" else {}))
    with pytest.raises(InvalidInput, match=rf"^a: must be .* 123, in .*7\.{ending}"):
        eq.fit(eq.glm("poisson"), eq.data.scan(tmp_path, "y ~ a"))


def test_a_link_to_a_folder_around_itself_shows_no_file_twice(frame, folder) -> None:
    (folder / "again").symlink_to(folder, target_is_directory=True)
    (folder / "loop.parquet").symlink_to("loop.parquet")
    for where in (folder, folder / "*.parquet", folder / "**" / "*.parquet"):
        assert eq.data.scan(str(where), "y ~ a").n == len(frame)
    other = folder.parent / "linked"
    other.symlink_to(folder, target_is_directory=True)
    assert eq.data.scan(str(other / "*.parquet"), "y ~ a").n == len(frame)


def test_hive_partitions(frame, tmp_path) -> None:
    pq.write_to_dataset(pa.Table.from_pandas(frame, preserve_index=False), tmp_path / "set", partition_cols=["k", "g"])
    source = eq.data.scan(tmp_path / "set", "y ~ a + C(k) + g")
    expected = eq.data.table(frame.sort_values(["k", "g"], kind="stable"), "y ~ a + C(k) + g")
    assert_same(source.whole(), expected)
    only = eq.data.scan(tmp_path / "set", "k ~ g")
    np.testing.assert_array_equal(np.sort(only.whole().y), np.sort(frame["k"]))
    read = ds.dataset(tmp_path / "set", partitioning="hive")
    assert_same(eq.data.scan(read, "y ~ a + C(k) + g").whole(), expected)


def test_dictionaries_with_a_missing_level_or_one_twice() -> None:
    levels = pa.array(["b", None, "a", "b"])
    codes = np.random.default_rng(0).integers(0, 4, 60).astype(np.int8)
    stored = pa.table({"y": np.arange(60.0), "g": pa.DictionaryArray.from_arrays(codes, levels)})
    frame = pd.DataFrame({"y": np.arange(60.0), "g": np.array(["b", None, "a", "b"], dtype=object)[codes]})
    with pytest.warns(eq.EquipoiseWarning, match="rows with missing values"):
        source = eq.data.scan(stored, "y ~ g", missing="drop")
    assert source.names == ("Intercept", "g[T.a]")
    kept = frame.dropna()
    np.testing.assert_array_equal(source.whole().x[:, 1], kept["g"] == "a")
    with pytest.raises(InvalidInput, match=r"missing in columns \['g'\], rows"):
        eq.data.scan(stored, "y ~ g")


def test_many_levels_of_clusters_are_not_kept_with_every_few_rows(tmp_path, monkeypatch) -> None:
    """Each block has all of them: kept with the sample of each, they would take more than all rows."""
    monkeypatch.setattr("equipoise.data.scanning.CHUNK", 4 * 500)
    levels = pa.array([f"firm {k}" for k in range(5000)])
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 5000, 20_000)
    firm = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), levels)
    table = pa.table({"y": rng.normal(size=20_000), "x": rng.normal(size=20_000), "firm": firm})
    pq.write_table(table, tmp_path / "1.parquet", row_group_size=5000)
    kept = []
    original = eq.data.kept.Lot.fewer

    def fewer(lot, most):
        kept.append(max(len(piece["firm"].cat.categories) for piece in lot.frames[:-1] or lot.frames))
        return original(lot, most)

    monkeypatch.setattr("equipoise.data.kept.Lot.fewer", fewer)
    monkeypatch.setattr("equipoise.data.scanning.KEPT", 2048)
    source = eq.data.scan(tmp_path, "y ~ hashed(firm, levels=9)")
    assert max(len(piece["firm"].cat.categories) for piece in source.far.frames) < 2500
    assert kept[0] < 2500
    monkeypatch.setattr("equipoise.data.kept.Lot.fewer", original)
    source = eq.data.scan(tmp_path, "y ~ x", clusters="firm")
    # numbers in place of words: those that the words have in any block
    assert set(source.lot.frame["firm"]) <= set(source.marked().whole().marks.labels[:, 0])
    model, params = eq.glm("gaussian"), np.zeros(2)
    expected = eq.robust(model, eq.data.table(table.to_pandas(), "y ~ x", clusters="firm"), params, kind="CRV1")
    np.testing.assert_allclose(eq.robust(model, source, params, kind="CRV1"), expected, rtol=1e-10)


@pytest.mark.parametrize("runs", [[100, 250, 400], [1, 2, 400]])
def test_columns_stored_by_runs(runs) -> None:
    values = pa.array([1.0, 4.0, 2.0])
    table = pa.table(
        {"y": np.arange(400.0) % 7, "x": pa.RunEndEncodedArray.from_arrays(pa.array(runs, pa.int32()), values)}
    )
    expected = pd.DataFrame({"y": np.arange(400.0) % 7, "x": np.repeat([1.0, 4.0, 2.0], np.diff([0, *runs]))})
    assert_same(eq.data.scan(table, "y ~ x").whole(), eq.data.table(expected, "y ~ x"))
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1.0, 2.0]), pa.array(["a", "b"])])
    with pytest.raises(InvalidInput, match="the table"):
        eq.data.scan(pa.table({"y": [1.0, 2.0], "x": union}), "y ~ x")


def test_long_whole_numbers_are_the_same_clusters_beside_missing_ones(tmp_path) -> None:
    """Beside a missing value pandas makes floats of whole numbers: a cluster had another name there, or that of two."""
    rng = np.random.default_rng(0)
    firm = 2**60 + rng.integers(0, 20, 400)
    y, a = rng.normal(size=(2, 400)) + np.stack([firm % 20, firm % 7]) / 5.0
    for k, rows in enumerate((slice(200), slice(200, 400))):
        held = pa.array(firm[rows], mask=np.arange(200) == 3) if k else pa.array(firm[rows])
        pq.write_table(pa.table({"y": y[rows], "a": a[rows], "firm": held}), tmp_path / f"{k}.parquet")
    with pytest.warns(eq.EquipoiseWarning, match="1 of 400 rows"):
        source = eq.data.scan(tmp_path, "y ~ a", clusters="firm", missing="drop")
    kept = np.arange(400) != 203
    rows = eq.data.table(pd.DataFrame({"y": y, "a": a})[kept], "y ~ a", clusters=firm[kept])
    model = eq.glm("gaussian")
    found, expected = (eq.robust(model, data, eq.fit(model, data).params, kind="CRV1") for data in (source, rows))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_a_corrupt_file_is_named(frame, folder) -> None:
    whole = (folder / "part-1.parquet").read_bytes()
    (folder / "part-1.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidInput, match=r"made of readable files; got .*part-1.parquet"):
        eq.data.scan(folder, "y ~ a")
    (folder / "part-1.parquet").write_bytes(whole[:200] + bytes(300) + whole[500:])
    with pytest.raises(InvalidInput, match=r"made of readable files; got .*part-1.parquet"):
        eq.data.scan(folder, "y ~ a + b + g + k")


def test_a_page_that_is_not_what_was_written_is_found_by_its_checksum(tmp_path) -> None:
    """Numbers that were changed on the disk decode like others."""
    file = tmp_path / "1.parquet"
    values = np.random.default_rng(0).normal(size=4000)
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(pa.table({"y": values, "a": values[::-1]}), file, row_group_size=2000, **options)
    whole = bytearray(file.read_bytes())
    place = bytes(whole).index(values[2500].tobytes())
    whole[place : place + 8] = np.float64(7.0).tobytes()
    sound = file.read_bytes()
    file.write_bytes(bytes(whole))
    with pytest.raises(InvalidInput, match=r"made of readable files; got .*1.parquet: .*CRC"):
        eq.data.scan(file, "y ~ a")
    file.write_bytes(sound)
    source = eq.data.scan(file, "y ~ a")
    np.testing.assert_array_equal(source.whole().y, values)


def test_a_damaged_arrow_file_is_named_before_anything_looks_where_it_points(frame, tmp_path) -> None:
    codes = pa.array([1] * N, pa.int32())
    table = pa.table({"y": frame["y"], "g": pa.DictionaryArray.from_arrays(codes, ["a", "b"])})
    feather.write_feather(table, tmp_path / "1.feather", compression="uncompressed")
    one = np.int32(1).tobytes()
    damaged = (tmp_path / "1.feather").read_bytes().replace(9 * one, 8 * one + np.int32(10**9).tobytes(), 1)
    (tmp_path / "1.feather").write_bytes(damaged)
    for source in (tmp_path, ds.dataset(tmp_path, format="feather")):
        with pytest.raises(InvalidInput, match=r"1.feather: .*out of bounds"):
            eq.data.scan(source, "y ~ g")


def test_what_pandas_noted_in_a_file_is_not_looked_at(tmp_path) -> None:
    table = pa.table({"y": [1.0, 2.0, 4.0]}, metadata={"pandas": b"\xff{"})
    pq.write_table(table, tmp_path / "1.parquet")
    assert eq.data.scan(tmp_path, "y ~ 1").n == 3


@pytest.mark.parametrize("call", ["scale(np.log(a))", "poly(center(np.sqrt(a)), 2)", "bs(1 / a, df=4)"])
def test_calls_that_learn_from_what_is_no_number_name_file_and_row(call, frame, folder) -> None:
    bad = frame[:30].assign(a=np.where(np.arange(30) == 4, -0.0 if "/" in call else -1.0, frame["a"][:30].abs() + 1.0))
    bad.to_parquet(folder / "part-9.parquet", index=False)
    for k in range(4):
        file = folder / f"part-{k}.parquet"
        pd.read_parquet(file).assign(a=lambda part: part["a"].abs() + 1.0).to_parquet(file, index=False)
    with pytest.raises(InvalidInput, match=r"finite in every term; got .*\(a?.*at rows 4, in .*part-9.parquet"):
        eq.data.scan(folder, f"y ~ {call}")


def test_files_that_do_not_agree(frame, folder) -> None:
    frame[:5].assign(when=frame["when"][:5].dt.tz_localize("Asia/Tokyo")).to_parquet(folder / "part-9.parquet")
    with pytest.raises(
        InvalidInput, match=r"when, which is timestamp\[us\] in .*0.parquet and .*Tokyo\] in .*9.parquet"
    ):
        eq.data.scan(folder, "y ~ when")
    frame[:5].drop(columns="a").to_parquet(folder / "part-9.parquet")
    with pytest.raises(InvalidInput, match=r"\['a'\], which .*part-9.parquet does not have"):
        eq.data.scan(folder, "y ~ a")
    assert eq.data.scan(folder, "y ~ b").n == N + 5
    frame[:5].assign(a="text").to_parquet(folder / "part-9.parquet")
    with pytest.raises(InvalidInput, match=r"a, which is double in .*part-0.parquet and .*string in .*part-9.parquet"):
        eq.data.scan(folder, "y ~ a")
    with pytest.raises(InvalidInput, match=r"clusters: .*'frim'.*"):
        eq.data.scan(folder, "y ~ b", clusters="frim")
    with pytest.raises(InvalidInput, match=r"weights: .*'ww'.*did you mean w"):
        eq.data.scan(folder, "y ~ b", weights="ww")


@pytest.mark.parametrize("what", ["rewritten", "touched", "removed"])
def test_a_file_that_changes_between_two_passes(what, frame, folder) -> None:
    source = eq.data.scan(folder, "y ~ a")
    file = folder / "part-3.parquet"
    if what == "rewritten":
        frame[:299].to_parquet(file)
    elif what == "touched":
        os.utime(file, ns=(1, 1))
    else:
        file.unlink()
    told = "is not found" if what == "removed" else "changed since it was opened"
    with pytest.raises(InvalidInput, match=rf"part-3.parquet, which {told}"):
        source.whole()


def test_frames_that_change_between_two_passes(frame) -> None:
    sizes = iter([500, 499])
    source = eq.data.scan(lambda: iter([frame[: next(sizes)]]), "y ~ a")
    with pytest.raises(InvalidInput, match="499 rows of the frames, where there were 500 before"):
        source.reduce(height)


class Height(NamedTuple):
    rows: float


def height(block) -> Height:
    return Height(float(block.height))


def test_streams_and_functions_are_tables_of_every_verb(tmp_path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=300), "y": rng.poisson(1.0, 300)})

    class Stream:
        def __arrow_c_stream__(self, requested_schema=None):
            return pa.Table.from_pandas(frame).__arrow_c_stream__(requested_schema)

    cal = eq.calibrate(eq.glm("poisson"), frame, formula="y ~ x", draws=10, progress=False)
    for given in (Stream(), lambda: (frame[:100], frame[100:])):
        np.testing.assert_array_equal(eq.fit(eq.glm("poisson"), given, formula="y ~ x").theta, cal.fit.theta)
        pd.testing.assert_frame_equal(cal.predict(given), cal.predict(frame))


def test_a_response_out_of_range_in_one_of_few_small_files_is_named_by_its_file(tmp_path) -> None:
    """Small files are read whole, and their rows are numbered anew."""
    for k in range(3):
        frame = pd.DataFrame({"y": [1.0, 2.0, 0.0, 3.0], "x": [0.0, 1.0, 2.0, 5.0]})
        frame.loc[3, "y"] -= 5.0 * (k == 1)
        frame.to_parquet(tmp_path / f"{k}.parquet")
    with pytest.raises(InvalidInput, match=r"y: must be .*; got -2 at row 3, in .*1\.parquet"):
        eq.bind(eq.glm("poisson"), str(tmp_path / "*.parquet"), formula="y ~ x")


def test_queries_that_make_tables_as_they_are_asked_for() -> None:
    polars = pytest.importorskip("polars")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"y": rng.normal(size=500), "x": rng.normal(size=500), "g": rng.choice(list("abc"), 500)})
    query = polars.from_pandas(frame).lazy().filter(polars.col("x") > 0.0)
    if not hasattr(query, "collect_batches"):
        pytest.skip("of a version without batches")
    expected = eq.data.table(frame[frame.x > 0.0], "y ~ x + g")
    assert_same(eq.data.scan(query, "y ~ x + g").whole(), expected)
    assert eq.bind(eq.glm("gaussian"), query, formula="y ~ x + g").n == expected.n
