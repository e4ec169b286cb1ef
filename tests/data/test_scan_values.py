"""Values that floats would round, and labels of several types: the same clusters and levels in files as in memory."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import equipoise as eq
from equipoise import InvalidInput
from equipoise.data.design import Design
from equipoise.data.framed import FramesPart
from equipoise.data.marks import labels_of, times_of
from tests.data.conftest import assert_same

N = 400
RNG = np.random.default_rng(4)
FRAME = pd.DataFrame({"y": RNG.normal(size=N), "x": RNG.normal(size=N), "k": RNG.integers(0, 8, N)})
GAUSSIAN = eq.glm("gaussian")


def clustered(source):
    return eq.robust(GAUSSIAN, source, eq.fit(GAUSSIAN, source), kind="CRV1", clusters="k")


EXPECTED = clustered(eq.data.table(FRAME, "y ~ x", clusters="k"))


def decimals(make, kind):
    return pa.table(FRAME.drop(columns="k")).append_column("k", pa.array([make(int(k)) for k in FRAME.k], kind))


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda k: Decimal(10**17 + k), pa.decimal128(38, 0)),
        (lambda k: Decimal(10**17 + k), pa.decimal256(50, 2)),
        (lambda k: Decimal(10**19 + k), pa.decimal128(38, 0)),
        (lambda k: Decimal(10**25 + k), pa.decimal128(38, 0)),
        (lambda k: Decimal(k) + Decimal(k) / 10**18, pa.decimal128(38, 18)),
        (lambda k: Decimal(k) / 4, pa.decimal64(10, 2)),
    ],
)
def test_decimals_are_clusters_whatever_their_length(make, kind) -> None:
    table = decimals(make, kind)
    for source in (eq.data.scan(table, "y ~ x", clusters="k"), eq.data.table(table, "y ~ x", clusters="k")):
        np.testing.assert_allclose(clustered(source), EXPECTED, rtol=1e-9)


@pytest.mark.parametrize("first", [10**18, 10**19, 10**25, 10**40, -(10**20)])
def test_whole_numbers_of_any_length_are_clusters_in_text_files(first, tmp_path) -> None:
    FRAME.assign(k=[str(first + k) for k in FRAME.k]).to_csv(tmp_path / "1.csv", index=False)
    np.testing.assert_allclose(clustered(eq.data.scan(tmp_path, "y ~ x", clusters="k")), EXPECTED, rtol=1e-9)


def test_long_whole_numbers_that_come_late_in_a_text_file(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("equipoise.data.parts._TEXT", 1 << 12)
    ids = [str(k if k < 4 else 10**19 + k) for k in sorted(FRAME.k.tolist())]
    FRAME.assign(k=ids).to_csv(tmp_path / "1.csv", index=False)
    expected = clustered(eq.data.table(FRAME.assign(k=ids), "y ~ x", clusters="k"))
    np.testing.assert_allclose(clustered(eq.data.scan(tmp_path, "y ~ x", clusters="k")), expected, rtol=1e-9)


def test_hexadecimal_numbers_are_text(tmp_path) -> None:
    FRAME.assign(k=[f"0x{k + 16:x}" for k in FRAME.k]).to_csv(tmp_path / "1.csv", index=False)
    for formula in ("y ~ k", "y ~ C(k) + x"):
        assert_same(eq.data.scan(tmp_path, formula).whole(), eq.data.table(tmp_path / "1.csv", formula))


def test_one_label_has_one_code() -> None:
    whole = np.array([5, 2**60 + 1024, -(2**62)])
    for other in (
        whole.astype(float),
        whole.astype(object),
        pd.array(whole, dtype="Int64"),
        list(map(Decimal, map(int, whole))),
    ):
        np.testing.assert_array_equal(labels_of(other, "k"), whole)
    large = np.array([2**63, 2**64 - 2048], dtype=np.uint64)
    np.testing.assert_array_equal(labels_of(large.astype(float), "k"), labels_of(large, "k"))
    numbers = [0.57, 1e20, 0.1]
    exact = pd.Series([Decimal("0.570"), Decimal(10**20), Decimal("0.1")])
    np.testing.assert_array_equal(labels_of(exact, "k"), labels_of(np.array(numbers), "k"))
    long = pd.Series([Decimal("0.1"), Decimal("0.1000000000000000000001"), Decimal(10**20 + 1), Decimal(10**20)])
    assert len(set(labels_of(long, "k"))) == 4
    times = pd.Series(pd.date_range("2020-01-01", periods=3, tz="UTC"))
    plain = labels_of(times.dt.tz_localize(None), "k")
    for other in (times, times.dt.tz_convert("Europe/Berlin"), times.dt.tz_convert("Asia/Tokyo").astype(object)):
        np.testing.assert_array_equal(labels_of(other, "k"), plain)


def test_labels_that_are_numbers_in_some_tables_and_text_in_others() -> None:
    text = FRAME.assign(k=FRAME.k.astype(str))
    for clock in ({"clusters": "k"}, {"time": "k"}):
        with pytest.raises(
            InvalidInput, match=r"k: must be a column of numbers, as in the frames before; .* in frame 2"
        ):
            eq.data.scan(lambda: iter([FRAME[:200], text[200:]]), "y ~ x", **clock)
        parts = [FramesPart(lambda: [FRAME[:200]]), FramesPart(lambda: [text[200:]], first=200)]
        with pytest.raises(InvalidInput, match=r"k: must be numbers, dates or text throughout; got .* at row 200 of"):
            eq.data.scan(parts, "y ~ x", **clock)
    some = lambda: iter([text[:200], text[200:210].assign(k=np.nan), text[210:].astype({"k": "category"})])  # noqa: E731
    with pytest.warns(eq.EquipoiseWarning, match="10 of 400"):
        source = eq.data.scan(some, "y ~ x", clusters="k", missing="drop")
    expected = clustered(eq.data.table(FRAME.drop(index=range(200, 210)), "y ~ x", clusters="k"))
    np.testing.assert_allclose(clustered(source), expected, rtol=1e-9)


@pytest.mark.parametrize("values", [[[1.0, 2.0]] * N, [{"a": 1}] * N])
def test_lists_are_no_labels_and_no_numbers(values) -> None:
    table = pa.table(FRAME).append_column("l", pa.array(values))
    for option in ({"clusters": "l"}, {"time": "l"}):
        with pytest.raises(InvalidInput, match="l: must be a column of numbers, text or dates; got lists"):
            eq.data.scan(table, "y ~ x", **option)
    with pytest.raises(InvalidInput, match="l: must be a column of numbers"):
        eq.data.scan(table, columns={"x": "l", "y": "y"})


def test_dates_beyond_nanoseconds_are_in_order() -> None:
    days = np.datetime64("2200-01-01", "us") + np.arange(N) * np.timedelta64(300, "D")
    assert (np.diff(times_of(days, "t")) > 0).all()
    np.testing.assert_array_equal(times_of(days[:20], "t"), times_of(days[:20].astype("datetime64[ns]"), "t"))
    made = [eq.data.scan(pa.table(FRAME.assign(t=t)), "y ~ x", time="t") for t in (days, np.arange(N))]
    found, expected = (eq.robust(GAUSSIAN, s, eq.fit(GAUSSIAN, s), kind="HAC", lags=3) for s in made)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("first", [2**60, 2**63 - 3, 2**63, 2**64 - 9])
def test_long_whole_numbers_are_levels(first, tmp_path) -> None:
    # the first files have small ones, beside a missing one or not
    frame = FRAME.assign(k=np.sort(FRAME.k).astype(np.uint64) + np.uint64(first)).astype({"k": object})
    frame.loc[:99, "k"] = 7
    kind = pa.int64() if first < 2**62 else pa.uint64()
    for k in range(4):
        part = frame[k * 100 : (k + 1) * 100]
        ids = [None if k in (0, 2) and j == 3 else v for j, v in enumerate(part.k)]
        pq.write_table(pa.table({"y": part.y, "x": part.x, "k": pa.array(ids, kind)}), tmp_path / f"{k}.parquet")
    kept = frame.drop(index=[3, 203]).astype({"k": np.int64 if first < 2**62 else np.uint64})
    for formula in ("y ~ C(k) + x", "y ~ C(k, contr.sum)", "y ~ C(k) + poly(exp(scale(x)), 2)"):
        with pytest.warns(eq.EquipoiseWarning, match="2 of 400"):
            source = eq.data.scan(tmp_path, formula, missing="drop")
        expected = eq.data.table(kept, formula)
        assert_same(source.whole(), expected, 1e-12)
        again = Design.from_json(source.design.to_json())
        np.testing.assert_allclose(np.asarray(again.encode(kept)[0]), expected.x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda k: Decimal(50 + k) / 100, pa.decimal128(10, 2)),
        (lambda k: Decimal(50 + k) / 100, pa.decimal128(38, 18)),
        (lambda k: Decimal(50 + k) / 100 + Decimal(k % 2) / 10**18, pa.decimal128(38, 18)),
        (lambda k: Decimal(50 + k) / 100, pa.decimal32(6, 3)),
        (lambda k: Decimal(10**17 + k), pa.decimal128(38, 0)),
        (lambda k: Decimal(k) / 10**20, pa.decimal128(38, 30)),
        (lambda k: Decimal(1000 * k), pa.decimal128(5, -3)),
    ],
)
def test_decimals_are_the_nearest_floats(make, kind) -> None:
    table = decimals(make, kind)
    memory = table.to_pandas()
    source = eq.data.scan(table, "y ~ C(k) + x")
    assert_same(source.whole(), eq.data.table(memory, "y ~ C(k) + x"))
    np.testing.assert_array_equal(np.asarray(source.design.encode(memory)[0]), source.whole().x)
    assert_same(eq.data.scan(table, "y ~ k").whole(), eq.data.table(memory, "y ~ k"), 1e-15)
    weights = {"weights": "k"} if all(make(k) > 0 for k in range(8)) else {}
    assert_same(eq.data.scan(table, "y ~ x", **weights).whole(), eq.data.table(memory, "y ~ x", **weights), 1e-15)


@pytest.mark.parametrize("how", ["parquet", "feather", "frames"])
def test_nullable_whole_numbers_stay_whole(how, tmp_path) -> None:
    frame = FRAME.assign(k=FRAME.k.astype("Int64").mask(FRAME.index % 50 == 3))
    source = tmp_path / f"1.{how}"
    if how == "frames":
        source = lambda: (frame[k : k + 40] for k in range(0, N, 40))  # noqa: E731
    else:
        getattr(frame, f"to_{how}")(source)
    with pytest.warns(eq.EquipoiseWarning, match="8 of 400"):
        found = eq.data.scan(source, "y ~ C(k) + x", missing="drop", memory="1MB")
    with pytest.warns(eq.EquipoiseWarning, match="8 of 400"):
        assert_same(found.whole(), eq.data.table(frame, "y ~ C(k) + x", missing="drop"))
