"""Rows that are others at a later pass, behind sources that have no file to tell: a sum over all values does."""

from __future__ import annotations

import datetime
from decimal import Decimal
from functools import reduce

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import equipoise as eq
from equipoise import InvalidInput
from equipoise.data.parts import StreamPart, numbered
from equipoise.data.sameness import Seen, both_seen, differs, ordered_sum, rows_seen

ROWS = 600
DAY = datetime.date(2020, 1, 1)
# Columns whose types in pandas depend on what else is in the same piece, and some that are coded in their own ways.
VALUES = {
    "whole": (pa.int64(), lambda k: None if k % 97 == 0 else k),
    "large": (pa.int64(), lambda k: None if k % 101 == 0 else 2**60 + k if k % 7 == 0 else k),
    "larger": (pa.uint64(), lambda k: 2**64 - 1 - k if k % 3 else 2**53 + k % 2),
    "truth": (pa.bool_(), lambda k: None if k % 91 == 0 else k % 2 == 0),
    "text": (pa.string(), lambda k: None if k % 51 == 0 else f"word {k % 37}"),
    "levels": (pa.dictionary(pa.int32(), pa.string()), lambda k: f"level {(k * k) % 41}"),
    "bytes": (pa.binary(), lambda k: b"%d" % (k % 9)),
    "decimal": (pa.decimal128(38, 3), lambda k: Decimal(k) / 8 + (10**20 if k == 250 else 0)),
    "date": (pa.date32(), lambda k: None if k % 83 == 0 else DAY + datetime.timedelta(days=k % 400)),
    "moment": (pa.timestamp("us", "Europe/Paris"), lambda k: datetime.datetime(2020, 1, 1, k % 24, k % 60)),
    "hour": (pa.time64("us"), lambda k: datetime.time(k % 24)),
    "span": (pa.duration("ms"), lambda k: datetime.timedelta(seconds=k % 50)),
    "float": (pa.float64(), lambda k: float("nan") if k % 89 == 0 else k / 7),
    "small": (pa.float32(), lambda k: k / 7),
}


def table(**changed: dict[int, object]) -> pa.Table:
    columns = {}
    for name, (kind, value) in VALUES.items():
        others = changed.get(name, {})
        columns[name] = pa.array([others.get(k, value(k)) for k in range(ROWS)], kind)
    return pa.table(columns)


def seen(given: pa.Table, entering: list[str], chunk: int = ROWS, watched: Seen | None = None) -> tuple[Seen, int]:
    sums, order = Seen(), 0
    for frame in numbered(StreamPart(given), given.schema.names, chunk):
        hashes, found = rows_seen(frame, entering, watched=watched or sums)
        sums, order = both_seen(sums, found), order + ordered_sum(hashes, frame.index[0], 3)
    return sums, order % 2**64


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("enters", [True, False])
def test_sums_do_not_depend_on_how_rows_are_read_and_change_with_every_value(name, enters) -> None:
    given = table().select([name, *sorted({"float", "text"} - {name})])
    entering = given.schema.names[0 if enters else 1 :]
    expected, places = seen(given, entering)
    for chunk in (17, 100):
        again, order = seen(given, entering, chunk)
        assert (again.exact, order) == (expected.exact, places)
    order = np.random.default_rng(1).permutation(ROWS)
    moved = seen(given.take(order), entering, watched=expected)
    assert moved[0].exact == expected.exact
    assert not differs(expected, moved[0])
    assert moved[1] != places
    which = None if enters else name
    for place in (10, ROWS - 1):
        # a value of another row
        changed = table(**{name: {place: VALUES[name][1](place + 1)}}).select(given.schema.names)
        found = seen(changed, entering, watched=expected)[0]
        assert found.exact[which] != expected.exact[which]
        assert enters or found.exact[None] == expected.exact[None]
        assert differs(expected, found)
    # the same values, in other rows
    assert differs(expected, seen(given.set_column(0, name, given.column(name).take(order)), entering)[0])


@pytest.mark.parametrize("mapper", [pd.ArrowDtype, None])
def test_other_types_of_pandas_are_coded_alike_in_every_piece(mapper) -> None:
    given = table().drop_columns(["levels", "bytes", "hour"]).to_pandas(types_mapper=mapper)
    frame = given if mapper else given.convert_dtypes()
    for name in frame.columns:
        whole = rows_seen(frame[[name]], [name])[1]
        pieces = [rows_seen(frame[[name]].iloc[k : k + 70], [name])[1] for k in range(0, ROWS, 70)]
        assert reduce(both_seen, pieces).exact == whole.exact
        other = frame[[name]].iloc[[*range(1, ROWS), 1]]
        assert rows_seen(other, [name])[1].exact != whole.exact


def test_rounding_is_no_change() -> None:
    """Nor is it near zero, where nothing but rounding may be left, and in whatever units."""
    rng = np.random.default_rng(5)
    for unit in (1e-9, 1.0, 1e9):
        v = rng.standard_cauchy(20_000) * unit
        v[:50] = 0.0
        noise = np.where(v == 0.0, 1e-17 * unit, 1e-15 * v) * rng.normal(size=v.size)
        frame = pd.DataFrame({"v": v, "g": rng.permutation(["a", "b"] * 10_000)})
        first = rows_seen(frame, ["v", "g"], watched=Seen())[1]
        again = rows_seen(frame.assign(v=v + noise), ["v", "g"], watched=first)[1]
        assert again.exact != first.exact
        assert not differs(first, again)
        for place in (0, 100, 19_999):
            w = v.copy()
            w[place] += 1e-4 * (abs(w[place]) or unit)
            assert differs(first, rows_seen(frame.assign(v=w), ["v", "g"], watched=first)[1])


@pytest.mark.parametrize("kind", ["duckdb", "polars"])
def test_queries_that_round_and_order_otherwise_each_time_are_the_same(kind) -> None:
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"g": rng.integers(0, 300, 200_000), "x": rng.normal(size=200_000)})
    frame["y"] = rng.poisson(np.exp(0.1 * frame["x"] + 0.001 * frame["g"])) + 0.1
    if kind == "duckdb":
        duckdb = pytest.importorskip("duckdb")
        con = duckdb.connect()
        con.register("rows", frame)
        query = con.sql("select g, avg(x) as x, avg(y) as y, count(*) as n from rows group by g")
    else:
        pl = pytest.importorskip("polars")
        means = [pl.col("x").mean(), pl.col("y").mean(), pl.len().alias("n")]
        query = pl.from_pandas(frame).lazy().group_by("g").agg(*means)
    means = frame.groupby("g").agg(x=("x", "mean"), y=("y", "mean"), n=("x", "size"))
    expected = eq.fit(eq.glm("gaussian"), means, formula="y ~ poly(exp(scale(x)), 2)", weights="n").theta
    source = eq.data.scan(query, "y ~ poly(exp(scale(x)), 2)", weights="n")
    for _ in range(3):
        np.testing.assert_allclose(np.abs(eq.fit(eq.glm("gaussian"), source).theta), np.abs(expected), rtol=1e-8)


def test_a_file_behind_a_dask_frame_that_is_rewritten(frame, tmp_path) -> None:
    dd = pytest.importorskip("dask.dataframe")
    halves = [frame[:250], frame[250:]]
    options = {"clusters": "k", "time": "when", "weights": "w"}

    def scanned():
        for number, half in enumerate(halves):
            half.to_parquet(tmp_path / f"{number}.parquet", index=False)
        return eq.data.scan(dd.read_parquet(tmp_path), "y ~ a + g + c + flag", **options)

    source = scanned()
    expected = eq.fit(eq.glm("poisson"), source).theta
    # rows in another order are the same rows
    halves[1][::-1].to_parquet(tmp_path / "1.parquet", index=False)
    np.testing.assert_allclose(eq.fit(eq.glm("poisson"), source).theta, expected, rtol=1e-9)
    for name in ("y", "a", "g", "c", "flag", "w"):
        source = scanned()
        halves[1].assign(**{name: halves[1][name].array[::-1]}).to_parquet(tmp_path / "1.parquet", index=False)
        for use in (lambda s: eq.fit(eq.glm("poisson"), s), lambda s: s.pool(1, 0), lambda s: s.take(slice(0, 2))):
            with pytest.raises(InvalidInput, match=r"same at every pass; got other values in partition \d than before"):
                use(source)
    for name, argument in (("k", "clusters"), ("when", "time")):
        source = scanned()
        halves[1].assign(**{name: halves[1][name].array[::-1]}).to_parquet(tmp_path / "1.parquet", index=False)
        # what is not looked at does not matter
        np.testing.assert_allclose(eq.fit(eq.glm("poisson"), source).theta, expected, rtol=1e-9)
        with pytest.raises(InvalidInput, match=r"other values in partition \d than before"):
            source.marked(**{argument: name}).whole()


def test_partitions_that_are_random_at_every_pass(frame) -> None:
    dd = pytest.importorskip("dask.dataframe")
    noisy = dd.from_pandas(frame, npartitions=2).map_partitions(
        lambda part: part.assign(a=np.random.default_rng().normal(size=len(part))), meta=frame.iloc[:0]
    )
    with pytest.raises(InvalidInput, match="other values in partition 0 than before"):
        eq.fit(eq.glm("poisson"), eq.data.scan(noisy, "y ~ a"))
    # also where what a formula learns takes two passes
    with pytest.raises(InvalidInput, match="other values in partition 0 than before"):
        eq.data.scan(noisy, "y ~ scale(exp(scale(a)))")


@pytest.mark.parametrize("kind", ["frames", "lazy"])
def test_frames_and_queries_whose_values_change(kind, frame, tmp_path) -> None:
    polars = pytest.importorskip("polars")
    file = tmp_path / "rows.csv"
    frame.to_csv(file)
    given = polars.scan_csv(file) if kind == "lazy" else lambda: pd.read_csv(file, chunksize=90)
    source = eq.data.scan(given, "y ~ a", frequency="f")
    theta = eq.fit(eq.glm("poisson"), source).theta
    frame.sample(frac=1.0, random_state=1).to_csv(file)
    np.testing.assert_allclose(eq.fit(eq.glm("poisson"), source).theta, theta, rtol=1e-9)
    frame.assign(a=frame["a"].to_numpy()[::-1]).to_csv(file)
    with pytest.raises(InvalidInput, match="other values in the frames than before"):
        eq.fit(eq.glm("poisson"), source)
