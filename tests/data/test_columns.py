"""What columns may be: every type of pandas, dates, decimals, categories, and as many levels as there is room for."""

from __future__ import annotations

import ast
import datetime as dt
import sys
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from itertools import count

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import equipoise as eq
from equipoise.data.columns import Column
from equipoise.errors import EquipoiseWarning
from tests.data.conftest import mixed

N = 40


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return mixed(N, 3).assign(x=lambda f: f.z)


@pytest.mark.parametrize(
    "formula", ["y ~ x + k + b + g", "y ~ C(k)*C(b) + I(x*k) + I(b + b)", "y ~ hashed(k, levels=3)"]
)
@pytest.mark.parametrize("backend", ["numpy_nullable", "pyarrow"])
def test_nullable_types_are_as_good_as_plain_ones(frame, formula, backend) -> None:
    plain = eq.data.table(frame, formula)
    nullable = frame.convert_dtypes(dtype_backend=backend)
    assert all(nullable[c].dtype != frame[c].dtype for c in "xkbg")
    made = eq.data.table(nullable, formula)
    assert made.names == plain.names
    np.testing.assert_array_equal(made.x, plain.x)
    np.testing.assert_array_equal(made.y, plain.y)
    assert made.design == plain.design
    # a design made from either takes the other
    for design in (made.design, plain.design):
        for table in (frame, nullable):
            np.testing.assert_array_equal(np.asarray(design.encode(table)[0]), plain.x)


@pytest.mark.parametrize(
    "column",
    [
        pd.array([1, 2, None, 4], dtype="Int64"),
        pd.array([1.0, 2.0, None, 4.0], dtype="Float64"),
        pd.array([True, False, None, True], dtype="boolean"),
        pd.array(["u", "v", None, "u"], dtype="string"),
        pd.array(["u", "v", None, "u"], dtype="str"),
        pd.Categorical(["u", "v", None, "u"]),
        pd.to_datetime(["2020-01-01", "2020-01-02", None, "2020-01-03"]),
        np.array([Decimal(1), Decimal(2), None, Decimal(4)], dtype=object),
        np.array([1, 2, None, 4], dtype=object),
    ],
)
def test_missing_values_of_every_type(column) -> None:
    frame = pd.DataFrame({"y": [1.0, 2.0, 3.0, 5.0], "x": column})
    with pytest.raises(eq.InvalidInput, match=r"missing in columns \['x'\], rows 2"):
        eq.data.table(frame, "y ~ x")
    with pytest.warns(EquipoiseWarning, match=r"^1 of 4 rows with missing values"):
        made = eq.data.table(frame, "y ~ x", missing="drop")
    np.testing.assert_array_equal(made.y, [1.0, 2.0, 5.0])
    assert made.design.dropped == 1
    if made.names[1] == "x":
        assert np.isfinite(made.x).all()
    # whole numbers stay whole once the missing ones are gone
    if str(frame["x"].dtype) == "Int64":
        with pytest.warns(EquipoiseWarning):
            assert eq.data.table(frame, "y ~ C(x)", missing="drop").names == ("Intercept", "C(x)[T.2]", "C(x)[T.4]")


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32, np.uint64, np.float16, np.float32])
def test_narrow_numbers_are_widened_before_they_are_computed_with(dtype) -> None:
    # 100**2 does not fit into one byte, and 1/3 of float16 has three digits
    frame = pd.DataFrame({"y": [1.0, 2.0, 3.0], "x": np.array([100, 90, 3], dtype=dtype)})
    made = eq.data.table(frame, "y ~ I(x**2) + I(x / 3) + center(x)")
    wide = np.array([100.0, 90.0, 3.0])
    np.testing.assert_array_equal(made.x[:, 1:], np.column_stack([wide**2, wide / 3, wide - wide.mean()]))


def test_whole_numbers_do_not_overflow() -> None:
    frame = pd.DataFrame({"y": [1.0, 2.0, 3.0], "x": [10**10, 2, 3], "u": np.array([2**63, 1, 2], dtype=np.uint64)})
    made = eq.data.table(frame, "y ~ I(x**2) + I(x**-1) + u")
    np.testing.assert_array_equal(made.x[0, 1:], [1e20, 1e-10, 2.0**63])


def test_truth_values_add_up(frame) -> None:
    made = eq.data.table(frame, "y ~ I(b + b) + I(-b)")
    np.testing.assert_array_equal(made.x[:, 1], 2.0 * frame["b"])
    np.testing.assert_array_equal(made.x[:, 2], -1.0 * frame["b"])


def test_decimals_are_numbers(frame) -> None:
    decimal = frame.assign(x=[Decimal(repr(v)) for v in frame["x"]])
    arrow = frame.assign(x=pd.array(decimal["x"], dtype=pd.ArrowDtype(pa.decimal128(38, 30))))
    expected = eq.data.table(frame, "y ~ x + I(x**2)")
    for table in (decimal, arrow):
        np.testing.assert_allclose(eq.data.table(table, "y ~ x + I(x**2)").x, expected.x, rtol=1e-15)
    mixed = frame.assign(x=[Decimal(repr(v)) if i % 2 else v for i, v in enumerate(frame["x"])])
    np.testing.assert_array_equal(eq.data.table(mixed, "y ~ x").x[:, 1], frame["x"])


def test_dates_are_days_since_1970(frame) -> None:
    made = eq.data.table(frame, "y ~ t")
    expected = 18687.0 + (frame["t"] - pd.Timestamp("2021-03-01")).dt.total_seconds() / 86400.0
    np.testing.assert_array_equal(made.x[:, 1], expected)
    assert made.design.columns == {"t": Column("date")}
    same = {
        "seconds": frame["t"].astype("datetime64[s]"),
        "nanoseconds": frame["t"].astype("datetime64[ns]"),
        "zone": frame["t"].dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"),
        "python": pd.Series(frame["t"].dt.to_pydatetime(), dtype=object),
        "arrow": frame["t"].astype(pd.ArrowDtype(pa.timestamp("us", tz="UTC"))),
    }
    for table in (frame.assign(t=column) for column in same.values()):
        np.testing.assert_array_equal(eq.data.table(table, "y ~ t").x, made.x)
        np.testing.assert_array_equal(np.asarray(made.design.encode(table)[0]), made.x)
    with pytest.raises(eq.InvalidInput, match=r"t: must be a column of dates.*pd\.to_datetime"):
        made.design.encode(frame.assign(t=frame["t"].astype(str)))


def test_days_without_a_time_and_spans(frame) -> None:
    days = frame.assign(t=[dt.date(1970, 1, 1) + dt.timedelta(days=i) for i in range(N)])
    np.testing.assert_array_equal(eq.data.table(days, "y ~ t + I(t**2)").x[:, 2], np.arange(N) ** 2.0)
    spans = frame.assign(t=frame["t"] - pd.Timestamp("2021-03-01"))
    for table in (spans, spans.astype({"t": object})):
        np.testing.assert_array_equal(
            eq.data.table(table, "y ~ t").x[:, 1], eq.data.table(frame, "y ~ t").x[:, 1] - 18687.0
        )
    old = frame.assign(t=pd.Timestamp("1066-10-14"))
    assert eq.data.table(old, "y ~ t").x[0, 1] == (dt.date(1066, 10, 14) - dt.date(1970, 1, 1)).days


def test_dates_inside_c_are_levels(frame) -> None:
    made = eq.data.table(frame, "y ~ C(t)")
    levels = sorted(frame["t"].unique())
    expected = np.column_stack([frame["t"] == level for level in levels[1:]])
    np.testing.assert_array_equal(made.x[:, 1:], expected)
    assert made.names[1] == f"C(t)[T.{levels[1]}]"
    np.testing.assert_array_equal(np.asarray(made.design.encode(frame.iloc[5:8])[0]), made.x[5:8])
    # their hours, minutes and seconds look like factors of a product
    read = eq.data.scan(pa.Table.from_pandas(frame), "y ~ C(t)")
    assert read.names == made.names
    np.testing.assert_array_equal(read.whole().x, made.x)
    with pytest.raises(eq.InvalidInput, match="t: must be one of the levels seen when fitting"):
        made.design.encode(frame.assign(t=pd.Timestamp("1999-01-01")))
    with pytest.raises(eq.InvalidInput, match=r"t: must be used either as a number or inside C\(\)"):
        eq.data.table(frame, "y ~ C(t) + t")


def test_unused_levels_are_left_out_with_a_note(frame) -> None:
    table = frame.assign(g=pd.Categorical(frame["g"], categories=["z", "c", "b", "a", "q"]))
    with pytest.warns(EquipoiseWarning, match=r"g: the levels 'z', 'q' have no rows and were left out"):
        made = eq.data.table(table, "y ~ g")
    assert made.names == ("Intercept", "g[T.b]", "g[T.a]")
    assert (made.x.sum(axis=0) > 0).all()
    # a new table may carry any unused levels, and is told of levels that are used
    np.testing.assert_array_equal(np.asarray(made.design.encode(table)[0]), made.x)
    with pytest.raises(eq.InvalidInput, match=r"g: must be one of the levels .*got \['q'\]"):
        made.design.encode(table.assign(g=pd.Categorical(["q"] * N, categories=["q", "a"])))


def test_levels_written_out_must_cover_the_table(frame) -> None:
    with pytest.raises(eq.InvalidInput, match=r"coded by levels that include every value.*\{'c'\}"):
        eq.data.table(frame, "y ~ C(g, levels=['a', 'b'])")
    made = eq.data.table(frame.assign(x=1.5), "y ~ C(np.floor(x)):k")
    with pytest.raises(eq.InvalidInput, match="coded by levels that include every value"):
        made.design.encode(frame.assign(x=2.5))


def test_levels_are_written_with_letters_that_python_would_change_in_names() -> None:
    frame = pd.DataFrame({"y": [1.0, 2.0, 3.0, 5.0], "g": ["x", "\u00b5", "m\u00b2", "x"]})
    formula = "y ~ C(g, levels=['x', '\u00b5', 'm\u00b2'])"
    for made in (eq.data.table(frame, formula), eq.data.scan(lambda: iter([frame]), formula)):
        assert [name[-5:] for name in made.names[1:]] == ["[T.\u00b5]", "T.m\u00b2]"]
    with pytest.raises(eq.InvalidInput, match="letters that Python reads as others"):
        eq.data.table(frame.rename(columns={"g": "\u00b5"}), "y ~ C(\u00b5, levels=['x'])")


def test_levels_must_cover_the_table_on_every_thread(frame) -> None:
    """Python's filters of warnings belong to the process: threads that encode at the same time must not undo each other's."""
    design = eq.data.table(frame.assign(x=1.5), "y ~ C(np.floor(x)):k").design
    strange = frame.assign(x=2.5)

    def refused(_: int) -> bool:
        try:
            design.encode(strange)
        except eq.InvalidInput:
            return True
        return False

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(refused, range(160)))
    finally:
        sys.setswitchinterval(interval)


def test_a_parser_that_another_thread_disturbs_is_asked_again(frame, monkeypatch) -> None:
    formula, parse, calls = "y ~ C(np.floor(x)):k + poly(scale(x), 2)", ast.parse, count()
    expected, disturbed = eq.data.table(frame, formula), []

    def disturbed_parse(text, *args, **kwargs):
        if next(calls) % 13 == 0:
            disturbed.append(text)
            raise SystemError("AST constructor recursion depth mismatch (before=39, after=32)")
        return parse(text, *args, **kwargs)

    with monkeypatch.context() as patched:  # pytest parses, too
        patched.setattr(ast, "parse", disturbed_parse)
        found = [eq.data.table(frame, formula) for _ in range(20)]
    for table in found:
        np.testing.assert_array_equal(table.x, expected.x)
    assert len(set(disturbed)) > 2


def test_intervals_of_a_cut(frame) -> None:
    table = frame.assign(x=pd.cut(frame["x"], [-9, -0.5, 0.5, 9]))
    made = eq.data.table(table, "y ~ x")
    assert made.names == ("Intercept", "x[T.(-0.5, 0.5]]", "x[T.(0.5, 9.0]]")
    np.testing.assert_array_equal(made.x[:, 2], frame["x"] > 0.5)


def test_hashed_columns_take_values_never_seen(frame) -> None:
    made = eq.data.table(frame, "y ~ hashed(g, levels=4)")
    assert made.design.columns == {"g": Column("text")}
    unseen = np.asarray(made.design.encode(frame.assign(g="never seen"))[0])
    # one of the four, the same in every row
    assert sorted(unseen[0, 1:]) == [0.0, 0.0, 0.0, 1.0]
    np.testing.assert_array_equal(unseen, np.tile(unseen[0], (N, 1)))
    coded = eq.data.table(frame, "y ~ hashed(g, levels=4) + g")
    with pytest.raises(eq.InvalidInput, match="levels seen when fitting"):
        coded.design.encode(frame.assign(g="never seen"))
    # 3 and 3.0 have different hashes, so the type of the first table decides
    whole = eq.data.table(frame, "y ~ hashed(k, levels=50)")
    np.testing.assert_array_equal(np.asarray(whole.design.encode(frame.assign(k=frame["k"] * 1.0))[0]), whole.x)
    with pytest.raises(eq.InvalidInput, match="k: must be a column of whole numbers"):
        whole.design.encode(frame.assign(k=0.5))


def test_levels_of_equal_value_are_the_same_level(frame) -> None:
    for column, others in (("k", [np.float64, "Int64", "float32"]), ("b", [np.int64, np.float64, "boolean", "Int64"])):
        made = eq.data.table(frame, f"y ~ C({column})")
        for other in others:
            table = frame.assign(**{column: frame[column].astype(other)})
            np.testing.assert_array_equal(np.asarray(made.design.encode(table)[0]), made.x)
    with pytest.raises(eq.InvalidInput, match="b: must be one of the levels"):
        made.design.encode(frame.assign(b=2))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([[1], [2]], "x: must be a column of numbers, text, dates or categories; got values of type 'list'"),
        ([{"a": 1}, {}], "values of type 'dict'"),
        ([object(), object()], "values of type 'object'"),
        (["a", 1], "values of type 'int', 'str'"),
        ([b"a", b"b"], "values of type 'bytes'"),
        ([1j, 2j], "values of type 'complex'"),
        (pd.arrays.SparseArray([0.0, 1.0]), r"x: must be a dense column.*frame\.sparse\.to_dense"),
        (pd.period_range("2020-01", periods=2, freq="M"), "values of type 'Period'"),
        ([dt.time(1), dt.time(2)], "values of type 'time'"),
        ([pd.Timestamp("2020-01-01"), "soon"], "values of type 'Timestamp', 'str'"),
        ([10**30, 1.5], None),
        ([np.inf, 1.0], "x, which is infinite at rows 0"),
    ],
)
def test_columns_of_other_things(column, message) -> None:
    frame = pd.DataFrame({"y": [1.0, 2.0], "x": column})
    if message is None:
        assert eq.data.table(frame, "y ~ x").x[0, 1] == 1e30
        return
    with pytest.raises(eq.InvalidInput, match=message):
        eq.data.table(frame, "y ~ x")
    # no matter while the formula does not use them
    assert eq.data.table(frame, "y ~ 1").n == 2


def test_a_column_of_too_many_levels() -> None:
    frame = pd.DataFrame({"y": np.arange(10_001.0), "name": [f"n{i}" for i in range(10_001)]})
    with pytest.raises(eq.InvalidInput, match=r"name: must be at most 10000 levels.*hashed\(name, levels=100\)"):
        eq.data.table(frame, "y ~ name")
    assert eq.data.table(frame, "y ~ hashed(name, levels=10)").dim == 11


@pytest.mark.parametrize(
    ("formula", "columns"),
    [
        ("y ~ a*b", 300**2 + 600 + 1),
        ("y ~ C(i):C(j)", 300**2 + 1),
        ("y ~ hashed(a, levels=100) * hashed(b, levels=1000)", 101 * 1001),
        ("y ~ bs(i, df=900):poly(j, 25)", 900 * 25 + 1),
        ("y ~ C(i) + i:C(j):a", 300 + 300**2 + 1),
    ],
)
def test_formulas_that_make_too_many_columns_are_refused_before_they_do(formula, columns) -> None:
    i = np.arange(300)
    frame = pd.DataFrame({"y": i / 1.0, "i": i, "j": i, "a": [f"n{v}" for v in i], "b": [f"n{v}" for v in i]})
    with pytest.raises(eq.InvalidInput, match=f"at most 20000 columns; got .*, which makes {columns}"):
        eq.data.table(frame, formula)
    # a number beside its own levels is one column
    assert eq.data.table(frame, "y ~ C(i) + i:C(j)").dim == 600


def test_computed_levels_are_counted_too() -> None:
    frame = pd.DataFrame({"y": np.arange(10_001.0), "x": np.arange(10_001)})
    for formula in ("y ~ C(x)", "y ~ C(x + 1)", "y ~ C(np.floor(x), contr.sum)"):
        with pytest.raises(eq.InvalidInput, match=r"(more than|at most) 10000 levels"):
            eq.data.table(frame, formula)
