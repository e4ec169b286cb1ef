"""Rows from files: the same rows, names and encodings as of the same table in memory, whatever the files look like."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.feather as feather
import pytest

import equipoise as eq
from equipoise import InvalidInput
from equipoise.data import files as files_module
from equipoise.data import scanned as scan_module
from tests.data.conftest import N, assert_same
from tests.known import jax_loss

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
    "y ~ poly(exp(scale(a)), 2) + cr(scale(b, scale=-2.0), knots=[0.1])",
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
        ("y ~ center(a):g + poly(scale(a), 2):b + bs(b, df=4) + cc(b, df=3)", True), ("y ~ hashed(g, levels=3)", False),
        ("y ~ C(center(a) > 0)", False), ("y ~ scale(a, 2.0, False) + poly(b, 2, raw=True)", True),
    ],
)  # fmt: skip
def test_functions_of_one_row_need_no_formula_at_every_pass(formula, quick, frame, folder) -> None:
    source = eq.data.scan(folder, formula)
    assert (source.encoder.recipe is not None) == quick
    assert_same(source.whole(), eq.data.table(frame, formula), 1e-13)


@pytest.mark.parametrize("unit", [1e-9, 1e-3, 60.0, 1e40])
@pytest.mark.parametrize("formula", ["y ~ poly(a, 3)", "y ~ poly(k, 2)", "y ~ poly(exp(scale(a)), 2)"])
def test_no_unit_shows_in_what_calls_learn(formula, unit, frame) -> None:
    """Of numbers far from 1, powers vanish or overflow; what is not scaled yet overflows too, and is not looked at."""
    frame = frame.assign(a=frame["a"] * unit, k=frame["k"] * unit)
    source = eq.data.scan(lambda: (frame[start : start + 60] for start in range(0, N, 60)), formula)
    assert_same(source.whole(), eq.data.table(frame, formula), 1e-11)


@pytest.mark.parametrize(
    "formula", ["y ~ scale(exp(scale(a)))", "y ~ poly(exp(scale(a)), 2) + center(exp(0.5 * scale(a)))"]
)
def test_what_overflows_before_it_is_scaled_is_not_summed(formula, frame) -> None:
    """exp(600) is a number, and its square is none."""
    frame = frame.assign(a=600.0 + 20.0 * (frame["a"] - 5.0))
    source = eq.data.scan(lambda: (frame[start : start + 60] for start in range(0, N, 60)), formula)
    assert_same(source.whole(), eq.data.table(frame, formula), 1e-11)


def test_what_is_no_number_deep_inside_calls_is_told_with_its_row(frame, folder) -> None:
    formula = "y ~ scale(log(20.0 - scale(exp(scale(a)))))"
    frame.loc[203, "a"] = 1e4
    for k, cut in enumerate([slice(0, 200), slice(200, N)]):
        frame[cut].to_parquet(folder / f"part-{k}.parquet", index=False)
    for k in (2, 3):
        (folder / f"part-{k}.parquet").unlink()
    told = []
    for pool in (None, ThreadPoolExecutor(1)):
        with pytest.raises(eq.InvalidInput, match=r"row.* 3.*part-1\.parquet") as error:
            eq.data.scan(folder, formula, executor=pool)
        told.append(str(error.value))
    assert told[0] == told[1]


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
        ({"formula": "y ~ A"}, "did you mean a"),
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
    model = eq.Model(jax_loss, {"a": 0.0, "b": np.zeros(2)}, prior_precision=0.5)
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
