"""What is no table, files without one, and terms that are not finite: named in messages that stay short."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import equipoise as eq
from equipoise.errors import EquipoiseWarning
from tests.data.conftest import mixed

N = 40


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return mixed(N, 3).assign(x=lambda f: f.z)


def test_anything_that_converts_to_pandas(frame) -> None:
    made = eq.data.table(pa.Table.from_pandas(frame), "y ~ x + g")
    np.testing.assert_array_equal(made.x, eq.data.table(frame, "y ~ x + g").x)
    np.testing.assert_array_equal(np.asarray(made.design.encode(pa.Table.from_pandas(frame))[0]), made.x)


class Broken:
    def to_pandas(self) -> None:
        raise ImportError("pyarrow is needed\nfor this")


class Odd:
    def to_pandas(self) -> int:
        return 3


class Interchange:
    def __dataframe__(self) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Broken(), "converts to pandas; got ImportError: pyarrow is needed for this"),
        (Odd(), "data: must be a DataFrame or a file path; got Odd"),
        (np.ones((3, 2)), "data: must be a DataFrame or a file path; got ndarray"),
        (Interchange(), r"got Interchange\. To fix: convert it with pd\.api\.interchange\.from_dataframe"),
        ({"y": [1.0]}, r"got dict\. To fix: convert it with pd\.DataFrame"),
        (None, "got NoneType"),
        (pd.DataFrame({"y": [], "x": []}), "data: must be a table with at least one row"),
    ],
)
def test_what_is_no_table(data, message) -> None:
    with pytest.raises(eq.InvalidInput, match=message):
        eq.data.table(data, "y ~ x")


def test_columns_of_the_same_name(frame) -> None:
    doubled = pd.concat([frame, frame[["x", "k"]]], axis=1)
    with pytest.raises(eq.InvalidInput, match=r"data: must be .*different names; got several columns named \['x'\]"):
        eq.data.table(doubled, "y ~ x")
    with pytest.raises(eq.InvalidInput, match=r"several columns named \['k'\]"):
        eq.data.table(doubled, "y ~ g", weights="k")
    assert eq.data.table(doubled, "y ~ g").n == N


def test_names_that_are_not_text_and_rows_that_are_not_numbered(frame) -> None:
    odd = frame.rename(columns={"x": 7, "k": ("a", 1)}).set_index(pd.Index(["same"] * N))
    made = eq.data.table(odd, "y ~ `7` + C(g)")
    np.testing.assert_array_equal(made.x[:, 1], frame["x"])
    matrix, _ = made.design.encode(odd.iloc[:3])
    assert list(matrix.index) == ["same"] * 3


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("header.csv", b"y,x\n", "data: must be a table with at least one row"),
        ("empty.csv", b"", "data: must be a readable table; got empty.csv"),
        ("blank.csv", b"\n\n\n", "data: must be a readable table; got blank.csv"),
        ("wide.csv", b"y,x\n1,2,3\n1,2,3\n", "more fields than the header"),
        ("bytes.csv", b"y,x\n\xff\xfe,2\n", "data: must be a readable table; got bytes.csv"),
        ("odd.csv", b"y,x\n1,2\n1,2,3\n", "data: must be a readable table; got odd.csv"),
        ("short.parquet", b"PAR1", "data: must be a readable table; got short.parquet"),
        ("empty.parquet", b"", "data: must be a readable table; got empty.parquet"),
    ],
)
def test_files_without_a_table(tmp_path, name, content, message) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(eq.InvalidInput, match=message) as caught:
        eq.data.table(tmp_path / name, "y ~ x")
    assert len(str(caught.value)) < 1000


def test_damaged_parquet_files(frame, tmp_path) -> None:
    path = tmp_path / "data.parquet"
    frame.to_parquet(path)
    whole = path.read_bytes()
    cuts = [whole[:length] for length in (len(whole) // 4, len(whole) // 2, len(whole) - 5)]
    for content in (*cuts, whole[:-200] + bytes(192) + whole[-8:]):
        path.write_bytes(content)
        with pytest.raises(eq.InvalidInput, match="data: must be a readable table"):
            eq.data.table(path, "y ~ x")


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("y ~ log(n)", r"formula: must be finite in every term; got log\(n\), which is infinite at rows 3, 30\."),
        ("y ~ x + np.log(n):x", r"np\.log\(n\):x, which is infinite at rows 3, 30"),
        ("log(n) ~ x", r"log\(n\), which is infinite at rows 3, 30"),
        ("y ~ I(x / n)", r"I\(x / n\), which is infinite at rows 3, 30"),
        ("y ~ sqrt(-1 - n)", r"sqrt\(-1 - n\), which is undefined \(NaN\) at rows 0, 1, 2, 3, 4 and 35 more"),
    ],
)
def test_terms_that_are_not_finite_are_named(frame, formula, message) -> None:
    table = frame.assign(n=np.where(np.isin(np.arange(N), [3, 30]), 0, 2))
    for missing in ("raise", "drop"):
        with pytest.raises(eq.InvalidInput, match=message) as caught:
            eq.data.table(table, formula, missing=missing)
        assert "missing=" not in str(caught.value)
    # rows are counted as in the table given, whatever was left out before
    holes = table.assign(x=table["x"].where(table.index != 1))
    if "x" in formula:
        with pytest.raises(eq.InvalidInput, match="rows 3, 30"):
            eq.data.table(holes, formula, missing="drop")


def test_new_tables_must_be_finite_too(frame) -> None:
    made = eq.data.table(frame, "y ~ log(k)")
    with pytest.raises(eq.InvalidInput, match=r"log\(k\), which is infinite at rows 1\."):
        made.design.encode(pd.DataFrame({"k": [1, 0, 3]}, index=["u", "v", "w"]))


def test_lagged_columns(frame) -> None:
    with pytest.raises(eq.InvalidInput, match=r"lag\(x\), which is undefined.*rows 0.*missing='drop'"):
        eq.data.table(frame, "y ~ lag(x)")
    with pytest.warns(EquipoiseWarning, match=r"^2 of 40 rows"):
        made = eq.data.table(frame, "y ~ lag(x, 2) + lag(y)", missing="drop", weights="k")
    np.testing.assert_array_equal(made.x[:, 1:], np.column_stack([frame["x"][:-2], frame["y"][1:-1]]))
    np.testing.assert_array_equal(made.y, frame["y"][2:])
    np.testing.assert_array_equal(made.weights, frame["k"][2:])
    assert made.design.dropped == 2
    # the row before would not be the row before
    for table, options in (
        (frame.assign(x=frame["x"].where(frame.index != 9)), {}),
        (frame, {"weights": [0] + [1] * 39}),
    ):
        with pytest.raises(eq.InvalidInput, match=r"without lag\(\) where rows in between are left out"):
            eq.data.table(table, "y ~ lag(x)", missing="drop", **options)


def test_nothing_left_to_fit(frame) -> None:
    with pytest.raises(eq.InvalidInput, match="data: must be a table with rows left to fit"):
        eq.data.table(frame.assign(x=np.nan), "y ~ x", missing="drop")
    with pytest.raises(eq.InvalidInput, match="data: must be a table with rows left to fit"):
        eq.data.table(frame, "y ~ lag(x, 40)", missing="drop")


def test_messages_stay_short() -> None:
    long = {f"{'a very long column name indeed ' * 8}{i}": [1.0, 2.0] for i in range(300)}
    frame = pd.DataFrame({"y": [1.0, 2.0], "g": ["u" * 500, "v" * 500], **long})
    design = eq.data.table(frame, "y ~ g").design
    holes = frame.assign(**dict.fromkeys(long, np.nan))
    many = " + ".join(f"`{name}`" for name in list(long)[:30])
    calls = [
        lambda: eq.data.table(frame, f"y ~ {many}x"),
        lambda: eq.data.table(frame, "y ~ " + " + ".join(f"`{name}?`" for name in list(long)[:30])),
        lambda: eq.data.table(holes, f"y ~ {many}"),
        lambda: eq.data.table(frame, "y ~ absent"),
        lambda: eq.data.table(frame, "y ~ " + "z" * 9000),
        lambda: eq.data.table(frame, "y ~ center(" + "z" * 9000 + ".mean())"),
        lambda: eq.data.table(frame, "y ~ Q('" + "z" * 9000 + "')"),
        lambda: eq.data.table(frame, "y ~ I(" + "x" * 9000),
        lambda: eq.data.table(frame, "y ~ C(g, levels=['" + "w" * 9000 + "'])"),
        lambda: eq.data.table("absent" * 500, "y ~ x"),
        lambda: design.encode(frame.assign(g=["w" * 3000, "v" * 500])),
        lambda: design.encode(frame.drop(columns="g")),
    ]
    for call in calls:
        with pytest.raises(eq.InvalidInput) as caught:
            call()
        assert len(str(caught.value)) < 1000
        assert str(caught.value).count("\n") < 10
