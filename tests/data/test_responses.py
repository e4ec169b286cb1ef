"""Weights, offsets and responses of a table: by column or by row, coded where they are two levels."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from equipoise.errors import EquipoiseWarning
from tests.data.conftest import mixed

N = 40


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return mixed(N, 3).assign(x=lambda f: f.z)


@pytest.mark.parametrize("kind", [list, tuple, np.asarray, pd.array, lambda v: pd.Series(v, index=range(N, 0, -1))])
def test_weights_and_offset_by_row(frame, kind) -> None:
    weights, offset = np.linspace(0.5, 2.0, N), np.linspace(-1.0, 1.0, N)
    holes = frame.assign(x=frame["x"].where(frame.index != 5), y=frame["y"].where(frame.index != 8))
    with pytest.warns(EquipoiseWarning, match="2 of 40"):
        made = eq.data.table(holes, "y ~ x", weights=kind(weights), offset=kind(offset), missing="drop")
    np.testing.assert_array_equal(made.weights, np.delete(weights, [5, 8]))
    np.testing.assert_array_equal(made.offset, np.delete(offset, [5, 8]))
    np.testing.assert_array_equal(made.y, np.delete(frame["y"], [5, 8]))


def test_rows_of_weight_zero_are_left_out(frame) -> None:
    weights = np.where(np.arange(N) % 4 == 1, 0.0, 1.5)
    table = frame.assign(w=weights, x=np.where(weights == 0, np.nan, frame["x"]))
    table["g"] = np.where(weights == 0, "only there", table["g"])
    absent = table[weights > 0].reset_index(drop=True)
    expected = eq.data.table(absent, "y ~ scale(x) + g", weights="w")
    nullable = table.assign(w=table["w"].astype("Float64"))
    for made in (
        eq.data.table(table, "y ~ scale(x) + g", weights="w"),
        eq.data.table(table, "y ~ scale(x) + g", weights=list(weights)),
        eq.data.table(nullable, "y ~ scale(x) + g", weights="w"),
    ):
        assert made.names == expected.names
        np.testing.assert_array_equal(made.x, expected.x)
        np.testing.assert_array_equal(made.weights, expected.weights)
        assert made.design == expected.design


def test_missing_weights_are_missing_values(frame) -> None:
    table = frame.assign(w=pd.array([None, 0, *[1] * 38], dtype="Int64"))
    with pytest.raises(eq.InvalidInput, match=r"missing in columns \['w'\], rows 0"):
        eq.data.table(table, "y ~ x", weights="w")
    with pytest.warns(EquipoiseWarning, match=r"^1 of 40 rows"):
        assert eq.data.table(table, "y ~ x", weights="w", missing="drop").n == 38


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": np.ones(N - 1)}, "weights: must be a column name or one number per row of the table, 40; got 39"),
        ({"offset": [1.0]}, "offset: must be a column name or one number per row of the table, 40; got 1 values"),
        ({"offset": 1.0}, "offset: must be a column name or one number per row"),
        ({"weights": np.ones((N, 2))}, "weights: must be a column name or one number per row"),
        ({"weights": ["a"] * N}, "weights: must be numeric; got a column of text"),
        ({"offset": "t"}, "offset: must be numeric; got a column of dates"),
        ({"weights": -np.ones(N)}, "weights: must be positive"),
        ({"offset": np.full(N, np.inf)}, "offset: must be finite; got infinity at rows 0, 1, 2, 3, 4 and 35 more"),
        ({"weights": "wait"}, r"weights: must be made of columns of the table.*got \['wait'\]"),
        ({"offset": "X"}, r"offset: must be made of columns of the table.*got \['X'\]"),
    ],
)
def test_weights_and_offsets_that_do_not_fit(frame, options, message) -> None:
    with pytest.raises(eq.InvalidInput, match=message):
        eq.data.table(frame, "y ~ x", **options)


def test_an_offset_by_row_is_asked_for_when_predicting(frame) -> None:
    made = eq.data.table(frame, "y ~ g", offset=np.linspace(-1.0, 1.0, N))
    assert made.design.offset is None
    with pytest.raises(eq.InvalidInput, match="offset: must be given, as it was when fitting"):
        made.design.encode(frame)
    matrix, offset = made.design.encode(frame.iloc[[4, 2]], offset=[0.5, 1])
    np.testing.assert_array_equal(np.asarray(matrix), made.x[[4, 2]])
    np.testing.assert_array_equal(offset, [0.5, 1.0])
    assert list(offset.index) == [4, 2]
    named = eq.data.table(frame, "y ~ g", offset="x").design
    np.testing.assert_array_equal(named.encode(frame)[1], frame["x"])
    with pytest.raises(eq.InvalidInput, match="offset: must be left out for a table with an offset column"):
        named.encode(frame, offset=np.zeros(N))
    assert eq.data.table(frame, "y ~ g").design.encode(frame)[1] is None


@pytest.mark.parametrize(
    ("response", "levels"),
    [
        (["yes", "no"], ("no", "yes")),
        (pd.Categorical(["yes", "no"]), ("no", "yes")),
        (pd.Categorical(["yes", "no"], categories=["yes", "no"]), ("yes", "no")),
        (pd.array(["yes", "no"], dtype="string"), ("no", "yes")),
        (pd.Categorical([2, 1]), (1, 2)),
    ],
)
def test_a_response_of_two_levels_is_coded(response, levels) -> None:
    frame = pd.DataFrame({"y": response, "x": [0.5, 1.5]})
    made = eq.data.table(frame, "y ~ x")
    np.testing.assert_array_equal(made.y, [float(v == levels[1]) for v in response])
    assert made.design.response_levels == levels
    assert made.response == "y"


@pytest.mark.parametrize("dtype", [bool, "boolean", object])
def test_a_response_of_truth_values_is_coded(frame, dtype) -> None:
    made = eq.data.table(frame.assign(y=frame["b"].astype(dtype)), "y ~ x")
    np.testing.assert_array_equal(made.y, frame["b"].astype(float))
    assert made.design.response_levels is None


def test_responses_of_other_numbers_of_levels(frame) -> None:
    with pytest.raises(
        eq.InvalidInput, match=r"single numeric response.*3 levels, \['a', 'b', 'c'\].*code the response"
    ):
        eq.data.table(frame, "g ~ x")
    with pytest.raises(eq.InvalidInput, match=r"single numeric response.*1 levels, \['a'\]"):
        eq.data.table(frame.assign(g="a"), "g ~ x")
    two = frame.assign(g=np.where(frame["g"] == "a", "a", "b"))
    with pytest.raises(eq.InvalidInput, match="single numeric response"):
        eq.data.table(two, "g ~ x + g")
    with pytest.warns(EquipoiseWarning, match="1 of 40 rows"):
        made = eq.data.table(two.assign(g=two["g"].where(two.index != 3)), "g ~ x", missing="drop")
    assert made.design.response_levels == ("a", "b")
