"""Rows from files: the same rows, names and encodings as of the same table in memory, whatever the files look like."""

from __future__ import annotations

import os
import pickle
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
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
from equipoise.data import files as files_module
from equipoise.data import scanned as scan_module

N = 500


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


FORMULAS = [
    "y ~ a + b",
    "y ~ 1",
    "y ~ a + b - 1",
    "y ~ g + a",
    "y ~ g + k - 1",
    "y ~ c + C(k) + flag",
    "y ~ C(k, contr.sum) + C(flag) + C(g, contr.treatment('south'))",
    "y ~ g:a + k:a + g*c",
    "log(y + 1) ~ np.sqrt(b) + I(a**2) + I(g == 'east')",
    "y ~ when + C(np.floor(b))",
    "y ~ hashed(g, levels=5) + Q('my col') + `my col`:a",
    "won ~ a + g",
    "flag ~ a",
    "y ~ center(a) + scale(b) + standardize(k)",
    "y ~ scale(a, 2.0, False) + scale(b, False, True, 0) + center(log(b))",
    "y ~ poly(a, 3) + poly(b, degree=2) + poly(k, 2, raw=True)",
    "y ~ bs(a, df=5) + cr(b, df=4)",
    "y ~ bs(a, knots=[4.0, 6.0], lower_bound=-5, upper_bound=20) + cc(b, df=3, constraints='center')",
    "scale(y) ~ a",
    "y ~ poly(scale(a), 2) + C(center(b) > 0)",
    "y ~ center(`my col`) + a:center(b)",
]


@pytest.mark.parametrize("formula", FORMULAS)
def test_files_are_encoded_as_the_table_in_memory(formula, frame, folder, monkeypatch) -> None:
    monkeypatch.setattr(scan_module, "CHUNK", 300)
    monkeypatch.setattr("equipoise.data.scanning.CHUNK", 300)
    source = eq.data.scan(folder, formula, weights="w", frequency="f", offset="o")
    expected = eq.data.table(frame, formula, weights="w", frequency="f", offset="o")
    assert_same(source.whole(), expected, 1e-12)
    assert source.design.columns == expected.design.columns
    assert source.design.categories == expected.design.categories
    assert source.design.response_levels == expected.design.response_levels
    new = frame.sample(30, random_state=1)
    found, expected = source.design.encode(new), expected.design.encode(new)
    np.testing.assert_allclose(found[0].to_numpy(), expected[0].to_numpy(), rtol=1e-11, atol=1e-12)
    np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize(
    ("formula", "quick"),
    [
        ("y ~ a + g + C(k) + a:g", True), ("y ~ np.log(b) + log(b):a + I(a**2):g", True), ("y ~ log(b) + I(a > 5)", True),
        ("y ~ center(a) + b", False), ("y ~ hashed(g, levels=3)", False),
    ],
)  # fmt: skip
def test_functions_of_one_row_need_no_formula_at_every_pass(formula, quick, frame, folder) -> None:
    source = eq.data.scan(folder, formula)
    assert (source.encoder.recipe is not None) == quick
    assert_same(source.whole(), eq.data.table(frame, formula), 1e-13)


@pytest.mark.parametrize("formula", ["y ~ a + g + C(k)", "y ~ np.log(b) + c"])
@pytest.mark.parametrize(("chunk", "part", "many"), [(400, 1, N + 1), (10**6, 10**6, N + 1), (400, 1, 0)])
def test_no_cut_shows_in_fit_and_moments(formula, chunk, part, many, frame, folder, monkeypatch) -> None:
    monkeypatch.setattr("equipoise.data.encoding._MANY", many)
    monkeypatch.setattr(scan_module, "CHUNK", chunk)
    monkeypatch.setattr("equipoise.data.scanning.CHUNK", chunk)
    monkeypatch.setattr(files_module, "_PART_ROWS", part)
    source = eq.data.scan(folder, formula, weights="w", offset="o")
    table = eq.data.table(frame, formula, weights="w", offset="o")
    model = eq.glm("poisson", prior_precision=0.3)
    one, other = eq.fit(model, source), eq.fit(model, table)
    np.testing.assert_allclose(one.theta, other.theta, rtol=1e-10, atol=1e-12)
    found, expected = eq.moments(model, source, one.theta), eq.moments(model, table, one.theta)
    for name in ("hessian", "score_cov", "mean_score"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-10, atol=1e-13)
    S = np.eye(len(one.theta)) + 0.1
    np.testing.assert_allclose(found.curvature_noise(S), expected.curvature_noise(S), rtol=1e-10)


def test_blocks_of_one_row(frame, folder, monkeypatch) -> None:
    monkeypatch.setattr("equipoise.linalg._BLOCK_ELEMENTS", 1)
    source = eq.data.scan(folder, "y ~ a")
    blocks = list(source.blocks())
    assert {block.height for block in blocks} == {1}
    np.testing.assert_array_equal(np.vstack([b.x for b in blocks]), eq.data.table(frame, "y ~ a").x)


# --- What may be scanned ------------------------------------------------------------------------------


class Streaming:
    """What Polars and DuckDB give: a fresh stream each time."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def made(kind: str, frame: pd.DataFrame, folder):
    table = pa.Table.from_pandas(frame, preserve_index=False)
    if kind == "glob":
        return folder / "part-*.parquet"
    if kind == "folder":
        (folder / "_SUCCESS").write_text("")
        (folder / ".hidden.parquet").write_text("nothing")
        return str(folder)
    if kind == "list":
        return [folder / f"part-{k}.parquet" for k in range(4)]
    if kind == "feather":
        feather.write_feather(table, folder / "all.feather", chunksize=60)
        return folder / "all.feather"
    if kind == "arrow":
        with pa.OSFile(str(folder / "all.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=77)
        return folder / "all.arrow"
    if kind == "csv":
        frame[:100].to_csv(folder / "1.csv", index=False)
        frame[100:].to_csv(folder / "2.csv.gz", index=False, sep=",")
        return [folder / "1.csv", folder / "2.csv.gz"]
    if kind == "semicolons":
        frame.to_csv(folder / "1.txt", index=False, sep=";")
        return folder / "1.txt"
    if kind == "dataset":
        return ds.dataset(folder, format="parquet")
    if kind == "dataset with a filter":
        return ds.dataset(folder, format="parquet").filter(ds.field("y") > -1)
    if kind == "feather dataset":
        feather.write_feather(table, folder / "all.feather", chunksize=60)
        return ds.dataset(folder / "all.feather", format="feather")
    if kind == "dataset in memory":
        return ds.dataset(table)
    if kind == "table":
        return table
    if kind == "stream":
        return Streaming(table)
    return lambda: (frame[start : start + 90] for start in range(0, N, 90))


KINDS = [
    "glob", "folder", "list", "feather", "arrow", "csv", "semicolons", "dataset", "dataset with a filter",
    "feather dataset", "dataset in memory", "table", "stream", "function",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_everything_that_can_be_scanned(kind, frame, folder, monkeypatch) -> None:
    monkeypatch.setattr(scan_module, "CHUNK", 400)
    source = eq.data.scan(
        made(kind, frame, folder), "y ~ a + g + C(k) + flag + center(b)", frequency="f", memory="50MB"
    )
    expected = eq.data.table(frame, "y ~ a + g + C(k) + flag + center(b)", frequency="f")
    assert_same(source.whole(), expected, 1e-12)
    assert source.passes == 2.0
    assert len(source.fingerprint()) == 32
    sample = source.sample(50, seed=1)
    assert_same(sample, expected.sample(50, seed=1), 1e-12)
    assert_same(source.pool(60, seed=1), expected.pool(60, seed=1), 1e-12)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("nowhere/*.parquet", "where there are none"),
        ("nowhere.parquet", "where there are none"),
        (3, "a function that returns"),
        ([], "a function that returns"),
        ([3], "a path"),
    ],
)
def test_what_cannot_be_scanned(given, words) -> None:
    with pytest.raises(InvalidInput, match=words):
        eq.data.scan(given, "y ~ a")


def test_a_folder_without_files_and_files_of_no_known_kind(tmp_path) -> None:
    with pytest.raises(InvalidInput, match="put files into it"):
        eq.data.scan(tmp_path, "y ~ a")
    (tmp_path / "a.xlsx").write_text("nothing")
    with pytest.raises(InvalidInput, match="put files into it"):
        eq.data.scan(tmp_path, "y ~ a")
    with pytest.raises(InvalidInput, match="convert or rename"):
        eq.data.scan(tmp_path / "a.xlsx", "y ~ a")


def test_a_reader_that_is_gone_after_one_pass(frame) -> None:
    with pytest.raises(InvalidInput, match="gone after one pass"):
        eq.data.scan(pa.Table.from_pandas(frame).to_reader(), "y ~ a")
    frames = iter([frame])
    source = eq.data.scan(lambda: frames, "y ~ a")
    with pytest.raises(InvalidInput, match=r"0 rows of the frames, where there were 500 before"):
        source.whole()


# --- Awkward files ------------------------------------------------------------------------------------


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
    with pytest.raises(InvalidInput, match="at least one row"):
        eq.data.scan(folder / "a-empty.parquet", "y ~ a")
    with pytest.raises(InvalidInput, match="at least one row"):
        eq.data.scan(folder / "nothing.csv", "y ~ a")


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


def test_hive_partitions(frame, tmp_path) -> None:
    pq.write_to_dataset(pa.Table.from_pandas(frame, preserve_index=False), tmp_path / "set", partition_cols=["k", "g"])
    source = eq.data.scan(tmp_path / "set", "y ~ a + C(k) + g")
    expected = eq.data.table(frame.sort_values(["k", "g"], kind="stable"), "y ~ a + C(k) + g")
    assert_same(source.whole(), expected)
    only = eq.data.scan(tmp_path / "set", "k ~ g")
    np.testing.assert_array_equal(np.sort(only.whole().y), np.sort(frame["k"]))
    read = ds.dataset(tmp_path / "set", partitioning="hive")
    assert_same(eq.data.scan(read, "y ~ a + C(k) + g").whole(), expected)


def test_text_without_types(tmp_path) -> None:
    text = "y,a,b,s,d,t\n" + "".join(f"{k},{k},{k / 8},x{k % 3},2024-01-0{1 + k % 5},{k % 2 == 0}\n" for k in range(40))
    (tmp_path / "1.csv").write_text(text)
    formula = "y ~ a + b + s + d + t"
    assert_same(eq.data.scan(tmp_path, formula).whole(), eq.data.table(tmp_path / "1.csv", formula))


def test_text_whose_first_rows_mislead(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("equipoise.data.parts._TEXT", 200)
    rows = [f"{k % 7},{k},{k},{'true' if k % 2 else 'false'}" for k in range(200)]
    rows[150], rows[160], rows[170] = "2.5,150,150,true", "3,1e3,160,false", "4,170,some words,maybe"
    (tmp_path / "1.csv").write_text("y,a,s,t\n" + "\n".join(rows) + "\n")
    source = eq.data.scan(tmp_path / "1.csv", "y ~ a + t")
    assert_same(source.whole(), eq.data.table(tmp_path / "1.csv", "y ~ a + t"))
    assert source.passes > 3.0
    with pytest.raises(InvalidInput, match="s: must be a column of numbers"):
        eq.data.scan(tmp_path / "1.csv", columns={"s": "s"})


@pytest.mark.parametrize(("file", "header"), [("1.csv", "y,a"), ("1.tsv", "y\ta")])
def test_broken_text(file, header, tmp_path) -> None:
    (tmp_path / file).write_text(f"{header}\n1{header[1]}2\n1{header[1]}2{header[1]}3\n")
    with pytest.raises(InvalidInput, match=f"made of readable files; got .*{file}"):
        eq.data.scan(tmp_path / file, "y ~ a")


def test_a_corrupt_file_is_named(frame, folder) -> None:
    whole = (folder / "part-1.parquet").read_bytes()
    (folder / "part-1.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidInput, match=r"made of readable files; got .*part-1.parquet"):
        eq.data.scan(folder, "y ~ a")
    (folder / "part-1.parquet").write_bytes(whole[:200] + bytes(300) + whole[500:])
    with pytest.raises(InvalidInput, match=r"made of readable files; got .*part-1.parquet"):
        eq.data.scan(folder, "y ~ a + b + g + k")


def test_files_that_do_not_agree(frame, folder) -> None:
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
    with pytest.raises(InvalidInput, match=r"part-3.parquet, which changed or vanished"):
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


# --- Options ------------------------------------------------------------------------------------------


def test_terms_that_look_across_rows_are_refused_by_name(folder) -> None:
    with pytest.raises(InvalidInput, match=r"lag\(\) in 'y ~ lag\(a\)'"):
        eq.data.scan(folder, "y ~ lag(a)")
    for name in ("np.cumsum", "np.mean", "a.shift"):
        with pytest.raises(InvalidInput, match=name):
            eq.data.scan(folder, f"y ~ {name}(a)")


def test_functions_of_ones_own(frame, folder) -> None:
    context = {"size": lambda x: x.gt(5.0).map({True: "large", False: "small"}), "twice": lambda x: 2.0 * x}
    source = eq.data.scan(folder, "y ~ size(a) + twice(b)", context=context)
    assert_same(source.whole(), eq.data.table(frame, "y ~ size(a) + twice(b)", context=context))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "formula, columns: must be one of the two; got neither"),
        ({"formula": "y ~ a", "columns": {"y": "y"}}, "one of the two; got both"),
        ({"columns": ["y"]}, "names with their columns"),
        ({"columns": {"x": 3}}, "columns x: must be names"),
        ({"columns": {"x": []}}, "columns x: must be names"),
        ({"columns": {"x": "a"}, "offset": "w"}, "offset: must be left out with columns="),
        ({"columns": {"x": "g"}}, "g: must be a column of numbers"),
        ({"columns": {"x": "aa"}}, "columns: .*'aa'"),
        ({"formula": "y ~ a", "weights": [1.0, 2.0]}, "weights: must be the name of a column"),
        ({"formula": "y ~ a", "missing": "ignore"}, "missing: must be one of raise, drop"),
        ({"formula": "y ~ a", "memory": "lots"}, "memory: must be a size"),
        ({"formula": "y ~ a", "memory": 10}, "memory: must be a size"),
        ({"formula": "y ~ a", "memry": 10}, "did you mean memory"),
        ({"formula": "y ~ aa"}, "did you mean a"),
    ],
)
def test_options_that_are_wrong(options, words, folder) -> None:
    with pytest.raises(InvalidInput, match=words):
        eq.data.scan(folder, **options)


def test_offsets_in_the_formula_and_counts_of_successes(frame, folder) -> None:
    formula = "y ~ a + g + offset(log(b)) + offset(o)"
    assert_same(eq.data.scan(folder, formula, offset="o").whole(), eq.data.table(frame, formula, offset="o"), 1e-15)
    frame["tries"] = frame["y"] + frame["k"]
    frame.to_parquet(folder / "all.parquet", row_group_size=60)
    source = eq.data.scan(folder / "all.parquet", "y ~ a", trials="tries", weights="w")
    expected = eq.data.table(frame, "y ~ a", trials="tries", weights="w")
    assert_same(source.whole(), expected, 1e-15)
    np.testing.assert_array_equal(source.whole().trials, expected.trials)
    eq.bind(eq.glm("bernoulli"), source)
    assert source.passes == 3.0
    with pytest.raises(InvalidInput, match="trials: must be left out for the poisson family"):
        eq.bind(eq.glm("poisson"), source)
    frame.loc[470, "tries"] = 0.0
    frame.to_parquet(folder / "all.parquet", row_group_size=60)
    with pytest.raises(InvalidInput, match=r"trials: must be positive; got 0 at row 470.*in .*all.parquet"):
        eq.data.scan(folder / "all.parquet", "y ~ a", trials="tries").whole()


def test_clusters_come_with_the_blocks_that_ask_for_them(frame, folder) -> None:
    source = eq.data.scan(folder, "y ~ a", clusters=["g", "k"], time="when")
    assert source.take(slice(0, 3)).marks is None
    expected = eq.data.table(frame, "y ~ a", clusters=["g", "k"], time="when").marks
    for marked in (source.marked(), source.marked(["g", "k"], "when")):
        found = marked.whole().marks
        assert found.names == expected.names
        np.testing.assert_array_equal(found.labels, expected.labels)
        np.testing.assert_array_equal(found.time, expected.time)
    assert source.marked("k").whole().marks.names == ("k",)
    counted = eq.data.scan(folder, "y ~ a", frequency="f", clusters="k", time="k").marked().sample(300, seed=None)
    assert counted.marks.labels.shape == (300, 1)
    np.testing.assert_array_equal(counted.marks.labels[:, 0], counted.marks.time)
    for options in ({"clusters": "a"}, {"clusters": np.arange(N)}, {"time": "a"}):
        with pytest.raises(InvalidInput, match=f"{next(iter(options))}: must be one of"):
            source.marked(**options)
    columns = eq.data.scan(folder, columns={"y": "y"}, clusters="g").marked()
    np.testing.assert_array_equal(columns.whole().marks.labels[:, 0], expected.labels[:, 0])
    frame.loc[300, "g"] = None
    frame[201:].to_parquet(folder / "part-3.parquet", index=False)
    with pytest.raises(InvalidInput, match=r"missing in columns \['g'\], rows 99"):
        eq.data.scan(folder, "y ~ a", clusters="g")
    with pytest.warns(eq.EquipoiseWarning, match="1 of 500"):
        dropped = eq.data.scan(folder, "y ~ a", clusters="g", missing="drop")
    assert dropped.whole().height == N - 1
    assert dropped.marked().whole().marks.labels.shape == (N - 1, 1)


@pytest.mark.parametrize("many", [N + 1, 0])
@pytest.mark.parametrize("kind", ["HC1", "HC3", "CRV1", "CRV3"])
def test_robust_covariances_stream(kind, many, frame, folder, monkeypatch) -> None:
    monkeypatch.setattr("equipoise.data.encoding._MANY", many)
    frame["firm"] = np.arange(N) // 13
    frame[201:].to_parquet(folder / "part-3.parquet", index=False)
    for k, cut in enumerate([slice(0, 7), slice(7, 200), slice(200, 201)]):
        frame[cut].to_parquet(folder / f"part-{k}.parquet", index=False)
    model, theta = eq.glm("poisson"), np.array([0.6, 0.02, 0.05])
    source = eq.data.scan(folder, "y ~ a + b", clusters="firm")
    expected = eq.robust(model, eq.data.table(frame, "y ~ a + b", clusters="firm"), theta, kind=kind)
    np.testing.assert_allclose(eq.robust(model, source, theta, kind=kind), expected, rtol=1e-10)


def test_columns_for_a_loss_of_ones_own(frame, folder, monkeypatch) -> None:
    monkeypatch.setattr(scan_module, "CHUNK", 500)

    def loss(p, o):
        import jax.numpy as jnp

        eta = p["a"] + jnp.dot(o["x"], p["b"])
        return jnp.exp(eta) - o["y"] * eta

    model = eq.Model(loss, {"a": 0.0, "b": np.zeros(2)}, prior_precision=0.5)
    source = eq.data.scan(folder, columns={"x": ["a", "b"], "y": "y"})
    arrays = {"x": frame[["a", "b"]].to_numpy(), "y": frame["y"].to_numpy()}
    one, other = eq.fit(model, source), eq.fit(model, arrays)
    np.testing.assert_allclose(one.theta, other.theta, rtol=1e-9)
    found, expected = eq.moments(model, source, one), eq.moments(model, arrays, one)
    np.testing.assert_allclose(found.score_cov, expected.score_cov, rtol=1e-10)
    with pytest.raises(InvalidInput, match="a scan of columns for a loss of your own"):
        eq.bind(model, eq.data.scan(folder, "y ~ a"))
    with pytest.raises(InvalidInput, match="a scan of columns"):
        eq.bind(eq.glm("poisson"), source)
    assert eq.data.scan(folder, columns={"k": "k", "t": ["flag", "k"]}).whole().leaves[1].dtype == np.int64


def test_types_of_columns_with_missing_values(frame, folder) -> None:
    frame.loc[[230], "k"] = None
    frame[201:].to_parquet(folder / "part-3.parquet", index=False)
    with pytest.warns(eq.EquipoiseWarning, match="1 of 500"):
        source = eq.data.scan(folder, columns={"k": "k"}, missing="drop")
    assert source.whole().leaves[0].dtype == np.float64
    assert source.n == N - 1


def test_the_response_is_checked_against_the_family_without_a_further_pass(frame, folder) -> None:
    source = eq.data.scan(folder, "a ~ b")
    eq.bind(eq.glm("gaussian"), source)
    assert source.passes == 1.0
    with pytest.raises(InvalidInput, match=r"a: must be .* for the bernoulli family; got .* at row 0"):
        eq.bind(eq.glm("bernoulli"), source)
    two = eq.data.scan(folder, "won ~ b")
    eq.bind(eq.glm("bernoulli"), two)
    assert two.passes == 1.0


# --- Samples ------------------------------------------------------------------------------------------


def test_the_sample_that_is_kept_is_uniform(frame, folder, monkeypatch) -> None:
    monkeypatch.setattr("equipoise.data.scanning.KEPT", 40)
    frame["row"] = np.arange(N, dtype=float)
    frame[:300].to_parquet(folder / "part-0.parquet", row_group_size=30)
    frame[300:].to_parquet(folder / "part-1.parquet")
    for part in (2, 3):
        (folder / f"part-{part}.parquet").unlink()
    counts, made = np.zeros(N), np.random.default_rng
    for seed in range(100):
        # another seed for every part
        monkeypatch.setattr(np.random, "default_rng", lambda key, seed=seed: made([seed, *key]))
        source = eq.data.scan(folder, columns={"row": "row"})
        rows = source.sample(40, seed=None).leaves[0].astype(int)
        assert len(set(rows)) == 40
        counts[rows] += 1.0
    expected, share = 100 * 40 / N, 40 / N
    square = float(((counts - expected) ** 2 / (expected * (1.0 - share))).sum())
    assert abs(square - N) < 5.0 * np.sqrt(2.0 * N)


def test_the_kept_sample_counts_frequencies(frame, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("equipoise.data.scanning.KEPT", 2000)
    frame["f"] = np.where(np.arange(N) < 50, 100, 1)
    frame["row"] = np.arange(N, dtype=float)
    frame.to_parquet(tmp_path / "all.parquet", row_group_size=100)
    source = eq.data.scan(tmp_path, "y ~ row", frequency="f")
    assert source.n == 50 * 100 + N - 50
    sample = source.sample(1500, seed=None)
    assert sample.frequency is None
    assert sample.n == 1500
    share = 5000 / source.n
    found = float(np.mean(sample.x[:, 1] < 50))
    assert abs(found - share) < 5.0 * np.sqrt(share * (1.0 - share) / 1500)


def test_knots_come_from_the_sample_and_bounds_from_all_rows(frame, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("equipoise.data.scanning.KEPT", 200)
    frame.to_parquet(tmp_path / "all.parquet")
    learnt = eq.data.scan(tmp_path, "y ~ bs(a, df=5)").design.transforms["bs(a, df=5)"]
    assert (learnt["lower_bound"], learnt["upper_bound"]) == (frame["a"].min(), frame["a"].max())
    inner = [knot for knot in learnt["knots"] if learnt["lower_bound"] < knot < learnt["upper_bound"]]
    places = [float(np.mean(frame["a"] < knot)) for knot in inner]
    # thirds, up to five standard errors of a quantile of 200 values
    np.testing.assert_allclose(places, [1 / 3, 2 / 3], atol=5.0 * np.sqrt(2.0 / 9.0 / 200))


def test_a_pool_must_fit_into_memory(folder) -> None:
    source = eq.data.scan(folder, "y ~ a + b", memory="1MB")
    with pytest.raises(
        InvalidInput, match=r"count: must be so that the rows fit into memory, 0.001 GB; got 100,000 rows"
    ):
        source.pool(100_000, seed=0)


# --- Where it runs ------------------------------------------------------------------------------------


def test_another_process_reads_the_same_bits(folder) -> None:
    formula = "y ~ a + g + scale(b)"
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        away = eq.data.scan(folder, formula, executor=pool)
        here = eq.data.scan(folder, formula)
        model, theta = eq.glm("poisson"), np.full(5, 0.05)
        one, other = eq.moments(model, away, theta), eq.moments(model, here, theta)
        np.testing.assert_array_equal(one.hessian, other.hessian)
        np.testing.assert_array_equal(one.score_cov, other.score_cov)
        assert away.passes == here.passes == 2.0
        assert_same(away.sample(100, seed=2), here.sample(100, seed=2))


def test_a_scan_travels(folder) -> None:
    source = eq.data.scan(folder, "y ~ np.log(b) + g", clusters="k")
    other = pickle.loads(pickle.dumps(source))
    assert_same(other.whole(), source.whole())
    assert (other.passes, source.passes) == (1.0, 2.0)


def test_little_memory_reads_a_large_row_group_in_pieces(frame, tmp_path) -> None:
    many = pd.concat([frame] * 200, ignore_index=True)
    many.to_parquet(tmp_path / "all.parquet", row_group_size=len(many))
    little = eq.data.scan(tmp_path, "y ~ a + b", memory="1MB")
    assert len(little.parts) == 1
    assert little._reader.chunk < len(many) / 10
    much = eq.data.scan(tmp_path, "y ~ a + b")
    theta = np.array([0.3, 0.02, 0.1])
    one, other = (eq.moments(eq.glm("poisson"), source, theta) for source in (little, much))
    np.testing.assert_allclose(one.hessian, other.hessian, rtol=1e-12)


def test_the_fingerprint_is_that_of_the_rows_not_of_their_place(frame, tmp_path) -> None:
    def print_of(name: str, table: pd.DataFrame, formula: str = "y ~ a", **options: str) -> str:
        (tmp_path / name).mkdir(exist_ok=True)
        table.to_parquet(tmp_path / name / "some.parquet", row_group_size=100)
        return eq.data.scan(tmp_path / name, formula, **options).fingerprint()

    key = print_of("one", frame)
    assert key == print_of("two", frame)
    others = [
        print_of("three", frame[:-1]),
        print_of("four", frame.assign(a=np.where(np.arange(N) == 77, 99.0, frame["a"]))),
        print_of("five", frame, "y ~ a + b"),
        print_of("six", frame, weights="w"),
    ]
    assert len({key, *others}) == 5
    frame.to_csv(tmp_path / "a.csv")
    first = eq.data.scan(tmp_path / "a.csv", "y ~ a").fingerprint()
    frame.iloc[[1, 0, *range(2, N)]].to_csv(tmp_path / "a.csv")
    assert eq.data.scan(tmp_path / "a.csv", "y ~ a").fingerprint() != first


def test_reading_stops_with_who_reads(folder) -> None:
    source = eq.data.scan(folder, "y ~ a")
    next(iter(source.blocks()))
    assert source.passes < 1.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ZeroDivisionError):
            source.reduce(lambda block: 1 / 0)


# --- Verbs --------------------------------------------------------------------------------------------


def test_paths_globs_and_folders_are_bound_with_a_formula(frame, folder, monkeypatch) -> None:
    formula, model = "y ~ a + g", eq.glm("poisson")
    expected = eq.bind(model, frame, formula=formula, weights="w")
    theta = np.array([0.1, 0.05, 0.2, -0.1])
    given = [folder, str(folder / "*.parquet"), [folder / f"part-{k}.parquet" for k in range(4)], ds.dataset(folder)]
    for data in given:
        problem = eq.bind(model, data, formula=formula, weights="w")
        # what is small is read whole
        assert problem.source.in_memory
        np.testing.assert_allclose(
            problem.derivatives(theta, 1).gradient, expected.derivatives(theta, 1).gradient, rtol=1e-12
        )
    monkeypatch.setattr("equipoise.models.binding._LARGE", 1000)
    monkeypatch.setattr(scan_module.Scan, "size", 10**10)
    for data in [*given, folder / "part-3.parquet"]:
        assert not eq.bind(model, data, formula=formula, weights="w").source.in_memory
    with pytest.raises(InvalidInput, match="formula: must be left out for a scan"):
        eq.bind(model, eq.data.scan(folder, formula), formula=formula)
    with pytest.raises(InvalidInput, match="an existing CSV or Parquet file"):
        eq.bind(model, str(folder / "nothing.csv"), formula=formula)
    with pytest.raises(InvalidInput, match="weights: must be the name of a column"):
        eq.bind(model, folder, formula=formula, weights=np.ones(N))


def test_a_calibration_on_a_scan_is_that_on_the_table(frame, folder) -> None:
    options = {"draws": 20, "chains": 1, "sampler": "sgmcmc", "batch_size": 50, "seed": 3, "progress": False}
    one = eq.calibrate(eq.glm("poisson"), eq.data.scan(folder, "y ~ a + g", offset="o"), **options)
    other = eq.calibrate(eq.glm("poisson"), frame, formula="y ~ a + g", offset="o", **options)
    np.testing.assert_allclose(one.plan.tuning.step, other.plan.tuning.step, rtol=1e-9)
    np.testing.assert_allclose(one.draws, other.draws, rtol=1e-7)
    new = frame[:5]
    np.testing.assert_allclose(one.predict(new).to_numpy(), other.predict(new).to_numpy(), rtol=1e-7)


def test_sums_of_too_many_clusters_are_refused_with_their_size(tmp_path) -> None:
    rng = np.random.default_rng(0)
    many = pd.DataFrame({"y": rng.normal(size=(20_000)), "a": rng.normal(size=20_000), "firm": np.arange(20_000) // 2})
    many.to_parquet(tmp_path / "all.parquet", row_group_size=1000)
    source = eq.data.scan(tmp_path, "y ~ a", clusters="firm", memory="1MB")
    model, theta = eq.glm("gaussian", scale=1.0), np.zeros(2)
    found = eq.robust(model, source, theta, kind="CRV1")
    table = eq.data.table(many, "y ~ a", clusters="firm")
    np.testing.assert_allclose(found, eq.robust(model, table, theta, kind="CRV1"), rtol=1e-10)
    with pytest.raises(InvalidInput, match=r"7 numbers for each of .* or more; got 0.001 GB, where they take 0.001"):
        eq.robust(model, source, theta, kind="CRV3")


def test_a_bad_file_among_good_ones_is_named(frame, tmp_path) -> None:
    for k in range(9):
        frame[k * 50 : (k + 1) * 50].to_parquet(tmp_path / f"{k}.parquet", index=False)
    source = eq.data.scan(tmp_path, "y ~ a")
    bad = frame[350:400].reset_index(drop=True)
    bad.assign(a=bad["a"].where(bad.index != 25)).to_parquet(tmp_path / "7.parquet", index=False)
    with pytest.raises(InvalidInput, match=r"missing in columns \['a'\], rows 25, in .*7.parquet"):
        eq.data.scan(tmp_path, "y ~ a")
    with pytest.warns(eq.EquipoiseWarning, match="1 of 450 rows"):
        assert eq.data.scan(tmp_path, "y ~ a", missing="drop").n == 449
    with pytest.raises(InvalidInput, match=r"7.parquet, which changed or vanished"):
        source.whole()
    bad.assign(y=-1.0).to_parquet(tmp_path / "7.parquet", index=False)
    with pytest.raises(InvalidInput, match=r"y: must be .* for the poisson family; got -1 at row 0, in .*7.parquet"):
        eq.bind(eq.glm("poisson"), eq.data.scan(tmp_path, "y ~ a"))
    with pytest.raises(InvalidInput, match="did you mean when"):
        eq.data.scan(tmp_path, "y ~ whem")


@pytest.mark.parametrize("file", ["made.parquet", "made.csv"])
def test_predictions_for_files_are_written_as_they_are_made(file, frame, folder, tmp_path_factory, monkeypatch) -> None:
    cal = eq.calibrate(eq.glm("poisson"), frame, formula="y ~ a + g", offset="o", draws=50, chains=2, progress=False)
    expected = cal.predict(frame)
    monkeypatch.setattr("equipoise.calibration.streaming.CHUNK", 300)
    out = tmp_path_factory.mktemp("out")
    place = out / file
    assert cal.predict(folder, to=place) == place
    found = pd.read_parquet(place) if file.endswith("parquet") else pd.read_csv(place)
    np.testing.assert_allclose(found.to_numpy(), expected.to_numpy(), rtol=1e-12)
    pd.testing.assert_frame_equal(cal.predict(eq.data.scan(folder, "y ~ a")), expected, check_exact=False)
    pd.testing.assert_frame_equal(pd.read_csv(cal.predict(frame[:9], to=out / "few.csv")), expected[:9])
    with pytest.raises(InvalidInput, match=r"to: must be a file that ends in .parquet or .csv"):
        cal.predict(folder, to=out / "made.xlsx")
    frame.drop(columns="g").to_parquet(out / "less.parquet")
    with pytest.raises(InvalidInput, match=r"X_new: .*'g'.*less.parquet"):
        cal.predict(out / "less.parquet", to=place)


def test_a_pool_with_clusters_has_each_row_with_its_own(frame, folder) -> None:
    source = eq.data.scan(folder, "y ~ a", clusters="k").marked()
    expected = eq.data.table(frame, "y ~ a", clusters="k").pool(2000, seed=4)
    found = source.pool(2000, seed=4)
    assert_same(found, expected)
    np.testing.assert_array_equal(found.marks.labels, expected.marks.labels)
